#!/usr/bin/env python3
"""Tests how muster-pool scales: the rule alone, and with real replicas.

CTest runs one class at a time, like program.py. MUSTER_TEST_PLOTS names a folder for plots of the measurements of Scaling."""
import contextlib
import json
import math
import os
import pathlib
import sys
import tempfile
import threading
import time
import unittest

from pool_case import PLATFORM, WINDOW, Load, PoolCase, model, service, skip_without_what_it_needs, slow

PLOTS = os.environ.get("MUSTER_TEST_PLOTS", "")


class Rule(unittest.TestCase):
    """Tests the rule with Knative's numbers, without processes: a target of 10 with 70 % utilisation, and windows of 60 s and 6 s."""

    def setUp(self):
        skip_without_what_it_needs(self)

    def scaler(self):
        sys.path.insert(0, str(PLATFORM))
        from muster_pool.scaler import Scaler
        from muster_pool.described import read
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            json.dump(service("a", slow(more={"minReplicas": 0, "maxReplicas": 20, "scaleTarget": 10})), file)
            file.flush()
            return Scaler(read([file.name], 20).services["a"])

    def run_for(self, scaler, begin, seconds, busy, ready):
        """Returns the desired numbers of replicas, one for each decision. The number of ready replicas is the previous desired number."""
        wanted = []
        for tick in range(seconds * 5):
            now = begin + tick / 5
            scaler.record(now, busy)
            if tick % 10 == 0:
                wanted.append(ready := scaler.decide(now, ready))
        return wanted

    def test_steady(self):
        for busy in (0, 1, 7, 7.1, 21, 70):
            with self.subTest(busy):
                self.assertEqual(self.run_for(self.scaler(), 0, 200, busy, math.ceil(busy / 7))[-1], math.ceil(busy / 7))

    def test_a_burst_is_a_panic_and_is_left_a_window_later(self):
        scaler = self.scaler()
        self.assertEqual(set(self.run_for(scaler, 0, 60, 7, 1)), {1})
        burst = self.run_for(scaler, 60, 10, 35, 1)
        self.assertLessEqual(burst[3], 5)
        self.assertEqual(burst[-1], 5)                       # the stable average requires two
        after = self.run_for(scaler, 70, 150, 0, 5)
        self.assertEqual(set(after[:25]), {5})               # no replica is stopped in panic mode
        self.assertEqual([count for count, before in zip(after[1:], after) if count != before], [2, 1, 0])   # the number is halved


class Scaling(PoolCase):
    @contextlib.contextmanager
    def watched(self, name):
        """Records the replicas and the load five times a second. Draws both if MUSTER_TEST_PLOTS names a folder."""
        seen, ends, begin, self.load = [], threading.Event(), time.monotonic(), None

        def look():
            while not ends.wait(0.2):
                seen.append((time.monotonic() - begin, len(self.replicas(name)), self.load.clients() if self.load else 0))
        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()
        if PLOTS:
            import matplotlib
            matplotlib.use("Agg")
            from matplotlib import pyplot
            figure, axes = pyplot.subplots(figsize=(7, 2.6), layout="constrained")
            for column, label in ((1, "replicas that serve"), (2, "clients that send one request after another")):
                axes.step([row[0] for row in seen], [row[column] for row in seen], where="post", label=label)
            axes.set_xlabel("seconds")
            axes.set_ylim(bottom=0)
            axes.legend(loc="upper right")
            figure.savefig(pathlib.Path(PLOTS) / f"{self._testMethodName.removeprefix('test_')}.png", dpi=100)

    def test_one_to_five_to_one(self):
        self.add_model()
        self.start(service("line", model(minReplicas=1, maxReplicas=5, scaleMetric="rps", scaleTarget=2), **WINDOW))
        self.until(lambda: len(self.replicas()) == 1)
        with self.watched("line"):
            with Load(self.port, 3) as self.load:
                self.until(lambda: len(self.replicas()) == 5)
                self.pause()
            self.until(lambda: len(self.replicas()) == 1)
            self.pause()
        self.assertEqual(self.load.failed, [])
        self.assertTrue(self.metric('haproxy_backend_active_servers{proxy="line"} 1'))
        self.drain()

    @staticmethod
    def pause():
        time.sleep(3 if PLOTS else 0)

    def test_none_to_five_to_none(self):
        self.start(service("slow", slow(0.2, {"minReplicas": 0, "maxReplicas": 5, "scaleTarget": 1}), **WINDOW))
        self.assertEqual(self.replicas("slow"), [])
        large = "x" * 3_000_000   # larger than the limit for retries, but held nevertheless
        status, _, answer = self.post("/v1/models/slow:predict", large)
        self.assertEqual((status, answer["got"]), (200, len(large)))
        self.until(lambda: not self.replicas("slow"))
        with self.watched("slow"):
            self.pause()
            with Load(self.port, 6, "/v1/models/slow:predict", "{}") as self.load:
                self.until(lambda: len(self.replicas("slow")) == 5)
                self.pause()
            self.until(lambda: not self.state()["services"]["slow"]["replicas"])
            self.pause()
        self.assertEqual(self.load.failed, [])
        self.assertEqual(self.post("/v1/models/slow:predict")[0], 200)
        self.drain()

    def test_two_services_share_two_cores(self):
        both = [service(name, slow(0.1, {"minReplicas": 0, "maxReplicas": 2, "scaleTarget": 1}), **WINDOW) for name in ("one", "two")]
        self.start(*both, more=["--cores", "2"])
        with Load(self.port, 6, "/v1/models/one:predict", "{}") as load:
            self.until(lambda: len(self.replicas("one")) == 2)
            self.assertEqual(self.post("/any", Host="two.example.com")[0], 200)   # the service has requests and no core, so the other service releases a core
            self.assertLessEqual(len(self.replicas("one")), 1)
        self.assertEqual(load.failed, [])
        self.assertEqual(self.post("/v1/models/three:predict")[0], 404)
        self.drain()

    def of_a_lower_priority(self, most):
        """Tests that a service with one core keeps it."""
        self.start(*(service(name, slow(0.1, {"minReplicas": 0, "maxReplicas": most, "scaleTarget": 1, "timeout": 20}), **WINDOW, **{"pool.muster__priority": priority})
                     for name, priority in (("one", "1"), ("two", "0"))), more=["--cores", "2"])
        with Load(self.port, 6, "/v1/models/one:predict", "{}") as load:
            self.until(lambda: len(self.replicas("one")) == 2)
            with Load(self.port, 1, "/v1/models/two:predict", "{}") as other:
                self.until(lambda: other.counts[200] > 20 or other.failed)
        self.assertEqual((load.failed, other.failed), ([], []))
        self.assertEqual(self.log.read_text().count("a replica ends, for two has requests and no core"), 1)
        self.drain()

    def test_a_lower_priority_beside_one_that_has_all_cores(self):
        self.of_a_lower_priority(2)

    def test_a_lower_priority_beside_one_that_lacks_cores(self):
        self.of_a_lower_priority(3)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=2)
