"""Starts a workflow by itself: by a schedule, when its data changed, or when a git revision moved. One run at a time; of what comes
meanwhile the newest counts. Steps that are not waited for go on between the runs."""
import datetime
import os
import pathlib
import subprocess
import sys
import threading
import time

from muster_bench import files, process
from muster_bench.files import signature
from muster_bench.text import without_secrets
from muster_bench.errors import INTERRUPTED, Busy, Refusal
from muster_bench.runner import signals
from . import engine, wrapper
from .workflow import next_of

REVISION = "the revision"
ASK = 20.0      # seconds that git has to answer
PAUSE = 1.0     # before a server that ended is started again


class Causes:
    """What a workflow is started for, as the file of now says it."""

    def __init__(self, flow):
        self.counted = self._last = dict(self._states(flow))
        self._at = time.time()

    def look(self, flow):
        """Why the workflow is to start: texts. A change counts when two looks have seen the same, for then it is written as a whole."""
        now, at, schedule = dict(self._states(flow)), time.time(), flow.watch["schedule"]
        new = {name: state for name, state in now.items() if state not in (None, self.counted.get(name)) and state == self._last.get(name)}
        why = [f"{name} changed" for name in new] + ([f"the schedule '{schedule}'"] if schedule and next_of(schedule, self._at) <= at else [])
        self.counted, self._last, self._at = {**self.counted, **new}, now, at
        return why

    @staticmethod
    def _states(flow):
        if flow.watch["data"]:
            for path in sorted(flow.sources()):
                manifest = pathlib.Path(path, "MANIFEST")   # written last: the set is what it says
                try:
                    yield f"data '{path}'", signature(manifest if manifest.is_file() else path)
                except OSError:
                    yield f"data '{path}'", None
        if where := flow.watch["revision"]:
            yield REVISION, commit_of(where["repository"], where["branch"])


def commit_of(repository, branch):
    """What a branch of a repository is at, or None where git does not answer."""
    try:
        done = subprocess.run(["git", "ls-remote", "--exit-code", repository, f"refs/heads/{branch}"], capture_output=True, text=True, timeout=ASK,
                              env={**os.environ, "GIT_TERMINAL_PROMPT": "0"})
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split()[0] if done.returncode == 0 else None


class Servers:
    """The steps that are not waited for: a run asks for them (wrapper.py), and each goes on until one asks for another one, or the watch ends."""

    def __init__(self, folder):
        self._folder, self._running, self._stop = pathlib.Path(folder).absolute(), {}, threading.Event()
        self._keeper = threading.Thread(target=self._keep)
        self._keeper.start()

    def _keep(self):
        while not self._stop.wait(wrapper.READY):
            for asked in (self._folder / "watch").glob("*.asked"):
                name, what = asked.stem, asked.read_text()
                if name not in self._running or self._running[name][0] != what:
                    self._end(name)
                    stop = threading.Event()
                    self._running[name] = what, stop, threading.Thread(target=self._serve, args=(name, stop))
                    self._running[name][2].start()
                asked.unlink()
        for name in list(self._running):
            self._end(name)

    def _serve(self, name, stop):
        words = [sys.executable, "-I", "-S", wrapper.__file__, str(self._folder), name, "--on"]
        while not stop.is_set():
            process.run(words, dict(os.environ), self._folder, os.devnull, wrapper.NO_LIMITS, float("inf"), stop)
            stop.wait(PAUSE)

    def _end(self, name):
        if name in self._running:
            _, stop, thread = self._running.pop(name)
            stop.set()
            thread.join()

    def end(self):
        self._stop.set()
        self._keeper.join()


def run(read, folder):
    """Until it is interrupted. `read(revision)` reads the file, which may have become another one."""
    flow = read(None)
    if not any(flow.watch[name] for name in ("schedule", "data", "revision")):
        raise Refusal(f"'{flow.path}' has nothing to watch (it has no schedule, data or revision); write such as watch: {{data: true}}")
    engine.check_owner(flow, files.make_folder(folder))
    alone = files.FolderLock(files.make_folder(pathlib.Path(folder, "watch")))
    causes, servers, stop, why, said = Causes(flow), Servers(folder), threading.Event(), ["the watch begins"], ""
    try:
        with signals(stop):
            while True:
                ran = False
                try:
                    why += causes.look(flow)
                    flow = read(causes.counted.get(REVISION))
                    if why:   # one run for all that has come: that of the newest
                        say(f"starts: {why[-1]}")
                        ran = True
                        status, why = engine.run(flow, folder, watched=True), []
                        if status == INTERRUPTED:
                            return INTERRUPTED
                        say(f"ended with status {status}")
                    said = ""
                except Refusal as refusal:   # of the file, of the folder, or somebody runs it by hand; a first run that cannot begin is no watch
                    if not isinstance(refusal, Busy):
                        if "the watch begins" in why:
                            raise
                        if ran:   # else the file could not be read, and what came meanwhile is still to be done
                            why = []
                    if str(refusal) != said:
                        said = str(refusal)
                        say(said)
                if stop.wait(flow.watch["every"]):
                    return INTERRUPTED
    finally:
        servers.end()
        alone.release()


def say(text):
    print(f"{datetime.datetime.now().isoformat(sep=' ', timespec='seconds')} {without_secrets(text)}", flush=True)
