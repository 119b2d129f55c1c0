"""Compares two folders of results, with a verdict for each row."""
import dataclasses
import pathlib
import statistics

from . import html
from .errors import Refusal
from .files import read_json, write_whole
from .metrics import spread
from .text import value_text
from .verdict import ENOUGH, LEAST, MACHINE, TOO_FEW, WITHIN, Ratio, noise, verdict

BEGAN = "began"  # when a run began, in seconds since 1970
JUDGED = ("time_to_accuracy", "throughput", "seconds", "accuracy", "cost", "communication_share")
RULE = (f"A row differs where the interval of second / first (bootstrapped medians) leaves 1 out and the medians differ by more "
        f"than {LEAST:.0%} and, unless both sides were run in turns, than the machine's noise: how far from 1 the same ratio gets "
        f"for a fixed piece of work, done before each run. With fewer than {ENOUGH} repetitions there are not enough runs to say.")


@dataclasses.dataclass
class Row:
    name: str
    metric: str
    old: dict
    new: dict
    machine: float    # the machine's noise for this row, as a share; None if it was not measured
    ratio: Ratio      # None if there is no ratio
    verdict: str


def load(folder):
    found = read_json(pathlib.Path(folder) / "results.json")
    if not isinstance(found, dict) or not isinstance(found.get("runs"), list):
        raise Refusal(f"'{folder}' has no results (there is no results.json of this runner in it); name a folder that "
                      "muster-bench run has filled")
    return found


def _key(run, row):
    return run["experiment"], row, run["ranks"], tuple((name, value_text(value)) for name, value in run["parameters"].items() if name != "ranks")


def _groups(found):
    """Returns the measures by configuration: {key: {measure: [value for each repetition]}}."""
    groups = {}
    for run in found["runs"]:
        values = groups.setdefault(_key(run, run["row"]), {})
        if run["status"] == "ok":
            for name, value in (*run["metrics"].items(), (MACHINE, run.get(MACHINE)), (BEGAN, run.get(BEGAN))):
                if value is not None:
                    values.setdefault(name, []).append(value)
    return groups


def compare(old, new):
    """Returns the rows that both have, and the names that only one has."""
    ours, theirs = _groups(old), _groups(new)
    measures = dict.fromkeys((*JUDGED, *old.get("measures", ()), *new.get("measures", ())))
    rows = []
    for key in ours:
        if key not in theirs:
            continue
        first, second = ours[key], theirs[key]
        machine = 0.0 if in_turns(first.get(BEGAN, []), second.get(BEGAN, [])) else noise(first.get(MACHINE, []),
                                                                                            second.get(MACHINE, []))
        good, tried = ([len(side.get(name, ())) for side in (first, second)] for name in ("time_to_accuracy", BEGAN))
        rows += _shares(key, "runs that reached the goal", good, tried, few=True)
        for metric in measures:
            a, b = first.get(metric), second.get(metric)
            if a and b:
                rows.append(Row(name_of(key), metric, spread(a), spread(b), machine, *verdict(metric, a, b, machine)))
    before, now = _tried(old), _tried(new)
    for key in before:
        if key in now:
            good = [sum(side[key].values()) for side in (before, now)]
            rows += _shares(key, "runs that ended well", good, [len(side[key]) for side in (before, now)], few=all(good))
    alone = [f"only in the first: {name_of(key)}" for key in ours if key not in theirs]
    alone += [f"only in the second: {name_of(key)}" for key in theirs if key not in ours]
    return rows, alone


def _tried(found):
    """Returns {run: True if it succeeded} by configuration, without skipped runs: {key: {run: bool}}. A failed run has
    no rows."""
    succeeded = {}
    for run in found["runs"]:
        if run["status"] != "skipped":
            succeeded.setdefault(_key(run, ""), {})[run["id"]] = run["status"] == "ok"
    return succeeded


def _shares(key, measure, good, tried, few):
    """Returns a row without a ratio if the shares of successful runs, or of runs that reach the goal, differ. `few`:
    too few runs give no verdict."""
    (a, b), (old, new) = good, tried
    if not old or not new or a / old == b / new:
        return []
    word = TOO_FEW if few and min(tried) < ENOUGH else "worse" if b / new < a / old else "better"
    return [Row(name_of(key), measure, spread([a]), spread([b]), None, None, word)]


def in_turns(old, new):
    """Returns true if the repetitions of both sides alternated, so that the machine's noise affects both sides."""
    if len(old) != len(new) or len(old) < 2:
        return False
    pairs = list(zip(sorted(old), sorted(new)))
    return all(max(before) < min(after) for before, after in zip(pairs, pairs[1:]))


def name_of(key):
    experiment, row, ranks, parameters = key
    words = [experiment, row, *[f"{name} {value}" for name, value in parameters], f"{ranks} rank" + ("s" if ranks > 1 else "")]
    return ", ".join(word for word in words if word)


def spread_text(found):
    if found["n"] == 1:
        return f"{found['median']:.4g}"
    return f"{found['median']:.4g} ({found['min']:.4g} to {found['max']:.4g})"


def ratio_text(found):
    return "" if found is None else f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"


def noise_text(share):
    return "not measured" if share is None else f"{share:.1%}" if share else "run in turns"


def summary(rows):
    """Returns one line: the number of rows for each verdict, and the machine's noise."""
    counts = {}
    for row in rows:
        counts[row.verdict] = counts.get(row.verdict, 0) + 1
    seen = [row.machine for row in rows if row.machine is not None]
    machine = f"{statistics.median(seen):.1%} (at most {max(seen):.1%})" if any(seen) else noise_text(0.0 if seen else None)
    return f"{', '.join(f'{count} {word}' for word, count in counts.items())}; the machine's noise: {machine}"


def as_text(rows, alone):
    lines = [("", "measure", "first", "second", "second / first", "machine", "verdict")]
    lines += [(row.name, row.metric, spread_text(row.old), spread_text(row.new), ratio_text(row.ratio), noise_text(row.machine),
               row.verdict) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*lines)]
    return "\n".join(["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
                     + alone + [summary(rows)])


def write_page(path, names, rows, alone):
    colour = {"better": "faster", "worse": "slower", WITHIN: "", TOO_FEW: "", "higher": "", "lower": ""}
    cells = [[html.escape(row.name), f'<span class="{colour.get(row.verdict, row.verdict)}">{row.verdict}</span>',
              html.escape(row.metric), html.escape(ratio_text(row.ratio)), html.escape(noise_text(row.machine)),
              html.spread(row.old), html.spread(row.new)] for row in rows]
    title = f"{names[0]} and {names[1]}"
    body = (f"<h1>{html.escape(title)}</h1>\n<p>{html.escape(summary(rows))}</p>\n<p>{html.escape(RULE)}</p>\n" +
            html.table(["", "verdict", "measure", "second / first", "machine", *names], cells) +
            "".join(f"<p>{html.escape(text)}</p>\n" for text in alone))
    write_whole(path, html.document(title, body))
