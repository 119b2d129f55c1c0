"""Runs a workflow by Snakemake: the steps to run become rules, and each rule starts wrapper.py for one step."""
import json
import math
import os
import pathlib
import shlex
import shutil
import sys
import threading
import time
import types

from muster_bench import files, launchers, process, seen
from muster_bench.errors import FAILED_RUNS, FINISHED, INTERRUPTED, NoRoom, Refusal
from muster_bench.progress import Line, shown_active
from muster_bench.runner import signals
from muster_bench.text import human_seconds
from . import fan_out, slurm_status, steps, wrapper
from .collect import collect
from .store import MARKER, Store

LIMITS = types.SimpleNamespace(log=16 << 20, disk=0)   # limits of Snakemake itself
RUN, STAY, WATCH = "run", "stay", "watch"              # forms of a run: what ends its services
MILLI = 1000                                           # parts of a core: Snakemake's resources are whole numbers


def run(flow, folder, stay=False, watched=False, slurm=None):
    """Returns the exit status. Starts nothing if no step has to run. `watched`: watch.py runs the steps without `wait`.
    `slurm`: words for sbatch, which makes each step a job."""
    folder = pathlib.Path(folder).absolute()
    files.make_folder(folder)
    check_owner(flow, folder)
    held = files.FolderLock(folder)
    try:
        files.write_json(folder / MARKER, {"format": files.FORMAT, "name": flow.name, "file": flow.path, **flow.given}, mode=files.PRIVATE)
        flow = fan_out.expanded(flow, folder)
        store = Store(folder, flow)
        planned = to_run(flow, store.reasons(), stay or watched)
        store.keep_digests()
        if not planned:
            print(f"nothing to run: {len(flow.steps)} steps are up to date")
            print_results(store)
            _collect(store)
            return FINISHED
        if shutil.which("snakemake") is None:
            raise Refusal("a workflow is run by Snakemake (which is not here); apt-get install snakemake")
        if slurm is not None and shutil.which("sbatch") is None:
            raise Refusal("steps become jobs by sbatch (which is not here); install slurm-client, or leave --slurm out")
        for step in flow.steps.values():
            launchers.check_launcher(wrapper.on_slurm(step) if slurm is not None else step)
        files.write_whole(folder / "flow.json", json.dumps(flow.to_json()), mode=files.PRIVATE)
        # keeps the locks: a step of a killed runner may still hold one
        for ended in files.make_folder(folder / "run").glob("[!.]*"):
            ended.unlink()
        files.write_whole(folder / "Snakefile", snakefile(flow, planned, folder, stay), mode=files.PRIVATE)
        words, variables = _on_slurm(len(planned), slurm) if slurm is not None else _on_this_machine()
        status = _snakemake(store, planned, words, {**variables, **({wrapper.WATCHED: "1"} if watched else {})}, WATCH if watched else STAY if stay else RUN)
        _collect(store)
        return status
    finally:
        held.release()


def _collect(store):
    count, _ = collect(store, store.flow.keep["age"], store.flow.keep["size"])
    if count:
        print(f"{count} results removed that no step uses")


def _on_this_machine():
    """Returns (words, variables) for Snakemake."""
    return ["--resources", f"core={launchers.cores_here() * MILLI}"], {}


def _on_slurm(jobs, words):
    """Returns (words, variables) with each step as a job."""
    status = shlex.join([sys.executable, "-I", "-S", slurm_status.__file__])
    submit = ["env", "-u", "CI", "sbatch", "--parsable", "--requeue", "--open-mode=append", "--job-name={rule}", "--output=run/slurm-%j.log", "{resources.asks}",
              *(word.replace("{", "{{").replace("}", "}}") for word in words)]
    # Without CI Snakemake waits for 10 s between two checks of the jobs.
    return ["--cluster", " ".join(submit), "--cluster-status", status, "--cluster-cancel", "scancel", "--jobs", str(jobs + 1),
            "--max-status-checks-per-second", "2"], {"CI": "true", wrapper.SLURM: "1"}


def resources_of(step):
    """Returns (parts of cores, words for sbatch) that a step requests."""
    cpus = math.ceil(step.resources.cpus_per_rank)
    memory = f" --mem-per-cpu={max(1, step.resources.memory // cpus >> 20)}M" if step.resources.memory else ""
    cores = min(step.ranks * step.resources.cpus_per_rank, launchers.cores_here()) if step.wait else 0
    return int(cores * MILLI), f"--ntasks={step.ranks} --cpus-per-task={cpus}{memory}"


def fan_out_of(group):
    """Returns the steps of a fan-out, by their names, of the workflow in the present folder; called in Snakemake."""
    flow = steps.from_json(pathlib.Path("flow.json").read_text())
    return {name: step for name, step in flow.steps.items() if step.group == group and name != group}


def to_run(flow, reasons, stay):
    """Returns the names of the steps that run or may run, in their order. A step without `wait` runs if a step that
    needs it runs, or if no step ever needs it."""
    sure = {name for name, why in reasons.items() if why}
    needed = {need for name in sure for need in flow.steps[name].needs}
    asked = {need for step in flow.steps.values() for need in step.needs}
    return [name for name, step in flow.steps.items()
            if name in sure or (not step.wait and (name in needed or stay or (sure and name not in asked)))]


def snakefile(flow, planned, folder, stay):
    """Returns rules of the steps to run. A file in `run` shows that a step has succeeded."""
    command = shlex.join([sys.executable, "-I", "-S", wrapper.__file__, str(folder)]).replace("{", "{{").replace("}", "}}")
    ends = {name: f"run/{name}" for name in planned}
    # servers are not jobs of a cluster
    here = [f"step_{number}" for number, name in enumerate(planned) if not flow.steps[name].wait]
    here += [f"step_{number}" for number, name in enumerate(planned) if flow.steps[name].each]
    rules = [f"import sys\nsys.path.insert(0, {steps.PLATFORM!r})\nfrom muster_flow.engine import fan_out_of, resources_of\n"] if any(flow.steps[name].each for name in planned) else []
    rules += [f"localrules: {', '.join(['all', *here])}\n", f"rule all:\n    input: {list(ends.values())}\n" + ("    shell: \"sleep infinity\"\n" if stay else "")]
    lists = {step.each for step in flow.steps.values() if step.each}
    for number, name in enumerate(planned):
        step = flow.steps[name]
        needs = [ends[need] for need in step.needs if need in ends]
        cores, asks = resources_of(step)
        kind = "checkpoint" if lists.intersection(step.outputs.values()) else "rule"
        if not step.each:
            rules.append(_rule(f"{kind} step_{number}", needs, ends[name], cores, repr(asks), f"{command} {name}"))
            continue
        # a rule for each step of the list, and the fan-out itself, which ends after these
        of_one = f"fan_out_of({name!r})[{name + '-'!r} + wildcards.each]"
        of_list = f"lambda wildcards: {needs} + [f'run/{{name}}' for name in {of_one}.needs if name in {planned}]"
        rules.append(_rule(f"rule step_{number}_each", of_list, f"run/{name}-{{each}}", f"lambda wildcards: resources_of({of_one})[0]", f"lambda wildcards: resources_of({of_one})[1]",
                           f"{command} {name}-{{wildcards.each}}", "    wildcard_constraints: each=\"[A-Za-z0-9_-]+\"\n"))
        maker = planned.index(flow.maker(step.each).name)
        found = f"lambda wildcards: checkpoints.step_{maker}.get() and {needs} + ['run/' + name for name in fan_out_of({name!r})]"
        rules.append(_rule(f"rule step_{number}", found, ends[name], 0, repr(asks), f"{command} {name}"))
    return "\n".join(rules)


def _rule(head, needs, end, cores, asks, command, more=""):
    return f"{head}:\n    input: {needs}\n    output: {end!r}\n{more}    resources: core={cores}, asks={asks}\n    shell: {command!r}\n"


def _snakemake(store, planned, where, variables, form):
    stop, began = threading.Event(), time.time()
    words = ["snakemake", "--snakefile", "Snakefile", "--cores", str(len(planned) + 1), *where,
             "--scheduler", "greedy", "--nolock", "--nocolor", "--keep-going", "--drop-metadata", "--rerun-triggers", "mtime", "--latency-wait", "0"]
    timeline = Timeline(store, began, planned, planned if form == STAY else [])
    with signals(stop):
        print(f"{len(planned)} of {len(store.flow.steps)} steps are to run, or may have to", flush=True)
        ended = process.run(words, {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables}, store.folder, store.folder / "snakemake.log", LIMITS,
                            float("inf"), stop, timeline)
    timeline()
    timeline.end()
    if ended.status == "full":
        raise NoRoom(f"the disk of '{store.folder}' is full (less than {process.LEAST_FREE >> 20} MiB are free); make room and run the same command "
                     "again, what has ended is kept")
    if ended.status == "interrupted":
        print("interrupted; the same command continues", file=sys.stderr)
        return INTERRUPTED
    store.flow = fan_out.as_run(store.flow, store.folder)
    # a fan-out is left if one of its steps has failed
    of_lists = [name for name, step in store.flow.steps.items() if step.group in planned and name not in planned]
    ended_well = [name for name in (*planned, *of_lists) if (store.folder / "run" / name).exists()]
    left = [name for name in (*planned, *of_lists) if name not in ended_well]
    failed = {name: why for name, why in timeline.failed.items() if name in left}
    for name in left:
        print(f"muster-flow: {name}: {failed.get(name, 'not run (a step that it needs has failed)')}", file=sys.stderr)
    if ended.status != "ok" and not left:
        raise Refusal(f"Snakemake failed ({ended.why}); see '{store.folder / 'snakemake.log'}'")
    print(f"{len(ended_well)} steps have ended well in {time.time() - began:.1f} s" + (f", {len(left)} have not" if left else ""))
    if not left:
        print_results(store, form)
    return FAILED_RUNS if left else FINISHED


def print_results(store, form=RUN):
    """Prints the results, each with the last line of the step that made it, and the addresses of the services with the way to keep them."""
    for name, path in store.flow.results:
        if (store.folder / path).exists():
            said = store.last_line(name)
            print(f"{name}: {store.folder / path}{f' ({said})' if said else ''}", flush=True)
    for step in store.flow.steps.values():
        if step.address and form == RUN:
            words = ["muster-flow", *sys.argv[1:]]
            watch = ", or muster-flow watch" if any(store.flow.watch[name] for name in ("schedule", "data", "revision")) else ""
            print(f"{step.name}: nothing listens any more at {step.address}; {shlex.join([*words, '--stay'])} keeps it{watch}")
        elif step.address:
            print(f"{step.name}: answers at {step.address} until {'Ctrl-C' if form == STAY else 'the watch'} ends it", flush=True)


class Timeline:
    """A reader of the metadata that prints each new event of a step, and meanwhile shows the active steps."""

    def __init__(self, store, began, planned, staying):
        self.failed, self._began, self._store, self._staying = {}, began, store, staying   # steps of a run that stays
        self._line, self._active, self._left = Line(output=sys.stdout), {}, set(planned)
        self._planned, self._took = planned, _last_seconds(store)
        for name in planned:
            of_group = [seconds for step, seconds in self._took.items() if step.startswith(f"{name}-")]
            if name not in self._took and of_group:
                self._took[name] = max(of_group)
        self._lines = files.NewLines(store.metadata, store.metadata.stat().st_size if store.metadata.exists() else 0)

    def end(self):
        self._line.clear()

    def _note(self, event):
        """Keeps the active steps."""
        if event["event"] == "begin":
            self._active[event["step"]] = time.monotonic()
        elif event["event"] in ("end", "ready"):
            self._active.pop(event["step"], None)
            self._left.discard(event["step"])
            # The name of a fan-out has no event of its own.
            self._left -= {name for name in self._left if self._store.flow.steps[name].each and (self._store.folder / "run" / name).exists()}

    def _shown(self):
        if not self._active:
            return ""
        seconds = self._seconds_left()
        rest = "" if seconds is None else f"; about {human_seconds(seconds)} left"
        return f"[{len(self._planned) - len(self._left)}/{len(self._planned)}] {shown_active(self._active)}{rest}"

    def _seconds_left(self):
        """Returns the time of the longest chain of steps, each with its last duration; None if a duration is unknown."""
        if any(name not in self._took for name in self._left):
            return None
        ends = {}
        for name in self._planned:   # a step comes after the steps that it needs
            if name in self._left:
                spent = time.monotonic() - self._active[name] if name in self._active else 0
                ends[name] = max((ends.get(need, 0) for need in self._store.flow.steps[name].needs), default=0) + max(0, self._took[name] - spent)
        return max(ends.values(), default=0)

    def __call__(self):
        for line in self._lines().splitlines():
            event = json.loads(line)
            self._note(event)
            if (text := _shown(event)) is not None:
                self._line.clear()
                print(f"{event['at'] - self._began:8.1f} s  {event['step']}: {text}", flush=True)
            for kind in ("inputs", "code", "modules"):
                for name in (name for name, digest in event.get("parts", {}).get(kind, {}).items() if digest == seen.CHANGED):
                    print(f"{'':12}{event['step']}: '{name}' was changed while it ran (its output may be of both); it runs again the next time", flush=True)
            if unseen := seen.not_looked_at(event.get("parts", {}), event.get("written", ())):
                print(f"{'':12}{event['step']} does not run again for {unseen}; name what it reads among its inputs", flush=True)
            if event["event"] == "end" and event["state"] == "failed":
                self.failed[event["step"]] = f"{event['cause']}: {event['why']}"
        if self._staying and all((self._store.folder / "run" / name).exists() for name in self._staying):
            self._line.clear()
            print_results(self._store, STAY)
            self._staying = []
        self._line.update(self._shown)
        return None


def _last_seconds(store):
    """Returns the duration of each step's last run that ended well."""
    return {event["step"]: event["seconds"] for event in store.events()
            if event["event"] == "end" and event["state"] == "done" and event.get("seconds") is not None}


def _shown(event):
    kind = event["event"]
    if kind == "begin":
        return "begins" if event["attempt"] == 1 else f"begins, attempt {event['attempt']}"
    if kind == "ready":
        return "is ready"
    if kind == "attempt" and event["action"] not in ("done", "fail", "abandon"):
        return f"{event['cause']}: {event['why']}"
    if kind == "end":
        accuracy = f", accuracy {event['accuracy']:.4f}" if event.get("accuracy") is not None else ""
        why = f" ({event['cause']}{': ' + event['why'] if event['why'] else ''})" if event["state"] != "up to date" and event["cause"] != "done" else ""
        return f"{event['state']}{why}{accuracy}"
    return None


def check_owner(flow, folder):
    """Refuses a folder with other content."""
    there = files.read_json(folder / MARKER)
    strangers = [entry.name for entry in folder.iterdir() if entry.name not in ("lock", "watch")]
    if there is None and strangers:
        raise Refusal(f"'{folder}' is not empty and holds no results of this runner ('{strangers[0]}' is there); choose another --out")
    if there is not None and there.get("name") != flow.name:
        raise Refusal(f"'{folder}' holds the results of '{there.get('name')}' (this is '{flow.name}'); choose another --out")
