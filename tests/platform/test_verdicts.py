"""Measures how often a comparison finds a difference that does not exist, and a difference that does. The samples have the noise of a
shared machine from fixed seeds. The verdict draws no random numbers, so the figures are always the same."""
import math
import random
import unittest

import bench  # noqa: F401  (sets the path of the package)

from muster_bench import compare
from muster_bench.verdict import ENOUGH, TOO_FEW, WITHIN, noise, ratio, verdict

# of the logarithm: own noise, the share of stragglers, the drift of the machine and its correlation from run to run
NOISES = {
    "quiet": (0.01, 0.0, 0.0, 0.0), "stragglers": (0.02, 0.05, 0.0, 0.0), "drift": (0.02, 0.05, 0.02, 0.9),
    "loud": (0.10, 0.10, 0.0, 0.0)}
STRAGGLING = 0.3     # mean additional time of a straggler


def samples(draw, noise_of, repeats, slower=0.0):
    """Returns two sets of times, the second after the first, and the times of the machine's fixed work before each
    run."""
    own, stragglers, drift, stays = noise_of
    at = draw.gauss(0, drift)
    times, machine = [], []
    for number in range(2 * repeats):
        at = stays * at + math.sqrt(1 - stays * stays) * draw.gauss(0, drift)
        late = draw.expovariate(1 / STRAGGLING) if draw.random() < stragglers else 0
        times.append(math.exp(at + draw.gauss(0, own) + late) * (1 + slower if number >= repeats else 1))
        machine.append(math.exp(at + draw.gauss(0, 0.01)))
    return times[:repeats], times[repeats:], noise(machine[:repeats], machine[repeats:])


def words(count, noise_of, repeats, slower=0.0, seed=1795551912):
    draw = random.Random(seed)
    return [verdict("seconds", *samples(draw, noise_of, repeats, slower))[1] for _ in range(count)]


class Figures(unittest.TestCase):
    def test_the_same_twice_is_within_noise(self):
        for name, noise_of in NOISES.items():
            for repeats in (5, 6, 7, 10, 20):
                verdicts = words(200, noise_of, repeats)
                false = sum(word != WITHIN for word in verdicts)
                print(f"{name}, {repeats} repetitions: {false} false verdicts of 200")
                self.assertLessEqual(false, 2)

    def test_a_tenth_slower_is_found(self):
        for name, repeats, least in (("quiet", 5, 90), ("stragglers", 10, 90), ("drift", 10, 90), ("drift", 20, 90)):
            found = words(100, NOISES[name], repeats, slower=0.1).count("slower")
            print(f"{name}, {repeats} repetitions: {found} of 100 slow-downs of 10 % found")
            self.assertGreaterEqual(found, least)


class Verdicts(unittest.TestCase):
    def test_fewer_than_five(self):
        for old, new in (([1] * 4, [2] * 9), ([1] * 9, [2] * 4), ([1], [1]), ([1, 1.01], [3.8, 3.9])):
            self.assertEqual(verdict("seconds", old, new)[1], TOO_FEW)

    def test_words(self):
        low, high = [99, 99.5, 100, 100.5, 101], [119, 119.5, 120, 120.5, 121]
        for metric, up, down in (("throughput", "faster", "slower"), ("seconds", "slower", "faster"),
                                 ("time_to_accuracy", "slower", "faster"), ("accuracy", "better", "worse"), ("cost", "worse", "better"),
                                 ("communication_share", "higher", "lower"), ("rate", "higher", "lower")):
            self.assertEqual([verdict(metric, low, high)[1], verdict(metric, high, low)[1]], [up, down], metric)

    def test_what_is_needed(self):
        a = [100] * 5
        self.assertEqual(verdict("seconds", a, [101] * 5)[1], WITHIN)              # below two percent
        self.assertEqual(verdict("seconds", a, [110] * 5, machine=0.3)[1], WITHIN)
        self.assertEqual(verdict("accuracy", a, [110] * 5, machine=0.3)[1], "better")
        self.assertEqual(verdict("accuracy", [0] * 5, [0] * 5), (None, WITHIN))
        self.assertEqual(verdict("seconds", [1, 1.1, 1.2, 1.3, 1.4], [1.35, 1.5, 1.5, 1.5, 1.6])[1], WITHIN)
        self.assertIsNone(noise([], [1.0]))

    def test_runs_that_crash_more_often_are_worse(self):
        def found(**counts):
            return {"runs": [{"experiment": "e", "row": "sum/4" if status == "ok" else "", "ranks": 1, "parameters": {}, "id": f"{status}{n}",
                              "status": status, "metrics": {}} for status, count in counts.items() for n in range(count)]}
        for new, words in ((found(ok=5, crash=5), ["worse"]), (found(ok=10, skipped=5), []), (found(ok=2, crash=1), [TOO_FEW]), (found(crash=1), ["worse"])):
            self.assertEqual([row.verdict for row in compare.compare(found(ok=10), new)[0]], words)

    def test_the_interval_is_that_of_drawn_resamples(self):
        draw = random.Random(7)
        for count in (5, 8, 400):
            old, new = [[draw.lognormvariate(0, 0.1) for _ in range(count if count < 100 else 1)] * (1 if count < 100 else count)
                        for _ in range(2)]
            found = ratio(old, new)
            self.assertTrue(found.low <= found.value <= found.high, found)
            if count > 100:
                self.assertEqual(found.low, found.high)
                continue
            drawn = sorted(_middle(draw.choices(new, k=count), draw) / _middle(draw.choices(old, k=count), draw) for _ in range(20000))
            for at, bound in ((50, found.low), (-50, found.high)):
                self.assertAlmostEqual(drawn[at], bound, delta=0.05)
        self.assertEqual(ENOUGH, 5)


def _middle(values, draw):
    return sorted(values)[draw.choice(((len(values) - 1) // 2, len(values) // 2))]


if __name__ == "__main__":
    unittest.main()
