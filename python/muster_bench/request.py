"""Converts the words of a command line to a plan."""
import dataclasses
import pathlib

from . import document
from .division import PRESETS, division_of
from .errors import Refusal
from .experiment import read_file
from .files import Digests
from .plan import make_plan

LAUNCHED = ("mpirun", "srun", "hosts")   # launchers that start a command once for each rank, in the same way


def assignments(words, flag):
    assigned = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise Refusal(f"{flag} cannot be '{word}' (it has no '='); write NAME=VALUE")
        assigned[name] = value
    return assigned


def settings_of(chosen):
    return {name: document.parse(value) for name, value in assignments(chosen.set, "--set").items()}


def only_of(chosen):
    return {name: document.parse(value) for name, value in assignments(chosen.only, "--only").items()}


def planned(chosen, to_run=True):
    """Returns (file, plan, division) of a command line; without `to_run` programs and data may be missing."""
    settings = settings_of(chosen)
    file = read_file(find_file(chosen.file), settings, assignments(chosen.place, "--place"))
    file, changes = relaunched(file, getattr(chosen, "launcher", None), getattr(chosen, "cpus_per_rank", None))
    division = division_of(file, [*(f"--set {name}" for name in settings), *changes], chosen.division)
    return file, make_plan(file, Digests(own=chosen.out or "") if to_run else None, chosen.most_runs, only_of(chosen)), division


def relaunched(file, kind, cpus):
    """Returns the file with this launcher for templates with ranks, and with runs that are limited to these processors;
    and the list of changes."""
    if cpus is not None and not cpus > 0:
        raise Refusal(f"--cpus-per-rank cannot be {cpus:g} (it is above 0); leave it out")

    def changed(experiment):
        template = experiment.template
        if kind and template.launcher.kind in LAUNCHED:
            template = dataclasses.replace(template, launcher=dataclasses.replace(template.launcher, kind=kind, options=()))
        if cpus:
            template = dataclasses.replace(template, resources=dataclasses.replace(template.resources, cpus_per_rank=cpus, hold=True))
        return dataclasses.replace(experiment, template=template)
    changes = [name for name, value in (("--launcher", kind), ("--cpus-per-rank", cpus)) if value]
    return (dataclasses.replace(file, experiments=tuple(map(changed, file.experiments))) if changes else file), changes


def find_file(name):
    """Returns the path of a file or of a preset with that name."""
    preset = PRESETS / f"{name}.yaml"
    return preset if not pathlib.Path(name).exists() and "/" not in name and preset.is_file() else pathlib.Path(name)
