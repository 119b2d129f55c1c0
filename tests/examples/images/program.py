#!/usr/bin/env python3
"""The programs that train on images, run like a user would: alone, with ranks as threads and under mpirun.

CTest runs one class at a time: program.py CLASS, with the folder of the programs in MUSTER_TEST_PROGRAMS, the launcher
and its flags in MUSTER_TEST_MPIRUN (empty: without MPI), muster-launch in MUSTER_TEST_LAUNCHER (or nothing), muster-data in
MUSTER_TEST_DATA_TOOL and a folder of public data in MUSTER_TEST_DATA (or none).
"""
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import digits  # noqa: E402

PROGRAMS = pathlib.Path(os.environ["MUSTER_TEST_PROGRAMS"])
MPIRUN = os.environ.get("MUSTER_TEST_MPIRUN", "").split()
HANG = 200 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))  # seconds; the programs are slow


def crc32c(data):
    crc = 0xFFFFFFFF
    table = [0] * 256
    for byte in range(256):
        table[byte] = byte
        for _ in range(8):
            table[byte] = table[byte] >> 1 ^ (0x82F63B78 if table[byte] & 1 else 0)
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def small(epochs=2, schedule="constant:0.02", data="cifar-like:120"):
    """Returns the arguments of a training that takes seconds."""
    return ["--data", data, "--batch", "24", "--epochs", epochs, "--schedule", schedule]


def parameters(model):
    """Returns the parameters in a model file, without the statistics."""
    head, numbers = model.read_bytes().split(b"\n", 1)
    return struct.unpack_from(f"{json.loads(head)['parameters']}f", numbers)


def launch(ranks, kind):
    """Returns the words before and after a program that run it on so many ranks."""
    if kind == "threads":
        return [], ["--ranks", str(ranks)] if ranks > 1 else []
    return [*MPIRUN, "-n", str(ranks)], ["--transport", kind]


def run(program, arguments, ranks=1, kind="threads"):
    before, after = launch(ranks, kind)
    return subprocess.run([*before, PROGRAMS / program, *map(str, arguments), *after], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=HANG)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="muster-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def report(self, program, arguments, ranks=1, kind="threads"):
        path = self.folder / "report.json"
        ran = run(program, [*arguments, "--json", path], ranks, kind)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return json.loads(path.read_text()), ran.stdout


class Together(Case):
    def check_shares(self, report):
        """Checks that each moment is counted once, also if layers communicate within a phase."""
        for each in (report, *report["epochs"]):
            parts = [each[f"mean_{part}_seconds"] for part in ("compute", "communication", "data_wait", "other")]
            self.assertGreaterEqual(min(parts), -1e-9, each)
            self.assertAlmostEqual(sum(parts), each["mean_train_seconds"])

    def test_a_limit_of_seconds_ends_a_training_that_has_not_reached_its_goal(self):
        arguments = [*small(epochs=100000), "--depth", "8", "--goal", "accuracy=1", "--max-train-seconds", "0.5"]
        report, output = self.report("resnet", arguments, 2)
        self.assertGreaterEqual(report["train_seconds"], 0.5)
        self.assertIn("top-1 accuracy", output)
        self.assertIsNotNone(report["epochs"][-1]["val_accuracy"])

    def test_a_share_of_the_training_images_takes_the_place_of_the_test_images(self):
        report, output = self.report("cnn", [*small(epochs=1), "--holdout", "0.2"], 2)
        self.assertEqual(report["samples"], 96)
        self.assertAlmostEqual(report["epochs"][0]["val_accuracy"] * 24 % 1, 0)     # of 24 images
        self.assertIn("held out 0.2", output)
        refused = run("cnn", [*small(), "--holdout", "0.005"])
        self.assertIn("--holdout leaves nothing to validate on (it is less than one of 120 training samples)", refused.stderr)

    def test_the_settings_that_were_resolved_are_in_the_report(self):
        annotations = self.report("resnet", [*small(epochs=1), "--depth", "8", "--optimizer", "adam", "--mode", "gossip"], 2)[0]["annotations"]
        expected = {"program": "resnet", "model": "resnet8-v1-B", "mode": "gossip", "compress": "none", "optimizer": "adam",
                    "schedule": "constant:0.02", "batch": "24", "epochs": "1", "augment": "on", "sync_batch_norm": "off"}
        self.assertEqual({name: annotations[name] for name in expected}, expected)

    def test_ranks_train_as_one_with_shared_statistics(self):
        arguments = [*small(schedule="constant:0.005"), "--depth", "8", "--sync-batch-norm"]
        alone, _ = self.report("resnet", arguments)
        self.check_shares(alone)
        for ranks, kind in [(3, "threads")] + ([(2, "shm")] if MPIRUN else []):
            together, _ = self.report("resnet", arguments, ranks, kind)
            self.assertEqual(together["world_size"], ranks)
            self.check_shares(together)
            for one, other in zip(alone["epochs"], together["epochs"]):
                self.assertAlmostEqual(one["train_loss"], other["train_loss"], delta=1e-3 * one["train_loss"])

    def test_a_run_repeats_bit_by_bit(self):
        arguments = [*small(), "--depth", "8"]
        once, again = self.report("resnet", arguments, 2)[0], self.report("resnet", arguments, 2)[0]
        losses = [[(e["train_loss"], e["val_loss"]) for e in report["epochs"]] for report in (once, again)]
        self.assertEqual(*losses)


class Saved(Case):
    def test_a_saved_model_evaluates_to_the_same_number(self):
        for program, extra in [("resnet", ["--depth", "8", "--variant", "v2", "--shortcut", "A"]),
                               ("cnn", ["--variant", "batch-norm"])]:
            for ranks in (1, 2):
                model = self.folder / ("model.safetensors" if ranks == 2 else "model")
                _, output = self.report(program, [*small(), *extra, "--save", model], ranks)
                ran = run("predict", ["--model", model, "--data", "cifar-like:120", "--show", "3"])
                self.assertEqual(ran.returncode, 0, ran.stderr)
                for line in ("top-1 accuracy", "top-5 accuracy"):
                    number = re.compile(line + r"\s+(\S+)")
                    self.assertEqual(number.search(output).group(1), number.search(ran.stdout).group(1), line)

    def test_a_training_begins_with_a_saved_model(self):
        for program, extra in [("resnet", ["--depth", "8"]), ("logistic_regression", None)]:
            words = [*small(epochs=1), *extra] if extra else ["--synthetic", "epsilon:400", "--epochs", "1"]
            models = [self.folder / name for name in ("model.muster", "model.safetensors")]
            self.report(program, [*words, "--save", models[0]])
            again = [self.folder / f"again.{k}" for k in range(3)]
            still = [word for k, word in enumerate(words) if "--schedule" not in words[max(k - 1, 0):k + 1]]
            still += ["--schedule", "constant:1e-30"]   # a step that changes no parameter
            for init, save in ((models[0], models[1]), (models[1], again[0])):
                self.report(program, [*still, "--init", init, "--save", save])
            before, after = parameters(models[0]), parameters(again[0])
            self.assertEqual(len(before), len(after))
            self.assertLess(max(abs(a - b) for a, b in zip(before, after)), 1e-20, program)
            self.assertGreater(max(map(abs, after)), 0)
            content = models[1].read_bytes()
            for bad in (content[:-1], b"weighs".join(content.rsplit(b"weight", 1)), b""):
                again[1].with_suffix(".safetensors").write_bytes(bad)
                ran = run(program, [*words, "--init", again[1].with_suffix(".safetensors")])
                self.assertEqual(ran.returncode, 3, ran.stderr)
                self.assertEqual(len(ran.stderr.strip().splitlines()), 1, ran.stderr)
                self.assertIn("again.safetensors", ran.stderr)

    def test_a_damaged_model_is_refused(self):
        model = self.folder / "model"
        self.report("cnn", [*small(epochs=1), "--steps", "1", "--save", model])
        good = model.read_bytes()
        for bad in (good[:-1], good[:100] + bytes([good[100] ^ 1]) + good[101:], b"", b"{}\n",
                    good.replace(b'"cnn"', b'"cxn"')):
            model.write_bytes(bad)
            ran = run("predict", ["--model", model, "--data", "cifar-like:120"])
            self.assertNotEqual(ran.returncode, 0)
            self.assertEqual(len(ran.stderr.strip().splitlines()), 1, ran.stderr)

    def test_the_best_epoch_is_saved(self):
        """Checks a training whose accuracy falls, with a resumption after the best epoch."""
        store, model = self.folder / "checkpoints", self.folder / "model"
        arguments = ["--data", "cifar-like:200", "--batch", "50", "--schedule", "step:0.002,epochs=3,factor=50", "--save-best", "--save", model]
        whole, _ = self.report("cnn", [*arguments, "--epochs", "6"], 2)
        accuracies = [epoch["val_accuracy"] for epoch in whole["epochs"]]
        best = accuracies.index(max(accuracies))
        self.assertLess(accuracies[-1], max(accuracies), "the schedule spoils nothing")
        kept = model.read_bytes()
        self.assertEqual(whole["annotations"]["saved_epoch"], str(best + 1))
        ran = run("predict", ["--model", model, "--data", "cifar-like:200"])
        self.assertIn(f"top-1 accuracy  {max(accuracies):.4f}", ran.stdout)
        self.assertEqual(list(self.folder.glob("model.*")), [])
        self.report("cnn", [*arguments, "--epochs", str(best + 2), "--checkpoint", store], 2)
        model.unlink()
        rest, _ = self.report("cnn", [*arguments, "--epochs", "6", "--checkpoint", store, "--resume"], 2)
        self.assertEqual((rest["annotations"]["saved_epoch"], model.read_bytes()), (str(best + 1), kept))

    def test_a_training_goes_on_as_if_it_had_not_stopped(self):
        arguments = [*small(epochs=3), "--depth", "8"]
        whole, _ = self.report("resnet", arguments)
        store = self.folder / "checkpoints"
        self.report("resnet", [*small(epochs=2), "--depth", "8", "--checkpoint", store])
        rest, _ = self.report("resnet", [*arguments, "--checkpoint", store, "--resume"])
        self.assertEqual(whole["epochs"][-1]["val_loss"], rest["epochs"][-1]["val_loss"])
        self.assertEqual(len(rest["epochs"]), 3)  # the checkpoint contains the earlier epochs


    def lose_a_rank(self, store, before):
        """Kills a rank of a job that needs two ranks and has a checkpoint; returns the job's status and output."""
        launcher = os.environ.get("MUSTER_TEST_LAUNCHER")
        if not launcher:
            self.skipTest("there is no muster-launch")
        words = [*map(str, small(epochs=4000)), "--depth", "8", "--checkpoint", str(store)]
        job = subprocess.Popen([launcher, "-n", "2", "--min", "2", PROGRAMS / "resnet", *words, "--quorum-timeout", "3"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            until = time.monotonic() + HANG
            while not any(store.glob("*.state")):  # this file is written last
                self.assertLess(time.monotonic(), until)
                self.assertIsNone(job.poll())
                time.sleep(0.05)
            ranks = [int(pid) for pid in pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()]
            self.assertEqual(len(ranks), 2)
            for pid in ranks:  # so that no rank is in the middle of a checkpoint of both
                os.kill(pid, signal.SIGSTOP if before else signal.SIGCONT)
            if before:
                before()
            os.kill(ranks[0], signal.SIGKILL)
            os.kill(ranks[1], signal.SIGCONT)
            _, output = job.communicate(timeout=HANG)
        finally:
            job.kill()
        return job.returncode, output

    def test_the_last_of_too_few_ranks_saves_and_another_job_goes_on(self):
        store = self.folder / "checkpoints"
        status, output = self.lose_a_rank(store, None)
        self.assertEqual(status, 11, output)
        saved = int(re.search(r"saved after step (\d+) in", output).group(1))
        self.assertGreaterEqual(saved, 5)
        rest = run("resnet", [*small(epochs=4000), "--depth", "8", "--checkpoint", store, "--resume", "--steps", saved + 3])
        self.assertEqual(rest.returncode, 0, rest.stderr)
        self.assertIn(f"resumes after step {saved},", rest.stdout)

    def test_who_cannot_save_at_the_end_says_so_and_why_it_ends(self):
        store = self.folder / "checkpoints"

        def take_away():
            shutil.rmtree(store)
            store.write_text("no folder any more")

        for _ in range(5):
            status, output = self.lose_a_rank(store, take_away)
            if status != 2 or "cannot write" not in output:
                break
            store.unlink()  # the job stopped while entering an ordinary checkpoint, which may not fail: tries again
        self.assertEqual(status, 11, output)
        self.assertIn("the state could not be saved", output)
        self.assertIn("1 of at least 2 are left", output)


class Device(Case):
    """--device cuda, over the test double of CUDA: another program, which is slow."""
    DOUBLE = pathlib.Path(os.environ.get("MUSTER_TEST_ON_DOUBLE", "/"))

    def train(self, device, ranks, *more):
        saved, report = self.folder / f"{device}{ranks}", self.folder / "report.json"
        words = ["--depth", "8", "--data", "cifar-like:10", "--limit", "4", "--batch", "2", "--epochs", "1", "--schedule", "constant:0.05",
                 "--augment", "off", "--device", device, "--save", saved, "--json", report]
        words += ["--precision", "float32"] if device == "cuda" else []
        ran = subprocess.run([self.DOUBLE, *map(str, words), "--ranks", str(ranks), *more], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, timeout=HANG)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        numbers = saved.read_bytes().split(b"\n", 1)[1][:-4]
        return json.loads(report.read_text())["epochs"][0], struct.unpack(f"{len(numbers) // 4}f", numbers), ran.stdout

    def test_it_trains_what_the_host_trains(self):
        for ranks, expected in [(1, "1 rank (self), cuda (float32)\n"), (2, "cuda (float32), gradients summed by NCCL\n")]:
            host, wanted, _ = self.train("cpu", ranks)
            device, found, printed = self.train("cuda", ranks)
            self.assertIn(expected, printed)
            for name in ("train_loss", "val_loss"):
                self.assertAlmostEqual(device[name], host[name], delta=1e-4)
            self.assertLess(max(abs(a - b) for a, b in zip(found, wanted)), 2e-3)

    def test_gradients_are_compressed(self):
        plain = self.train("cuda", 2)[0]
        for method in ("bfloat16", "powersgd:1"):
            coded = self.train("cuda", 2, "--compress", method)[0]
            self.assertNotEqual(coded["val_loss"], plain["val_loss"])
            self.assertAlmostEqual(coded["val_loss"], plain["val_loss"], delta=0.1)

    def test_what_a_device_does_not_have_is_a_line(self):
        for flags, expected in [(["--compress", "topk:0.1"], "--compress topk:0.1 cannot be used with --device cuda"),
                                (["--compress", "powersgd:2"], "powersgd where NCCL sums"),  # one rank
                                (["--backend", "direct"], "--backend cannot be used with --device cuda"),
                                (["--device", "cpu", "--precision", "tf32"], "--precision cannot be used with --device cpu"),
                                (["--sync-batch-norm"], "each device has statistics of its own"),
                                (["--virtual-shards", "2"], "need gradients on the host"),
                                (["--optimizer", "lars"], "lars")]:
            ran = subprocess.run([self.DOUBLE, "--depth", "8", "--data", "cifar-like:10", *([] if "--device" in flags else ["--device", "cuda"]), *flags],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=HANG)
            lines = [line for line in ran.stderr.splitlines() if "TEST DOUBLE" not in line]
            self.assertEqual((ran.returncode, len(lines)), (2, 1), ran.stderr)
            self.assertIn(expected, lines[0])


class Flags(Case):
    def test_bad_input_is_one_line_and_a_status(self):
        for program, arguments in [("resnet", ["--depth", "21"]), ("resnet", ["--data", "mnist:x"]),
                                   ("resnet", ["--preset", "mlbench-9"]), ("resnet", ["--backend", "magic"]),
                                   ("resnet", ["--resume"]), ("resnet", ["--epochs", "0"]),
                                   ("resnet", ["--data", "cifar-like:3"]), ("resnet", ["--dephts", "20"]),
                                   ("resnet", ["--data", "cifar10:/nowhere"]), ("cnn", ["--variant", "x"]),
                                   ("resnet", [*small(), "--json", "/nowhere/x.json"]),
                                   ("cnn", ["--data", "idx:/nowhere/a,/nowhere/b"]), ("predict", [])]:
            ran = run(program, arguments, 2)
            self.assertNotEqual(ran.returncode, 0, arguments)
            self.assertEqual(len(ran.stderr.strip().splitlines()), 1, ran.stderr)

    def test_help_and_every_way_to_convolve(self):
        for program in ("resnet", "vgg16", "cnn", "predict"):
            self.assertIn("--data", run(program, ["--help"]).stdout)
        few = ["--data", "cifar-like:60", "--steps", "2", "--epochs", "1"]
        losses = {}
        for backend in ("winograd", "direct", "eigen"):
            report, _ = self.report("resnet", [*few, "--depth", "8", "--backend", backend])
            losses[backend] = report["epochs"][0]["train_loss"]
        for backend in ("winograd", "direct"):
            self.assertAlmostEqual(losses[backend], losses["eigen"], delta=1e-3 * losses["eigen"])
        self.report("vgg16", ["--data", "cifar-like:20", "--batch", "4", "--steps", "1", "--epochs", "1"])
        self.report("resnet", [*few, "--preset", "mlbench-1a-2019"], 2)
        self.report("resnet", [*few, "--depth", "8", "--mode", "local-sgd:2", "--optimizer", "adam"], 2)


class Photographs(Case):
    def tree(self):
        """Makes ILSVRC's folders from the small JPEG files that seed a fuzzer."""
        seeds = pathlib.Path(__file__).parents[2] / "fuzz" / "seeds.py"
        subprocess.run([sys.executable, seeds, self.folder / "seeds"], check=True, capture_output=True, timeout=HANG)
        files = sorted((self.folder / "seeds" / "jpeg").iterdir())
        for part in ("train", "val"):
            for label in range(3):
                target = self.folder / part / f"n0{label}"
                target.mkdir(parents=True)
                for number in range(4):
                    (target / f"{number}.JPEG").write_bytes(files[label].read_bytes())
        return ["--depth", "50", "--image-size", "32", "--batch", "12", "--epochs", "1", "--schedule", "constant:0.0001",
                "--data", f"images:{self.folder / 'train'}", "--test", f"images:{self.folder / 'val'}"]

    def test_resnet_50_learns_from_folders_of_jpeg_files_and_predict_prepares_alike(self):
        arguments = self.tree()
        saved = self.folder / "model"
        report, _ = self.report("resnet", [*arguments, "--save", str(saved)])
        self.assertEqual([e["samples"] for e in report["epochs"]], [12])
        head = json.loads(saved.read_bytes().split(b"\n", 1)[0])
        self.assertEqual((head["classes"], head["class_names"]), (3, ["n00", "n01", "n02"]))
        self.assertTrue(head["preparation"].startswith("jpeg:32x32,resize=36|normalise,mean="), head)
        ran = run("predict", ["--model", str(saved), *arguments[-4:]])
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn(f"loss            {report['epochs'][-1]['val_loss']:.4f}", ran.stdout)
        # The preparation belongs to the model: another preparation gives another loss.
        content = saved.read_bytes()
        head["preparation"] = head["preparation"].replace("mean=0.485", "mean=0.9")
        body = json.dumps(head).encode() + b"\n" + content.split(b"\n", 1)[1][:-4]
        saved.write_bytes(body + struct.pack("<I", crc32c(body)))
        other = run("predict", ["--model", str(saved), *arguments[-4:]])
        self.assertEqual(other.returncode, 0, other.stderr)
        self.assertNotEqual(other.stdout, ran.stdout)

    def test_a_jpeg_that_is_cut_is_a_line_with_its_place_or_left_out(self):
        arguments = self.tree()
        cut = self.folder / "train" / "n01" / "2.JPEG"
        cut.write_bytes(cut.read_bytes()[:300])
        ran = run("resnet", arguments, 2)
        self.assertEqual((ran.returncode, len(ran.stderr.strip().splitlines())), (3, 1), ran.stderr)
        self.assertIn(f"{cut}: byte ", ran.stderr)
        report, _ = self.report("resnet", [*arguments, "--on-bad-record", "skip"], 2)
        self.assertEqual([e["samples"] for e in report["epochs"]], [11])


class Stages(Case):
    def test_what_is_kept_or_made_ahead_changes_no_number(self):
        for augment in ("on", "off"):
            arguments = [*small(), "--augment", augment]
            plain, _ = self.report("cnn", [*arguments, "--cache", "off", "--prefetch", "0"])
            folder = self.folder / f"kept-{augment}"
            for stages in (["--cache", "memory"], ["--cache", f"disk:{folder}"], ["--cache", f"disk:{folder}"],
                           ["--on-bad-record", f"quarantine:{self.folder / 'bad'}", "--prefetch", "2", "--threads", "2"]):
                report, _ = self.report("cnn", [*arguments, *stages])
                losses = [[(e["train_loss"], e["val_loss"]) for e in run["epochs"]] for run in (plain, report)]
                self.assertEqual(*losses, stages)
            self.assertTrue(any(folder.iterdir()))

    def test_a_bad_record_is_left_out(self):
        tool = os.environ["MUSTER_TEST_DATA_TOOL"]
        if not tool:
            self.skipTest("muster-data is not there")
        digits.draw(self.folder, 240)
        raw = f"idx:{self.folder / 'train-images-idx3-ubyte'},{self.folder / 'train-labels-idx1-ubyte'}"
        kept = self.folder / "kept"
        subprocess.run([tool, "convert", raw, kept, "--files", "2"], check=True, capture_output=True, timeout=HANG)
        arguments = ["--data", f"records:{kept}", "--test", raw, *small()[2:]]
        whole, _ = self.report("cnn", arguments)
        damaged = sorted(kept.glob("*.muster"))[1]
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 1
        damaged.write_bytes(content)
        ran = run("cnn", arguments)
        self.assertEqual((ran.returncode, len(ran.stderr.strip().splitlines())), (3, 1), ran.stderr)
        self.assertIn(str(damaged), ran.stderr)
        listed = self.folder / "listed"
        for policy in ("skip", f"quarantine:{listed}"):
            for ranks in (1, 2):
                less, _ = self.report("cnn", [*arguments, "--on-bad-record", policy], ranks)
                self.assertEqual([e["samples"] for e in whole["epochs"]], [240, 240])
                self.assertEqual([e["samples"] for e in less["epochs"]], [239, 239])
        self.assertEqual({json.loads(line)["file"] for line in listed.read_text().splitlines()}, {str(damaged)})

    def test_stages_that_there_are_none_of(self):
        for arguments in (["--cache", "tape"], ["--cache", "disk:"], ["--on-bad-record", "weep"],
                          ["--on-bad-record", "quarantine:"], ["--prefetch", "-1"]):
            ran = run("cnn", [*small(), *arguments])
            self.assertEqual((ran.returncode, len(ran.stderr.strip().splitlines())), (2, 1), ran.stderr)


class Defaults(Case):
    def test_a_program_without_flags_learns(self):
        report, _ = self.report("cnn", [], 2)
        self.assertGreater(report["epochs"][-1]["val_accuracy"], 0.4)  # of ten kinds


class TestSet(Case):
    """A test set and the training set in one --data."""

    def setUp(self):
        super().setUp()
        for name, images in (("train", 200), ("test", 40)):
            (self.folder / name).mkdir()
            digits.draw(self.folder / name, images)
        self.train, self.test = (",".join(f"{self.folder / name}/train-{what}-ubyte" for what in
                                          ("images-idx3", "labels-idx1")) for name in ("train", "test"))

    def words(self, images=None, labels=None):
        own = self.test.split(",")
        return ["--data", f"idx:{self.train}?test-images={images or own[0]}&test-labels={labels or own[1]}"]

    def test_it_is_what_is_validated_with_by_the_training_of_the_book(self):
        saved, kept = self.folder / "model", self.folder / "checkpoints"
        for variant in ("plain", "dropout", "batch-norm"):
            report, output = self.report("cnn", [*self.words(), "--epochs", "4", "--variant", variant, "--save", saved], 2)
            self.assertEqual([e["samples"] for e in report["epochs"]], [200] * 4)    # no tenth is held out
            self.assertAlmostEqual(report["epochs"][0]["val_accuracy"] * 40 % 1, 0)  # of 40 images
            expected = {"optimizer": "adam", "schedule": "step:0.001,epochs=3+7,factor=0.1", "batch": "128", "augment": "off"}
            self.assertEqual({name: report["annotations"][name] for name in expected}, expected)
            rates = re.findall(r"^ +\d+ .* (\S+) +\S+ +\S+$", output, re.MULTILINE)
            self.assertEqual(rates, ["0.001", "0.001", "0.001", "0.0001"])
            head = json.loads(saved.read_bytes().split(b"\n", 1)[0])
            self.assertEqual(head["parameters"], 93514 if variant == "batch-norm" else 93322)
            # only divides by 255
            self.assertEqual(head["preparation"], "normalise,mean=0/0/0,deviation=1/1/1,layout=hwc")
            ran = run("predict", ["--model", saved, *self.words()])
            self.assertIn(" on 40 images of ", ran.stdout)
            self.assertIn(f"loss            {report['epochs'][-1]['val_loss']:.4f}", ran.stdout)
        self.report("cnn", [*self.words(), "--epochs", "2", "--checkpoint", kept])
        self.assertEqual(len(list(kept.glob("*.state"))), 2)                         # one an epoch

    def test_one_that_cannot_be_is_a_line(self):
        other = self.folder / "other"
        other.write_bytes(struct.pack(">IIII", 0x803, 40, 14, 56) + bytes(40 * 784))
        for data, says in ((self.words(images="/nowhere/x"), "/nowhere/x"),
                           (self.words(images=other), "the test images have another size than the training images"),
                           (["--data", f"idx:{self.train}?test-images={other}"], "test-labels is not given"),
                           (["--data", f"idx:{self.train}?test-labels={other}"], "test-images is not given")):
            ran = run("cnn", data, 2)
            self.assertNotEqual(ran.returncode, 0)
            self.assertEqual(len(ran.stderr.strip().splitlines()), 1, ran.stderr)
            self.assertIn(says, ran.stderr)


class RealData(Case):
    def test_fashion_mnist(self):
        folder = pathlib.Path("/usr/share/datasets/fashion-mnist")  # Debian's dataset-fashion-mnist
        train, test = ([f"{folder}/{name}-{what}-ubyte.gz" for what in ("images-idx3", "labels-idx1")]
                       for name in ("train", "t10k"))
        if not pathlib.Path(train[0]).exists():
            self.skipTest(f"'{train[0]}' is not there")
        data = f"idx:{','.join(train)}?test-images={test[0]}&test-labels={test[1]}"
        report, _ = self.report("cnn", ["--data", data, "--epochs", "1"], 2)
        self.assertEqual(report["epochs"][0]["samples"], 60000)
        self.assertGreater(report["epochs"][0]["val_accuracy"], 0.75)

    def test_mnist(self):
        folder = pathlib.Path(os.environ.get("MUSTER_TEST_DATA", "")) / "mnist"
        files = [folder / f"t10k-{what}.gz" for what in ("images-idx3-ubyte", "labels-idx1-ubyte")]
        if not files[0].exists():
            self.skipTest(f"'{files[0]}' is not there")
        data = ["--data", f"idx:{files[0]},{files[1]}", "--augment", "off"]
        report, _ = self.report("cnn", [*data, "--epochs", "3", "--batch", "50", "--schedule", "constant:0.001"])
        self.assertGreater(report["epochs"][-1]["val_accuracy"], 0.96)
        for seed in ["1", "2"]:  # the seeds of the documentation
            report, _ = self.report("cnn", [*data, "--seed", seed], 2)
            self.assertGreater(report["epochs"][-1]["val_accuracy"], 0.95)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=2)
