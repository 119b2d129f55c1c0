"""Tests the tracker for trainings in Python: the report that docs/tracker.md describes, field by field, and the
measures that the platform reads from it."""
import json
import re
import sys
import threading
import time
import unittest

from bench import PLATFORM, Case

from muster_bench.tracker import PHASES, Tracker

DOCUMENT = PLATFORM.parent / "docs" / "tracker.md"
TRAINING = r'''
import sys, time
from muster_bench.tracker import Tracker
tracker = Tracker(goal=("train_accuracy", 0.7))
for epoch in range(3):
    with tracker.batches():
        for batch in tracker.waiting(range(4)):
            with tracker.phase("backward"):
                time.sleep(0.001)
            tracker.add_samples(25)
    tracker.end_epoch(train_loss=1 / (epoch + 1), train_accuracy=0.5 + epoch / 10, val_accuracy=float("nan"))
tracker.annotate("program", "training in Python")
tracker.write(sys.argv[1])
'''


class Ranks:
    """Threads that exchange lists."""

    def __init__(self, count):
        self.lists, self.barrier = [None] * count, threading.Barrier(count, timeout=60)

    def gather(self, rank):
        def of(numbers):
            self.lists[rank] = numbers
            self.barrier.wait()
            found = list(self.lists)
            self.barrier.wait()
            return found
        return of


def train(tracker, rank):
    with tracker.batches():
        with tracker.data_wait():
            time.sleep(0.002)
        with tracker.phase("forward"):
            time.sleep(0.002)
            with tracker.communication(bytes=8):    # like a batch normalisation over all ranks
                time.sleep(0.004 * (1 + rank))
        with tracker.communication(bytes=100):
            time.sleep(0.002)
        tracker.add_samples(10 + rank)
    with tracker.phase("metrics"):
        time.sleep(0.002)
    with tracker.phase("forward"):                  # outside a step
        time.sleep(0.002)


class Reports(Case):
    def two_ranks(self):
        ranks, reports = Ranks(2), [None, None]

        def body(rank):
            tracker = Tracker(2, rank, gather=ranks.gather(rank), goal=("accuracy", 0.7))
            for accuracy in (0.6, 0.8):
                train(tracker, rank)
                tracker.end_epoch(train_loss=0.5, val_loss=0.6, val_accuracy=accuracy)
            reports[rank] = tracker.report()
        threads = [threading.Thread(target=body, args=(rank,)) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(reports[0], reports[1])
        return reports[0]

    def test_it_is_what_the_document_says(self):
        documented = dict(re.findall(r"^\| `([^`]+)` \| (\w+)", DOCUMENT.read_text(), re.M))
        seen = set()

        def walk(value, path):
            seen.add(path)
            self.assertIn(path, documented)
            if isinstance(value, dict) and path != "annotations":
                for key, below in value.items():
                    walk(below, f"{path}.{'*' if path == 'phases' else key}")
            for below in value if isinstance(value, list) else []:
                walk(below, f"{path}[]")
        report = self.two_ranks()
        for key, value in report.items():
            walk(value, key)
        self.assertEqual({name for name in documented if not name.startswith(("push_ages.", "ranks[]"))} - seen, set())
        self.assertEqual(set(report["phases"]), set(PHASES))

    def test_times_of_a_rank_are_counted_once_and_their_means_add_up(self):
        report = self.two_ranks()
        self.assertEqual((report["samples"], report["communication_bytes"], report["world_size"]), (42, 432, 2))
        for each in (report, *report["epochs"]):
            parts = [each[f"mean_{part}_seconds"] for part in ("compute", "communication", "data_wait", "other")]
            self.assertGreaterEqual(min(parts), 0)
            self.assertAlmostEqual(sum(parts), each["mean_train_seconds"])
        one = report["epochs"][0]
        self.assertGreaterEqual(one["mean_communication_seconds"], 0.006 + 0.002)
        self.assertGreaterEqual(one["communication_seconds"], 0.008 + 0.002)
        self.assertGreaterEqual(one["compute_seconds"], 0.010 + 0.002)   # the phases with their inner timers
        self.assertGreaterEqual(report["phases"]["metrics"]["mean_seconds"], 2 * 0.002)
        self.assertAlmostEqual(report["time_to_goal_seconds"], sum(epoch["train_seconds"] for epoch in report["epochs"]))

    def test_the_platform_reads_it(self):
        self.write("training.py", TRAINING)
        path = self.experiment([sys.executable, "{here}/training.py", "{output}/t.json"], sweep="{n: [1]}", top="goal: {metric: train_accuracy, value: 0.6}",
                               template="environment: {PYTHONPATH: '{platform}'}\n    read: [{tracker: t.json}]\n    settings: {program: training in Python}")
        self.run_file(path, PYTHONPATH=f"{PLATFORM}")
        row, = self.results()
        self.assertAlmostEqual(float(row["train_accuracy"]), 0.7)
        self.assertGreater(float(row["throughput"]), 0)
        self.assertLess(float(row["time_to_accuracy"]), float(row["train_seconds"]))
        self.assertAlmostEqual(sum(float(row[f"{part}_share"]) for part in ("computation", "communication", "data_wait", "other")), 1)
        kept, = (self.folder / "out" / "experiments").glob("*/output/1/t.json")
        self.assertIsNone(json.loads(kept.read_text())["epochs"][0]["val_accuracy"])

    def test_refused(self):
        for wrong, says in ((lambda: Tracker(2), "gather is missing"), (lambda: Tracker(goal=("acc", 1)), "known: accuracy"),
                            (lambda: Tracker().end_epoch(loss=1), "known: train_loss")):
            with self.assertRaisesRegex(ValueError, says):
                wrong()
        with self.assertRaisesRegex(ValueError, "known: batch_load"), Tracker().phase("forwards"):
            pass


if __name__ == "__main__":
    unittest.main()
