"""The file of an experiment: templates, parameters, and how the results are judged."""
import dataclasses
import pathlib

from . import document
from .document import Section
from .errors import Refusal, closest, listed
from .forms import read_forms
from .metrics import GOALS
from .sweep import MOST_RUNS, checked_cases, expand
from .template import BUILT_IN, Template, read_template
from .text import value_text
from .tuning import read_tuning

FORMAT = 1
DIVISIONS = ("open", "closed")


@dataclasses.dataclass(frozen=True)
class Goal:
    metric: str
    value: float

    def reached(self, epoch):
        """Returns true if a row of a series meets the goal. Columns have the names of muster's tracker."""
        number = epoch.get(GOALS[self.metric])
        if number is None:
            return False
        return number >= self.value if self.metric.endswith("accuracy") else number <= self.value


@dataclasses.dataclass(frozen=True)
class Prices:
    currency: str = ""
    cpu_hour: float = 0.0
    gpu_hour: float = 0.0
    rank_hour: float = 0.0       # price of an instance with one rank
    machine_hour: float = 0.0    # price for all ranks together
    preemptible: object = None   # prices of the same machines as preemptible instances

    def given(self):
        return bool(self.currency)

    def of(self, seconds, ranks, resources):
        return seconds / 3600 * (self.machine_hour + ranks * (self.rank_hour + resources.cpus_per_rank * self.cpu_hour +
                                                              resources.gpus_per_rank * self.gpu_hour))


@dataclasses.dataclass(frozen=True)
class Experiment:
    name: str
    template: Template
    parameters: dict
    sweep: dict
    exclude: list
    repeats: int
    seed: int
    goals: tuple = ()     # the experiment's own goals, else the goals of the file
    cases: tuple = ()     # parameters that change together
    clock: str = ""       # another experiment whose steps provide the times here
    follows: dict = dataclasses.field(default_factory=dict)  # derived values: name -> (parameter, {value: result})

    @property
    def goal(self):
        """Returns the first goal, which decides, or None."""
        return self.goals[0] if self.goals else None

    def following(self, parameters):
        """Returns the values that are derived from the parameters of a run. They are placeholders and do not
        distinguish configurations."""
        derived = {}
        for name, (by, results) in self.follows.items():
            text = value_text(parameters[by])
            if text not in results:
                raise Refusal(f"experiment '{self.name}': '{name}' does not follow from {by} {text} (known: {listed(results)}); add it")
            derived[name] = results[text]
        return derived

    @property
    def swept(self):
        """Returns the names of the parameters in which its runs differ."""
        return [*(self.cases[0] if self.cases else ()), *self.sweep]

    def runs(self, most=MOST_RUNS):
        where = f"experiment '{self.name}'"
        for values, repeat in expand(self.parameters, self.sweep, self.exclude, self.repeats, where, most, self.cases):
            ranks = values.get("ranks", 1)
            if not isinstance(ranks, int) or isinstance(ranks, bool) or not 1 <= ranks <= 1_000_000:
                raise Refusal(f"{where}: ranks cannot be '{ranks}' (it is a whole number, 1 or more); change it")
            yield {"ranks": 1, **values}, repeat, self.seed + repeat - 1


@dataclasses.dataclass(frozen=True)
class File:
    path: pathlib.Path
    content: dict           # content of the file, with the settings of the command line
    name: str
    title: str
    about: str
    division: str
    places: dict            # name -> absolute path
    experiments: tuple
    accuracy_after: tuple = ()
    prices: Prices = Prices()
    forms: tuple = ()       # tables in the form of a published benchmark
    plain: dict = None      # selects the plain baseline: {"experiment": ..., and parameters}
    tuning: object = None   # the search of muster-bench tune


def read_file(path, settings=None, places=None):
    """Reads and checks the file. `settings` are parameters that the command line gives to every experiment that has
    them, `places` are folders."""
    path = pathlib.Path(path).absolute()
    content = document.load(path)
    top = Section(content, f"'{path.name}'")
    version = top.get("muster-bench", "a whole number")
    if version != FORMAT:
        raise Refusal(f"'{path.name}' is of format {version} (this runner reads {FORMAT}); use the runner it was written for")
    name = top.get("name", "a text")
    division = top.get("division", "a text", "open")
    if division not in DIVISIONS:
        raise Refusal(f"'{path.name}': the division cannot be '{division}' (it is open or closed); change it")
    where_to = _places(top.free("places"), places or {}, path)
    templates = _templates(top, path)
    experiments = _experiments(top, templates, where_to, settings or {}, path)
    file = File(path=path, content=content, name=name, title=top.get("title", "a text", name),
                about=top.get("about", "a text", ""), division=division, places=where_to, experiments=experiments,
                accuracy_after=_times(top), prices=_prices(top.section("prices")),
                plain=_plain(top, experiments), forms=read_forms(top.get("tables", "a list", []), experiments, f"'{path.name}'"),
                tuning=read_tuning(top.section("tune"), experiments) if top.free("tune") else None)
    top.done()
    return file


def _places(given, overridden, path):
    for name in overridden:
        if name not in given:
            raise Refusal(f"--place {name} is not one of this file's places (it has: {listed(given)}); "
                          f"{closest(name, given, 'leave it out')}")
    for name in given:
        if name in BUILT_IN:
            raise Refusal(f"'{path.name}': the place '{name}' has the name of something that every run has; choose another")
    return {name: str(pathlib.Path(overridden.get(name, str(value))).expanduser().absolute())
            for name, value in given.items()}


def _templates(top, path):
    entries = {}
    for other in top.get("include", "a list", []):
        included = Section(document.load(path.parent / str(other)), f"'{other}'")
        included.get("muster-bench", "a whole number", FORMAT)
        entries.update(included.free("templates"))
        included.done()
    entries.update(top.free("templates"))
    return {name: read_template(name, value) for name, value in entries.items()}


def _experiments(top, templates, places, settings, path):
    entries = {str(name): value for name, value in top.get("experiments", "a mapping").items()}
    found, used = [], set()
    for name, value in entries.items():
        section = Section(value, f"experiment '{name}'")
        which = section.get("template", "a text")
        if which not in templates:
            raise Refusal(f"{section.where} has the unknown template '{which}' (known: {listed(templates)}); "
                          f"{closest(which, templates, 'write that template')}")
        parameters, sweep = dict(section.free("parameters")), dict(section.free("sweep"))
        cases = checked_cases(section.get("cases", "a list", []), section.where)
        for key, given in settings.items():
            if key in parameters or key in sweep:
                used.add(key)
                parameters.pop(key, None)
                sweep[key] = given if isinstance(given, list) else [given]
        for key in (*parameters, *cases[0], *sweep):
            if key in places or (key in BUILT_IN and key != "ranks"):
                raise Refusal(f"{section.where}: a parameter cannot be called '{key}' (every run has that); choose another name")
        for key, given in parameters.items():
            if isinstance(given, (list, dict)):
                raise Refusal(f"{section.where}: the parameter '{key}' has several values; put it under sweep")
        template = templates[which]
        follows = _follows(section, ["ranks", *parameters, *cases[0], *sweep])
        for key in follows:
            if key in (*places, *BUILT_IN, *parameters, *cases[0], *sweep):
                raise Refusal(f"{section.where}: '{key}' follows and is there besides (one of them would win); take one away")
        template.check_placeholders([*BUILT_IN, *places, *parameters, *cases[0], *sweep, *follows])
        experiment = Experiment(name=name, template=template, parameters=parameters, sweep=sweep,
                                exclude=section.get("exclude", "a list", []),
                                repeats=section.get("repeats", "a whole number", 1),
                                seed=section.get("seed", "a whole number", 1), goals=_goals(section) or _goals(top),
                                cases=tuple(case for case in cases if case), follows=follows, clock=section.get("clock", "a text", ""))
        section.done()
        if experiment.repeats < 1:
            raise Refusal(f"{section.where}: repeats cannot be {experiment.repeats} (it is 1 or more); change it")
        found.append(experiment)
    for key in settings:
        if key not in used:
            known = sorted({each for experiment in found for each in (*experiment.parameters, *experiment.sweep)})
            raise Refusal(f"--set {key} is a parameter of no experiment in '{path.name}' (they have: {listed(known)}); "
                          f"{closest(key, known, 'leave it out')}")
    for experiment in found:
        if experiment.clock and experiment.clock not in entries:
            raise Refusal(f"experiment '{experiment.name}' has the unknown experiment '{experiment.clock}' for its clock (known: {listed(entries)}); "
                          f"{closest(experiment.clock, entries, 'name one that is there')}")
    if not found:
        raise Refusal(f"'{path.name}' has no experiments (there is nothing to run); write one")
    return tuple(found)


def _follows(section, known):
    derived = {}
    for name, value in section.free("follows").items():
        if not isinstance(value, dict) or len(value) != 1 or not all(isinstance(results, dict) for results in value.values()):
            raise Refusal(f"{section.where}: what '{name}' follows from cannot be '{value}' (it is one parameter, and a result for each of "
                          "its values); write such as {ranks: {1: 200, 2: 400}}")
        (by, results), = value.items()
        if by not in known:
            raise Refusal(f"{section.where}: '{name}' follows from the unknown parameter '{by}' (known: {listed(known)}); "
                          f"{closest(by, known, 'take one of these')}")
        derived[name] = by, {value_text(given): result for given, result in results.items()}
    return derived


def _goals(top):
    value = top.get("goal", "a mapping or a list", [])
    goals = []
    for entry in value if isinstance(value, list) else [value]:
        section = Section(entry, f"{top.where}, goal")
        metric = section.get("metric", "a text")
        if metric not in GOALS:
            raise Refusal(f"{section.where} has the unknown metric '{metric}' (known: {listed(GOALS)}); "
                          f"{closest(metric, GOALS, 'use one of these')}")
        if metric in [goal.metric for goal in goals]:
            raise Refusal(f"{section.where} has {metric} twice (one value of a metric is the goal); take one away")
        goals.append(Goal(metric, float(section.get("value", "a number"))))
        section.done()
    return tuple(goals)


def _times(top):
    value = top.get("accuracy-after", "a list", [])
    for limit in value:
        if not isinstance(limit, (int, float)) or limit <= 0:
            raise Refusal(f"{top.where}: accuracy-after has '{limit}' (it lists seconds above 0); change it")
    return tuple(value)


def _prices(section, currency=""):
    currency = currency or section.get("currency", "a text", "")
    prices = [float(section.get(key, "a number", 0)) for key in ("cpu-hour", "gpu-hour", "rank-hour", "machine-hour")]
    other = section.section("preemptible") if section.free("preemptible") else None
    own = Prices(currency, *prices, other and _prices(other, currency))
    section.done()
    if not own.currency and (any(prices) or other):
        raise Refusal(f"{section.where} has no currency (a price is a number of something); add currency: EUR")
    return own


def _plain(top, experiments):
    value = dict(top.free("plain-baseline"))
    if not value:
        return None
    named = value.get("experiment")
    if named is not None and named not in [each.name for each in experiments]:
        raise Refusal(f"{top.where}: plain-baseline names the unknown experiment '{named}'; name one that is there")
    return value
