"""Starts a workflow automatically: by a schedule, when its data changed, or when a git revision moved. Only a single
run is active at a time; changes during a run start one more run, with the newest data. Steps without `wait` continue
between the runs."""
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
from .remote import is_remote, version_of
from .workflow import next_of

REVISION = "the revision"
ASK = 20.0      # seconds for a reply of git
PAUSE = 1.0     # seconds before a server that ended is restarted


class Causes:
    """The triggers of a workflow, from the current file."""

    def __init__(self, flow):
        self.counted = self._last = dict(self._states(flow))
        self._at = time.time()

    def look(self, flow):
        """Returns the reasons to start the workflow, as texts. A change counts when two checks have seen the same
        state: then the file is complete."""
        now, at, schedule = dict(self._states(flow)), time.time(), flow.watch["schedule"]
        new = {name: state for name, state in now.items() if state not in (None, self.counted.get(name)) and state == self._last.get(name)}
        why = [f"{name} changed" for name in new] + ([f"the schedule '{schedule}'"] if schedule and next_of(schedule, self._at) <= at else [])
        self.counted, self._last, self._at = {**self.counted, **new}, now, at
        return why

    @staticmethod
    def _states(flow):
        if flow.watch["data"]:
            for path in sorted(flow.sources()):
                manifest = pathlib.Path(path, "MANIFEST")   # written last: it defines the set
                try:
                    yield f"data '{without_secrets(path)}'", version_of(path) if is_remote(path) else signature(manifest if manifest.is_file() else path)
                except (OSError, Refusal):
                    yield f"data '{without_secrets(path)}'", None
        if where := flow.watch["revision"]:
            yield REVISION, commit_of(where["repository"], where["branch"])


def commit_of(repository, branch):
    """Returns the commit of a branch of a repository, or None if git does not reply."""
    try:
        done = subprocess.run(["git", "ls-remote", "--exit-code", repository, f"refs/heads/{branch}"], capture_output=True, text=True, timeout=ASK,
                              env={**os.environ, "GIT_TERMINAL_PROMPT": "0"})
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split()[0] if done.returncode == 0 else None


class Servers:
    """The steps without `wait`. A run requests them (wrapper.py), and each runs until a run requests another version,
    or the watch ends."""

    def __init__(self, folder):
        self._folder, self._running, self._stop = pathlib.Path(folder).absolute(), {}, threading.Event()
        self._keeper = threading.Thread(target=self._keep)
        self._keeper.start()

    def _keep(self):
        while not self._stop.wait(wrapper.READY):
            for asked in (self._folder / "watch").glob("*.asked"):
                name, version = asked.stem, asked.read_text()
                if name not in self._running or self._running[name][0] != version:
                    self._end(name)
                    stop = threading.Event()
                    self._running[name] = version, stop, threading.Thread(target=self._serve, args=(name, stop))
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
    """Watches until it is interrupted. `read(revision)` reads the file, which may have changed."""
    flow = read(None)
    if not any(flow.watch[name] for name in ("schedule", "data", "revision")):
        raise Refusal(f"'{flow.path}' has nothing to watch (it has no schedule, data or revision); write such as watch: {{data: true}}")
    engine.check_owner(flow, files.make_folder(folder))
    alone = files.FolderLock(files.make_folder(pathlib.Path(folder, "watch")))
    causes, servers, stop, why, last_refusal = Causes(flow), Servers(folder), threading.Event(), ["the watch begins"], ""
    try:
        with signals(stop):
            while True:
                ran = False
                try:
                    why += causes.look(flow)
                    flow = read(causes.counted.get(REVISION))
                    if why:   # one run for all changes, with the newest state
                        say(f"starts: {why[-1]}")
                        ran = True
                        status, why = engine.run(flow, folder, watched=True), []
                        if status == INTERRUPTED:
                            return INTERRUPTED
                        say(f"ended with status {status}")
                    last_refusal = ""
                # an error in the file or the folder, or a manual run; the watch ends if its first run cannot start
                except Refusal as refusal:
                    if not isinstance(refusal, Busy):
                        if "the watch begins" in why:
                            raise
                        if ran:   # else the file could not be read, and the collected changes remain
                            why = []
                    if str(refusal) != last_refusal:
                        last_refusal = str(refusal)
                        say(last_refusal)
                if stop.wait(flow.watch["every"]):
                    return INTERRUPTED
    finally:
        servers.end()
        alone.release()


def say(text):
    print(f"{datetime.datetime.now().isoformat(sep=' ', timespec='seconds')} {without_secrets(text)}", flush=True)
