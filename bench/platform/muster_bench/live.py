"""What a training says of itself while it goes on: a line an epoch."""
import contextlib
import math
import re

# What muster's programs and muster_bench.tracker print an epoch: epoch, training loss, validation loss, accuracy, perhaps top-5, seconds, rate.
LINE = re.compile(r"^ *(?P<epoch>\d+) +(?P<train_loss>\S+) +(?P<val_loss>\S+) +(?P<val_accuracy>[\d.]+|nan)(?: +[\d.e-]+){0,2} +(?P<took>[\d.]+) +\S+$",
                  re.MULTILINE)


class Look:
    """What is decided by the lines of one run while it goes on: called now and then, gives why the run is to end, or nothing."""

    def __init__(self, log, decide):
        self._log, self._decide, self._read, self.series = log, decide, 0, []

    def __call__(self):
        try:
            with open(self._log, "rb") as file:
                file.seek(self._read)
                new = file.read()
        except OSError:
            return None
        whole = new[:new.rfind(b"\n") + 1]
        self._read += len(whole)
        for match in LINE.finditer(whole.decode(errors="replace")):
            with contextlib.suppress(ValueError):
                row = {name: value for name, value in ((name, float(text)) for name, text in match.groupdict().items()) if math.isfinite(value)}
                row["seconds"] = row.pop("took") + (self.series[-1]["seconds"] if self.series else 0.0)
                self.series.append(row)
                if why := self._decide(row):
                    return why
        return None
