"""The measures of a run and of a group of runs: the measures of MLBench and of the cluster benchmark."""
import math
import statistics

from .text import value_text

# Derived measures, in the order of the tables. The measures that programs report follow, by name.
DERIVED = ("throughput", "train_seconds", "time_to_accuracy", "time_to_val_loss", "time_to_train_loss",
           "time_to_train_accuracy", "accuracy", "best_accuracy", "train_accuracy", "train_loss", "val_loss",
           "communication_share", "computation_share", "data_wait_share", "other_share", "bytes_sent", "staleness_mean", "staleness_max",
           "cost", "cost_preemptible", "step_seconds")
# Metrics of a goal, with their columns in a series.
GOALS = {"accuracy": "val_accuracy", "val_loss": "val_loss", "train_loss": "train_loss", "train_accuracy": "train_accuracy"}
# A smaller number is better for these measures.
LESS_IS_BETTER = {"train_seconds", "time_to_accuracy", "time_to_val_loss", "time_to_train_loss", "time_to_train_accuracy", "seconds", "cost", "cost_preemptible", "step_seconds", "train_loss", "val_loss", "communication_share",
                  "data_wait_share", "bytes_sent", "staleness_mean", "staleness_max", "price_index"}
SHORT = 1.0     # seconds: in a shorter training the start and the end take a large part
# Measures that give a speed-up; the first measure that a group has counts.
RATES = ("throughput",)
TIMES = ("seconds", "train_seconds")


def derive(file, run, found):
    """Returns a run's measures from its readers' values; missing values have no measure."""
    raw, series = found["metrics"], found["series"]
    measures = {}

    def put(name, value):
        if value is not None:
            measures[name] = value
    train = raw.get("train_seconds")
    if train is None and series and "seconds" in series[-1]:
        train = series[-1]["seconds"]
    put("train_seconds", train)
    throughput = raw.get("throughput", raw.get("samples_per_second"))
    if throughput is None and train and raw.get("samples"):
        throughput = raw["samples"] / train
    workers = str(found["settings"].get("workers"))   # with servers: the report covers only the first worker
    if throughput is not None and "throughput" not in raw and workers.isdecimal():
        throughput *= int(workers)
    put("throughput", throughput)
    put("time_to_accuracy", _time_to_goal(run.experiment.goal, raw, series))
    for goal in run.experiment.goals[1:]:
        put(f"time_to_{goal.metric}", _time_to_goal(goal, {}, series))
    accuracies = [epoch["val_accuracy"] for epoch in series if "val_accuracy" in epoch]
    put("accuracy", raw.get("accuracy", accuracies[-1] if accuracies else None))
    put("best_accuracy", max(accuracies, default=raw.get("accuracy")))
    for name in ("train_accuracy", "train_loss", "val_loss"):
        values = [epoch[name] for epoch in series if name in epoch]
        put(name, raw.get(name, values[-1] if values else None))
    for name, share in shares(raw, train).items():
        put(name, share)
    put("bytes_sent", raw.get("bytes_sent", raw.get("communication_bytes")))
    for name in ("staleness_mean", "staleness_max"):
        put(name, raw.get(name))
    for limit in file.accuracy_after:
        put(f"accuracy_after_{value_text(limit)}s", _accuracy_after(series, limit))
    missed = run.experiment.goal is not None and series and "time_to_accuracy" not in measures
    paid = None if missed else measures.get("time_to_accuracy", train)  # a run that misses the goal has no cost
    if file.prices.given() and paid is not None:
        put("cost", file.prices.of(paid, run.ranks, run.template.resources))
        if file.prices.preemptible:
            put("cost_preemptible", file.prices.preemptible.of(paid, run.ranks, run.template.resources))
    batch = str(found["settings"].get("batch"))
    if train and raw.get("samples") and batch.isdecimal() and int(batch) > 0:
        put("step_seconds", train / steps_of(raw["samples"], batch))
    return measures


def steps_of(samples, batch):
    return math.ceil(samples / int(batch))


def on_clock(result, seconds, compute):
    """Returns a result with the times of another experiment's steps. `seconds` is the time of a step, `compute` its
    part for computation. The losses stay unchanged."""
    series, passed, total = [], 0.0, 0
    for epoch in result["series"]:
        steps = steps_of(epoch["samples"], result["settings"]["batch"])
        passed, total = passed + steps * seconds, total + steps
        series.append({**epoch, "train_seconds": steps * seconds, "seconds": passed})
    kept = {name: value for name, value in result["metrics"].items() if "seconds" not in name and name != "samples_per_second"}
    return {**result, "series": series, "metrics": {**kept, "train_seconds": passed, "mean_train_seconds": passed, "mean_data_wait_seconds": 0.0,
                                                    "mean_compute_seconds": total * compute, "mean_communication_seconds": total * (seconds - compute)}}


PARTS = (("computation_share", "compute_seconds"), ("communication_share", "communication_seconds"),
         ("data_wait_share", "data_wait_seconds"))


def shares(raw, train):
    """Returns shares of the training time: the means over the ranks. Each rank has its own times, which add up to 1
    with the rest. The values of a program without a tracker of ranks are used as they are."""
    mean = "mean_" if "mean_train_seconds" in raw else ""
    whole = raw["mean_train_seconds"] if mean else train
    if not whole or (not mean and "world_size" in raw):  # maxima of different ranks are not parts of a total
        return {}
    parts = {name: raw[mean + of] / whole for name, of in PARTS if mean + of in raw}
    if len(parts) == len(PARTS):
        parts["other_share"] = max(0.0, 1 - sum(parts.values()))
    return parts


def _time_to_goal(goal, raw, series):
    if goal is not None:
        for epoch in series:
            if "seconds" in epoch and goal.reached(epoch):
                return epoch["seconds"]
        if series:
            return None  # the goal was checked and not reached
    return raw.get("time_to_accuracy", raw.get("time_to_goal_seconds"))


AT_ITS_END = 1.01   # relative to a limit: a training that the limit ends stops within about a second


def _accuracy_after(series, limit):
    seen = [epoch["val_accuracy"] for epoch in series
            if "val_accuracy" in epoch and epoch.get("seconds", 2 * limit) <= limit * AT_ITS_END]
    return seen[-1] if seen else None


def spread(values):
    """Returns {"min", "median", "max", "n"} of the values; None for an empty list."""
    if not values:
        return None
    return {"min": min(values), "median": statistics.median(values), "max": max(values), "n": len(values)}


def columns(file, entries):
    """Returns the names of the measures that any entry has or the file requests, in the order of every table."""
    after = [f"accuracy_after_{value_text(limit)}s" for limit in file.accuracy_after]
    first = [*DERIVED, *after]
    there = {name for entry in entries for name in entry["metrics"]}
    return [*[name for name in first if name in there or name in after], *sorted(there - set(first))]


def own_measures(file):
    """Returns the measures that the file names itself: numbers from the output of a program, besides the known
    measures."""
    named = [pattern.name for experiment in file.experiments for reader in experiment.template.read for pattern in reader.patterns]
    return [name for name in dict.fromkeys(named) if name not in (*DERIVED, *TIMES)]


class Group:
    """Runs that differ only in seed and repetition."""

    def __init__(self, experiment, parameters, ranks, row):
        self.experiment, self.parameters, self.ranks, self.row = experiment, parameters, ranks, row
        self.entries = []
        self.extra = {}

    @property
    def mode(self):
        """Returns the properties that the group shares with one rank of the same mode."""
        return self.experiment, self.row, tuple(sorted((name, value_text(value)) for name, value in self.parameters.items()
                                                       if name != "ranks"))

    def good(self):
        return [entry for entry in self.entries if entry["status"] == "ok"]

    def skipped(self):
        return [entry for entry in self.entries if entry["status"] == "skipped"]

    def failed(self):
        return [entry for entry in self.entries if entry["status"] not in ("ok", "skipped")]

    def values(self, metric):
        """Returns the measure for every repetition; the time of the machine's fixed work has a name too."""
        found = [entry["metrics"].get(metric, entry.get(metric)) for entry in self.good()]
        return [value for value in found if value is not None]

    def all_have(self, metric):
        """Returns true if every repetition has the measure: a median of only the runs that reached a goal would be too
        good."""
        return len(self.values(metric)) == len(self.good())

    def spread(self, metric):
        return spread(self.values(metric))

    def noisy(self):
        """Returns the reasons why the times are unreliable; empty if there is none."""
        short = self.median("train_seconds")
        why = [f"under {SHORT:g} s"] if short is not None and short < SHORT else []
        ideal = [name for name in ("rank", "plain") if self.ranks > 1 and self.extra.get(f"efficiency_{name}", 0) > 1]
        return [*why, *(["above ideal"] if ideal else [])]

    def median(self, metric):
        found = self.spread(metric)
        return None if found is None else found["median"]

    def label(self, names):
        words = [f"{name} {value_text(self.parameters[name])}" for name in names if name in self.parameters]
        return ", ".join([self.experiment, *([self.row] if self.row else []), *words])


def groups_of(file, entries):
    """Returns the groups in the order of the file, each with its speed-ups."""
    by_key = {}
    for entry in entries:
        name = (entry["experiment"], entry["row"], tuple((key, value_text(value)) for key, value in entry["parameters"].items()))
        if name not in by_key:
            by_key[name] = Group(entry["experiment"], entry["parameters"], entry["ranks"], entry["row"])
        by_key[name].entries.append(entry)
    groups = list(by_key.values())
    single = {group.mode: group for group in groups if group.ranks == 1}
    plain = [group for group in groups if is_plain(file, group)]
    for group in groups:
        _compare(group, single.get(group.mode), _plain_for(group, plain))
    return groups


def _plain_for(group, plain):
    """Returns the plain baseline with the same row and the same values of the parameters that both have."""
    for base in plain:
        shared = (set(base.parameters) & set(group.parameters)) - {"ranks"}
        if base.row == group.row and all(value_text(base.parameters[name]) == value_text(group.parameters[name]) for name in shared):
            return base
    return None


def is_plain(file, group):
    """Returns true if the group is the file's baseline with a single plain thread."""
    if file.plain is None:
        return False
    wanted = dict(file.plain)
    if wanted.pop("experiment", group.experiment) != group.experiment:
        return False
    return all(value_text(group.parameters.get(name)) == value_text(value) for name, value in wanted.items())


def _compare(group, single, plain):
    for name, base in (("rank", single), ("plain", plain)):
        gain = speedup(group, base)
        if gain is not None:
            group.extra[f"speedup_{name}"] = gain
            group.extra[f"efficiency_{name}"] = gain / group.ranks
        sooner = _ratio(base, group, "time_to_accuracy") if group.all_have("time_to_accuracy") and base and base.all_have("time_to_accuracy") else None
        if sooner is not None:
            group.extra[f"speedup_time_{name}"] = sooner
            group.extra[f"efficiency_time_{name}"] = sooner / group.ranks
    gain = group.extra.get("speedup_time_rank", group.extra.get("speedup_rank"))
    if gain:
        group.extra["price_index"] = group.ranks / gain ** 2


def speedup(group, base):
    """Returns S = T1 / TN: by rate if there is a rate, else by time; None without a baseline."""
    for metric in RATES:
        found = _ratio(group, base, metric)
        if found is not None:
            return found
    for metric in TIMES:
        found = _ratio(base, group, metric)
        if found is not None:
            return found
    return None


def _ratio(over, under, metric):
    if over is None or under is None:
        return None
    a, b = over.median(metric), under.median(metric)
    return a / b if a is not None and b else None


SPEEDUPS = ("speedup_rank", "efficiency_rank", "speedup_plain", "efficiency_plain", "speedup_time_rank",
            "efficiency_time_rank", "speedup_time_plain", "efficiency_time_plain", "price_index")
