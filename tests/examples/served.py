#!/usr/bin/env python3
"""The examples with a parameter server, run like a user would: ranks as threads and under mpirun.

CTest runs one class at a time: served.py CLASS, with the folder of the programs in MUSTER_TEST_PROGRAMS, the launcher and
its flags in MUSTER_TEST_MPIRUN (empty: without MPI), muster-launch in MUSTER_TEST_LAUNCHER (or nothing), and the folder
that has a9a in MUSTER_TEST_DATA.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAMS = pathlib.Path(os.environ["MUSTER_TEST_PROGRAMS"])
MPIRUN = os.environ.get("MUSTER_TEST_MPIRUN", "").split()
LAUNCHER = os.environ.get("MUSTER_TEST_LAUNCHER", "")
DATA = pathlib.Path(os.environ["MUSTER_TEST_DATA"])
HANG = 120 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))  # seconds
WORSE = 0.003  # allowed loss of accuracy by asynchronous training
EPSILON = ["--synthetic", "epsilon:500", "--epochs", "2", "--l2", "1e-4", "--schedule", "inverse-sqrt:100"]
CNN = ["--data", "cifar-like:120", "--batch", "24", "--epochs", "2"]


def run(program, arguments, ranks, kind="threads"):
    before, after = ([], ["--ranks", str(ranks)]) if kind == "threads" else (
        [*MPIRUN, "-n", str(ranks)], ["--transport", kind])
    return subprocess.run([*before, PROGRAMS / program, *map(str, arguments), *after], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=HANG)


class Case(unittest.TestCase):
    def report(self, program, arguments, ranks, kind="threads"):
        with tempfile.TemporaryDirectory(prefix="muster-test-") as folder:
            path = pathlib.Path(folder, "report.json")
            ran = run(program, [*arguments, "--json", path], ranks, kind)
            self.assertEqual(ran.returncode, 0, ran.stderr)
            return json.loads(path.read_text())


class InStep(Case):
    """Bulk-synchronous workers train like ranks that reduce their gradients."""

    def check(self, program, arguments, *kinds):
        together = self.report(program, arguments, 2)
        for kind in kinds:
            for servers in (1, 2):
                with self.subTest(program=program, kind=kind, servers=servers):
                    served = self.report(program, [*arguments, "--mode", "ps", "--servers", servers, "--consistency",
                                                   "bulk"], 2 + servers, kind)
                    for one, other in zip(together["epochs"], served["epochs"], strict=True):
                        self.assertAlmostEqual(one["val_loss"], other["val_loss"], delta=1e-4 * one["val_loss"])

    def test_dense_weights_with_a_penalty(self):
        self.check("logistic_regression", EPSILON, *(["threads", "mpi"] if MPIRUN else ["threads"]))

    def test_ranks_that_work_and_serve(self):
        together = self.report("logistic_regression", EPSILON, 2)
        for kind in ("threads", "tcp") if MPIRUN else ("threads",):
            with self.subTest(kind=kind):
                served = self.report("logistic_regression", [*EPSILON, "--mode", "ps", "--servers", "colocated",
                                                             "--consistency", "bulk"], 2, kind)
                self.assertEqual(served["annotations"]["workers"], "2")
                for one, other in zip(together["epochs"], served["epochs"], strict=True):
                    self.assertAlmostEqual(one["val_loss"], other["val_loss"], delta=1e-4 * one["val_loss"])

    def test_a_model_that_trains_an_arena(self):
        self.check("cnn", CNN, *(["threads", "shm"] if MPIRUN else ["threads"]))
        self.check("cnn", [*CNN, "--optimizer", "nesterov:0.9,decay=1e-4", "--schedule", "constant:0.03"], "threads")


class Compressed(Case):
    """Pushes with fewer bytes: later pushes contain the omitted values, and the losses are nearly the losses of
    uncompressed pushes."""

    def test_dense_pushes(self):
        served = [*EPSILON, "--mode", "ps", "--servers", "2", "--consistency", "bulk"]
        exact = self.report("logistic_regression", served, 4)
        loss = exact["epochs"][-1]["val_loss"]
        sent = int(exact["annotations"]["bytes sent"])
        # closed tasks compare these annotations
        self.assertEqual([exact["annotations"][name] for name in ("servers", "workers")], ["2", "2"])
        for codec, share, off in (("float16", 0.51, 1e-3), ("qsgd8", 0.26, 1e-2), ("topk:0.1", 0.21, 0.1),
                                  ("sign", 0.05, 0.3)):
            with self.subTest(codec=codec):
                report = self.report("logistic_regression", [*served, "--compress", codec], 4)
                self.assertLess(int(report["annotations"]["bytes sent"]), share * sent)
                self.assertLess(report["epochs"][-1]["communication_bytes"], exact["epochs"][-1]["communication_bytes"])
                self.assertLess(report["epochs"][-1]["val_loss"], (1 + off) * loss)


class ManyFeatures(Case):
    """Ten million features: the servers have the features that occurred, and the workers learn."""

    def test_clicks(self):
        arguments = ["--synthetic", "clicks:12000", "--epochs", "4", "--batch", "100", "--schedule", "constant:0.5"]
        served = self.report("logistic_regression", [*arguments, "--mode", "ps", "--servers", "2", "--consistency",
                                                     "bounded:4"], 4)
        print(f"accuracy {served['epochs'][-1]['val_accuracy']:.4f}")
        self.assertGreater(served["epochs"][-1]["val_accuracy"], 0.6)


class RealData(Case):
    def test_asynchronous_workers_reach_the_accuracy_of_synchronous_ones(self):
        if not (DATA / "a9a.t").is_file():
            self.skipTest(f"{DATA / 'a9a.t'} is not there")
        files = ["--train", f"libsvm:{DATA}/a9a", "--test", f"libsvm:{DATA}/a9a.t"]
        together = self.report("logistic_regression", files, 4)["epochs"][-1]["val_accuracy"]
        for servers in (1, 2):
            for how in ("async", "bounded:4", "async,damp=64"):
                with self.subTest(servers=servers, how=how):
                    served = self.report("logistic_regression", [*files, "--mode", "ps", "--servers", servers,
                                                                 "--consistency", how], 4 + servers)
                    reached = float(served["annotations"]["accuracy of all workers"])
                    print(f"{servers} servers, {how}: {reached:.4f} beside {together:.4f}")
                    self.assertGreaterEqual(reached, together - WORSE)


class Restarted(Case):
    """muster-launch restarts a job that has lost its only server, and the job continues from the tables at the end of
    an epoch."""

    def test_a_killed_server(self):
        if not LAUNCHER:
            self.skipTest("muster-launch is not there")
        arguments = ["--data", "cifar-like:120", "--batch", "24", "--epochs", "20", "--mode", "ps", "--consistency", "bulk"]
        calm = self.report("cnn", arguments, 3)
        with tempfile.TemporaryDirectory(prefix="muster-test-") as folder:
            saved, path = pathlib.Path(folder, "saved"), pathlib.Path(folder, "report.json")
            words = [LAUNCHER, "-n", 3, "--elastic", "off", "--restart", 1, PROGRAMS / "cnn", *arguments, "--checkpoint",
                     saved, "--resume", "--json", path]
            job = subprocess.Popen(list(map(str, words)), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
            until = time.monotonic() + HANG
            while not (saved / "tables.json").exists() and time.monotonic() < until:
                time.sleep(0.002)
            for child in pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split():
                if "RANK=2" in pathlib.Path(f"/proc/{child}/environ").read_text().split("\0"):
                    os.kill(int(child), signal.SIGKILL)
            error = job.communicate(timeout=HANG)[1]
            self.assertEqual(job.returncode, 0, error)
            self.assertIn("the job has lost tables; it is restarted", error)
            epochs = json.loads(path.read_text())["epochs"]
        self.assertLess(len(epochs), 20, "it went on from what was saved")
        self.assertAlmostEqual(epochs[-1]["train_loss"], calm["epochs"][-1]["train_loss"],
                               delta=1e-3 * calm["epochs"][-1]["train_loss"])


class Refused(Case):
    def check(self, program, arguments, ranks, words):
        ran = run(program, [*arguments, "--mode", "ps"], ranks)
        self.assertEqual(ran.returncode, 2, ran.stderr)
        self.assertEqual(len(ran.stderr.splitlines()), 1, ran.stderr)
        self.assertIn(words, ran.stderr)

    def test_what_does_not_go_with_servers(self):
        self.check("logistic_regression", EPSILON, 1, "cannot serve")
        self.check("logistic_regression", [*EPSILON, "--servers", "2"], 2, "cannot serve")
        self.check("logistic_regression", [*EPSILON, "--compress", "powersgd:2"], 3, "--compress powersgd")
        self.check("logistic_regression", ["--synthetic", "epsilon:500", "--optimizer", "lars"], 3, "lars")
        self.check("logistic_regression", [*EPSILON, "--consistency", "loose"], 3, "loose")
        self.check("cnn", [*CNN, "--sync-batch-norm"], 3, "--sync-batch-norm cannot be used")
        self.check("cnn", [*CNN, "--schedule", "plateau:0.1"], 3, "plateau")
        self.check("cnn", [*CNN, "--max-train-seconds", "9"], 3, "--max-train-seconds cannot be used")
        self.check("logistic_regression", [*EPSILON, "--max-train-seconds", "9"], 3, "--max-train-seconds cannot be used")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
