"""The tables of a folder of results: CSV with headers in a fixed order, and JSON with all values."""
import csv
import io
import json
import pathlib

from . import metrics
from .files import FORMAT, read_json, write_whole
from .text import shown_values, value_text, without_secrets

FIRST = ("id", "experiment", "template", "launcher", "division", "ranks", "repeat", "seed", "status", "why", "attempts", "row")
SUMMARY_FIRST = ("experiment", "row", "ranks", "runs", "failed", "skipped")


def result_of(folder, run):
    """Returns the stored result of a run, or None if it has not ended."""
    found = read_json(pathlib.Path(folder) / "experiments" / run.id / "result" / "result.json")
    return found if isinstance(found, dict) and found.get("key") == run.key and "status" in found else None


def entries_of(folder, file, plan, division):
    """Returns an entry for each run, or for each row; runs that have not ended are left out. Derived measures are
    calculated here, so another goal or price needs no new run."""
    # steps of experiments that give the times of others: (name, ranks) -> [(swept parameters, seconds, seconds of
    # computation)]
    steps = {}
    for run in plan:
        found = (result_of(folder, run) or {}).get("metrics", {})
        if "step_seconds" in found and any(other.clock == run.experiment.name for other in file.experiments):
            swept = {name: run.parameters[name] for name in run.experiment.sweep if name != "ranks"}
            steps.setdefault((run.experiment.name, run.ranks), []).append((swept, found["step_seconds"], found.get("step_compute_seconds", 0.0)))
    for run in plan:
        result = result_of(folder, run)
        if result is None:
            continue
        variants = [({}, result)]
        if run.experiment.clock and result["status"] == "ok":
            variants = [(swept, metrics.on_clock(result, *step)) for swept, *step in steps.get((run.experiment.clock, run.ranks), [])] or [
                ({}, {**result, "status": "skipped", "why": f"its clock, '{run.experiment.clock}', was not measured at {run.ranks} ranks"})]
        for swept, timed in variants:
            yield from _entries(file, run, division, timed, {**run.parameters, **swept})


def _entries(file, run, division, result, parameters):
    common = {"id": run.id, "experiment": run.experiment.name, "template": run.template.name,
              "launcher": run.template.launcher.kind, "division": division, "ranks": run.ranks, "repeat": run.repeat,
              "seed": run.seed, "status": result["status"], "why": without_secrets(result["why"]), "attempts": len(result["attempts"]),
              "parameters": shown_values(parameters), "series": result["series"], "program": result.get("program", ""),
              "settings": shown_values(result.get("settings", {})),
              "machine_seconds": result.get("machine_seconds"), "began": result.get("began"), "environment": result.get("environment")}
    measured = {**result["metrics"], **metrics.derive(file, run, result)}
    rows = result["rows"] or [{"row": "", "metrics": {}}]
    for row in rows:
        yield {**common, "row": row["row"], "metrics": {**measured, **row["metrics"]}}


def parameter_names(plan):
    """Returns the names in the order of the file; ranks have a separate column."""
    names = {}
    for run in plan:
        for name in run.parameters:
            names.setdefault(name)
    return [name for name in names if name != "ranks"]


def _column(name, taken):
    """Returns the name of a parameter's column, which may collide with another column."""
    return f"parameter_{name}" if name in taken else name


def results_csv(file, plan, entries):
    names, measures = parameter_names(plan), metrics.columns(file, entries)
    header = [*FIRST, *[_column(name, {*FIRST, *measures}) for name in names], *measures]
    rows = [[*[_cell(entry[name]) for name in FIRST], *[_cell(entry["parameters"].get(name)) for name in names],
             *[_cell(entry["metrics"].get(name)) for name in measures]] for entry in entries]
    return _csv(header, rows)


def summary_csv(file, plan, groups):
    names = parameter_names(plan)
    measures = metrics.columns(file, [entry for group in groups for entry in group.entries])
    header = [*SUMMARY_FIRST, *[_column(name, {*SUMMARY_FIRST, *metrics.SPEEDUPS}) for name in names],
              *[f"{name}_{which}" for name in measures for which in ("min", "median", "max")], *metrics.SPEEDUPS]
    rows = []
    for group in groups:
        row = [group.experiment, group.row, group.ranks, len(group.entries), len(group.failed()), len(group.skipped()),
               *[group.parameters.get(name) for name in names]]
        for name in measures:
            found = group.spread(name) or {}
            row += [found.get(which) for which in ("min", "median", "max")]
        rows.append([_cell(value) for value in (*row, *[group.extra.get(name) for name in metrics.SPEEDUPS])])
    return _csv(header, rows)


def _cell(value):
    return repr(value) if isinstance(value, float) else value_text(value)


def _csv(header, rows):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def write_tables(folder, file, plan, division):
    """Writes results.csv, summary.csv and results.json. Returns the entries and their groups."""
    folder = pathlib.Path(folder)
    entries = list(entries_of(folder, file, plan, division))
    groups = metrics.groups_of(file, entries)
    write_whole(folder / "results.csv", results_csv(file, plan, entries))
    write_whole(folder / "summary.csv", summary_csv(file, plan, groups))
    whole = {"format": FORMAT, "name": file.name, "title": file.title, "division": division, "planned": len(plan),
             "measures": metrics.own_measures(file), "environments": read_json(folder / "environment.json") or [], "runs": entries,
             "groups": [{"experiment": group.experiment, "row": group.row, "ranks": group.ranks,
                         "parameters": group.parameters, "runs": len(group.entries), "failed": len(group.failed()),
                         "skipped": len(group.skipped()), **{name: group.spread(name) for name in
                                               metrics.columns(file, group.entries)}, **group.extra} for group in groups]}
    write_whole(folder / "results.json", json.dumps(whole, indent=1) + "\n")
    return entries, groups
