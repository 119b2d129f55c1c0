"""Parameters and the values of a sweep."""
import itertools
import math

from .errors import Refusal, closest, listed

MOST_RUNS = 10_000


def values_of(name, value, where):
    """Returns a list of values from a list, {from, to, step} or {from, to, times}, or one value."""
    if isinstance(value, list):
        for item in value:
            if isinstance(item, (list, dict)):
                raise Refusal(f"{where}: '{name}' has '{item}' in its list (values are texts and numbers); change it")
        return list(value)
    if not isinstance(value, dict):
        return [value]
    for key in value:
        if key not in ("from", "to", "step", "times"):
            raise Refusal(f"{where}: the range '{name}' has the unknown key '{key}' (known: from, to, step, times); "
                          f"{closest(key, ('from', 'to', 'step', 'times'), 'leave it out')}")
    numbers = {key: number for key, number in value.items()}
    if not all(isinstance(number, (int, float)) and not isinstance(number, bool) and math.isfinite(number)
               for number in numbers.values()):
        raise Refusal(f"{where}: the range '{name}' has a value that is no number ({value}); write such as {{from: 1, to: 8, times: 2}}")
    if "from" not in numbers or "to" not in numbers or ("step" in numbers and "times" in numbers):
        raise Refusal(f"{where}: the range '{name}' needs from, to and one of step and times ({value}); complete it")
    return _range(name, numbers, where)


def _range(name, numbers, where):
    first, last = numbers["from"], numbers["to"]
    if "times" in numbers:
        if numbers["times"] <= 1 or first <= 0:
            raise Refusal(f"{where}: the range '{name}' never gets to its end (times must be above 1, from above 0); "
                          "change it")
        count = max(0, math.floor(math.log(last / first, numbers["times"]) + 1e-9) + 1) if last >= first else 0
    else:
        step = numbers.get("step", 1)
        if step == 0:
            raise Refusal(f"{where}: the range '{name}' never gets to its end (its step is 0); change it")
        count = max(0, math.floor((last - first) / step + 1e-9) + 1)
    if count > MOST_RUNS:
        raise Refusal(f"{where}: the range '{name}' has {count:,} values (at most {MOST_RUNS:,}); make its step larger")
    whole = all(isinstance(number, int) for number in numbers.values())

    def at(index):
        value = first * numbers["times"] ** index if "times" in numbers else first + index * numbers.get("step", 1)
        return value if whole else float(f"{value:.12g}")
    return [at(index) for index in range(count)]


def expand(parameters, sweep, exclude, repeats, where, most=MOST_RUNS, cases=()):
    """Returns every combination as (values, repeat), without combinations that an exclusion matches. Names have the
    order of the file, and the last name changes fastest. `cases` are sets of values that change together, and change
    slowest. Refuses an empty or too long list before building it."""
    axes = {name: values_of(name, value, where) for name, value in sweep.items()}
    cases = checked_cases(cases, where)
    for name in axes:
        if name in parameters:
            raise Refusal(f"{where}: '{name}' is both a parameter and swept (one would be ignored); remove one")
    for name in cases[0]:
        if name in parameters or name in axes:
            raise Refusal(f"{where}: '{name}' is both in the cases and outside (one would be ignored); remove one")
    known = [*parameters, *cases[0], *axes]
    for entry in exclude:
        if not isinstance(entry, dict) or not entry:
            raise Refusal(f"{where}: the exclusion '{entry}' names nothing (it is a mapping of parameters to values); "
                          "write such as {ranks: 4, codec: topk}")
        for name in entry:
            if name not in known:
                raise Refusal(f"{where}: an exclusion names the unknown parameter '{name}' (known: {listed(known)}); "
                              f"{closest(name, known, 'take it away')}")
    count = repeats * len(cases) * math.prod(len(values) for values in axes.values())
    if count > most:
        raise Refusal(f"{where} expands to {count:,} runs (at most {most:,}); sweep less, or say --most-runs {count}")
    combinations = []
    for case, *point in itertools.product(cases, *axes.values()):
        values = {**parameters, **case, **dict(zip(axes, point))}
        if not any(_matches(entry, values) for entry in exclude):
            combinations += [(values, repeat) for repeat in range(1, repeats + 1)]
    if not combinations:
        empty = [name for name, values in axes.items() if not values]
        why = f"'{empty[0]}' has no values" if empty else "every combination is excluded"
        raise Refusal(f"{where} expands to no run at all ({why}); change its sweep")
    return combinations


def checked_cases(cases, where):
    """Returns the cases, which must have the same names; one empty case if there is none."""
    for case in cases:
        if not isinstance(case, dict) or not case or any(isinstance(value, (list, dict)) for value in case.values()):
            raise Refusal(f"{where}: the case '{case}' is no mapping of parameters to values; write such as {{batch: 32, rate: 0.1}}")
        if list(case) != list(cases[0]):
            raise Refusal(f"{where}: the case '{case}' has other names than the first ({listed(cases[0])}); give all the same")
    return list(cases) or [{}]


def _matches(entry, values):
    return all(values[name] in (wanted if isinstance(wanted, list) else [wanted]) for name, wanted in entry.items())
