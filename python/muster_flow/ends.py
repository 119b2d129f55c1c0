"""The end of a step and its consequences: the table of docs/workflow.md, row by row."""
import dataclasses
import math
import re
import signal
import statistics

LEFT_CHANCE = 0.05     # above chance: a model has learnt something
FALLEN = 0.02          # below the best: an accuracy falls, instead of varying
MISSES = 1.1           # times the deadline: a later prediction misses it
SOURCE = 8             # a server of data is away
STATUSES = {2: "configuration", 3: "data", 6: "mismatch", 7: "diverged", 126: "configuration", 127: "configuration"}
PEERS = {4, 5, *range(10, 17), 143}
MEMORY = re.compile(r"out of the memory that it is held to|std::bad_alloc|MemoryError|Cannot allocate memory|[Oo]ut of memory|oom-kill")


@dataclasses.dataclass(frozen=True)
class End:
    cause: str    # the row of the table
    # done, retry (of a source after a pause), memory (again with twice the memory), ingest (again after the steps that make the missing inputs),
    # shorten (again
    action: str
    why: str      # up to the current epoch), fail or abandon


def of_command(outcome, output, missing, killed_for_memory, rows, training):
    """Returns the end of a command that ended by itself, or exceeded its time or disk space. `output` is the
    last part of its output, `missing` a missing input, `rows` its epochs."""
    if outcome.status == "interrupted":
        return End("interrupted", "fail", outcome.why)
    if outcome.status == "ok":
        return End("done", "done", "")
    if missing:
        return End("input", "ingest", f"its input '{missing}' is missing")
    if outcome.status in ("disk", "full"):
        return End("disk", "fail", outcome.why)
    if outcome.status == "missing":
        return End("configuration", "fail", outcome.why)
    status = outcome.exit if outcome.exit is None or outcome.exit >= 0 else 128 - outcome.exit
    if MEMORY.search(output) or (status == 128 + signal.SIGKILL and killed_for_memory):
        return End("memory", "memory", f"it was out of memory ({outcome.why})")
    if status in STATUSES:
        return End(STATUSES[status], "fail", outcome.why)
    if status == SOURCE:
        return End("source", "retry", outcome.why)
    if outcome.status == "timeout" or status in PEERS or status > 128:
        action = "shorten" if training and training.best and training.epochs else "abandon"
        if training and (fall := falls(rows, training)):
            return End("falls", action, f"{outcome.why}, and {fall}")
        if training and is_flat(rows, training):
            return End("flat", action, f"{outcome.why}, and its accuracy was flat at {rows[-1]['val_accuracy']:.4f}")
        return End("peer", "retry", outcome.why)
    return End("other", "fail", outcome.why)


class Pace:
    """The seconds that the epochs of an attempt take. The first epoch is left out: start-up, reading and compiling are in it."""

    def __init__(self):
        self._last, self._took = None, []

    def ended(self, count, at):
        """Notes that `count` more epochs have ended by a time."""
        if self._last is not None and count:
            self._took += [(at - self._last) / count] * count
        if count:
            self._last = at

    def forecast(self, left):
        """Returns (shortest, longest) time of further epochs, by the mean and its error; (0, infinity) before there are two later epochs."""
        if len(self._took) < 2:
            return 0.0, math.inf
        mean = statistics.fmean(self._took)
        error = 2 * statistics.stdev(self._took) / len(self._took) ** 0.5
        return left * max(mean - error, 0.0), left * (mean + error)


def of_epochs(rows, training, spent, pace, deadline, epochs):
    """Returns the reason to end an active training, or None. `spent` seconds, `pace` of the later epochs, `epochs` planned
    epochs."""
    if not rows:
        return None
    accuracies, last = [row["val_accuracy"] for row in rows if "val_accuracy" in row], rows[-1]["epoch"]
    if deadline and epochs and last < epochs:
        low, high = (spent + more for more in pace.forecast(epochs - last))
        if low > deadline * MISSES:
            said = f"at least {low:.3g} s" if high == math.inf else f"{low:.3g} to {high:.3g} s"
            return End("deadline", "abandon", f"its rate misses the deadline ({epochs:g} epochs take {said}, and it has {deadline:g})")
    if not training or len(accuracies) < training.patience or last == epochs:
        return None
    if training.chance and max(accuracies) < training.chance + LEFT_CHANCE:
        return End("chance", "abandon", f"its accuracy never left chance ({max(accuracies):.4f} after {last:g} epochs)")
    if fall := falls(rows, training):
        return End("falls", "shorten" if training.best and training.epochs else "abandon", fall)
    if training.epochs and is_flat(rows, training):
        return End("converged", "shorten", f"its accuracy is flat at {accuracies[-1]:.4f} after {last:g} epochs")
    return None


def falls(rows, training):
    """Returns a text if the accuracy falls: each of the last epochs is worse than the one before, or all are much worse than the best."""
    accuracies = [row["val_accuracy"] for row in rows if "val_accuracy" in row]
    since, before = accuracies[-training.patience - 1:], accuracies[:-training.patience]
    if not before:
        return ""
    each = all(later < earlier for earlier, later in zip(since, since[1:])) and since[0] - since[-1] > training.flat
    if not each and max(accuracies[-training.patience:]) >= max(before) - FALLEN:
        return ""
    return f"its accuracy falls ({max(accuracies):.4f}, and {accuracies[-1]:.4f} after {rows[-1]['epoch']:g} epochs)"


def is_flat(rows, training):
    """Returns true if the training has learnt something and the last epochs have not improved it."""
    accuracies = [row["val_accuracy"] for row in rows if "val_accuracy" in row]
    before, since = accuracies[:-training.patience], accuracies[-training.patience:]
    return bool(before) and max(accuracies) >= training.chance + LEFT_CHANCE and max(since) <= max(before) + training.flat
