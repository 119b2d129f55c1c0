"""The tuning section of a file: the searched parameters of an experiment, the method, and the measure that judges
trials."""
import dataclasses
import math

from .document import Section
from .errors import Refusal, closest, listed
from .metrics import GOALS, LESS_IS_BETTER
from .sweep import values_of

METHODS = ("grid", "random", "bayesian", "hyperband")


@dataclasses.dataclass(frozen=True)
class Range:
    """A range of numbers with both limits included; whole numbers if both limits are whole."""
    low: float
    high: float
    step: float    # 0: any number
    log: bool


@dataclasses.dataclass(frozen=True)
class Rungs:
    """Budgets of a trial: `most`, and before it repeatedly the part 1 / factor of the next budget, down to `least`."""
    parameter: str = "epochs"
    least: int = 1
    most: int = 27
    factor: int = 3

    def brackets(self):
        """Returns [(trials, (budget, rung by rung))] of Hyperband (Li et al. 2018,
        https://arxiv.org/abs/1603.06560)."""
        deepest = int(math.log(self.most / self.least, self.factor) + 1e-9)
        return [(math.ceil((deepest + 1) / (bracket + 1) * self.factor ** bracket),
                 tuple(max(self.least, round(self.most * float(self.factor) ** (rung - bracket))) for rung in range(bracket + 1)))
                for bracket in range(deepest, -1, -1)]


@dataclasses.dataclass(frozen=True)
class Tuning:
    experiment: object
    over: dict            # parameter -> a list of values, or a Range
    method: str
    measure: str
    watched: str          # the column of a live line that may prune a trial; empty: none
    trials: int
    prune: bool
    patience: int         # epochs without an improvement that end a trial; 0: any number
    rungs: Rungs

    @property
    def less_is_better(self):
        return self.measure in LESS_IS_BETTER


def read_tuning(section, experiments):
    """Returns the checked section, or None if the file has none."""
    names = {each.name: each for each in experiments}
    name = section.get("experiment", "a text", next(iter(names)))
    if name not in names:
        raise Refusal(f"{section.where} is of the unknown experiment '{name}' (known: {listed(names)}); {closest(name, names, 'name one that is there')}")
    experiment = names[name]
    if experiment.swept or experiment.repeats != 1:
        raise Refusal(f"{section.where}: the experiment '{name}' sweeps or repeats (a trial is one run, whose parameters are chosen for it); "
                      "give it parameters alone")
    method = _one_of(section, "method", METHODS, "bayesian")
    over = {key: _space(key, value, method, experiment, section.where) for key, value in section.get("over", "a mapping").items()}
    if not over:
        raise Refusal(f"{section.where} is over no parameter (there is nothing to search); write such as over: {{alpha: {{from: 1, to: 100, log: true}}}}")
    goal = experiment.goal
    measure = section.get("measure", "a text", "time_to_accuracy" if goal else "best_accuracy")
    watched = goal.metric if goal and measure == "time_to_accuracy" else measure.removeprefix("best_")
    rungs = _rungs(section.section("rungs"), experiment, over) if method == "hyperband" else None
    tuning = Tuning(experiment, over, method, measure, GOALS.get(watched, ""),
                    section.get("trials", "a whole number", math.prod(map(len, over.values())) if method == "grid" else 20),
                    section.get("prune", "true or false", method != "grid"), section.get("patience", "a whole number", 0), rungs)
    section.done()
    if measure.startswith("time_to_") and measure[len("time_to_"):] not in _timed(experiment):
        raise Refusal(f"{section.where}: '{measure}' is the time to a goal that '{name}' does not have (its goals: {listed(_timed(experiment))}); "
                      "add the goal, or take another measure")
    if rungs and measure.startswith("time_to_"):
        raise Refusal(f"{section.where}: hyperband cannot judge by '{measure}' (a rung ends before the goal is reached, and a resumed training "
                      "counts its time anew); take accuracy or a loss")
    if tuning.trials < 1 or tuning.patience < 0:
        raise Refusal(f"{section.where}: there cannot be {tuning.trials} trials with a patience of {tuning.patience} (1 or more, 0 or more); change it")
    return tuning


def _timed(experiment):
    """Returns the names of the goals. The first goal, which decides, is called accuracy for any metric."""
    return ["accuracy", *[goal.metric for goal in experiment.goals[1:]]] if experiment.goals else []


def _one_of(section, key, known, default):
    value = section.get(key, "a text", default)
    if value not in known:
        raise Refusal(f"{section.where} has the unknown {key} '{value}' (known: {listed(known)}); {closest(value, known, 'use one of these')}")
    return value


def _space(name, value, method, experiment, where):
    if name not in experiment.parameters:
        raise Refusal(f"{where} is over '{name}', which is no parameter of '{experiment.name}' (it has: {listed(experiment.parameters)}); "
                      f"{closest(name, experiment.parameters, 'add it, with the value that it has without tuning')}")
    inner = Section(value, f"{where}, {name}") if isinstance(value, dict) else None
    if inner is None or "times" in value or (method == "grid" and "log" not in value):
        return values_of(name, value, where)
    low, high = inner.get("from", "a number"), inner.get("to", "a number")
    interval = Range(low, high, inner.get("step", "a number", 0), inner.get("log", "true or false", False))
    inner.done()
    if method == "grid":
        raise Refusal(f"{inner.where}: a grid has no values of a range with log (it is a list); write a list or {{from:, to:, times:}}")
    if not low < high or interval.step < 0 or (interval.log and (low <= 0 or interval.step)):
        raise Refusal(f"{inner.where}: {value} is no range (from is below to, and above 0 with log, which has no step); change it")
    return interval


def _rungs(section, experiment, over):
    rungs = Rungs(section.get("parameter", "a text", "epochs"), section.get("least", "a whole number", 1),
                  section.get("most", "a whole number", 27), section.get("factor", "a whole number", 3))
    section.done()
    if rungs.parameter not in experiment.parameters or rungs.parameter in over:
        raise Refusal(f"{section.where}: the budget '{rungs.parameter}' is no parameter of '{experiment.name}' that is left as it is (it has: "
                      f"{listed(name for name in experiment.parameters if name not in over)}); name one of these")
    if rungs.factor < 2 or not 1 <= rungs.least < rungs.most:
        raise Refusal(f"{section.where}: there are no rungs from {rungs.least} to {rungs.most} by {rungs.factor} (least is 1 or more and below most, "
                      "factor 2 or more); change it")
    return rungs
