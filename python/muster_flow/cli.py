"""The command line of muster-flow."""
import argparse
import contextlib
import os
import pathlib
import shlex
import sys
import time

from muster_bench import files, seen
from muster_bench.document import parse
from muster_bench.errors import FINISHED, Refusal, closest, listed
from muster_bench.files import read_json
from muster_bench.text import bytes_of, value_text, without_secrets
from . import fan_out, lineage, select, workflow
from .collect import collect
from .steps import accuracy_of
from .store import MARKER, Store

ABOUT = """Runs the steps of a workflow that a file describes, by Snakemake, continues after an interruption, and repeats steps with changes.

exit status: 0 all steps ended well, or nothing was to run; 1 some failed; 2 the file, the command line or the folder cannot be used; 3
another runner works in the folder; 4 no room or no right to write; 130 interrupted, the same command continues. docs/workflow.md describes
files and results."""


def parser():
    root = argparse.ArgumentParser(prog="muster-flow", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name, call, about, kinds=()):
        subparser = commands.add_parser(name, help=about)
        subparser.set_defaults(call=call)
        if kinds:
            subparser.add_argument("kind", choices=kinds)
        subparser.add_argument("file", metavar="FILE", help="a workflow in YAML")
        subparser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="give a parameter another value")
        subparser.add_argument("--place", action="append", default=[], metavar="NAME=PATH", help="a path on this machine")
        subparser.add_argument("--out", required=True, metavar="DIR", help="the folder of results, or of the files for a cluster")
        return subparser
    run = command("run", run_command, "run the steps without a current result")
    run.add_argument("--stay", action="store_true", help="go on with the steps that are not waited for when the others have ended, until it is interrupted")
    command("watch", watch_command, "run it again by a schedule, when its data changed, or when a git revision moved")
    run.add_argument("--slurm", nargs="?", const="", metavar="WORDS", help='each step is a job of Slurm; with these words for sbatch, such as "--account=physics --qos=low"')
    command("status", status_command, "show the state of each step")
    explain = command("explain", explain_command, "why a step would run again")
    explain.add_argument("step", metavar="STEP")
    removes = command("gc", gc_command, "remove results that no step uses")
    removes.add_argument("--unused", metavar="TIME", help="only results that were unused for so long [keep: age of the file, 14d]")
    removes.add_argument("--size", metavar="SIZE", help="and then the oldest, until all results have at most this size [keep: size of the file]")
    export = command("export", export_command, "write the workflow for a cluster", ("argo", "kueue", "kserve"))
    export.add_argument("--image", required=True, metavar="NAME", help="the image with muster and the programs")
    export.add_argument("--results", default="/results", metavar="PATH", help="a folder that all pods share [%(default)s]")
    chooses = commands.add_parser("select", help="make the best of some models the newest version of a repository")
    chooses.set_defaults(call=select.run)
    select.add_arguments(chooses)
    shows = commands.add_parser("show", help="where a published model comes from: data, programs, parameters and steps")
    shows.set_defaults(call=lineage.run)
    lineage.add_arguments(shows)
    return root


def _pairs(entries, flag, read):
    pairs = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals:
            raise Refusal(f"{flag} {entry} has no value (it is NAME=VALUE); add one")
        pairs[name] = read(value)
    return pairs


def _flow(chosen, more=None, before=None, image=""):
    return workflow.read_file(chosen.file, {**_pairs(chosen.set, "--set", parse), **(more or {})}, _pairs(chosen.place, "--place", str), before, image)


def _flow_of_results(chosen):
    """Returns the workflow with the settings of the last run in the folder, which those of the command line replace."""
    last = read_json(pathlib.Path(chosen.out, MARKER)) or {}
    flow = _flow(chosen, before=last)
    told = {"set": _pairs(chosen.set, "--set", parse), "place": _pairs(chosen.place, "--place", str)}
    taken = [word for kind, values in flow.given.items() for name, value in values.items() if name not in told[kind] for word in (f"--{kind}", f"{name}={value_text(value)}")]
    if taken:
        print(f"as the last run: {without_secrets(shlex.join(taken))}", file=sys.stderr)
    return fan_out.expanded(flow, chosen.out)


def run_command(chosen):
    from . import engine
    return engine.run(_flow(chosen), chosen.out, chosen.stay, slurm=None if chosen.slurm is None else shlex.split(chosen.slurm))


def watch_command(chosen):
    from . import watch

    def read(commit):
        flow = _flow(chosen)
        parameter = flow.watch["revision"].get("parameter")
        return _flow(chosen, {parameter: commit}) if parameter and commit else flow
    return watch.run(read, chosen.out)


def status_command(chosen):
    flow = _flow_of_results(chosen)
    store = Store(chosen.out, flow)
    last = {}
    for event in store.events():
        if event["event"] in ("begin", "ready", "end") or (event["event"] == "sample" and event.get("epoch")):
            last[event["step"]] = event
    for name, why in store.reasons().items():
        event, record = last.get(name, {}), store.record(name)
        state = event.get("state") or {"begin": "runs", "sample": "runs", "ready": "is ready"}.get(event.get("event"), "not run")
        if state == "up to date":
            state = record["state"] if record else state
        accuracy = event.get("accuracy") if event.get("event") == "sample" else accuracy_of(record or {})
        columns = [state, f"{record['ended'] - record['began']:.1f} s" if record and record.get("began") else "", f"accuracy {accuracy:.4f}" if accuracy is not None else "",
                   event.get("why", "") if state in ("failed", "abandoned") else "", f"to run: {why[0]}" if why else ""]
        print(f"{name}: {', '.join(filter(None, columns))}")
    return FINISHED


def explain_command(chosen):
    flow = _flow_of_results(chosen)
    if chosen.step not in flow.steps:
        raise Refusal(f"there is no step '{chosen.step}' (known: {listed(flow.steps)}); {closest(chosen.step, flow.steps, 'name one of these')}")
    store = Store(chosen.out, flow)
    why = list(store.reasons()[chosen.step])
    last = next((event for event in reversed(list(store.events())) if event["step"] == chosen.step and event["event"] == "end"), None)
    if why and last and last["state"] == "failed":
        why.append(f"its last run failed ({last['cause']}: {last['why']})")
    record = store.record(chosen.step)
    again = " again" if record or (last and flow.steps[chosen.step].wait) else ""
    print("\n".join(f"{chosen.step} runs{again}: {one}" for one in why) if why else f"{chosen.step} is up to date")
    if record and (unseen := seen.not_looked_at(record["parts"], record.get("written", ()))):
        print(f"{chosen.step} does not run again for {unseen}")
    return FINISHED


def gc_command(chosen):
    flow, began = _flow_of_results(chosen), time.monotonic()
    unused = workflow.seconds_of(chosen.unused, "--unused") if chosen.unused else flow.keep["age"]
    size = bytes_of(chosen.size, "--size") if chosen.size else flow.keep["size"]
    store = Store(chosen.out, flow)
    if not store.folder.is_dir():
        raise Refusal(f"there is no folder '{store.folder}' (nothing was run there); name the --out of a run")
    # removes nothing while a runner works, nor files of a watch's servers between two runs
    with contextlib.ExitStack() as held:
        for folder in filter(os.path.isdir, (store.folder, store.folder / "watch")):
            held.callback(files.FolderLock(folder).release)
        count, behind = collect(store, unused, size)
        print(f"{count} results removed in {time.monotonic() - began:.1f} s{'; the disk frees their room in the background' if behind else ''}")
    return FINISHED


def export_command(chosen):
    from . import export, exported
    for path in export.write(_flow(chosen, image=exported.PLATFORM), chosen.kind, chosen.out, chosen.image, chosen.results):
        print(path)
    return FINISHED
