"""Runs one step of a workflow: python3 -I -S wrapper.py DIR STEP. Snakemake starts it after the needed steps have ended. It looks for
a result with the same inputs, else runs the command, watches it, reports its end (ends.py) and acts on it."""
import collections
import contextlib
import dataclasses
import os
import pathlib
import resource
import signal
import subprocess
import sys
import threading
import time
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from muster_bench import files, holding, launchers, process  # noqa: E402
from muster_bench.errors import FAILED_RUNS, FINISHED, Refusal  # noqa: E402
from muster_flow import ends, steps  # noqa: E402
from muster_flow.samples import Sampler  # noqa: E402
from muster_flow.store import Missing, Store  # noqa: E402
from muster_bench.live import Look  # noqa: E402

EVERY = 2.0        # seconds between two samples
TAIL = 8192        # bytes at the end of a command's output that decide its cause of failure
PAUSE = 2.0        # seconds before a first repetition because a source is away; each further pause is twice as long
LONGEST_PAUSE = 300.0
READY = 0.1        # seconds between two checks whether a step without `wait` is ready
WATCHED = "MUSTER_FLOW_WATCHED"   # in the environment: a watch runs the steps without `wait`
SLURM = "MUSTER_FLOW_SLURM"       # in the environment: the step is a job of Slurm
NO_LIMITS = types.SimpleNamespace(log=16 << 20, disk=None)   # for servers: a full disk does not end them


class Work:
    """The work on one step until it has a result, or has failed."""

    def __init__(self, store, step, stop):
        self.store, self.step, self.stop, self.counts = store, step, stop, collections.Counter()

    def run(self):
        """Returns the record of the result, or None if the step failed."""
        with self.store.turn(self.step) as held:
            there = self.store.without(self.step)
            if there is None:
                return self._keep_abandoned("needs", "a step was abandoned whose output it needs")
            self.step = there
            while True:
                if (gone := self._make_inputs()) is not None:
                    return self._fail(ends.End("input", "fail", f"its input '{gone}' is missing"))
                try:
                    self.step = self.store.resolved(there)
                    if condition := self.store.fails_condition(self.step):
                        return self._keep_abandoned("when", f"'{condition}' does not hold")
                    found = self.store.find(self.step)
                    break
                except Missing:
                    continue
            if found.record and self.step.wait:   # a server that ended must run again
                if wrong := self._expand(self.store.home(found.key)):
                    return self._fail(ends.End("output", "fail", wrong))
                self.store.use(self.step, found.key)
                self._say("end", state="up to date", key=found.key)
                return found.record
            return self._until_it_has_ended(found, held)

    def _make_inputs(self):
        """Runs the steps again whose missing output is an input. Returns the path of a missing input that no step
        makes, else None."""
        gone = [path for paths in (*self.step.inputs.values(), self.step.taken.values()) for path in paths if not self.store.has(path)]
        self.counts["input"] += bool(gone)   # once for any number of inputs
        for path in gone:
            maker = self.store.flow.maker(path)
            if (self.store.folder / path).exists():   # its maker has made both
                continue
            if maker is None or self.counts["input"] > self.step.retry["input"] or Work(self.store, maker, self.stop).run() is None:
                return path
        return None

    def _until_it_has_ended(self, found, held):
        home, began = self.store.home(found.key), time.time()
        self.store.works_on(self.step, found.key)
        files.make_folder(home / "output")
        attempts, rows, memory = [], {}, self.step.resources.memory
        number = max((int(entry.name) for entry in (home / "output").iterdir() if entry.name.isdigit()), default=0)
        for before in range(1, number + 1):  # left by a killed runner
            rows.update(_epochs_in(home / "output" / str(before) / "log.txt"))
        shortened = ""   # the cause for which the training ends early and is kept
        while True:
            number += 1
            end, sampler, seconds = self._attempt(home, number, memory, rows, began, shortened)
            attempts.append({"number": number, "cause": end.cause, "why": end.why, "seconds": round(seconds, 3), "memory": memory,
                             "peak": max(sampler.peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10)})
            self._say("attempt", key=found.key, action=end.action, **attempts[-1])
            if end.action == "shorten" and shortened:   # the short run lost a peer
                end = ends.End("peer", "retry", end.why)
            if end.action == "shorten":
                parameter = self.step.training.epochs
                self.step = dataclasses.replace(self.step, parameters={**self.step.parameters, parameter: min(int(max(rows)) + 1, int(self._epochs()))})
                shortened = end.cause
                continue
            if end.action == "ingest" and (gone := self._make_inputs()) is not None:
                end = ends.End("input", "fail", f"its input '{gone}' is missing")
            if end.action in ("retry", "memory"):
                self.counts[end.cause] += 1
            if end.action in ("retry", "memory", "ingest") and self.counts[end.cause] <= self.step.retry[end.cause] and not self.stop.is_set():
                memory *= 2 if end.action == "memory" else 1
                if end.cause == "source":
                    self.stop.wait(min(PAUSE * 2 ** (self.counts["source"] - 1), LONGEST_PAUSE))
                continue
            break
        if end.action not in ("done", "abandon"):
            return self._fail(end, key=found.key)
        try:
            parts, written = self.store.kept(self.step, found)
        except Missing as gone:
            return self._fail(ends.End("input", "fail", f"its input '{gone}' was removed while it ran"), key=found.key)
        if not held():
            raise Refusal(f"another runner works at '{self.step.name}' by now (the folder of results was made anew); run one at a time")
        cause = shortened if shortened and end.action == "done" else end.cause
        record = {"step": self.step.name, "key": found.key, "state": "done" if end.action == "done" else "abandoned", "cause": cause, "why": end.why,
                  "parts": parts, "written": written, "inputs": self.step.inputs, "parameters": self.step.parameters, "attempts": attempts, "series": [rows[epoch] for epoch in sorted(rows)],
                  "began": began, "ended": time.time(), "counts": self.store.counts(self.step), "cpu_seconds": round(sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]), 3),
                  "outputs": self._outputs(home) if end.action == "done" else {}}
        files.write_json(home / "record.json", record, durable=False, mode=files.PRIVATE)  # without the record the step runs again
        files.remove_tree(home / "checkpoint")   # nothing continues from it any more
        self.store.use(self.step, found.key)
        self._say("end", **{name: record[name] for name in ("key", "state", "cause", "why", "parts", "written", "inputs", "outputs")}, seconds=round(record["ended"] - began, 3),
                  **({"accuracy": steps.accuracy_of(record)} if record["series"] else {}))
        return record

    def _expand(self, home):
        """Adds the steps of the fan-outs whose lists this step has made to the workflow. Returns the error, or ""."""
        if not {step.each for step in self.store.flow.steps.values() if step.each}.intersection(self.step.outputs.values()):
            return ""
        # it reads the form of the file, which needs PyYAML
        words = [sys.executable, "-m", "muster_flow.fan_out", str(self.store.folder), self.step.name, str(home)]
        path = os.pathsep.join(filter(None, (steps.PLATFORM, os.environ.get("PYTHONPATH"))))
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=steps.PLATFORM, env={**os.environ, "PYTHONPATH": path})
        return "" if done.returncode == 0 else done.stderr.strip().rpartition("\n")[2] or f"fan_out.py ended with status {done.returncode}"

    def _outputs(self, home):
        return {name: [files.signature(home / path), self.store.digest(home / path)] for name, path in self.step.outputs.items()}

    def _attempt(self, home, number, memory, rows, began, shortened):
        """Returns (the end, its sampler, seconds of the command)."""
        step, output = self.step, files.make_folder(home / "output" / str(number))
        for path in step.outputs.values():
            _remove(home / path)
            files.make_folder((home / path).parent)
        if any("{checkpoint}" in word for word in step.command):
            files.make_folder(home / "checkpoint")
        words, variables = launchers.launched(on_slurm(step) if SLURM in os.environ else step, home, number)
        self._say("begin", key=home.name, attempt=number, words=words)
        sampler, lines, due = Sampler(step.ranks > 1), Look(output / "log.txt"), [time.monotonic() + EVERY]
        decided, started, pace, looked = [], time.time(), ends.Pace(), [0]

        def look():
            lines()
            pace.ended(len(lines.series) - looked[0], time.time())
            looked[0] = len(lines.series)
            rows.update({row["epoch"]: row for row in lines.series})
            if time.monotonic() >= due[0]:
                due[0] = time.monotonic() + EVERY
                last = rows[max(rows)] if rows else {}
                self._say("sample", key=home.name, **sampler.sample(), epoch=last.get("epoch"), accuracy=last.get("val_accuracy"),
                          seconds_an_epoch=round((time.time() - started) / len(lines.series), 3) if lines.series else None)
            if shortened or not lines.series:
                return None
            ordered = [rows[epoch] for epoch in sorted(rows)]
            end = ends.of_epochs(ordered, step.training, time.time() - began, pace, step.deadline, self._epochs())
            decided.extend([end] if end else [])
            return end and end.why
        held = ""
        if memory:  # limits only memory: idle processors may be used
            resources = dataclasses.make_dataclass("Resources", ("cpus_per_rank", "memory", "hold"))(launchers.cores_here(), memory, True)
            held, _ = holding.hold(resources, step.ranks, f"{os.getpid()}-{number}")
        kills = _kills_for_memory()
        # not for muster's programs
        given = {name: value for name, value in os.environ.items() if name not in (WATCHED, SLURM)}
        outcome = process.run(words, {**given, **variables}, output, output / "log.txt", step.limits, step.timeout, self.stop, look, held)
        lines()
        rows.update({row["epoch"]: row for row in lines.series})
        if self.stop.is_set() or (not step.wait and outcome.exit in (-signal.SIGTERM, 128 + signal.SIGTERM)):
            return ends.End("interrupted", "fail", "it was asked to stop"), sampler, outcome.seconds
        if outcome.status == "enough":
            return decided[0], sampler, outcome.seconds
        missing = next((path for paths in step.inputs.values() for path in paths if not self.store.has(path)), "")
        end = ends.of_command(outcome, _tail(output / "log.txt"), missing, _kills_for_memory() > kills, [rows[epoch] for epoch in sorted(rows)], step.training)
        if end.action == "done" and (absent := next((path for path in step.outputs.values() if not (home / path).exists()), None)):
            end = ends.End("output", "fail", f"it ended well and did not make its output '{absent}'")
        if end.action == "done" and (wrong := self._expand(home)):
            return ends.End("output", "fail", wrong), sampler, outcome.seconds
        if end.action == "fail" and (line := _tail(output / "log.txt").strip().rpartition("\n")[2]):
            end = dataclasses.replace(end, why=f"{end.why}: {line[:200]}")
        return end, sampler, outcome.seconds

    def _epochs(self):
        return float(self.step.parameters[self.step.training.epochs]) if self.step.training and self.step.training.epochs else 0

    def _say(self, event, **more):
        self.store.say(event=event, step=self.step.name, **more)

    def _fail(self, end, **more):
        self._say("end", state="stopped" if end.cause == "interrupted" else "failed", cause=end.cause, why=end.why, **more)

    def _keep_abandoned(self, cause, why):
        """Stores an abandoned result for a step that needs the output of an abandoned step, or whose condition does not hold."""
        key = files.digest_of([cause, self.step.name, why, {name: (self.store.record(name) or {}).get("key") for name in self.step.needs}])[:32]
        files.make_folder(self.store.home(key))
        record = {"step": self.step.name, "key": key, "state": "abandoned", "cause": cause, "why": why, "parts": {"memoize": None}, "outputs": {}, "series": [],
                  "ended": time.time()}
        files.write_json(self.store.home(key) / "record.json", record, mode=files.PRIVATE)
        self.store.use(self.step, key)
        self._say("end", state="abandoned", cause=cause, why=why, key=key)
        return record


def on_slurm(step):
    """Returns the step with srun in place of mpirun, which would start all ranks on one machine. The result is the
    same, so the key is."""
    if not step.wait or step.launcher.kind != "mpirun":
        return step
    return dataclasses.replace(step, launcher=types.SimpleNamespace(**{**vars(step.launcher), "kind": "srun", "options": ("--mpi=pmix",)}))


def _remove(path):
    files.remove_tree(path)
    with contextlib.suppress(OSError):
        os.unlink(path)


def _epochs_in(log):
    look = Look(log)
    look()
    return {row["epoch"]: row for row in look.series}


def _tail(log):
    with contextlib.suppress(OSError), open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL))
        return file.read().decode(errors="replace")
    return ""


def _kills_for_memory():
    """Returns the number of processes that the kernel has killed for lack of memory since it started."""
    with contextlib.suppress(OSError, ValueError), open("/proc/vmstat", encoding="ascii") as file:
        return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    return 0


def serve(store, step):
    """Starts a step without `wait` and returns when it is ready. The step runs without this process until the workflow
    ends: the process that owns the workflow (owner.py) ends the step."""
    import urllib.request  # imported here: it takes longer to load than most steps take

    def answers():
        try:
            with urllib.request.urlopen(step.ready, timeout=2):
                return True
        except (OSError, ValueError):
            return False
    runs, asked = None, store.folder / "watch" / f"{step.name}.asked"
    if WATCHED in os.environ:   # the watch starts it, if it does not run yet
        # it serves its inputs, and does not depend on them
        files.write_whole(asked, files.digest_of({**store.parts(step), "needs": {}}), durable=False)
    elif step.ready and answers():   # its reply would count as this step's
        store.say(event="end", step=step.name, state="failed", cause="ready",
                  why=f"'{step.ready}' is already answered by another process; end that, or choose another address")
        return FAILED_RUNS
    else:
        runs = subprocess.Popen([sys.executable, "-I", "-S", __file__, str(store.folder), step.name, "--on"], stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + step.timeout
    while (runs is None and asked.exists()) or (step.ready and not answers()):
        if runs is not None and runs.poll() is not None:
            return FAILED_RUNS
        if time.monotonic() > until:
            store.say(event="end", step=step.name, state="failed", cause="ready", why=f"'{step.ready}' did not answer within {step.timeout:g} s")
            return FAILED_RUNS
        time.sleep(READY)
    store.say(event="ready", step=step.name)
    return FINISHED


def main():
    store = Store(sys.argv[1], steps.from_json((pathlib.Path(sys.argv[1]) / "flow.json").read_text()))
    if sys.argv[2] not in store.flow.steps:   # a fan-out, all steps of which have ended
        (store.folder / "run" / sys.argv[2]).touch()
        return FINISHED
    step, stop = store.flow.steps[sys.argv[2]], threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        if not step.wait and "--on" not in sys.argv:
            status = serve(store, step)
        else:
            step = step if step.wait else dataclasses.replace(step, timeout=float("inf"), limits=NO_LIMITS)
            status = FINISHED if Work(store, step, stop).run() else FAILED_RUNS
    except Refusal as refusal:
        store.say(event="end", step=step.name, state="failed", cause="runner", why=str(refusal))
        status = refusal.status
    if status == FINISHED and step.wait or "--on" not in sys.argv and status == FINISHED:
        (store.folder / "run" / step.name).touch()
    return status


if __name__ == "__main__":
    sys.exit(main())
