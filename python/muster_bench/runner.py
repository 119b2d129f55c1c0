"""Runs a plan: configure -> run -> post-process -> report -> clean up. A later start continues an interrupted plan."""
import concurrent.futures
import contextlib
import dataclasses
import json
import pathlib
import signal
import threading
import time

from . import events, files, holding, hosts, launchers, machine, metrics, process, seen, tables
from .division import environment_of
from .errors import FAILED_RUNS, FINISHED, INTERRUPTED, NoRoom, Refusal
from .plan import make_run, program_of
from .progress import Progress
from .readers import Unreadable, read_results
from .text import last_said, without_secrets

MARKER = "muster-bench.json"    # marks a folder of results
TABLES_EVERY = 2.0              # seconds between two writings of the tables while runs are active
# the results of a run whose output was not read
NOTHING = {"metrics": {}, "series": [], "rows": [], "annotations": {}, "settings": {}}
CLEAN_UP = 10.0                 # seconds for a command of clean-up after the runner was asked to stop
RUN_PROBES = 5                  # probes of the machine before each run: some hundredths of a second


class Runner:
    """A folder of results and the runs that belong in it. The runner holds the folder's lock while it works."""

    def __init__(self, file, plan, folder, division, jobs=1, retry_failed=False):
        self.file, self.plan, self.division, self.jobs = file, plan, division, jobs
        self._environment = environment_of(division)
        self.retry_failed = retry_failed
        self.events = ""         # the folder with an event file for each run
        self.watch = False       # each rank runs under worker.py
        self.folder = pathlib.Path(folder).absolute()
        self.stop = threading.Event()
        self.trouble = None      # the error that stops the runner
        self._digests = files.Digests(own=self.folder)
        self._written = 0.0
        self._lock = threading.Lock()

    def run(self):
        """Returns the exit status."""
        return run_side_by_side([self])

    def collect(self):
        """Reads the results of runs that a cluster has started by its own means. Returns the exit status."""
        self._check_owner()
        self._held = files.FolderLock(self.folder)
        try:
            self._mark()
            waiting = [run for run in self.plan if not self._is_taken_in(run)]
            progress = Progress(self.plan, waiting, self.jobs)
            progress.begin()
            for run in waiting:
                self._take_in(run, progress)
            entries, groups = self._report(progress)
            return FAILED_RUNS if progress.end(groups, entries, self.folder, self.file.forms) else FINISHED
        finally:
            self._held.release()

    def _log_of(self, run):
        return self.folder / "experiments" / run.id / "output" / "1" / "log.txt"

    def _is_taken_in(self, run):
        """Returns true if there is a result of the run's present log. A run may have been started again."""
        result, log = tables.result_of(self.folder, run) or {}, self._log_of(run)
        return result.get("status") in ("ok", "skipped") and ("log" not in result or not log.is_file() or result["log"] == files.signature(log))

    def _take_in(self, run, progress):
        home, log = self.folder / "experiments" / run.id, self._log_of(run)
        if not log.is_file():
            progress.say(f"{run.id}: it has no results: not run yet")
            return
        # the ranks of an elastic job have no script that writes it
        exit_status = _text_or_nothing(log.parent / launchers.EXIT_STATUS).strip()
        if exit_status == "running":
            progress.say(f"{run.id}: has not ended yet")
            return
        if not exit_status and not run.template.read:
            progress.say(f"{run.id}: has no exit status (there is no '{log.parent / launchers.EXIT_STATUS}', and its template reads nothing)")
            return
        found, status, why = None, "crash", _with_last_line(f"it ended with status {exit_status}", log)
        if exit_status in ("", "0"):
            found, status, why = self._read(run, home, 1, log)
        files.make_folder(home / "result")
        self._keep(run, home, [{"status": status, "why": why, "seconds": None}], found, 0.0, log=files.signature(log))
        progress.end_run(run, status, why, 0.0)

    def _mark(self):
        files.write_json(self.folder / MARKER, {"format": files.FORMAT, "name": self.file.name, "division": self.division,
                                                "file": str(self.file.path), "content": json.loads(json.dumps(self.file.content))}, mode=files.PRIVATE)   # converts keys to texts

    def _check_owner(self):
        """Refuses a folder with other content."""
        there = files.read_json(self.folder / MARKER)
        if there is None:
            strangers = [entry.name for entry in self.folder.iterdir() if entry.name not in (MARKER, "lock", "experiments")]
            if strangers:
                raise Refusal(f"'{self.folder}' is not empty and holds no results of this runner ('{strangers[0]}' is there); "
                              "choose another --out")
        elif there.get("name") != self.file.name or there.get("division") != self.division:
            raise Refusal(f"'{self.folder}' holds the results of '{there.get('name')}', {there.get('division')} division (this is "
                          f"'{self.file.name}', {self.division}); choose another --out")

    def _programs(self):
        found = set()
        for run in self.plan:
            with contextlib.suppress(Refusal):  # the run reports the error itself when it starts
                found.add(program_of(run))
        return sorted(found)

    @contextlib.contextmanager
    def _holding(self):
        """Holds the lock of the folder until the end of the block."""
        for run in self.plan:
            launchers.check_launcher(run)
        files.make_folder(self.folder)
        self._check_owner()
        self._held = files.FolderLock(self.folder)
        try:
            self._mark()
            yield
        finally:
            self._held.release()

    def _begin(self):
        """Returns the remaining runs and their progress."""
        environments = files.read_json(self.folder / "environment.json") or []
        files.write_json(self.folder / "environment.json",
                         [*environments, machine.record(self.file.path.parent, self._programs())])
        launchers.clear(self.folder, self.plan)
        waiting = [run for run in self.plan if not self._is_done(run)]
        for run in self.plan if self.events else ():
            if run not in waiting:
                events.write(self.events, run, tables.result_of(self.folder, run))
        progress = Progress(self.plan, waiting, self.jobs)
        progress.begin()
        return waiting, progress

    def _end(self, progress):
        entries, groups = self._report(progress)
        if self.trouble is not None:
            raise self.trouble
        if self.stop.is_set():
            progress.interrupted()
            return INTERRUPTED
        return FAILED_RUNS if progress.end(groups, entries, self.folder, self.file.forms) else FINISHED

    def _report(self, progress):
        self._held.check()
        progress.step("report")
        entries, groups = tables.write_tables(self.folder, self.file, self.plan, self.division)
        from . import page  # imported here: matplotlib takes longer to load than most commands take
        page.write(self.folder, self.file, self.plan, self.division, entries, groups, self._extra())
        return entries, groups

    def _extra(self):
        """Returns additional parts of the page."""
        return ""

    def _look(self, run, log):
        """Returns a function that may end the run while it is active; see process.run. None: no function."""
        return None

    def _is_done(self, run):
        result = tables.result_of(self.folder, run)
        if result is None or not (result["status"] == "ok" or not (self.retry_failed or result["status"] == "skipped")):
            return False
        if "seen" not in result:   # from an older version, or from a cluster
            return True
        now = self._seen(run)
        now["files"] = {name: now["files"].get(name) for name in result["seen"]["files"]}
        return now == result["seen"]

    def _seen(self, run):
        """Returns the dependencies of a run that its key lacks."""
        if run.template.launcher.kind == "kubernetes":   # the image contains all dependencies
            return {"files": {}, "code": {}, "modules": {}, "caller": {}}
        home, template = self.folder / "experiments" / run.id, run.template
        commands = [run.words(command, home) for command in (template.command, *template.before, *template.after)]
        environment = {name: run.text(text, home) for name, text in template.environment.items()}
        launcher = template.launcher
        others = [run.text(text, home) for text in (*dataclasses.astuple(launcher)[2:], *launcher.options) if isinstance(text, str)]
        declared = {run.text(path, home) for path in (*template.inputs, *template.data)}
        words = [word for command in commands for word in command]
        found = seen.digests_of(*seen.all_of(words, environment, others, run.places, declared, str(self.folder)), self._digests.of_path)
        # runs create most of the missing files
        there = {name: digest for name, digest in found["files"].items() if digest is not None}
        return {**found, "files": there, "caller": seen.variables_of(words, self._environment, template.environment)}

    def _changed(self, run):
        """Returns true if program, inputs or data changed after the plan was made."""
        try:
            return make_run(run.experiment, run.parameters, run.repeat, run.seed, run.places, self._digests, run.trial).key != run.key
        except Refusal:
            return True

    # ---- one run ----

    def _one(self, run, progress):
        if self.stop.is_set():
            return
        home = self.folder / "experiments" / run.id
        for part in ("output", "result", "scratch"):
            files.remove_tree(home / part)
        for part in ("config", "output", "result", "scratch"):
            files.make_folder(home / part)
        depends = self._seen(run)
        # a checkpoint would mix both versions
        if files.read_json(home / "config" / "seen.json") not in (None, depends):
            files.remove_tree(self.folder / "checkpoints" / (run.trial or run.id))
        files.write_json(home / "config" / "seen.json", depends)
        quiet = machine.noise(min(run.ranks, launchers.cores_here()), RUN_PROBES)["median"]
        attempts, begin = [], time.monotonic()
        retries = run.template.retries
        try:
            for number in range(1, retries.attempts + 1):
                progress.begin_run(run, number)
                status, why, seconds, found = self._attempt(run, home, number, progress)
                if status == "full":
                    raise NoRoom(f"the disk of '{self.folder}' is full (less than {process.LEAST_FREE >> 20} MiB are free); "
                                 "make room and run the same command again, finished runs are kept")
                # also a command that SIGTERM ended directly, sent to the runner and to the command
                if self.stop.is_set() and status not in ("ok", "skipped"):
                    return
                attempts.append({"status": status, "why": why, "seconds": round(seconds, 3)})
                if status not in retries.on or number == retries.attempts:
                    break
                progress.again(run, number, why)
                if self.stop.wait(retries.wait):
                    return
        finally:
            self._clean_up(run, home, number, progress)
            progress.leave(run)
        if attempts[-1]["status"] == "ok" and self._changed(run):
            attempts[-1] |= {"status": "differs", "why": "its program, inputs or data were changed since the runner began; run the same command again"}
            found = None
        depends, written = seen.kept(depends, self._seen(run))
        for name in written:
            progress.say(f"{run.id}: '{name}' was changed while it ran, so later changes do not repeat the run; name the files that it reads as its inputs")
        self._held.check()
        self._keep(run, home, attempts, found, time.monotonic() - begin, quiet, seen=depends, written=written)
        if self.events:
            events.write(self.events, run, tables.result_of(self.folder, run))
        progress.end_run(run, attempts[-1]["status"], attempts[-1]["why"], time.monotonic() - begin)
        self._tables_now_and_then()

    def _attempt(self, run, home, number, progress):
        """Returns (status, why, seconds of the command, results)."""
        output = files.make_folder(home / "output" / str(number))
        log = output / "log.txt"
        words, variables = launchers.launched(run, home, number)
        files.write_json(home / "config" / "run.json", self._description(run, words, variables), mode=files.PRIVATE)
        files.write_whole(home / "config" / "command.sh", f"#!/bin/sh\n{launchers.shown(words, variables)}\n", mode=files.PRIVATE)
        on_this_machine = run.template.launcher.kind not in ("srun", "kubernetes")
        needs = (*run.template.needs, *(run.template.machine_needs if on_this_machine else ()))
        lacking = self._commands(run, home, number, needs, output / "needs.txt", progress)
        if lacking is not None:
            return (lacking.status if lacking.status in ("full", "interrupted") else "skipped"), lacking.why, lacking.seconds, None
        before = self._commands(run, home, number, run.template.before, output / "configure.txt", progress)
        if before is not None:
            return before.status, f"configure: {before.why}", before.seconds, None
        watched, _ = launchers.launched(run, home, number, self.watch)
        launchers.prepare(run, home, number)
        progress.step("run", run)
        look = self._look(run, log)
        held, amount = holding.hold(run.template.resources, run.ranks, run.key) if on_this_machine else ("", "")
        ended = process.run(watched, {**self._environment, **variables}, output, log, run.template.limits, run.template.timeout, self.stop,
                            lambda: progress.tick() or (look() if look is not None else None), held)
        if run.template.launcher.kind == "kubernetes" and ended.status in ("timeout", "interrupted", "disk", "full", "enough"):
            try:
                launchers.clear_run(self.folder, run)
            except Refusal as error:
                progress.say(f"{run.id}: {error}")
        if ended.status == "enough":
            return "ok", ended.why, ended.seconds, {**NOTHING, "series": look.series}
        if ended.exit == hosts.SKIP and run.template.launcher.kind == "hosts":
            return "skipped", _with_last_line("there can be no such hosts here", log), ended.seconds, None
        if ended.status != "ok":
            return ended.status, _with_last_line(ended.why, log), ended.seconds, None
        progress.step("post-process", run)
        after = self._commands(run, home, number, run.template.after, output / "post-process.txt", progress)
        if after is not None:
            return after.status, f"post-process: {after.why}", ended.seconds, None
        found, status, why = self._read(run, home, number, log)
        if found is not None and amount:
            found["settings"]["held"] = amount
        return status, why, ended.seconds, found

    def _read(self, run, home, number, log):
        """Returns (results, status, why). An unexpected error of a reader fails only this run; the others continue."""
        try:
            found = read_results(run, home, number, log)
            metrics.derive(self.file, run, found)
            if run.experiment.clock:
                metrics.on_clock(found, 1.0, 1.0)
            return found, "ok", ""
        except Unreadable as error:
            return None, error.status, str(error)
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError, AttributeError) as error:
            return None, "unreadable", f"its output cannot be used ({type(error).__name__}: {error})"

    def _commands(self, run, home, number, commands, log, progress, stop=None, most=float("inf")):
        """Returns the first command that failed, or None. `most` limits the seconds for each command."""
        for command in commands:
            words = run.words(command, home, number)
            if not words:
                continue
            variables = {**self._environment, **{name: run.text(text, home, number) for name, text in run.template.environment.items()}}
            ended = process.run(words, variables, log.parent, log, run.template.limits, min(run.template.timeout, most), stop or self.stop, progress.tick)
            if ended.status != "ok":
                ended.why = _with_last_line(f"{words[0]}: {ended.why}", log)
                return ended
        return None

    def _clean_up(self, run, home, number, progress):
        """Runs the clean-up commands, also after a failed run. A failed clean-up is reported and costs no result."""
        progress.step("clean up", run)
        arguments = run, home, number, run.template.clean, home / "output" / str(number) / "clean-up.txt", progress
        if self.stop.is_set() or ((ended := self._commands(*arguments)) is not None and ended.status == "interrupted"):
            ended = self._commands(*arguments, threading.Event(), CLEAN_UP)
        if ended is not None:
            progress.say(f"{run.id}: clean-up: {ended.why}")
        files.remove_tree(home / "scratch")

    def _description(self, run, words, variables):
        return {"id": run.id, "key": run.key, "experiment": run.experiment.name, "template": run.template.name,
                "parameters": run.parameters, "repeat": run.repeat, "seed": run.seed, "places": run.places, "words": words,
                "environment": variables, "timeout": run.template.timeout}

    def _keep(self, run, home, attempts, found, seconds, quiet=None, **more):
        found = found or NOTHING
        attempts = [{**one, "why": without_secrets(one["why"])} for one in attempts]   # the output of a program may name its data
        last = attempts[-1]
        files.write_json(home / "result" / "result.json", {
            "format": files.FORMAT, "id": run.id, "key": run.key, "program": run.program, "status": last["status"], "why": last["why"], "attempts": attempts,
            "wall_seconds": round(seconds, 3), "machine_seconds": quiet, "began": time.time() - seconds, "environment": len(files.read_json(self.folder / "environment.json") or []) - 1,
            **more, **found})

    def _tables_now_and_then(self):
        with self._lock:
            if time.monotonic() - self._written >= TABLES_EVERY:
                self._written = time.monotonic()
                tables.write_tables(self.folder, self.file, self.plan, self.division)


def _text_or_nothing(path):
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _with_last_line(why, log):
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - 16384))
            line = last_said(file.read().decode(errors="replace"))
    except OSError:
        return why
    printable = "".join(c for c in line if c.isprintable())[:200]
    return f"{why}: {printable}" if printable else why


def run_side_by_side(runners):
    """Runs the runners' plans in turns and returns the exit status. All first repetitions run before all second ones,
    so noise of some minutes affects the spread of every group and no single median. Repetitions of two runners
    alternate, first and second in turn, so noise affects both sides alike."""
    stop = runners[0].stop
    with contextlib.ExitStack() as held:
        for runner in runners:
            held.enter_context(runner._holding())
            runner.stop = stop
        held.enter_context(signals(stop))
        begun = [(runner, *runner._begin()) for runner in runners]
        turns = sorted((run.repeat, place, side if run.repeat % 2 else -side, runner, run, progress)
                       for side, (runner, waiting, progress) in enumerate(begun) for place, run in enumerate(waiting))
        with concurrent.futures.ThreadPoolExecutor(runners[0].jobs) as pool:
            for runner, done in [(turn[3], pool.submit(turn[3]._one, *turn[4:])) for turn in turns]:
                try:
                    done.result()
                except Exception as trouble:  # ends the other runs; interrupted runs are repeated at the next start
                    runner.trouble = runner.trouble or trouble
                    stop.set()
        return max(runner._end(progress) for runner, _, progress in begun)


class signals:
    """A context in which SIGINT and SIGTERM end the runs, not the runner: it still writes its tables."""

    def __init__(self, stop):
        self._stop = stop
        self._before = {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for which in (signal.SIGINT, signal.SIGTERM):
                self._before[which] = signal.signal(which, lambda *_: self._stop.set())

    def __exit__(self, *_):
        for which, handler in self._before.items():
            signal.signal(which, handler)
