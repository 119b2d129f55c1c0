"""The command line."""
import argparse
import json
import os
import pathlib
import sys

from . import document
from .division import PRESETS, digest, division_of
from .errors import FINISHED, Refusal
from .experiment import read_file
from .files import Digests
from .launchers import cores_here, launched, shown
from .plan import make_plan
from .runner import Runner
from .sweep import MOST_RUNS

ABOUT = """Runs benchmarks that a file describes, goes on where it was ended, and reports.

exit status: 0 all runs ended well; 1 some failed, and are reported; 2 the file, the command line or the folder cannot be
used; 3 another runner works in the folder; 4 no room or no right to write; 5 something got slower (compare
--fail-on-slower); 130 interrupted, the same command goes on. docs/platform.md describes files and results."""


def parser():
    made = argparse.ArgumentParser(prog="muster-bench", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run what a file describes")
    run.set_defaults(call=run_command)
    _file_arguments(run)
    run.add_argument("--out", metavar="DIR", help="where results go; the same folder again goes on")
    run.add_argument("--dry-run", action="store_true", help="print the commands and write nothing")
    run.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time (their times then disturb each other)")
    run.add_argument("--retry-failed", action="store_true", help="run those again that failed before")
    lock = commands.add_parser("lock", help="print the digests by which closed presets are known")
    lock.set_defaults(call=lock_command)
    lock.add_argument("files", nargs="+", metavar="FILE")
    return made


def _file_arguments(command):
    command.add_argument("file", metavar="FILE", help="an experiment in YAML, or the name of a preset")
    command.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                         help="give a parameter another value, or a list [1, 2]")
    command.add_argument("--place", action="append", default=[], metavar="NAME=PATH",
                         help="where something lies on this machine, such as build=build/release")
    command.add_argument("--division", choices=("open", "closed"), help="open: a changed preset may run")
    command.add_argument("--most-runs", type=int, default=MOST_RUNS, metavar="N", help="refuse to expand to more [%(default)s]")


def assignments(words, flag):
    made = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise Refusal(f"{flag} cannot be '{word}' (it has no '='); write NAME=VALUE")
        made[name] = value
    return made


def planned(chosen):
    """(file, plan, division) of a command line."""
    settings = {name: document.parse(value) for name, value in assignments(chosen.set, "--set").items()}
    file = read_file(find_file(chosen.file), settings, assignments(chosen.place, "--place"))
    division = division_of(file, settings, chosen.division)
    return file, make_plan(file, Digests(), chosen.most_runs), division


def find_file(name):
    """A path, or the name of a preset."""
    preset = PRESETS / f"{name}.yaml"
    return preset if not pathlib.Path(name).exists() and "/" not in name and preset.is_file() else pathlib.Path(name)


def run_command(chosen):
    if chosen.jobs < 1:
        raise Refusal(f"--jobs cannot be {chosen.jobs} (it is 1 or more); leave it out")
    file, plan, division = planned(chosen)
    if chosen.dry_run:
        home = pathlib.Path(chosen.out or "OUT").absolute()
        for run in plan:
            print(f"{run.id}\n  {shown(*launched(run, home / 'experiments' / run.id))}")
        print(f"{len(plan)} runs, {division} division")
        return FINISHED
    if not chosen.out:
        raise Refusal("nobody said where the results go (--out is left out); add --out DIR")
    busiest = max(run.ranks * run.template.resources.cpus_per_rank for run in plan)
    if chosen.jobs * busiest > cores_here():
        print(f"muster-bench: up to {chosen.jobs * busiest} ranks at a time share {cores_here()} cores: look at no times",
              file=sys.stderr)
    return Runner(file, plan, chosen.out, division, chosen.jobs, chosen.retry_failed).run()


def lock_command(chosen):
    closed = [file for file in map(read_file, chosen.files) if file.division == "closed"]
    print(json.dumps({file.name: digest(file.content) for file in closed}, indent=2, sort_keys=True))
    return FINISHED


def main(words=None):
    chosen = parser().parse_args(words)
    try:
        return chosen.call(chosen)
    except Refusal as refusal:
        print(f"muster-bench: {refusal}", file=sys.stderr)
        return refusal.status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINISHED
