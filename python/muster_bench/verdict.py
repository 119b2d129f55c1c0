"""Whether two sets of repetitions differ: their medians, bootstrapped."""
import dataclasses
import functools
import math
import statistics

from .metrics import LESS_IS_BETTER

ENOUGH = 5          # repetitions of each: two sets of four do not meet by chance in 1 of 35 cases, of five in 1 of 126
CONFIDENCE = 0.995  # of the interval; tests/platform/test_verdicts.py has what comes of it
LEAST = 0.02        # a smaller difference of medians is of no interest, whatever its interval
TIMES = ("time_to_accuracy", "throughput", "seconds")   # faster or slower
WORTH = ("accuracy", "cost")                            # better or worse; of anything else more is neither
NO_TIME = ("accuracy",)                                 # what a slow machine does not change
MACHINE = "machine_seconds"                            # what the same work took before a run
WITHIN, TOO_FEW = "within noise", "not enough runs"


@dataclasses.dataclass(frozen=True)
class Ratio:
    """The new median over the old one, and the interval in which it lies with CONFIDENCE."""
    value: float
    low: float
    high: float

    @property
    def reach(self):
        """How far from 1 the interval gets, as a share."""
        return max(self.high - 1, 1 / self.low - 1)


def ratio(old, new):
    """Of two lists of numbers; None unless all are above 0. The bootstrap distribution of a median is known (each value is
    the median of a resample with a binomial probability), so nothing is drawn: the same numbers have the same interval."""
    if not old or not new or min(*old, *new) <= 0:
        return None
    first, second = (list(zip(sorted(values), _weights(len(values)))) for values in (old, new))
    pairs = sorted((y / x, p * q) for x, p in first for y, q in second if p * q > 1e-12)
    tail = (1 - CONFIDENCE) / 2
    return Ratio(statistics.median(new) / statistics.median(old), _quantile(pairs, tail), _quantile(reversed(pairs), tail))


@functools.lru_cache(maxsize=None)
def _weights(n):
    """The probability of each of n sorted values to be the median of a resample; of an even number, the mean of those to be
    either of the two in the middle."""
    def at_most(i, count):
        """`count` of n draws or more are among the i least values."""
        share = i / n
        return sum(math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(share)
                            + (n - k) * math.log1p(-share)) for k in range(count, n)) + share ** n
    below = [0.0, *[(at_most(i, (n + 1) // 2) + at_most(i, n // 2 + 1)) / 2 for i in range(1, n)], 1.0]
    return [high - low for low, high in zip(below, below[1:])]


def _quantile(pairs, tail):
    passed = 0.0
    for value, probability in pairs:
        passed += probability
        if passed >= tail:
            break
    return value


def noise(old, new):
    """What the machine alone makes of a ratio, as a share: of the same work, measured before each run of both. None where it
    was not measured often enough."""
    found = ratio(old, new) if min(len(old), len(new)) >= ENOUGH else None
    return None if found is None else found.reach


def verdict(metric, old, new, machine=None):
    """(Ratio or None, a word). They differ where the interval leaves 1 out, and the medians by more than LEAST and than the
    machine's noise."""
    found = ratio(old, new)
    if min(len(old), len(new)) < ENOUGH:
        return found, TOO_FEW
    needed = 1 + max(LEAST, 0.0 if metric in NO_TIME else machine or 0.0)
    if found is None or found.low <= 1 <= found.high or max(found.value, 1 / found.value) < needed:
        return found, WITHIN
    more = found.value > 1
    if metric not in (*TIMES, *WORTH):
        return found, "higher" if more else "lower"
    good, bad = ("faster", "slower") if metric in TIMES else ("better", "worse")
    return found, good if more != (metric in LESS_IS_BETTER) else bad
