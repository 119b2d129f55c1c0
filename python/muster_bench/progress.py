"""The progress of a runner: a line for each run, a line about the active runs, and an estimate of the remaining time."""
import os
import statistics
import subprocess
import sys
import threading
import time

from .forms import as_text
from .metrics import SPEEDUPS
from .text import human_seconds, without_secrets


AT_MOST = 0.2           # seconds between two changes of the line of a terminal
FIRST, LONGEST = 10.0, 600.0   # seconds before the first plain line, and between two of the last


class Line:
    """A report on a stream while work lasts, as muster::progress_line of C++. On a terminal it is a line that is
    rewritten in place. Another stream receives whole lines at growing intervals. `output`: a stream for other lines,
    which may be the same terminal."""

    def __init__(self, stream=None, output=None, first=FIRST):
        self._stream = sys.stderr if stream is None else stream
        self._output = self._stream if output is None else output
        self._terminal = self._stream.isatty()
        self._lock = threading.RLock()
        self._wait = AT_MOST if self._terminal else first
        self._next = time.monotonic() + (0 if self._terminal else first)
        self._shown = False

    def update(self, make):
        """Shows the text that `make` returns, if a report is due."""
        with self._lock:
            if time.monotonic() < self._next or not (text := without_secrets(make())):
                return
            if self._terminal:
                width = (self._columns() or 80) - 1
                self._stream.write(f"\r{text[:width]}\033[K")
                self._shown = True
            else:
                self._stream.write(text + "\n")
                self._wait = min(2 * self._wait, LONGEST)
            self._stream.flush()
            self._next = time.monotonic() + self._wait

    def _columns(self):
        try:
            return os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError):
            return 0

    def clear(self):
        with self._lock:
            if self._shown:
                self._stream.write("\r\033[K")
                self._stream.flush()
                self._shown = False

    def say(self, text):
        """Prints a line of its own."""
        with self._lock:
            self.clear()
            print(without_secrets(text), file=self._output, flush=True)


def shown_active(active):
    """Returns the active works, longest first, with their seconds. `active` maps names to their begin."""
    now = time.monotonic()
    parts = [f"{name} ({human_seconds(now - since)})" for name, since in sorted(active.items(), key=lambda entry: entry[1])]
    return ", ".join(parts[:3]) + (f" and {len(parts) - 3} more" if len(parts) > 3 else "")


def run_visibly(title, words, **options):
    """Runs a command as subprocess.run does. Shows `title` and the seconds meanwhile."""
    line, begin = Line(), time.monotonic()
    with subprocess.Popen(words, **options) as process:
        try:
            while True:
                try:
                    output, errors = process.communicate(timeout=AT_MOST)
                    break
                except subprocess.TimeoutExpired:
                    line.update(lambda: f"{title} ({human_seconds(time.monotonic() - begin)})")
        except BaseException:
            process.kill()
            raise
        finally:
            line.clear()
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


class Progress:
    def __init__(self, plan, waiting, jobs, stream=None):
        self._line = Line(stream)
        self._lock = threading.RLock()
        self._planned, self._waiting, self._jobs = len(plan), list(waiting), jobs
        self._seconds = {}       # by kind of run: times of runs that have ended
        self._active = {}        # by run: its stage, and the begin of the run

    def say(self, text):
        self._line.say(text)

    def begin(self):
        kept = self._planned - len(self._waiting)
        self.say(f"{self._planned} runs, {kept} of them finished before; "
                 f"{len(self._waiting)} to do, {self._jobs} at a time")

    def step(self, name, run=None):
        if run is None:
            self.say(f"==> {name}")
            return
        with self._lock:
            self._active[run.id] = name, self._active.get(run.id, (name, time.monotonic()))[1]
        self.tick()

    def tick(self):
        """Shows the active runs if a report is due. Called periodically while runs are active."""
        self._line.update(self._shown)

    def _shown(self):
        with self._lock:
            active = {f"{id_}: {name}": since for id_, (name, since) in self._active.items()}
            return f"{self._counted()}{shown_active(active)}{self._rest()}" if active else ""

    def _rest(self):
        """Returns a text about the remaining time, or nothing if it is unknown."""
        return f"; about {human_seconds(self._left())} left" if self._seconds and self._waiting else ""

    def _counted(self):
        return f"[{self._planned - len(self._waiting)}/{self._planned}] "

    def leave(self, run):
        """Forgets a run that is not active any more."""
        with self._lock:
            self._active.pop(run.id, None)

    def begin_run(self, run, attempt):
        self.step("configure" if attempt == 1 else f"configure, attempt {attempt}", run)

    def again(self, run, attempt, why):
        self.say(f"{run.id}: attempt {attempt} failed ({why}); once more")

    def end_run(self, run, status, why, seconds):
        with self._lock:
            self._seconds.setdefault(_kind(run), []).append(seconds)
            self._waiting.remove(run)
            number, rest = self._planned - len(self._waiting), self._rest()
        result = (f"ok in {human_seconds(seconds)}" if status == "ok" else f"skipped: {why}" if status == "skipped" else
                  f"FAILED ({status}): {why}")
        self.say(f"[{number}/{self._planned}] {run.id}: {result}{rest}")

    def _left(self):
        """Returns the remaining seconds. A run of a known kind takes its kind's mean; any other run takes the total
        mean."""
        average = statistics.fmean(value for values in self._seconds.values() for value in values)
        total = sum(statistics.fmean(self._seconds.get(_kind(run), [average])) for run in self._waiting)
        return total / max(1, min(self._jobs, len(self._waiting)))

    def interrupted(self):
        self.say(f"stopped: {len(self._waiting)} runs are left; the same command continues")

    def end(self, groups, entries, folder, forms):
        self._line.clear()
        failed = {entry["id"]: entry["why"] for entry in entries if entry["status"] not in ("ok", "skipped")}
        for id_, why in failed.items():
            self.say(f"failed: {id_}: {why}")
        if table := as_text(forms, groups) or scaling_table(groups):
            print(table)
        ended = {entry["id"] for entry in entries}
        skipped = len({entry["id"] for group in groups for entry in group.skipped()} - failed.keys())
        without = self._planned - len(ended)
        print(f"{len(ended) - len(failed) - skipped} of {self._planned} runs ended well{f', {skipped} were skipped' if skipped else ''}"
              f"{f', {without} have no result' if without else ''}; {folder}/report.html", flush=True)
        return bool(failed or without)


def _kind(run):
    return run.experiment.name, run.ranks


def _telling(group, shown):
    """Returns the parameters that distinguish the group from others with the same experiment and row."""
    others = [other for other in shown if (other.experiment, other.row) == (group.experiment, group.row)]
    return [key for key in group.parameters
            if key != "ranks" and len({str(other.parameters.get(key)) for other in others}) > 1]


def scaling_table(groups):
    """Returns speed-up and efficiency of groups with a baseline, as text."""
    shown = [group for group in groups if group.ranks > 1 and any(name in group.extra for name in SPEEDUPS)]
    if not shown:
        return ""
    names = [name for name in SPEEDUPS if any(name in group.extra for group in shown)]
    lines = [["", "ranks", *names]]
    for group in shown:
        lines.append([group.label(_telling(group, shown)), str(group.ranks),
                      *[f"{group.extra[name]:.3f}" if name in group.extra else "" for name in names]])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join([line[0].ljust(widths[0]), *[cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]])
                     for line in lines)
