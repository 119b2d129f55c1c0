"""The progress of a runner: a line for each run, and an estimate of the remaining time."""
import statistics
import sys
import threading

from .forms import as_text
from .metrics import SPEEDUPS
from .text import human_seconds, without_secrets


class Progress:
    def __init__(self, plan, waiting, jobs, stream=sys.stderr):
        self._stream = stream
        self._lock = threading.Lock()
        self._planned, self._waiting, self._jobs = len(plan), list(waiting), jobs
        self._seconds = {}       # by kind of run: times of runs that have ended
        self._ended = 0

    def say(self, text):
        with self._lock:
            print(without_secrets(text), file=self._stream, flush=True)

    def begin(self):
        kept = self._planned - len(self._waiting)
        self.say(f"{self._planned} runs, {kept} of them finished before; "
                 f"{len(self._waiting)} to do, {self._jobs} at a time")

    def step(self, name, run=None):
        if run is None:
            self.say(f"==> {name}")
        elif self._stream.isatty():
            with self._lock:
                print(f"\r\033[K{run.id}: {name}", end="\r", file=self._stream, flush=True)

    def begin_run(self, run, attempt):
        self.step("configure" if attempt == 1 else f"configure, attempt {attempt}", run)

    def again(self, run, attempt, why):
        self.say(f"{run.id}: attempt {attempt} failed ({why}); once more")

    def end_run(self, run, status, why, seconds):
        with self._lock:
            self._ended += 1
            self._seconds.setdefault(_kind(run), []).append(seconds)
            self._waiting.remove(run)
            number, left = self._planned - len(self._waiting), self._left()
        result = (f"ok in {human_seconds(seconds)}" if status == "ok" else f"skipped: {why}" if status == "skipped" else
                  f"FAILED ({status}): {why}")
        rest = f"; about {human_seconds(left)} left" if self._waiting else ""
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
