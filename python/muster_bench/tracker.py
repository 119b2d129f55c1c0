"""The tracker's report (docs/tracker.md) of a training in Python, for any framework. Needs only Python:

    from muster_bench.tracker import Tracker             # environment: {PYTHONPATH: "{platform}"} in a template
    tracker = Tracker(world_size, rank, gather=gather, goal=("accuracy", 0.8))
    for epoch in range(epochs):
        with tracker.batches():                          # the batch clock: all operations of a step, without validation
            for images, labels in tracker.waiting(loader):
                with tracker.phase("forward"): ...
                with tracker.phase("backward"): ...
                with tracker.communication(bytes=size): ...
                tracker.add_samples(len(images))
        tracker.end_epoch(train_loss=..., val_loss=..., val_accuracy=..., train_accuracy=...)
    tracker.annotate("program", "my_training")
    tracker.write("tracker.json")                        # by rank 0, completely or not at all

With `lines=True` rank 0 prints a line for each epoch, and muster-bench tune ends trials early by these lines.
With several ranks `gather(numbers)` returns every rank's list, at every rank, for example
    def gather(numbers):
        lists = [None] * world_size
        torch.distributed.all_gather_object(lists, numbers)
        return lists
"""
import contextlib
import json
import math
import os
import time

PHASES = ("batch_load", "forward", "loss", "backward", "aggregate", "optimizer_step", "metrics")
COMPUTATION = ("forward", "loss", "backward", "optimizer_step")
METRICS = ("train_loss", "val_loss", "val_accuracy", "train_accuracy")
GOALS = {"accuracy": "val_accuracy", "val_loss": "val_loss", "train_loss": "train_loss", "train_accuracy": "train_accuracy"}
PARTS = ("train", "compute", "communication", "data_wait")


class Tracker:
    """The tracker of a rank, used by one thread."""

    def __init__(self, world_size=1, rank=0, gather=None, goal=None, transport="self", lines=False):
        if world_size > 1 and gather is None:
            raise ValueError("a tracker with several ranks cannot add up their measurements (gather is missing); give a function")
        if goal is not None and goal[0] not in GOALS:
            raise ValueError(f"no goal is named '{goal[0]}' (known: {', '.join(GOALS)}); write such as ('accuracy', 0.8)")
        self._world_size, self._rank, self._goal, self._transport = world_size, rank, goal, transport
        self._lines = lines and rank == 0
        self._gather = gather or (lambda numbers: [numbers])
        self._epochs, self._annotations, self._time_to_goal = [], {}, None
        self._phases = {name: [0.0, 0.0] for name in PHASES}  # times of the slowest rank, and the mean
        # open timers, the outermost first: the seconds of their inner timers
        self._open = []
        self._in_batches = False
        self._clear()

    def _clear(self):
        self._here = dict.fromkeys((*PARTS, "samples", "bytes", "phases_of_computation", *PHASES), 0.0)

    @contextlib.contextmanager
    def _timed(self):
        """Yields a list; at the end of the block adds the block's seconds, and the seconds without inner timers."""
        begin, found = time.perf_counter(), []
        self._open.append(0.0)
        try:
            yield found
        finally:
            within, span = self._open.pop(), time.perf_counter() - begin
            if self._open:
                self._open[-1] += span
            found += [span, span - within]

    @contextlib.contextmanager
    def batches(self):
        self._in_batches, begin = True, time.perf_counter()
        try:
            yield
        finally:
            self._here["train"] += time.perf_counter() - begin
            self._in_batches = False

    @contextlib.contextmanager
    def phase(self, name):
        """Times a phase: forward, loss, backward, optimizer_step (computation), aggregate, batch_load or metrics."""
        if name not in PHASES:
            raise ValueError(f"no phase is named '{name}' (known: {', '.join(PHASES)}); use one of these")
        with self._timed() as found:
            yield
        self._here[name] += found[0]
        if name in COMPUTATION:
            self._here["phases_of_computation"] += found[0]
            if self._in_batches:
                self._here["compute"] += found[1]

    @contextlib.contextmanager
    def communication(self, bytes=0):
        with self._timed() as found:
            yield
        if self._in_batches:
            self._here["communication"] += found[1]
            self._here["bytes"] += bytes

    @contextlib.contextmanager
    def data_wait(self):
        with self._timed() as found:
            yield
        self._here["batch_load"] += found[0]
        if self._in_batches:
            self._here["data_wait"] += found[1]

    def waiting(self, batches):
        """Yields the batches and times the waits for them."""
        batches = iter(batches)
        while True:
            with self.data_wait():
                batch = next(batches, self)
            if batch is self:
                return
            yield batch

    def add_samples(self, count):
        self._here["samples"] += count

    def end_epoch(self, **metrics):
        """Ends an epoch; a collective call. `metrics` (train_loss, val_loss, val_accuracy, train_accuracy) cover all
        ranks."""
        for name in metrics:
            if name not in METRICS:
                raise ValueError(f"no metric is named '{name}' (known: {', '.join(METRICS)}); use one of these")
        names = list(self._here)
        ranks = [dict(zip(names, numbers)) for numbers in self._gather([self._here[name] for name in names])]
        self._clear()
        most = {name: max(rank[name] for rank in ranks) for name in names}
        mean = {name: sum(rank[name] for rank in ranks) / len(ranks) for name in names}
        for name in PHASES:
            self._phases[name][0] += most[name]
            self._phases[name][1] += mean[name]
        known = {name: value if value is not None and math.isfinite(value) else None for name, value in metrics.items()}
        self._epochs.append({"epoch": len(self._epochs) + 1, **{name: known.get(name) for name in METRICS}, **_figures(
            round(sum(rank["samples"] for rank in ranks)), most["train"], most["phases_of_computation"], most["communication"],
            round(sum(rank["bytes"] for rank in ranks)), most["data_wait"], mean)})
        if self._lines:
            print(line_of(self._epochs[-1]), flush=True)
        if self._goal is not None and self._time_to_goal is None:
            value = known.get(GOALS[self._goal[0]])
            if value is not None and (value >= self._goal[1] if self._goal[0].endswith("accuracy") else value <= self._goal[1]):
                self._time_to_goal = sum(epoch["train_seconds"] for epoch in self._epochs)

    @property
    def time_to_goal(self):
        """Returns seconds of the batch clock, or None."""
        return self._time_to_goal

    def annotate(self, name, text):
        self._annotations[name] = str(text)

    def report(self):
        def total(name):
            return sum(epoch[name] for epoch in self._epochs)
        mean = {part: total(f"mean_{part}_seconds") for part in PARTS}
        return {"format": 1, "world_size": self._world_size, "transport": self._transport,
                "goal": None if self._goal is None else {"metric": self._goal[0], "value": self._goal[1]},
                "time_to_goal_seconds": self._time_to_goal,
                **_figures(*map(total, ("samples", "train_seconds", "compute_seconds", "communication_seconds", "communication_bytes",
                                        "data_wait_seconds")), mean),
                "phases": {name: {"max_seconds": most, "mean_seconds": middle} for name, (most, middle) in self._phases.items()},
                "push_ages": None, "ranks": [], "epochs": self._epochs, "annotations": self._annotations}

    def write(self, path):
        if self._rank != 0:
            return
        beside = f"{path}.{os.getpid()}.part"
        with open(beside, "w", encoding="utf-8") as file:
            json.dump(self.report(), file, indent=2, allow_nan=False)
            file.write("\n")
        os.replace(beside, path)


def line_of(epoch):
    """Returns the line of an epoch in the format of muster's programs."""
    loss, validation, accuracy = (math.nan if epoch[name] is None else epoch[name] for name in ("train_loss", "val_loss", "val_accuracy"))
    return f"{epoch['epoch']:5d}  {loss:10.6g}  {validation:10.6g}  {accuracy:8.4f}  {epoch['train_seconds']:8.3f}  {epoch['samples_per_second']:10.3g}"


def _figures(samples, train, compute, communication, sent, wait, mean):
    return {"samples": samples, "train_seconds": train, "samples_per_second": samples / train if train > 0 else 0.0,
            "compute_seconds": compute, "communication_seconds": communication, "communication_bytes": sent,
            "data_wait_seconds": wait, **{f"mean_{part}_seconds": mean[part] for part in PARTS},
            "mean_other_seconds": mean["train"] - mean["compute"] - mean["communication"] - mean["data_wait"]}
