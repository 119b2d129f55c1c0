"""The first lines of a report: the configuration that won, its lead, and a comparison of the lead with the noise."""
from .metrics import LESS_IS_BETTER
from .verdict import ENOUGH, MACHINE, TOO_FEW, WITHIN, noise, verdict

MEASURES = ("time_to_accuracy", "throughput", "seconds", "train_seconds")   # the first measure that all have is judged
WON = {"time_to_accuracy": "reached the goal first", "throughput": "had the highest throughput", "seconds": "took the least time",
       "train_seconds": "trained in the least time"}


def sentences(goal, groups, label, text):
    """Returns three sentences about an experiment's groups, or None if fewer than two groups can be compared. `label`
    names a group, `text` formats a value of a measure."""
    groups = [group for group in groups if not group.row]
    metric = next((name for name in MEASURES if any(group.values(name) for group in groups)), None)
    ranking = sorted((group for group in groups if metric and group.values(metric) and group.all_have(metric)), key=lambda group: group.median(metric),
                     reverse=metric not in LESS_IS_BETTER)
    if len(groups) < 2 or not ranking:
        return None
    missed = goal is not None and metric != MEASURES[0] and any(entry["series"] for group in groups for entry in group.good())
    missed = f"No run reached the goal ({goal.metric} {goal.value:g}); " if missed else ""
    best, n = ranking[0], len(ranking[0].values(metric))
    first = f"{missed}{label(best)} {WON[metric]}: {text(metric, best.median(metric))}, the median of {n} run{'s' if n > 1 else ''}."
    if len(ranking) == 1:
        return [first, "No other configuration got there.", "With nothing to compare it to, noise does not decide that."]
    second = ranking[1]
    found, word = verdict(metric, second.values(metric), best.values(metric), noise(second.values(MACHINE), best.values(MACHINE)))
    gain = max(found.value, 1 / found.value) if found else 1.0
    last = f"; {len(groups) - len(ranking)} did not always get there" if len(ranking) < len(groups) else ""
    by = f"That is {gain:.2f} times as good as the next, {label(second)} ({text(metric, second.median(metric))}){last}."
    return [first, by, _noise(found, word, noise(second.values(MACHINE), best.values(MACHINE)))]


def _noise(found, word, machine):
    """Returns the sentence about noise. `found` is the ratio of the best to the second, above or below 1."""
    if word == TOO_FEW:
        return f"Whether that exceeds the noise cannot be said (it takes {ENOUGH} runs of each)."
    known = f"; the machine's noise was {machine:.1%}" if machine is not None else ""
    low, high = (1, 1) if found is None else (found.low, found.high) if found.value > 1 else (1 / found.high, 1 / found.low)
    interval = f"it may be {low:.2f} to {high:.2f} times{known}"
    return f"That {'is within' if word == WITHIN else 'exceeds'} the noise ({interval})."
