"""What a training says of itself while it goes on: a line an epoch."""
import contextlib
import math
import re

from .files import NewLines

# What muster's programs and muster_bench.tracker print an epoch: epoch, training loss, validation loss, accuracy, perhaps top-5, seconds, rate.
LINE = re.compile(r"^ *(?P<epoch>\d+) +(?P<train_loss>\S+) +(?P<val_loss>\S+) +(?P<val_accuracy>[\d.]+|nan)(?: +[\d.e-]+){0,2} +(?P<took>[\d.]+) +(?P<samples_per_second>\S+)$",
                  re.MULTILINE)


class Look:
    """What is decided by the lines of one run while it goes on: called now and then, gives why the run is to end, or nothing."""

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
