"""Converts the output of a program to numbers: {"metrics": {...}, "series": [an entry for each epoch], "rows": [an
entry for each benchmark]}."""
import contextlib
import json
import math
import pathlib
import re
import statistics

from .process import cut

MOST_BYTES = 256 << 20
TIME_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
# Annotations that describe a run's settings. They are stored with each result, and a numeric setting is no measure.
SETTINGS = ("program", "muster", "mode", "compress", "optimizer", "schedule", "ranks", "batch", "transport", "algorithm", "elastic", "epochs",
            "seed", "servers", "workers", "consistency")
PLAIN = re.compile(r"[^A-Za-z0-9_.%/-]+")


class Unreadable(Exception):
    """The program ended well but its results cannot be read. The text names the result and the reason."""
    status = "unreadable"


class Differs(Unreadable):
    """The program ran with other settings than its template requires."""
    status = "differs"


def read_results(run, folder, attempt, log):
    """Runs all readers of the template, one after the other; later readers add to earlier results."""
    found = {"metrics": {}, "series": [], "rows": [], "annotations": {}, "settings": {}}
    for reader in run.template.read:
        path = pathlib.Path(run.text(reader.file, folder, attempt)) if reader.file else log
        if not path.is_absolute():
            path = pathlib.Path(folder) / "output" / str(attempt) / path
        _check_age(path, pathlib.Path(folder))
        text = _text_of(path)
        if reader.kind == "tracker":
            _tracker(text, path, found)
        elif reader.kind == "benchmark":
            _benchmark(text, path, reader, found)
        elif path == log and text.endswith(cut(run.template.limits.log)):
            raise Unreadable(f"'{path.name}' was cut (it printed more than limits: log), so its last numbers are not known; print less, or raise it")
        else:
            _log(text, path, reader, found)
    _check_settings(run, folder, attempt, found)
    return found


def _check_age(path, folder):
    """Refuses a file outside the run's folder that is older than the run: another run wrote the file."""
    with contextlib.suppress(OSError):   # it does not exist, or a cluster's script ran it
        began = (folder / "config" / "run.json").stat().st_mtime_ns
        if not path.is_relative_to(folder) and path.stat().st_mtime_ns < began:
            raise Unreadable(f"'{path}' was not written by this run (it is older than its start)")


def _check_settings(run, folder, attempt, found):
    """Names the first setting that differs from the template."""
    found["settings"] = {name: found["annotations"][name] for name in SETTINGS if name in found["annotations"]}
    for name, texts in run.template.settings.items():
        wanted = [run.text(text, folder, attempt) for text in texts]
        reported = found["annotations"].get(name)
        found["settings"][name] = reported
        if reported is None:
            raise Differs(f"the program does not say its '{name}' (this task has {' or '.join(wanted)})")
        if not any(_same(reported, text) for text in wanted):
            raise Differs(f"it ran with {name} '{reported}' (this task has {' or '.join(wanted)})")


def _same(reported, wanted):
    try:
        return reported == wanted or float(reported) == float(wanted)
    except ValueError:
        return False


def _text_of(path):
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise Unreadable(f"'{path.name}' has {size:,} bytes (at most {MOST_BYTES:,} are read)")
        return path.read_text(errors="replace")
    except OSError as error:
        raise Unreadable(f"'{path.name}' was not written ({error.strerror})") from error


def _json(text, path, description):
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Unreadable(f"'{path.name}' is no JSON ({error})") from error
    if not isinstance(value, dict):
        raise Unreadable(f"'{path.name}' is JSON, but no {description} (it is no object)")
    return value


def _embedded(text, path, key):
    """Returns the JSON object with a list under this key in the output of a program, among any other lines."""
    decoder = json.JSONDecoder()
    for start in re.finditer(r"^\{", text, re.MULTILINE):
        try:
            value, _ = decoder.raw_decode(text, start.start())
        except ValueError:
            continue
        if isinstance(value, dict) and isinstance(value.get(key), list):
            return value
    raise Unreadable(f"'{path.name}' has no JSON object with a list '{key}' (a report of Google Benchmark has one)")


def _number(value):
    """Returns a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value


def _tracker(text, path, found):
    report = _json(text, path, "report of a tracker")
    if report.get("format") != 1 or not isinstance(report.get("epochs"), list):
        raise Unreadable(f"'{path.name}' is no report of a tracker that is known (format {report.get('format')})")
    metrics = found["metrics"]
    shares = ("train_seconds", "compute_seconds", "communication_seconds", "data_wait_seconds")
    for name in ("world_size", "time_to_goal_seconds", "samples", "samples_per_second", "communication_bytes", *shares,
                 *[f"mean_{name}" for name in shares]):
        if _number(report.get(name)) is not None:
            metrics[name] = report[name]
    if report.get("world_size") == 1:  # the mean is its own value
        for name in shares:
            if name in metrics:
                metrics.setdefault(f"mean_{name}", metrics[name])
    for name, phase in report.get("phases", {}).items():
        if isinstance(phase, dict) and _number(phase.get("max_seconds")) is not None:
            metrics[f"phase_{name}_seconds"] = phase["max_seconds"]
    passed = 0.0
    for epoch in report["epochs"]:
        if not isinstance(epoch, dict):
            raise Unreadable(f"'{path.name}' has an epoch that is no object")
        row = {name: _number(value) for name, value in epoch.items() if _number(value) is not None}
        passed += row.get("train_seconds", 0.0)
        found["series"].append({**row, "seconds": passed})
    for name, reported in (("ranks", report.get("world_size")), ("transport", report.get("transport"))):
        if reported is not None:
            found["annotations"][name] = str(reported)
    annotations = report.get("annotations", {})
    for name, value in annotations.items() if isinstance(annotations, dict) else ():
        found["annotations"][name] = str(value)
        if name in SETTINGS:
            continue
        try:
            number = _number(float(value))
        except (TypeError, ValueError):
            continue
        if number is not None and name not in metrics:
            metrics[name] = number


def _benchmark(text, path, reader, found):
    report = _embedded(text, path, "benchmarks")
    context = report.get("context")
    if isinstance(context, dict) and isinstance(context.get("executable"), str):
        found["annotations"]["program"] = pathlib.Path(context["executable"]).name
    for row in report["benchmarks"]:
        name = row.get("name") if isinstance(row, dict) else None
        if not isinstance(name, str):
            raise Unreadable(f"'{path.name}' has a row without a name")
        match = re.search(reader.rows, name) if reader.rows else None
        if reader.rows and match is None:
            continue
        if match is not None and match.groups():  # the groups of the match name the row
            name = "/".join(group for group in match.groups() if group is not None)
        if row.get("error_occurred"):
            raise Unreadable(f"the benchmark {name} ended with an error ({row.get('error_message', 'no text')})")
        unit = TIME_UNITS.get(row.get("time_unit", "ns"))
        real = _number(row.get("real_time"))
        if unit is None or real is None or row.get("aggregate_unit") == "percentage":
            continue  # a ratio of complexities, for example, or a coefficient of variation
        metrics = {"seconds": real * unit}
        known = {"real_time", "cpu_time", "iterations", "family_index", "per_family_instance_index", "repetitions",
                 "repetition_index", "threads", "aggregate_unit"}
        for key, value in row.items():
            if key not in known and _number(value) is not None:
                metrics[PLAIN.sub("_", key)] = value
        found["rows"].append({"row": name, "metrics": metrics})
    if not found["rows"]:
        raise Unreadable(f"'{path.name}' has no benchmark" + (f" that matches '{reader.rows}'" if reader.rows else ""))


def _log(text, path, reader, found):
    for pattern in reader.patterns:
        matches = list(re.finditer(pattern.regex, text, re.MULTILINE))
        if pattern.take == "count":
            found["metrics"][pattern.name] = len(matches)
            continue
        matches = [match for match in matches if match.group(1) is not None]
        if not matches:
            if pattern.required:
                raise Unreadable(f"'{path.name}' has no '{pattern.name}' (nothing matches '{pattern.regex}')")
            continue
        found["metrics"][pattern.name] = _taken(pattern, [_read(match.group(1), pattern.name, path) for match in matches])
    if reader.series:
        for match in re.finditer(reader.series, text, re.MULTILINE):
            found["series"].append({name: _read(value, name, path) for name, value in match.groupdict().items()
                                    if value is not None})
        if not found["series"]:
            raise Unreadable(f"'{path.name}' has no line of the series (nothing matches '{reader.series}')")


def _read(text, name, path):
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Unreadable(f"'{path.name}' has {ascii(text[:40])} for '{name}' (it is no finite number)")
    return int(value) if value.is_integer() and abs(value) < 2 ** 53 and not re.search(r"[.eE]", text) else value


def _taken(pattern, values):
    return {"last": lambda: values[-1], "first": lambda: values[0], "max": lambda: max(values), "min": lambda: min(values),
            "mean": lambda: statistics.fmean(values), "sum": lambda: sum(values)}[pattern.take]()
