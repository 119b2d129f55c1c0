"""Two folders of results side by side, with a verdict a row."""
import dataclasses
import pathlib

from . import html
from .errors import Refusal
from .files import read_json, write_whole
from .metrics import LESS_IS_BETTER
from .text import value_text

JUDGED = ("time_to_accuracy", "throughput", "seconds", "accuracy", "cost", "communication_share")
SPEEDS = ("time_to_accuracy", "throughput", "seconds", "cost", "communication_share")
LEAST = 0.02     # a smaller difference of medians is never more than noise
FEW = 0.10       # nor is one below this where one side has fewer than three repetitions


@dataclasses.dataclass
class Row:
    name: str
    metric: str
    old: dict
    new: dict
    gain: float      # how many times better the new median is; 1.1 is a tenth better
    verdict: str


def verdict(metric, old, new, noise=0.0):
    """(gain, "faster" | "slower" | "within noise"; "better" and "worse" for what is no speed). The new one is another than
    the old when the ranges of their repetitions do not meet and the medians differ by more than the machine's own noise."""
    less = metric in LESS_IS_BETTER
    a, b = old["median"], new["median"]
    if a == b:
        return 1.0, "within noise"
    if a <= 0 or b <= 0:
        return None, "within noise"
    gain = a / b if less else b / a
    apart = new["max"] < old["min"] or new["min"] > old["max"]
    needed = max(LEAST, noise, FEW if min(old["n"], new["n"]) < 3 else 0.0)
    if not apart or max(gain, 1 / gain) < 1 + needed:
        return gain, "within noise"
    words = ("faster", "slower") if metric in SPEEDS else ("better", "worse")
    return gain, words[0] if gain > 1 else words[1]


def load(folder):
    found = read_json(pathlib.Path(folder) / "results.json")
    if not isinstance(found, dict) or not isinstance(found.get("groups"), list):
        raise Refusal(f"'{folder}' has no results (there is no results.json of this runner in it); name a folder that "
                      "muster-bench run has filled")
    return found


def _groups(found):
    return {(group["experiment"], group["row"], group["ranks"],
             tuple((name, value_text(value)) for name, value in group["parameters"].items() if name != "ranks")): group
            for group in found["groups"]}


def _noise(found):
    return max((one["noise"]["spread"] for one in found["environments"]), default=0.0)


def compare(old, new):
    """Rows of what both have, and the names of what only one has."""
    ours, theirs = _groups(old), _groups(new)
    noise = max(_noise(old), _noise(new))
    rows = []
    for key in ours:
        if key not in theirs:
            continue
        for metric in JUDGED:
            a, b = ours[key].get(metric), theirs[key].get(metric)
            if a and b:
                rows.append(Row(name_of(key), metric, a, b, *verdict(metric, a, b, noise)))
    alone = [f"only in the first: {name_of(key)}" for key in ours if key not in theirs]
    alone += [f"only in the second: {name_of(key)}" for key in theirs if key not in ours]
    return rows, alone


def name_of(key):
    experiment, row, ranks, parameters = key
    words = [experiment, row, *[f"{name} {value}" for name, value in parameters], f"{ranks} rank" + ("s" if ranks > 1 else "")]
    return ", ".join(word for word in words if word)


def spread_text(found):
    if found["n"] == 1:
        return f"{found['median']:.4g}"
    return f"{found['median']:.4g} ({found['min']:.4g} to {found['max']:.4g})"


def as_text(rows, alone):
    lines = [("", "measure", "first", "second", "gain", "verdict")]
    lines += [(row.name, row.metric, spread_text(row.old), spread_text(row.new), "" if row.gain is None else f"{row.gain:.3f}",
               row.verdict) for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(6)]
    return "\n".join(["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines] + alone)


def write_page(path, names, rows, alone):
    colour = {"better": "faster", "worse": "slower"}
    cells = [[html.escape(row.name), f'<span class="{colour.get(row.verdict, row.verdict.split()[0])}">{row.verdict}</span>',
              html.escape(row.metric), html.number(row.gain), html.spread(row.old), html.spread(row.new)] for row in rows]
    title = f"{names[0]} and {names[1]}"
    counts = [(word, sum(row.verdict == word for row in rows)) for word in ("faster", "slower", "better", "worse", "within noise")]
    body = (f"<h1>{html.escape(title)}</h1>\n" + html.facts([(name, count) for name, count in counts if count]) +
            "<p>A row is within noise unless the ranges of its repetitions do not meet and the medians differ by more than the "
            "machine's own noise, at least 2 %, and 10 % where there are fewer than three repetitions.</p>\n" +
            html.table(["", "verdict", "measure", "gain", *names], cells) +
            "".join(f"<p>{html.escape(text)}</p>\n" for text in alone))
    write_whole(path, html.document(title, body))
