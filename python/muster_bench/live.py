"""Reads the lines that a training prints for each epoch while it runs."""
import contextlib
import math
import re

from .files import NewLines

# The columns of a line for an epoch, printed by muster's programs and muster_bench.tracker: epoch, training loss,
# validation loss, accuracy, optional top-5, seconds, rate.
LINE = re.compile(r"^ *(?P<epoch>\d+) +(?P<train_loss>\S+) +(?P<val_loss>\S+) +(?P<val_accuracy>[\d.]+|nan)(?: +[\d.e-]+){0,2} +(?P<took>[\d.]+) +(?P<samples_per_second>\S+)$",
                  re.MULTILINE)


class Look:
    """A check of a run's lines while the run is active. A call returns the reason to end the run, or nothing."""

    def __init__(self, log, decide=lambda row: None):
        self._lines, self._decide, self.series = NewLines(log), decide, []

    def __call__(self):
        for match in LINE.finditer(self._lines()):
            with contextlib.suppress(ValueError):
                row = {name: value for name, value in ((name, float(text)) for name, text in match.groupdict().items()) if math.isfinite(value)}
                row["seconds"] = row.pop("took") + (self.series[-1]["seconds"] if self.series else 0.0)
                self.series.append(row)
                if why := self._decide(row):
                    return why
        return None
