"""From the words of a command line to a plan."""
import pathlib

from . import document
from .division import PRESETS, division_of
from .errors import Refusal
from .experiment import read_file
from .files import Digests
from .plan import make_plan


def assignments(words, flag):
    made = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise Refusal(f"{flag} cannot be '{word}' (it has no '='); write NAME=VALUE")
        made[name] = value
    return made


def settings_of(chosen):
    return {name: document.parse(value) for name, value in assignments(chosen.set, "--set").items()}


def only_of(chosen):
    return {name: document.parse(value) for name, value in assignments(chosen.only, "--only").items()}


def planned(chosen, to_run=True):
    """(file, plan, division) of a command line; without `to_run` programs and data need not be here."""
    settings = settings_of(chosen)
    file = read_file(find_file(chosen.file), settings, assignments(chosen.place, "--place"))
    division = division_of(file, settings, chosen.division)
    return file, make_plan(file, Digests() if to_run else None, chosen.most_runs, only_of(chosen)), division


def find_file(name):
    """A path, or the name of a preset."""
    preset = PRESETS / f"{name}.yaml"
    return preset if not pathlib.Path(name).exists() and "/" not in name and preset.is_file() else pathlib.Path(name)
