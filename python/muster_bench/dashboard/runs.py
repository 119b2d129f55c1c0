"""The contents of folders of results, read from their files at each request, for any process that wrote them. Programs
write some files, so a file of another form gives its own run the status "unreadable" and affects no other run."""
import contextlib
import json
import math
import os
import pathlib
import re

from ..errors import Refusal
from ..experiment import Goal
from ..files import open_regular, read_json
from ..live import Look
from ..metrics import GOALS, LESS_IS_BETTER, shares
from ..runner import MARKER
from ..text import shown_values, without_secrets
from ..verdict import MACHINE, noise, verdict

NAME = re.compile(r"[A-Za-z0-9_=+-][A-Za-z0-9_.=+-]{0,199}")
# any other value, such as NaN, is treated as unknown
EXPORTED = re.compile(r"^muster_(\w+) (-?[\d.]+(?:e[+-]?\d+)?)$", re.MULTILINE)
LONG = 8 << 20      # bytes of a log that is read for its epochs after the run has ended
POINTS = 600        # points in one line of a page
PIECE = 256 << 10   # bytes of a log in an answer
LINE = 1 << 20      # bytes of a line of JSON
FILES = 1000        # files of a run in its list
OF_ANOTHER_FORM = (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError)
NOTHING = {"series": [], "results": {}, "rows": [], "settings": {}, "attempts": [], "words": [], "environment": {}, "goals": [], "shares": {}, "phases": {}, "workers": [],
           "posted": {}, "trace": False}
# columns of the last epoch that a list shows
SHOWN = ("train_loss", "val_loss", "val_accuracy", "train_accuracy", "samples_per_second")


class Missing(Refusal):
    """The thing that a request names does not exist."""
    http = 404


class Runs:
    """Folders of results in one folder. This class writes nothing, and reads a run that has ended once."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder).absolute()
        self._ended, self._looks, self._contents = {}, {}, {}

    def home(self, *names):
        """Returns the path of a folder of results, or of a run in it."""
        for name in names:
            if not NAME.fullmatch(name):
                raise Missing(f"there is no run '{name[:80]}' (a name has letters, digits and _ . = + -); take one of /api/runs")
        path = self.folder / names[0]
        path = path / "experiments" / names[1] if names[1:] else path
        if not (path / ("config" if names[1:] else MARKER)).exists():
            raise Missing(f"there is no run '{'/'.join(names)}' (it is not in '{self.folder}'); take one of /api/runs")
        return path

    def content(self, folder):
        """Returns the file of the experiment that a folder belongs to."""
        path = self.folder / folder / MARKER
        with contextlib.suppress(OSError, Refusal):
            at = path.stat().st_mtime_ns
            if self._contents.get(folder, (0,))[0] != at:
                self._contents[folder] = at, _mapping(_mapping(read_json(path)).get("content"))
            return self._contents[folder][1]
        return {}

    def list(self):
        """Returns all runs, the latest first."""
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
        """Returns the line of a run in a list; None in the run's first moments."""
        home = self.folder / folder / "experiments" / name
        times = []
        for path in (home / "config" / "run.json", home / "result" / "result.json"):
            try:
                times.append(path.stat().st_mtime_ns)
            except OSError:
                times.append(0)
        changed, ended = times
        if not changed:
            return None
        if ended and self._ended.get(home, (0,))[0] == ended:
            return self._ended[home][1]
        try:
            row = self._read_row(folder, home, runner, changed / 1e9, ended)
        except (*OF_ANOTHER_FORM, Refusal) as error:
            row = {"id": f"{folder}/{name}", "folder": folder, "run": name, "title": folder, "experiment": name, "parameters": {}, "ranks": 1, "repeat": 1,
                   **_unreadable(error), "began": changed / 1e9, "seconds": None, "epoch": None, "metrics": {}}
        if ended:
            self._ended[home] = ended, row
        return row

    def _read_row(self, folder, home, runner, changed, ended):
        described, result = read_json(home / "config" / "run.json"), read_json(home / "result" / "result.json") if ended else {}
        if not isinstance(described, dict) or not isinstance(result, dict):
            raise ValueError("run.json or result.json is no JSON object")
        series, content = self._series(folder, home, result), self.content(folder)
        parameters = _plain(described["parameters"])
        status = _text(result.get("status") or "") or ("running" if runner and changed >= runner["since"] else "waiting" if runner else "stopped")
        last = series[-1] if series else {}
        metrics = {name: last[name] for name in SHOWN if name in last} or dict(list(_numbers(result.get("metrics", {})).items())[:4])
        return {"id": f"{folder}/{home.name}", "folder": folder, "run": home.name, "title": _text(content.get("title") or content.get("name", folder)),
                "experiment": _text(described["experiment"]), "parameters": parameters, "ranks": _number(parameters.get("ranks", 1)),
                "repeat": _number(described.get("repeat", 1)), "status": status, "why": _text(result.get("why", "")), "began": _number(result.get("began") or changed),
                "seconds": None if result.get("wall_seconds") is None else _number(result["wall_seconds"]), "epoch": last.get("epoch"), "metrics": metrics}

    def row(self, folder, name):
        self.home(folder, name)
        if row := self._row(folder, name, holder(self.folder / folder)):
            return row
        raise Missing(f"the run '{name}' has just begun (it has no data yet); ask again")

    def _series(self, folder, home, result):
        """Returns a row for each epoch: from the result, or else from the lines that the run has printed."""
        if result.get("series") or result.get("rows"):
            return [_numbers(row) for row in result["series"]]
        log = attempt_of(home) / "log.txt"
        if result:
            return _read_series(log) if log.exists() and log.stat().st_size <= LONG else []
        key = f"{folder}/{home.name}"
        if key not in self._looks or self._looks[key][0] != log:
            self._looks[key] = log, Look(log)
        self._looks[key][1]()
        return self._looks[key][1].series

    def run(self, folder, name):
        """Returns the details of a run."""
        home, row = self.home(folder, name), self.row(folder, name)
        try:
            more = self._more(folder, home, row)
        except (*OF_ANOTHER_FORM, Refusal) as error:
            more = {**NOTHING, **(_unreadable(error) if row["status"] != "unreadable" else {})}
        return {**row, **more, "files": files_in(home, home.rglob("*"))}

    def _more(self, folder, home, row):
        if row["status"] == "unreadable":
            return NOTHING
        result = _result_of(home) if row["status"] not in ("running", "waiting", "stopped") else {}
        described, attempt = read_json(home / "config" / "run.json") or {}, attempt_of(home)
        series, content = self._series(folder, home, result), self.content(folder)
        found = _numbers(result.get("metrics") or {}) or _exported(attempt / "metrics.prom")
        goals = content.get("experiments", {}).get(row["experiment"], {}).get("goal", content.get("goal", []))
        return {"series": series, "results": found, "rows": [{"row": _text(entry["row"]), "metrics": _numbers(entry["metrics"])} for entry in result.get("rows", [])],
                "settings": _plain(result.get("settings", {})), "attempts": list(result.get("attempts", [])), "words": [without_secrets(_text(word)) for word in described.get("words", [])],
                "environment": shown_values(_plain(described.get("environment", {}))),
                "goals": [_goal(entry, series) for entry in (goals if isinstance(goals, list) else [goals])],
                "shares": shares(found, found.get("train_seconds")), "phases": {key[6:-8]: value for key, value in found.items() if key.startswith("phase_")},
                "workers": _workers(attempt), "posted": _posted(attempt / "posted.jsonl"), "trace": (attempt / "trace.json").exists()}

    def log(self, folder, name, worker="", offset=-1):
        """Returns a piece of the log of a run or a rank, from an offset on or at the end."""
        attempt = attempt_of(self.home(folder, name))
        path = attempt / "workers" / f"{worker}.log" if worker else attempt / "log.txt"
        if worker and not _is_digits(worker):
            raise Refusal(f"the worker cannot be '{worker[:80]}' (it is a number); leave it out")
        try:
            with open_regular(path) as file:
                size = file.seek(0, os.SEEK_END)
                begin = max(0, size - PIECE) if offset < 0 else min(offset, size)
                file.seek(begin)
                data = file.read(PIECE)
        except OSError:
            raise Missing(f"'{folder}/{name}' has printed nothing here (there is no {path.name}); look at another worker") from None
        return {"text": data.decode(errors="replace"), "offset": begin, "next": begin + len(data), "bytes": size}

    def file(self, path, *names):
        """Opens a file in a folder of results or in a run, and nothing outside it, even if the path has `..` or a
        folder is renamed meanwhile."""
        home = self.home(*names).resolve()
        with contextlib.suppress(OSError, ValueError):
            if home in (home / path).resolve().parents:
                file = open_regular(home / path)
                if home in pathlib.Path(os.readlink(f"/proc/self/fd/{file.fileno()}")).parents:
                    return file
                file.close()
        raise Missing(f"'{'/'.join(names)}' has no file '{path[:200]}' (it is not in its folder); take one that it lists")

    def compare(self, first, second):
        """Compares two runs, measure by measure. Their repetitions show the noise."""
        try:
            return self._compared(first, second)
        except OF_ANOTHER_FORM as error:
            raise Refusal(f"the runs cannot be compared (the files of one have another form: {type(error).__name__}: {str(error)[:100]}); compare others") from None

    def _compared(self, first, second):
        sides = [self._repetitions(*names) for names in (first, second)]
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
        """Returns the results of a run and of the runs that differ from it only in seed and repetition."""
        mine = self.row(folder, name)
        alike = [name, *(run.name for run in os.scandir(self.folder / folder / "experiments") if run.name != name and NAME.fullmatch(run.name)
                         and (row := self._row(folder, run.name, None)) and row["status"] == "ok"
                         and (row["experiment"], row["parameters"]) == (mine["experiment"], mine["parameters"]))]
        results = []
        for repetition in alike:
            found = self.run(folder, repetition)
            raw = _result_of(self.home(folder, repetition))
            results.append({MACHINE: raw.get(MACHINE), "all": {**found["metrics"], **found["shares"], **found["results"]}})
        return results


def _result_of(home):
    """Returns the result of a run that has ended. A result of another format has the status unreadable; other runs are
    listed as usual."""
    try:
        return read_json(home / "result" / "result.json") or {}
    except Refusal as refused:
        return {"status": "unreadable", "why": str(refused)}


def holder(folder):
    """Returns the runner that works in a folder: its process and start time. Returns None without a runner: the file of
    the lock remains."""
    path = os.path.join(folder, "lock")
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open_regular(path) as file:
            process = int(file.read(1000).split()[1])
        for name in os.listdir(f"/proc/{process}/fd"):
            if os.readlink(f"/proc/{process}/fd/{name}") == os.path.realpath(path):
                return {"process": process, "since": os.stat(path).st_mtime}
    return None


def attempt_of(home):
    """Returns the folder of the last attempt."""
    numbers = [int(path.name) for path in (home / "output").glob("*") if _is_digits(path.name)]
    return home / "output" / str(max(numbers, default=1))


def files_in(home, paths):
    """Returns the first paths, by name, that are files. Files whose names a page cannot show are left out."""
    found = []
    for path in sorted(paths)[:FILES]:
        with contextlib.suppress(OSError, UnicodeError):
            if path.is_file() and str(path).encode():
                found.append({"path": str(path.relative_to(home)), "bytes": path.stat().st_size})
    return found


def _unreadable(error):
    return {"status": "unreadable", "why": f"its files do not have the form of a run ({type(error).__name__}: {_text(str(error))[:200]})"}


def _is_digits(text):
    return re.fullmatch("[0-9]{1,9}", text) is not None


def _mapping(value):
    return value if isinstance(value, dict) else {}


def _text(value):
    """Returns a text that can be shown and sent, for any value."""
    if isinstance(value, str) and value.isascii() and len(value) <= 10000:
        return value
    return str(value)[:10000].encode(errors="replace").decode()


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _number(value):
    if not _is_number(value):
        raise ValueError(f"'{_text(value)[:40]}' is no number")
    return value


def _numbers(mapping):
    """Returns the finite numbers of a mapping."""
    return {_text(name): value for name, value in mapping.items() if _is_number(value)}


def _plain(mapping):
    """Returns the mapping with values that are numbers, booleans, texts or None; other values are converted to text."""
    return {_text(name): value if value is None or isinstance(value, bool) or _is_number(value) else _text(value) for name, value in mapping.items()}


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
    """Yields the objects of a file with one object a line; an incomplete last line is left out."""
    with contextlib.suppress(OSError), open_regular(path) as file:
        for line in iter(lambda: file.readline(LINE), b""):
            with contextlib.suppress(ValueError, RecursionError):
                if isinstance(row := json.loads(line), dict):
                    yield row


def _thin(points):
    """Returns at most as many points as a page can show, the last point among them."""
    step = -(-len(points) // POINTS)
    return points[::-1][::step][::-1] if step > 1 else points


def _workers(attempt):
    """Returns the resources that each rank used; for the network the rate of both directions, from its counters."""
    found = []
    for path in sorted((attempt / "workers").glob("*.log"), key=lambda path: path.stem.zfill(9)):
        if not _is_digits(path.stem):
            continue
        samples = [row for row in map(_numbers, lines_of(path.with_suffix(".jsonl"))) if {"at", "cpu", "memory", "received", "sent"} <= set(row)]
        rates = [[after["at"], max(0.0, after["received"] + after["sent"] - before["received"] - before["sent"]) / max(after["at"] - before["at"], 1e-3)]
                 for before, after in zip(samples, samples[1:])]
        found.append({"worker": path.stem, "bytes": path.stat().st_size, "cpu": _thin([[row["at"], row["cpu"]] for row in samples[1:]]),
                      "memory": _thin([[row["at"], row["memory"]] for row in samples]), "network": _thin(rates)})
    return found


def _exported(path):
    """Returns the measures that a training has exported so far (docs/tracker.md)."""
    with contextlib.suppress(OSError), open_regular(path) as file:
        return _numbers({name: float(text) for name, text in EXPORTED.findall(file.read(LINE).decode(errors="replace"))})
    return {}


def _posted(path):
    """Returns name -> worker -> [[time, value], ...]."""
    posted = {}
    for row in lines_of(path):
        for name, value in _numbers(_mapping(row.get("metrics"))).items() if _is_number(row.get("at")) else ():
            posted.setdefault(name, {}).setdefault(_text(row.get("worker", 0)), []).append([row["at"], value])
    return {name: {worker: _thin(points) for worker, points in workers.items()} for name, workers in posted.items()}
