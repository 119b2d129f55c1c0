"""The end of a step and its consequences: the table of docs/workflow.md, row by row."""
import dataclasses
import re
import signal

LEFT_CHANCE = 0.05     # above chance: a model has learnt something
FALLEN = 0.02          # below the best: an accuracy falls, instead of varying
MISSES = 1.1           # times the deadline: a later prediction misses it
STATUSES = {2: "configuration", 3: "data", 6: "mismatch", 7: "diverged", 126: "configuration", 127: "configuration"}
PEERS = {4, 5, *range(10, 17), 143}
MEMORY = re.compile(r"out of the memory that it is held to|std::bad_alloc|MemoryError|Cannot allocate memory|[Oo]ut of memory|oom-kill")


@dataclasses.dataclass(frozen=True)
class End:
    cause: str    # the row of the table
    # done, retry, memory (again with twice the memory), ingest (again after the steps that make the missing inputs),
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
    if outcome.status == "timeout" or status in PEERS or status > 128:
        if training and is_flat(rows, training):
            return End("flat", "abandon", f"{outcome.why}, and its accuracy was flat at {rows[-1]['val_accuracy']:.4f}")
        return End("peer", "retry", outcome.why)
    return End("other", "fail", outcome.why)


def of_epochs(rows, training, spent, pace, deadline, epochs):
    """Returns the reason to end an active training, or None. `spent` seconds, `pace` seconds an epoch, `epochs` planned
    epochs."""
    if not rows:
        return None
    accuracies, last = [row["val_accuracy"] for row in rows if "val_accuracy" in row], rows[-1]["epoch"]
    if deadline and epochs:
        late = spent + pace * (epochs - last)
        if late > deadline * MISSES and last < epochs:
            return End("deadline", "abandon", f"its rate misses the deadline ({epochs:g} epochs take {late:.3g} s, and it has {deadline:g})")
    if not training or len(accuracies) < training.patience or last == epochs:
        return None
    if training.chance and max(accuracies) < training.chance + LEFT_CHANCE:
        return End("chance", "abandon", f"its accuracy never left chance ({max(accuracies):.4f} after {last:g} epochs)")
    best = max(accuracies[:-training.patience], default=None)
    if best is not None and max(accuracies[-training.patience:]) < best - FALLEN:
        return End("falls", "abandon", f"its accuracy falls ({best:.4f}, and {accuracies[-1]:.4f} after {last:g} epochs)")
    if training.epochs and is_flat(rows, training):
        return End("converged", "shorten", f"its accuracy is flat at {accuracies[-1]:.4f} after {last:g} epochs")
    return None


def is_flat(rows, training):
    """Returns true if the training has learnt something and the last epochs have not improved it."""
    accuracies = [row["val_accuracy"] for row in rows if "val_accuracy" in row]
    before, since = accuracies[:-training.patience], accuracies[-training.patience:]
    return bool(before) and max(accuracies) >= training.chance + LEFT_CHANCE and max(since) <= max(before) + training.flat
