"""What folders of results hold, as it is now: read from their files, whatever process wrote them."""
import contextlib
import json
import math
import os
import pathlib
import re

from ..errors import Refusal
from ..experiment import Goal
from ..files import read_json
from ..live import Look
from ..metrics import GOALS, LESS_IS_BETTER, shares
from ..runner import MARKER
from ..verdict import MACHINE, noise, verdict

NAME = re.compile(r"[A-Za-z0-9_=+-][A-Za-z0-9_.=+-]{0,199}")
EXPORTED = re.compile(r"^muster_(\w+) (-?[\d.]+(?:e[+-]?\d+)?)$", re.MULTILINE)   # whatever else there is, NaN among it, is not known
LONG = 8 << 20      # bytes of a log that is read for its epochs after the run has ended
POINTS = 600        # of a line that a page draws
PIECE = 256 << 10   # bytes of a log in an answer
SHOWN = ("train_loss", "val_loss", "val_accuracy", "train_accuracy", "samples_per_second")   # of the last epoch, in a list


class Missing(Refusal):
    """There is no such thing."""
    http = 404


class Runs:
    """Folders of results in one folder. Nothing is written here; what has ended is read once."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder).absolute()
        self._ended, self._looks, self._contents = {}, {}, {}

    def home(self, *names):
        """The path of a folder of results, or of a run in it."""
        for name in names:
            if not NAME.fullmatch(name):
                raise Missing(f"there is no run '{name[:80]}' (a name has letters, digits and _ . = + -); take one of /api/runs")
        path = self.folder / names[0]
        path = path / "experiments" / names[1] if names[1:] else path
        if not (path / ("config" if names[1:] else MARKER)).exists():
            raise Missing(f"there is no run '{'/'.join(names)}' (it is not in '{self.folder}'); take one of /api/runs")
        return path

    def content(self, folder):
        """The file of the experiment that a folder is of."""
        path = self.folder / folder / MARKER
        with contextlib.suppress(OSError, Refusal):
            at = path.stat().st_mtime_ns
            if self._contents.get(folder, (0,))[0] != at:
                self._contents[folder] = at, read_json(path) or {}
            return self._contents[folder][1].get("content", {})
        return {}

    def list(self):
        """All runs, the latest first."""
        found, running = [], set()
        for entry in os.scandir(self.folder):
            if NAME.fullmatch(entry.name) and os.path.exists(os.path.join(entry.path, MARKER)):
                runner = holder(entry.path)
                with contextlib.suppress(OSError):
                    for run in os.scandir(os.path.join(entry.path, "experiments")):
                        if NAME.fullmatch(run.name) and (row := self._row(entry.name, run.name, runner)):
                            found.append(row)
                            running.update({row["id"]} if row["status"] == "running" else ())
        self._looks = {id_: look for id_, look in self._looks.items() if id_ in running}
        return sorted(found, key=lambda row: row["began"] or 0, reverse=True)

    def _row(self, folder, name, runner):
        """The line of a run in a list."""
        home = self.folder / folder / "experiments" / name
        try:
            ended = (home / "result" / "result.json").stat().st_mtime_ns
        except OSError:
            ended = 0
        if ended and self._ended.get(home, (0,))[0] == ended:
            return self._ended[home][1]
        described = read_json(home / "config" / "run.json")
        if not isinstance(described, dict):
            return None   # its first moments
        result = _result_of(home) if ended else {}
        series = self._series(folder, home, result)
        changed = (home / "config" / "run.json").stat().st_mtime
        status = result.get("status") or ("running" if runner and changed >= runner["since"] else "waiting" if runner else "stopped")
        last = series[-1] if series else {}
        metrics = {name: last[name] for name in SHOWN if name in last} or {
            name: result["metrics"][name] for name in list(result.get("metrics", {}))[:4]}
        row = {"id": f"{folder}/{name}", "folder": folder, "run": name, "title": self.content(folder).get("title") or self.content(folder).get("name", folder),
               "experiment": described["experiment"], "parameters": described["parameters"], "ranks": described["parameters"].get("ranks", 1),
               "repeat": described.get("repeat", 1), "status": status, "why": result.get("why", ""), "began": result.get("began") or changed,
               "seconds": result.get("wall_seconds"), "epoch": last.get("epoch"), "metrics": metrics}
        if ended:
            self._ended[home] = ended, row
        return row

    def row(self, folder, name):
        self.home(folder, name)
        if row := self._row(folder, name, holder(self.folder / folder)):
            return row
        raise Missing(f"the run '{name}' has only begun (nothing is known of it yet); ask again")

    def _series(self, folder, home, result):
        """A row an epoch: of the result, else of the lines that were printed up to now."""
        if result.get("series") or result.get("rows"):
            return result["series"]
        log = attempt_of(home) / "log.txt"
        if result:
            return _read_series(log) if log.exists() and log.stat().st_size <= LONG else []
        key = f"{folder}/{home.name}"
        if key not in self._looks or self._looks[key][0] != log:
            self._looks[key] = log, Look(log)
        self._looks[key][1]()
        return self._looks[key][1].series

    def run(self, folder, name):
        """All of one run."""
        home = self.home(folder, name)
        row = self.row(folder, name)
        result = _result_of(home) if row["status"] not in ("running", "waiting", "stopped") else {}
        described, attempt = read_json(home / "config" / "run.json") or {}, attempt_of(home)
        series, content = self._series(folder, home, result), self.content(folder)
        found = result.get("metrics") or _exported(attempt / "metrics.prom")
        goals = content.get("experiments", {}).get(row["experiment"], {}).get("goal", content.get("goal", []))
        return {**row, "series": series, "results": found, "rows": result.get("rows", []), "settings": result.get("settings", {}),
                "attempts": result.get("attempts", []), "words": described.get("words", []), "environment": described.get("environment", {}),
                "goals": [_goal(one, series) for one in (goals if isinstance(goals, list) else [goals])],
                "shares": shares(found, found.get("train_seconds")), "phases": {key[6:-8]: value for key, value in found.items() if key.startswith("phase_")},
                "workers": _workers(attempt), "posted": _posted(attempt / "posted.jsonl"), "trace": (attempt / "trace.json").exists(),
                "files": [{"path": str(path.relative_to(home)), "bytes": path.stat().st_size} for path in sorted(home.rglob("*"))[:1000] if path.is_file()]}

    def log(self, folder, name, worker="", offset=-1):
        """A piece of what a run printed, or one of its ranks: from there on, or the end."""
        attempt = attempt_of(self.home(folder, name))
        path = attempt / "workers" / f"{worker}.log" if worker else attempt / "log.txt"
        if worker and not worker.isdigit():
            raise Refusal(f"the worker cannot be '{worker[:80]}' (it is a number); leave it out")
        try:
            with open(path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                begin = max(0, size - PIECE) if offset < 0 else min(offset, size)
                file.seek(begin)
                data = file.read(PIECE)
        except OSError:
            raise Missing(f"'{folder}/{name}' has printed nothing here (there is no {path.name}); look at another worker") from None
        return {"text": data.decode(errors="replace"), "offset": begin, "next": begin + len(data), "bytes": size}

    def file(self, path, *names):
        """A file in a folder of results or in a run; nothing beside it, whatever the path says."""
        home = self.home(*names).resolve()
        try:
            found = (home / path).resolve()
            if home in found.parents and found.is_file():
                return found
        except (OSError, ValueError):
            pass
        raise Missing(f"'{'/'.join(names)}' has no file '{path[:200]}' (it is not in its folder); take one that it lists")

    def compare(self, first, second):
        """Two runs, measure by measure; the repetitions of each say what is noise."""
        sides = [self._repetitions(*one) for one in (first, second)]
        machine = noise(*[[result[MACHINE] for result in side if result.get(MACHINE)] for side in sides])
        measured = [{name: [result["all"][name] for result in side if name in result["all"]] for name in side[0]["all"]} for side in sides]
        rows = []
        for name in measured[0]:
            if name in measured[1]:
                found, word = verdict(name, measured[0][name], measured[1][name], machine)
                mine, other = sides[0][0]["all"][name], sides[1][0]["all"][name]
                rows.append({"measure": name, "first": mine, "second": other, "ratio": other / mine if mine else None,
                             "low": found and found.low, "high": found and found.high, "decision": word, "less": name in LESS_IS_BETTER})
        return {"first": self.row(*first), "second": self.row(*second), "repetitions": [len(side) for side in sides], "machine": machine, "rows": rows}

    def _repetitions(self, folder, name):
        """The results of a run, and of those that differ from it in seed and repetition alone."""
        mine = self.row(folder, name)
        alike = [name, *(run.name for run in os.scandir(self.folder / folder / "experiments") if run.name != name and NAME.fullmatch(run.name)
                         and (row := self._row(folder, run.name, None)) and row["status"] == "ok"
                         and (row["experiment"], row["parameters"]) == (mine["experiment"], mine["parameters"]))]
        results = []
        for one in alike:
            found = self.run(folder, one)
            raw = _result_of(self.home(folder, one))
            results.append({MACHINE: raw.get(MACHINE), "all": {**found["metrics"], **found["shares"], **found["results"]}})
        return results


def _result_of(home):
    """Returns the result of a run that has ended. A result of another format has the status unreadable; other runs are listed as usual."""
    try:
        return read_json(home / "result" / "result.json") or {}
    except Refusal as refused:
        return {"status": "unreadable", "why": str(refused)}


def holder(folder):
    """The runner that works in a folder: its process, and since when. None where there is none: the file of the lock stays."""
    path = os.path.join(folder, "lock")
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(path, encoding="utf-8") as file:
            process = int(file.read().split()[1])
        for name in os.listdir(f"/proc/{process}/fd"):
            if os.readlink(f"/proc/{process}/fd/{name}") == os.path.realpath(path):
                return {"process": process, "since": os.stat(path).st_mtime}
    return None


def attempt_of(home):
    """The folder of the last attempt."""
    numbers = [int(path.name) for path in (home / "output").glob("*") if path.name.isdigit()]
    return home / "output" / str(max(numbers, default=1))


def _read_series(log):
    look = Look(log)
    look()
    return look.series


def _goal(goal, series):
    if not isinstance(goal, dict) or goal.get("metric") not in GOALS:
        return {}
    wanted = Goal(goal["metric"], float(goal["value"]))
    return {"metric": GOALS[wanted.metric], "value": wanted.value, "reached": next((row.get("seconds") for row in series if wanted.reached(row)), None)}


def lines_of(path):
    """The objects of a file with one a line; what is cut short at its end is left out."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                if isinstance(row := json.loads(line), dict):
                    yield row


def _thin(points):
    """At most as many as a page can show, the last one among them."""
    step = -(-len(points) // POINTS)
    return points[::-1][::step][::-1] if step > 1 else points


def _workers(attempt):
    """What each rank used; of the network the rate of both directions, from its counters."""
    found = []
    for path in sorted((attempt / "workers").glob("*.log"), key=lambda path: int(path.stem) if path.stem.isdigit() else 0):
        samples = [row for row in lines_of(path.with_suffix(".jsonl")) if {"at", "cpu", "memory", "received", "sent"} <= set(row)]
        rates = [[after["at"], max(0.0, after["received"] + after["sent"] - before["received"] - before["sent"]) / max(after["at"] - before["at"], 1e-3)]
                 for before, after in zip(samples, samples[1:])]
        found.append({"worker": path.stem, "bytes": path.stat().st_size, "cpu": _thin([[row["at"], row["cpu"]] for row in samples[1:]]),
                      "memory": _thin([[row["at"], row["memory"]] for row in samples]), "network": _thin(rates)})
    return found


def _exported(path):
    """What a training says of itself up to now (docs/tracker.md)."""
    with contextlib.suppress(OSError):
        return {name: value for name, value in ((name, float(text)) for name, text in EXPORTED.findall(path.read_text(errors="replace"))) if math.isfinite(value)}
    return {}


def _posted(path):
    """name -> worker -> [[time, value], ...]"""
    made = {}
    for row in lines_of(path):
        for name, value in row.get("metrics", {}).items():
            made.setdefault(name, {}).setdefault(str(row.get("worker", 0)), []).append([row["at"], value])
    return {name: {worker: _thin(points) for worker, points in workers.items()} for name, workers in made.items()}
