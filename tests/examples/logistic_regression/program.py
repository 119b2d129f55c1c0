#!/usr/bin/env python3
"""The logistic regression program, run like a user would: alone, with ranks as threads and under mpirun.

CTest runs one class at a time: program.py CLASS, with the program in MUSTER_TEST_PROGRAM, the launcher and its flags in
MUSTER_TEST_MPIRUN (empty: without MPI) and the root of the sources in MUSTER_TEST_SOURCES.
"""
import gzip
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.environ["MUSTER_TEST_PROGRAM"]
MPIRUN = os.environ.get("MUSTER_TEST_MPIRUN", "").split()
SOURCES = pathlib.Path(os.environ["MUSTER_TEST_SOURCES"])
HANG = 60 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))  # seconds; each step takes a few at most


def write_libsvm(path, samples, dense, seed, labels=("-1", "+1"), features=12):
    """Writes samples of a noisy linear model."""
    draw = random.Random(seed)
    model = [random.Random(99).gauss(0, 1) for _ in range(features)]  # the same for training and test sets
    with open(path, "w") as file:
        for _ in range(samples):
            row = [draw.gauss(0, 1) if dense or draw.random() < 0.3 else 0.0 for _ in range(features)]
            label = sum(w * x for w, x in zip(model, row)) + draw.gauss(0, 0.3) + 0.5 > 0
            words = [labels[label]] + [f"{i + 1}:{x:.6g}" for i, x in enumerate(row) if x != 0.0]
            file.write(" ".join(words) + "\n")


def launch(ranks, kind):
    """Returns the words before and after the program that run it on so many ranks."""
    if kind in ("mpi", "shm"):
        return [*MPIRUN, "-n", str(ranks)], ["--transport", kind]
    return [], ["--ranks", str(ranks)] if ranks > 1 else []


def run(arguments, ranks=1, kind="threads", **more):
    before, after = launch(ranks, kind)
    return subprocess.run([*before, PROGRAM, *arguments, *after], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=HANG, **more)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="muster-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def kinds(self):
        return ["threads", "mpi", "shm"] if MPIRUN else ["threads"]

    def report(self, arguments, ranks=1, kind="threads"):
        path = self.folder / f"{kind}-{ranks}.json"
        ran = run([*arguments, "--json", path], ranks, kind)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return json.loads(path.read_text())

    def check_same_loss(self, arguments, at_least):
        alone = self.report(arguments)
        self.assertGreaterEqual(alone["epochs"][-1]["val_accuracy"], at_least)
        for kind in self.kinds():
            for ranks in (1, 2, 3, 4):
                with self.subTest(kind=kind, ranks=ranks):
                    other = self.report(arguments, ranks, kind)
                    self.assertEqual(other["world_size"], ranks)
                    self.assertEqual(other["transport"], kind if ranks > 1 else other["transport"])
                    self.assertEqual(other["samples"], alone["samples"])
                    for mine, theirs in zip(alone["epochs"], other["epochs"], strict=True):
                        for name in ("train_loss", "val_loss"):
                            self.assertAlmostEqual(theirs[name] / mine[name], 1.0, delta=1e-4)
                    self.assertAlmostEqual(float(other["annotations"]["objective"]) /
                                           float(alone["annotations"]["objective"]), 1.0, delta=1e-4)


class SameLoss(Case):
    """The same global batch and seed give the same training, for any number of ranks."""

    def check(self, dense, *more, test_features=12):
        write_libsvm(self.folder / "train", 203, dense, seed=1)
        write_libsvm(self.folder / "test", 61, dense, seed=2, features=test_features)
        self.check_same_loss(["--train", f"libsvm:{self.folder}/train", "--test", f"libsvm:{self.folder}/test",
                              "--epochs", "4", "--l2", "0.001", *more], at_least=0.8)

    def test_sparse(self):
        self.check(False, "--batch", "10")

    def test_dense_with_momentum(self):
        self.check(True, "--batch", "25", "--momentum", "0.9", "--schedule", "step:0.1,epochs=2,warmup=1,scale=2")

    def test_a_test_set_with_more_or_fewer_features(self):
        self.check(False, test_features=14)
        self.check(True, test_features=10)

    def test_a_share_of_the_training_set_takes_the_place_of_the_test_set(self):
        train, test = self.folder / "train", self.folder / "test"
        for dense in (True, False):
            write_libsvm(train, 400, dense, 1)
            write_libsvm(test, 10, dense, 2)
            given = ["--train", f"libsvm:{train}", "--test", f"libsvm:{test}", "--epochs", "2"]
            held = self.report([*given, "--holdout", "0.25"], 2)
            self.assertEqual(held["samples"], 2 * 300)
            lines = train.read_text().splitlines(keepends=True)
            (self.folder / "rest").write_text("".join(line for at, line in enumerate(lines) if at % 4 != 3))
            (self.folder / "share").write_text("".join(lines[3::4]))
            split = self.report(["--train", f"libsvm:{self.folder}/rest", "--test", f"libsvm:{self.folder}/share", "--epochs", "2"], 2)
            self.assertEqual([epoch["val_loss"] for epoch in held["epochs"]], [epoch["val_loss"] for epoch in split["epochs"]])
        self.assertEqual(self.report([*given[:2], *given[4:], "--holdout", "0.25"], 2)["epochs"][0]["val_loss"], held["epochs"][0]["val_loss"])
        self.assertIn("nothing to test on (neither --test nor --holdout is given)", run([*given[:2], *given[4:]]).stderr)
        refused = run([*given, "--holdout", "0.001"])
        self.assertIn("--holdout leaves nothing to validate on (it is less than one of 400 training samples)", refused.stderr)

    def test_gzip(self):
        write_libsvm(self.folder / "train", 203, True, seed=1)
        (self.folder / "train.gz").write_bytes(gzip.compress((self.folder / "train").read_bytes()))
        plain, packed = (self.report(["--train", f"libsvm:{self.folder / name}", "--test", f"libsvm:{self.folder}/train",
                                      "--epochs", "2"]) for name in ("train", "train.gz"))
        self.assertEqual(plain["annotations"]["objective"], packed["annotations"]["objective"])

    def test_more_ranks_than_samples_in_a_batch(self):
        self.check(False, "--batch", "2", "--schedule", "constant:0.05")


class RealData(Case):
    def test_a9a(self):
        data = pathlib.Path(os.environ.get("MUSTER_TEST_DATA", SOURCES / ".." / "shared" / "data"))
        for name in ("a9a", "a9a.t"):
            if not (data / name).is_file():
                self.skipTest(f"{data / name} is not there (set MUSTER_TEST_DATA to the folder that has it)")
        self.check_same_loss(["--train", f"libsvm:{data}/a9a", "--test", f"libsvm:{data}/a9a.t"], at_least=0.848)


class Resumed(Case):
    def test_the_same_command_goes_on(self):
        arguments = ["--synthetic", "epsilon:200", "--schedule", "constant:0.5", "--momentum", "0.9"]
        saved = ["--checkpoint", self.folder / "saved", "--resume"]
        losses = lambda report: [(e["train_loss"], e["val_loss"]) for e in report["epochs"]]
        whole = losses(self.report([*arguments, "--epochs", "4"]))
        self.report([*arguments, "--epochs", "2", *saved])
        self.assertEqual(losses(self.report([*arguments, "--epochs", "4", *saved])), whole)
        self.assertEqual(losses(self.report([*arguments, "--epochs", "4", *saved])), whole)

    def test_with_servers(self):
        arguments = ["--synthetic", "epsilon:200", "--schedule", "constant:0.5", "--mode", "ps", "--consistency", "bulk",
                     "--checkpoint", self.folder / "saved", "--resume"]
        self.assertEqual(len(self.report([*arguments, "--epochs", "2"], 3)["epochs"]), 2)
        self.assertEqual(len(self.report([*arguments, "--epochs", "5"], 3)["epochs"]), 3)


class Report(Case):
    """The report has the fields that docs/tracker.md documents."""

    TYPES = {"number": (int, float), "integer": int, "string": str, "object": dict, "array": list}

    def documented(self):
        """Returns path -> (type, true if it may be null), from the rows `| \`path\` | type | ...` of the tables."""
        fields = {}
        for line in (SOURCES / "docs" / "tracker.md").read_text().splitlines():
            row = re.match(r"\| `([^`]+)` \| (\w+)( or null)? \|", line)
            if row:
                fields[row[1]] = (row[2], row[3] is not None)
        return fields

    def walk(self, value, path, fields, seen):
        kind, nullable = fields.get(path, (None, False))
        self.assertIsNotNone(kind, f"docs/tracker.md does not document {path}")
        seen.add(path)
        if value is None:
            self.assertTrue(nullable, f"{path} is null")
            return
        self.assertIsInstance(value, self.TYPES[kind], path)
        if path == "annotations":
            for text in value.values():
                self.assertIsInstance(text, str)
        elif isinstance(value, dict):
            for key, below in value.items():
                key = "*" if path == "phases" else key
                self.walk(below, f"{path}.{key}", fields, seen)
        elif isinstance(value, list):
            for below in value:
                self.walk(below, f"{path}[]", fields, seen)

    def check(self, report):
        fields, seen = self.documented(), set()
        for key, value in report.items():
            self.walk(value, key, fields, seen)
        # in reports of a parameter server; over tcp
        return {name for name in set(fields) - seen if not name.startswith(("push_ages.", "ranks[].links[]"))}

    def test_every_field_is_documented_and_every_documented_field_is_there(self):
        arguments = ["--synthetic", "epsilon:500", "--epochs", "3", "--goal", "accuracy=0.5"]
        for kind in self.kinds():
            report = self.report(arguments, 2, kind)
            self.assertEqual(self.check(report), set())
            self.assertEqual(report["world_size"], 2)
            self.assertIsNotNone(report["time_to_goal_seconds"])
            self.assertEqual(len(report["epochs"]), 3)
            self.assertEqual(report["samples"], 1500)
            self.assertLessEqual(report["time_to_goal_seconds"], report["train_seconds"])
            self.assertGreater(report["communication_seconds"], 0)
            for name in ("backward", "aggregate", "batch_load", "optimizer_step", "metrics"):
                self.assertGreater(report["phases"][name]["max_seconds"], 0)

    def test_the_settings_that_were_resolved_are_in_it(self):
        annotations = self.report(["--synthetic", "epsilon:500", "--epochs", "1", "--preset", "mlbench-2a", "--compress", "qsgd8"], 2)["annotations"]
        expected = {"program": "logistic_regression", "mode": "allreduce", "compress": "qsgd8", "optimizer": "sgd,decay=2.5e-06",
                    "schedule": "inverse-sqrt:400", "batch": "200", "epochs": "1", "elastic": "off", "train": "epsilon:500",
                    "test": "epsilon:125@500"}
        self.assertEqual({name: annotations[name] for name in expected}, expected)

    def test_without_a_goal(self):
        report = self.report(["--synthetic", "epsilon:500", "--epochs", "1"])
        self.assertEqual(self.check(report), {"goal.metric", "goal.value"})
        self.assertIsNone(report["goal"])
        self.assertIsNone(report["time_to_goal_seconds"])

    def test_a_goal_out_of_reach(self):
        report = self.report(["--synthetic", "epsilon:500", "--epochs", "1", "--goal", "val_loss=0.001"])
        self.assertIsNone(report["time_to_goal_seconds"])


class BadInput(Case):
    """Errors are one line with the fault and its place, the same exit status at every rank, without a hang."""

    CONFIGURATION, DATA, TRAINING = 2, 3, 7

    def setUp(self):
        super().setUp()
        for name, content in {"empty": "", "number": "1 1:1\n-1 1:x\n", "zero": "+1 0:1\n", "order": "+1 2:1 1:1\n",
                              "nan": "+1 1:nan\n", "three": "0 1:1\n1 1:2\n2 1:3\n", "one": "1 1:1\n1 1:2\n"}.items():
            (self.folder / name).write_text(content)
        write_libsvm(self.folder / "good", 50, True, seed=1)
        write_libsvm(self.folder / "longer", 51, True, seed=1)
        write_libsvm(self.folder / "same-size", 50, True, seed=2)
        write_libsvm(self.folder / "zero-one", 50, True, seed=1, labels=("0", "1"))

    def files(self, train, test="good"):
        return ["--train", f"libsvm:{self.folder / train}", "--test", f"libsvm:{self.folder / test}", "--epochs", "2"]

    def check_output(self, ran, status, words):
        lines = [line for line in ran.stderr.splitlines() if "error:" in line]
        self.assertEqual(len(lines), 1, ran.stderr)
        for word in words:
            self.assertIn(str(word), lines[0])
        self.assertNotRegex(ran.stderr + ran.stdout, r"terminate called|what\(\):|Aborted|Segmentation|\*\*\*")
        if status is not None:
            self.assertEqual(ran.returncode, status, ran.stderr)

    def check(self, arguments, status, *words, environment=None):
        environment = {**os.environ, **(environment or {})}
        for ranks in (1, 2):
            with self.subTest(arguments=arguments, ranks=ranks, kind="threads"):
                ran = run(arguments, ranks, env=environment)
                self.check_output(ran, status, words)
                self.assertEqual(len(ran.stderr.splitlines()), 1, ran.stderr)
        if MPIRUN:
            self.check_mpi(arguments, status, words, environment)

    def check_mpi(self, arguments, status, words, environment=None, ranks=2):
        """Runs under mpirun; each rank writes its exit status to a file. `RANK` in an argument is replaced by the rank's number.

        The launcher is configured not to kill the others after a failed rank, and then ends with 0."""
        with self.subTest(arguments=arguments, ranks=ranks, kind="mpi"):
            script = self.folder / "rank.sh"
            script.write_text('rank=$OMPI_COMM_WORLD_RANK\nfor word; do shift\n'
                              'set -- "$@" "$(printf %s "$word" | sed "s/RANK/$rank/")"\ndone\n'
                              f'"$@"\nstatus=$?\necho $status >{self.folder}/status-$rank\nexit $status\n')
            for rank in range(ranks):
                (self.folder / f"status-{rank}").unlink(missing_ok=True)
            ran = subprocess.run([*MPIRUN, "--mca", "orte_abort_on_non_zero_status", "0", "-n", str(ranks), "sh", script,
                                  PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 timeout=HANG, env=environment)
            self.check_output(ran, None, words)
            statuses = [(self.folder / f"status-{rank}").read_text().strip() for rank in range(ranks)]
            self.assertEqual(statuses, [str(status)] * ranks, ran.stderr)

    def test_elastic_servers(self):
        ran = subprocess.run([PROGRAM, "--elastic", "on", "--mode", "ps", "--synthetic", "epsilon:100", "--epochs", "1"],
                             capture_output=True, text=True, timeout=HANG)
        self.check_output(ran, self.CONFIGURATION, ("of 1 ranks 1 cannot serve", "start two ranks or more"))

    def test_flags(self):
        self.check(["--synthetic", "epsilon:100", "--epoch", "1"], self.CONFIGURATION, "--epoch", "--epochs")
        self.check(["--synthetic", "epsilon:100", "--epochs", "x"], self.CONFIGURATION, "--epochs", "x")
        self.check(["--synthetic", "epsilon:100", "--batch", "0"], self.CONFIGURATION, "batch")
        self.check(["--synthetic", "epsilon:0"], self.CONFIGURATION, "epsilon:0")
        self.check(["--synthetic", "gamma"], self.CONFIGURATION, "gamma", "epsilon")
        self.check([], self.CONFIGURATION, "--train", "--synthetic")
        self.check(["--train", "libsvm:x"], self.CONFIGURATION, "--test")
        self.check(["--synthetic", "epsilon:100", "--schedule", "steps:1"], self.CONFIGURATION, "steps:1", "step")
        self.check(["--synthetic", "epsilon:100", "--goal", "accuracy=85"], self.CONFIGURATION, "accuracy=85")
        self.check(["--synthetic", "epsilon:100", "--resume"], self.CONFIGURATION, "--checkpoint FOLDER")
        self.check(["--synthetic", "epsilon:100", "--preset", "mlbench"], self.CONFIGURATION, "mlbench-2a")
        self.check(["--synthetic", "epsilon:100", "--transport", "smoke"], self.CONFIGURATION, "--transport", "smoke")

    def test_files(self):
        place = lambda name, where="": f"{self.folder / name}{where}"
        self.check(self.files("missing"), self.DATA, place("missing"))
        self.check(self.files("."), self.DATA, self.folder)
        self.check(self.files("empty"), self.DATA, place("empty"))
        self.check(self.files("number"), self.DATA, place("number", ":2:"))
        self.check(self.files("zero"), self.DATA, place("zero", ":1:"))
        self.check(self.files("order"), self.DATA, place("order", ":1:"))
        self.check(self.files("nan"), self.DATA, place("nan", ":1:"))
        self.check(["--train", "orc:x", "--test", "orc:x"], self.CONFIGURATION, "csv", "libsvm")

    @unittest.skipUnless(MPIRUN, "built without MPI")
    def test_the_launcher_hands_the_status_on(self):
        self.check_output(run(self.files("missing"), 2, "mpi"), self.DATA, ["missing"])
        self.check_output(run([], 2, "mpi"), self.CONFIGURATION, ["--train"])

    def test_lines_that_are_left_out(self):
        lines = (self.folder / "good").read_text().splitlines(True)
        (self.folder / "spoilt").write_text("".join(lines[:7] + ["1 1:x\n"] + lines[7:20] + ["no number\n"] + lines[20:]))
        losses = lambda report: [(e["train_loss"], e["val_loss"], e["samples"]) for e in report["epochs"]]
        good = losses(self.report(self.files("good")))
        self.check(self.files("spoilt"), self.DATA, f"{self.folder / 'spoilt'}:8:")
        self.check([*self.files("spoilt"), "--on-bad-record", "weep"], self.CONFIGURATION, "weep", "quarantine:FILE")
        self.assertEqual(losses(self.report([*self.files("spoilt"), "--on-bad-record", "skip"])), good)
        report_file = self.folder / "told"
        self.assertEqual(losses(self.report([*self.files("spoilt"), "--on-bad-record", f"quarantine:{report_file}"], 2)),
                         losses(self.report(self.files("good"), 2)))
        self.assertEqual([json.loads(line)["line"] for line in report_file.read_text().splitlines()], [8, 22])

    def test_labels(self):
        self.check(self.files("three"), self.DATA, self.folder / "three", "3 labels")
        self.check(self.files("one"), self.DATA, self.folder / "one", "1 label,")
        self.check(self.files("good", "zero-one"), self.DATA, self.folder / "zero-one", "sample ", "label 0")

    def test_a_launcher_that_contradicts_itself(self):
        contradiction = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "2"}
        ran = run(self.files("good"), env={**os.environ, **contradiction})
        self.check_output(ran, self.CONFIGURATION, ["OMPI_COMM_WORLD_RANK"])

    def test_a_report_that_cannot_be_written_is_refused_before_training(self):
        arguments = ["--synthetic", "epsilon:100", "--json", str(self.folder / "none" / "out.json")]
        self.check(arguments, self.CONFIGURATION, self.folder / "none")
        self.assertNotIn("epoch", run(arguments).stdout)

    def test_a_training_that_diverges(self):
        self.check([*self.files("good"), "--schedule", "constant:1e38", "--batch", "1"], self.TRAINING, "loss is",
                   "in step", "at rank", "diverged")

    def test_values_that_are_missing_or_no_classes_are_named(self):
        (self.folder / "missing").write_text("a,b,y\n1,2,0\n3,,1\n4,5,0\n")
        (self.folder / "classes").write_text("a,b,y\n1,2,0\n3,4,0.5\n4,5,0\n")
        (self.folder / "unlabelled").write_text("a,b,y\n1,2,0\n3,4,\n4,5,1\n")
        good = ["--test", f"libsvm:{self.folder / 'good'}", "--epochs", "1"]
        for name, words in {"missing": ["missing?", "sample 2 has nan as feature 1", "missing=zero"],
                            "classes": ["sample 2 has label 0.5", "whole numbers"],
                            "unlabelled": [":3:5", "the label is missing"]}.items():
            for missing in ("nan", "zero") if name == "unlabelled" else ("nan",):
                source = f"csv:{self.folder / name}?label=y&missing={missing}"
                words = [word.replace("missing?", str(self.folder / "missing")) for word in words]
                self.check(["--train", source, *good], self.DATA, *words)

    @unittest.skipUnless(MPIRUN, "built without MPI")
    def test_different_files_on_different_ranks(self):
        for other in ("longer", "same-size"):
            for name, content in (("by-rank-0", "good"), ("by-rank-1", other)):
                (self.folder / name).write_text((self.folder / content).read_text())
            self.check_mpi(self.files("by-rank-RANK"), self.DATA, ["by-rank-", "rank 0", "rank 1"])
            self.check_mpi(self.files("good", "by-rank-RANK"), self.DATA, ["by-rank-", "rank 0", "rank 1"])
        (self.folder / "by-rank-1").unlink()
        self.check_mpi(self.files("by-rank-RANK"), self.DATA, [self.folder / "by-rank-1"])

    @unittest.skipUnless(MPIRUN, "built without MPI")
    def test_different_options_on_different_ranks(self):
        self.check_mpi([*self.files("good"), "--seed", "1RANK"], self.CONFIGURATION, ["options", "seed 1"])


class Help(Case):
    def test_help_lists_the_flags_of_the_program_and_of_muster(self):
        for kind in self.kinds():
            ran = run(["--help"], 2, kind)
            self.assertEqual((ran.returncode, ran.stderr), (0, ""))
            for flag in ("--train", "--schedule", "--json", "--preset", "--transport", "MUSTER_TRANSPORT", "--ranks"):
                self.assertIn(flag, ran.stdout)
            self.assertEqual(ran.stdout.count("--schedule SPEC"), 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv, verbosity=2)
