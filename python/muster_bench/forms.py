"""Tables in the form of a published benchmark: a line for each way to run it, a column for each size."""
import dataclasses

from .document import Section
from .errors import Refusal, closest, listed
from .metrics import LESS_IS_BETTER
from .text import value_text


@dataclasses.dataclass(frozen=True)
class Form:
    title: str
    about: str            # describes its settings
    experiment: str
    unit: str
    measure: str
    per: str              # the parameter that divides the measure, or none
    columns: str          # the parameter with a column for each value
    rows: tuple           # the parameters that name a line
    speed_up: bool        # S = T1 / TN and E = S / N over the columns
    beside: str           # another experiment: its lines and the ratios to its lines are added
    published: dict       # other lines: name -> a number, or none, for each column


def read_forms(entries, experiments, where):
    """Returns the forms after checking them against their experiments."""
    forms = []
    for number, entry in enumerate(entries, 1):
        section = Section(entry, f"{where}, table {number}")
        name = section.get("experiment", "a text")
        known = {each.name: each for each in experiments}
        if name not in known:
            raise Refusal(f"{section.where} is of the unknown experiment '{name}' (known: {listed(known)}); "
                          f"{closest(name, known, 'name one that is there')}")
        form = Form(section.get("title", "a text", name), section.get("about", "a text", ""), name, section.get("unit", "a text", ""),
                    section.get("measure", "a text", "throughput"), section.get("per", "a text", ""),
                    section.get("columns", "a text"), tuple(section.get("rows", "a list", [])),
                    section.get("speed-up", "true or false", False), section.get("beside", "a text", ""), section.free("published"))
        section.done()
        if form.beside and form.beside not in known:
            raise Refusal(f"{section.where} is beside the unknown experiment '{form.beside}' (known: {listed(known)}); "
                          f"{closest(form.beside, known, 'name one that is there')}")
        for experiment in (known[name], *([known[form.beside]] if form.beside else [])):
            there = ["ranks", *experiment.parameters, *experiment.swept]
            for parameter in (form.columns, *form.rows, *filter(None, [form.per])):
                if parameter not in there:
                    raise Refusal(f"{section.where} has the parameter '{parameter}', which is unknown in {experiment.name} (known: {listed(there)}); "
                                  f"{closest(parameter, there, 'use one of these')}")
            if form.per:
                if bad := [value for value in _values_of(experiment, form.per) if isinstance(value, bool) or not isinstance(value, (int, float)) or not value]:
                    raise Refusal(f"{section.where} cannot divide by '{form.per}' (it is '{value_text(bad[0])}' in {experiment.name}); "
                                  "name a parameter that is a number other than 0")
        forms.append(form)
    return tuple(forms)


def _values_of(experiment, parameter):
    """Yields all values of the parameter in an experiment that the file has."""
    yield from (each[parameter] for each in (experiment.parameters, *experiment.cases) if parameter in each)
    yield from experiment.sweep.get(parameter, ())


def _within_cells(form, groups):
    """Returns the parameters that have several values in one cell: they name lines, too."""
    cells = {}
    for group in groups:
        cell = (group.experiment, *(value_text(group.parameters[name]) for name in (*form.rows, form.columns)))
        for name, value in group.parameters.items():
            cells.setdefault((name, cell), set()).add(value_text(value))
    return list(dict.fromkeys(name for (name, _), values in cells.items() if len(values) > 1))


def _lines(form, groups, experiment, more):
    """Returns {values of the row parameters: {column: number}}."""
    found = {}
    for group in groups:
        if group.experiment != experiment:
            continue
        value = group.median(form.measure)
        if form.per:
            value /= group.parameters[form.per]
        line = ", ".join([*(value_text(group.parameters[name]) for name in form.rows),
                          *(f"{name} {value_text(group.parameters[name])}" for name in more if name in group.parameters)])
        found.setdefault(line, {})[group.parameters[form.columns]] = value
    return found


def table(form, groups):
    """Returns (header, lines) of texts and numbers; None if the form has no measurement."""
    groups = [group for group in groups if group.experiment in (form.experiment, form.beside) and not group.row and group.median(form.measure) is not None]
    more = _within_cells(form, groups)
    found, beside = (_lines(form, groups, experiment, more) for experiment in (form.experiment, form.beside))
    columns = list(dict.fromkeys(column for line in found.values() for column in line))
    if not columns:
        return None
    lines = []
    for line, values in found.items():
        other = beside.get(line, {})
        line = ", ".join(filter(None, (line, form.experiment if form.beside or not line else "")))
        lines.append([line, *[values.get(column) for column in columns]])
        if other:
            lines.append([line.replace(form.experiment, form.beside), *[other.get(column) for column in columns]])
            lines.append([f"{form.beside} / {form.experiment}", *[other[column] / values[column] if column in other and values.get(column) else None
                                                                  for column in columns]])
        if form.speed_up and values.get(1):
            less = form.measure in LESS_IS_BETTER
            gains = {column: values[1] / value if less else value / values[1] for column, value in values.items() if value}
            lines.append([f"{line}, S = T1 / TN", *[gains.get(column) for column in columns]])
            lines.append([f"{line}, E = S / N", *[gains[column] / column if column in gains else None for column in columns]])
    lines += [[name, *[numbers.get(value_text(column)) for column in columns]] for name, numbers in _by_column(form)]
    return [form.columns, *map(value_text, columns)], lines


def _by_column(form):
    for name, numbers in form.published.items():
        yield name, {value_text(column): number for column, number in numbers.items()}


def caption(form):
    parts = [text for text in (form.about, form.unit) if text]
    return form.title + (f" ({'; '.join(parts)})" if parts else "")


def as_text(forms, groups):
    """Returns all tables as text for a terminal."""
    parts = []
    for form in forms:
        content = table(form, groups)
        if content is None:
            continue
        header, lines = content
        cells = [header, *[[line[0], *[number(value) for value in line[1:]]] for line in lines]]
        widths = [max(map(len, column)) for column in zip(*cells)]
        parts.append("\n".join([caption(form), *["  ".join([line[0].ljust(widths[0]), *[cell.rjust(width) for cell, width in
                                                                                      zip(line[1:], widths[1:])]]) for line in cells]]))
    return "\n\n".join(parts)


def number(value):
    return "-" if value is None else f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
