#!/usr/bin/env python3
"""Tests services and elastic trainings that share cores: muster-pool together with jobs of muster-launch (MUSTER_TEST_LAUNCHER).

CTest runs one class at a time, like program.py. MUSTER_TEST_SEED repeats a random division."""
import json
import math
import os
import random
import socket
import subprocess
import sys
import time
import types
import unittest

from pool_case import ENVIRONMENT, PLATFORM, WINDOW, Load, PoolCase, model, service, skip_without_what_it_needs, slow
from program import HANG, PROGRAMS

SEED = int(os.environ.get("MUSTER_TEST_SEED", "20261127"))
TRAINED = 40    # duration with one rank in seconds, longer than a burst and its window


def training(name, cpu=1, priority=0, account="default"):
    return {"apiVersion": "pool.muster/v1", "kind": "Training", "metadata": {"name": name, "namespace": account, "annotations": {"pool.muster/priority": str(priority)}},
            "spec": {"control": f"{name}.sock", "resources": {"requests": {"cpu": cpu}}}}


def quota(account, cpu):
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "cores", "namespace": account}, "spec": {"hard": {"requests.cpu": cpu}}}


class Division(unittest.TestCase):
    """Tests properties of divide() with random cores, limits, replicas and trainings."""

    def setUp(self):
        skip_without_what_it_needs(self)
        sys.path.insert(0, str(PLATFORM))

    def drawn(self, draw):
        members = [types.SimpleNamespace(name=f"t{k}", priority=draw.randint(0, 2), account=draw.choice("ab"), cores=draw.choice((1, 1, 1, 2, 0.5)),
                                         least=(least := draw.randint(1, 2)), most=draw.randint(least, 6)) for k in range(draw.randint(0, 4))]
        replicas = [(draw.choice("ab"), 1) for _ in range(draw.randint(0, 3))]
        lacking = [(draw.randint(0, 2), draw.choice("ab"), 1) for _ in range(draw.randint(0, 3))]
        limits = {"a": draw.randint(2, 8)} if draw.random() < 0.5 else {}
        return draw.randint(1, 16), limits, replicas, lacking, members

    def test_properties(self):
        from muster_pool.division import divide
        for case in range(3000):
            cores, limits, replicas, lacking, members = self.drawn(random.Random(f"{SEED} {case}"))
            with self.subTest(seed=SEED, case=case):
                sizes = divide(cores, limits, replicas, lacking, members)
                had = {each.name: sizes[each.name] * each.cores for each in members}

                def used(account=None, sizes=sizes):
                    return (sum(amount for of, amount in replicas if account in (None, of)) +
                            sum(sizes[each.name] * each.cores for each in members if account in (None, each.account)))

                def could(each, more):
                    """Returns true if a training could have so many additional cores."""
                    return sizes[each.name] < each.most and used() + more <= cores and used(each.account) + more <= limits.get(each.account, math.inf)

                grown = [each for each in members if sizes[each.name] > each.least]
                self.assertEqual(set(sizes), {each.name for each in members})
                self.assertTrue(all(each.least <= sizes[each.name] <= each.most for each in members))
                self.assertTrue(not grown or used() <= cores)
                for account in {each.account for each in grown}:
                    self.assertLessEqual(used(account), limits.get(account, math.inf))
                for each in members:
                    if not lacking:
                        self.assertFalse(could(each, each.cores), "cores are idle")
                    for other in grown:
                        if other.account == each.account and other.cores == each.cores and sizes[each.name] < each.most:
                            self.assertLessEqual(each.priority, other.priority)
                            if each.priority == other.priority:
                                self.assertLessEqual(had[other.name] - had[each.name], each.cores)
                if grown and all(each.cores >= 1 for each in members):   # each service of the same or a higher priority has all cores that it requires, or is at its limit
                    for priority, account, amount in lacking:
                        if all(priority >= each.priority for each in grown) and account not in limits:
                            self.assertLessEqual(used() + amount, cores)


class Trainings(PoolCase):
    def setUp(self):
        super().setUp()
        self.launcher = os.environ.get("MUSTER_TEST_LAUNCHER", "")
        if not os.path.exists(self.launcher):
            self.skipTest("muster-launch is not there")
        self.jobs = []
        self.addCleanup(self.end_jobs)

    def end_jobs(self):
        for job in self.jobs:
            job.kill()
            job.communicate()

    def launch(self, name, ranks, most, *words):
        job = subprocess.Popen([self.launcher, "-n", str(ranks), "--max", str(most), "--control", f"{name}.sock", *map(str, words)], cwd=self.folder,
                               env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.jobs.append(job)
        self.until(lambda: self.status(name), lives=False)
        return job

    def idle(self, name, ranks, most):
        """A job of idle ranks. A rank leaves immediately on request."""
        return self.launch(name, ranks, most, "sleep", "600")

    def status(self, name):
        """Returns (ranks, size), or None if the job does not exist."""
        try:
            with socket.socket(socket.AF_UNIX) as to:
                to.settimeout(HANG)
                to.connect(str(self.folder / f"{name}.sock"))
                to.sendall(b"status\n")
                reply = json.loads(to.makefile().readline())
                return reply["ranks"], reply["size"]
        except (FileNotFoundError, ConnectionError):
            return None

    def come_to(self, **sizes):
        self.until(lambda: all(self.status(name) == (size, size) for name, size in sizes.items()))

    def test_a_burst_takes_a_core_of_a_training_and_gives_it_back(self):
        words = ["--data", "cifar-like:600", "--batch", "50", "--virtual-shards", "4"]
        took = []
        for _ in range(3):  # other work on the machine only makes the time longer
            begin = time.monotonic()
            subprocess.run([PROGRAMS / "cnn", *words, "--epochs", "4"], check=True, stdout=subprocess.DEVNULL, timeout=HANG)
            took.append(time.monotonic() - begin)
        words += ["--epochs", str(math.ceil(TRAINED / min(took) * 4))]
        self.add_model()
        job = self.launch("night", 2, 2, PROGRAMS / "cnn", *words, "--save", "pool.model", "--json", "pool.json")
        self.start(service("line", model(minReplicas=1, maxReplicas=2, scaleMetric="rps", scaleTarget=4), **WINDOW), training("night"), more=["--cores", "3"])
        self.until(lambda: len(self.replicas()) == 1)
        self.come_to(night=2)
        with Load(self.port, 2) as load:
            self.says("night: 1 ranks, 2 before (line lacks cores)")
            asked = time.monotonic()
            self.come_to(night=1)
            left = time.monotonic() - asked
            self.until(lambda: len(self.replicas()) == 2)
            there, at = time.monotonic() - asked, load.counts[200]
            self.until(lambda: load.counts[200] > at + 100)
        self.come_to(night=2)
        self.assertIsNone(job.poll(), "it ended before the burst was over")
        output = job.communicate(timeout=HANG)[0]
        self.assertEqual(job.returncode, 0, output)
        self.assertEqual(load.failed, [])
        print(f"{load.counts[200]} requests, none failed; the rank had left after {left:.2f} s, the replica served after {there:.2f} s")
        for text in ("rank 1 left; 1 ranks (2 before)", "1 joined; 2 ranks (1 before)", " 0 died, and the job is done"):
            self.assertIn(text, output)
        self.assertNotRegex(output, r"[1-9]\d* steps run again")
        calm = subprocess.run([PROGRAMS / "cnn", *words, "--ranks", "2", "--save", "calm.model", "--json", "calm.json"], cwd=self.folder,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=HANG)
        self.assertEqual(calm.returncode, 0, calm.stdout)
        reports = [json.loads((self.folder / f"{which}.json").read_text()) for which in ("pool", "calm")]
        for one, other in zip(*(report["epochs"] for report in reports), strict=True):
            self.assertAlmostEqual(one["val_loss"], other["val_loss"], delta=1e-9)   # the ranks sum their validation results
        # A lost or repeated sample would change the loss.
        self.assertTrue((self.folder / "pool.model").read_bytes() == (self.folder / "calm.model").read_bytes(), "the model has other bits")
        self.drain()

    def test_priorities_and_limits(self):
        """Tests the numbers of ranks of jobs with idle ranks."""
        service_of = service("slow", slow(0.5, {"minReplicas": 1, "maxReplicas": 4, "scaleTarget": 1}), **{"pool.muster__priority": "1"}, **WINDOW)
        service_of["metadata"]["namespace"] = "web"
        self.idle("low", 4, 8)
        self.start(service_of, training("low", account="b"), training("high", priority=2, account="a"), training("same", account="b"), quota("a", 3), quota("web", 2),
                   more=["--cores", "7"])
        self.come_to(low=6)                          # 7 cores; a replica has one core
        high = self.idle("high", 1, 8)
        self.come_to(low=3, high=3)                  # the account's limit
        self.idle("same", 1, 1)
        self.come_to(low=2, high=3, same=1)
        with Load(self.port, 6, "/v1/models/slow:predict", "{}") as load:
            self.until(lambda: len(self.replicas("slow")) == 2)
            self.come_to(low=1, high=3, same=1)
            at = load.counts[200]
            self.until(lambda: load.counts[200] > at + 20)
            self.assertEqual(len(self.replicas("slow")), 2)   # four are desired, but the account's limit is two
            high.kill()                              # the ranks end with the launcher
            self.come_to(low=4, same=1)
        self.assertEqual(load.failed, [])
        self.come_to(low=5, same=1)
        self.describe(service_of)                    # the pool has lost its record of this service
        self.pool.send_signal(1)
        self.says("read again")
        self.drain()
        self.assertEqual(self.status("low"), (5, 5))

    def test_a_new_revision_keeps_to_limits_and_cores(self):
        """Tests a new revision. It starts next to the old revision if it fits into the same cores, as does each further replica, even if all cores are in use."""
        def file_of(revision, cpu=1, least=0, limit=2):
            given = slow(0.01, {"minReplicas": least, "maxReplicas": max(least, 1)}, REVISION=revision)
            given["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
            return service("slow", given, **WINDOW), quota("default", limit)

        def revisions():
            return [each[2][1]["REVISION"] for each in self.state()["services"]["slow"]["replicas"]]

        def read():
            return sum(self.log.read_text().count(text) for text in ("read again", "the files are left as they were"))

        def read_again(*words, **more):
            self.describe(*file_of(*words, **more))
            times = read()
            self.pool.send_signal(1)
            self.until(lambda: read() > times)

        self.start(*file_of("a", limit=1), more=["--cores", "2"])
        with Load(self.port, 1, "/v1/models/slow:predict", "{}") as load:
            self.until(lambda: revisions() == ["a"])
            for cpu, limit in ((2, 1), (4, 8)):   # more than the account's limit, and more than the pool has
                read_again("b", cpu=cpu, limit=limit)
                self.says(f"need {cpu} cores at least")
                at = load.counts[200]
                self.until(lambda: load.counts[200] > at + 100)
                self.assertEqual(revisions(), ["a"])
            read_again("c", limit=1)
            self.until(lambda: revisions() == ["c"])
            read_again("c", least=2)
            self.until(lambda: revisions() == ["c", "c"])
            read_again("d", least=2)
            self.until(lambda: revisions() == ["d", "d"])
        self.assertEqual(load.failed, [])
        self.drain()

    def test_replicas_that_die_at_once_keep_their_core_during_pauses(self):
        self.idle("night", 1, 2)
        self.start(service("slow", {"maxReplicas": 1, "containers": [{"command": ["false"]}]}, **WINDOW), training("night"), more=["--cores", "2"])
        self.says("another one starts in 4 s")
        self.assertNotIn("night: 2 ranks", self.log.read_text())
        self.assertEqual(self.status("night"), (1, 1))

    def test_what_does_not_answer(self):
        """Tests that a stopped training keeps its cores, and that the socket of another program is not a training."""
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.bind(str(self.folder / "other.sock"))
            deaf.listen(1)
            job = self.idle("low", 1, 4)
            self.start(service("slow", slow(0.5, {"minReplicas": 1, "maxReplicas": 4, "scaleTarget": 1}), **WINDOW), training("low"), training("other"), more=["--cores", "3"])
            self.come_to(low=2)
            self.says("other.sock does not answer as muster-launch does")
            job.send_signal(19)
            with Load(self.port, 4, "/v1/models/slow:predict", "{}") as load:
                self.says("low.sock does not answer as muster-launch does")
                at = load.counts[200]
                self.until(lambda: load.counts[200] > at + 6)
                self.assertEqual(len(self.replicas("slow")), 1)
                job.send_signal(18)
                self.come_to(low=1)
                self.until(lambda: len(self.replicas("slow")) == 2)
            self.assertEqual(load.failed, [])
            self.drain()

    def test_one_line_names_the_key(self):
        good = service("a", slow())
        for documents, text in (([good, {**training("t"), "apiVersion": "v1"}], "'apiVersion' cannot be 'v1' (Training is known of pool.muster/v1)"),
                                ([good, training("t"), training("t")], "the Training 't' is there twice"),
                                ([good, training("t", cpu="x")], "'cpu' cannot be 'x'"),
                                ([good, training("t", priority=-1)], "'pool.muster/priority' cannot be '-1'"),
                                ([good, {**training("t"), "spec": {}}], "t, spec has no 'control'"),
                                ([good, {**training("t"), "spec": {"control": "a", "ranks": 1}}], "unknown key 'ranks'"),
                                ([good, quota("x", 1), quota("x", 2)], "the account 'x' has two limits"),
                                ([service("a", slow(more={"minReplicas": 2})), quota("default", 1)], "of the account default need 2 cores at least"),
                                ([good, {**quota("x", 1), "spec": {"hard": {}}}], "has no 'requests.cpu'"),
                                ([training("t")], "describes no service")):
            with self.subTest(text):
                self.describe(*documents)
                ran = subprocess.run(self.words(), cwd=self.folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=HANG)
                self.assertEqual((ran.returncode, ran.stderr.count("\n")), (2, 1), ran.stderr)
                self.assertIn(text, ran.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=2)
