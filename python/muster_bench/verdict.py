"""Compares two sets of repetitions by their bootstrapped medians."""
import dataclasses
import functools
import math
import statistics

from .metrics import LESS_IS_BETTER

# repetitions on either side: two sets of four are disjoint by chance in 1 case out of 35, of five in 1 out of 126
ENOUGH = 5
CONFIDENCE = 0.995  # confidence of the interval; tests/platform/test_verdicts.py measures its errors
LEAST = 0.02        # a smaller difference of medians is ignored, for any interval
TIMES = ("time_to_accuracy", "throughput", "seconds")   # faster or slower
WORTH = ("accuracy", "cost")                            # better or worse; other measures are only larger or smaller
NO_TIME = ("accuracy",)                                 # measures that do not depend on the machine's speed
MACHINE = "machine_seconds"                            # time of a fixed amount of work before a run
WITHIN, TOO_FEW = "within noise", "not enough runs"


@dataclasses.dataclass(frozen=True)
class Ratio:
    """The new median over the old one, and its interval with confidence CONFIDENCE."""
    value: float
    low: float
    high: float

    @property
    def reach(self):
        """Returns the largest distance between the interval and 1, as a share."""
        return max(self.high - 1, 1 / self.low - 1)


def ratio(old, new):
    """Returns the ratio of two lists of numbers; None unless all are above 0. The bootstrap distribution of a median is
    known (each value is the median of a resample with a binomial probability), so no random numbers are drawn: equal
    lists have equal intervals."""
    if not old or not new or min(*old, *new) <= 0:
        return None
    first, second = (list(zip(sorted(values), _weights(len(values)))) for values in (old, new))
    pairs = sorted((y / x, p * q) for x, p in first for y, q in second if p * q > 1e-12)
    tail = (1 - CONFIDENCE) / 2
    return Ratio(statistics.median(new) / statistics.median(old), _quantile(pairs, tail), _quantile(reversed(pairs), tail))


@functools.lru_cache(maxsize=None)
def _weights(n):
    """Returns the probabilities of n sorted values to be the median of a resample. For an even n, averages the
    probabilities of the two middle positions."""
    def at_most(i, count):
        """Returns the probability that `count` or more draws out of n are among the i least values."""
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
    """Returns the machine's effect on a ratio, as a share, from a fixed amount of work before each run of both sides.
    Returns None if there are too few measurements."""
    found = ratio(old, new) if min(len(old), len(new)) >= ENOUGH else None
    return None if found is None else found.reach


def verdict(metric, old, new, machine=None):
    """Returns (Ratio or None, a word). Two sets differ if the interval excludes 1 and the difference of their medians
    exceeds LEAST and the machine's noise."""
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
