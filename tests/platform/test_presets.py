"""Tests the presets that are shipped, and the protection of the closed presets."""
import bz2
import json
import pathlib
import subprocess
import sys
import unittest

from bench import PLATFORM, Case

from muster_bench.division import PRESETS, digest, locked
from muster_bench.experiment import read_file

ALL = sorted(PRESETS.glob("*.yaml"))


class Shipped(Case):
    def test_all_are_read_and_expand(self):
        self.assertGreaterEqual(len(ALL), 4)
        for path in ALL:
            with self.subTest(path=path.name):
                file = read_file(path)
                self.assertEqual(file.name, path.stem)
                self.assertGreater(sum(len(list(experiment.runs())) for experiment in file.experiments), 0)
                for experiment in file.experiments:
                    self.assertTrue(experiment.template.read, "nothing would be read")

    def test_the_closed_are_those_that_are_locked(self):
        closed = {file.name: digest(file.content) for file in map(read_file, ALL) if file.division == "closed"}
        self.assertEqual(closed, locked(), "muster-bench lock presets/*.yaml > presets/closed.json, in muster_bench")
        self.assertEqual({"mlbench-0a", "mlbench-1a", "mlbench-2a", "cluster-vgg16"}, set(closed))

    def test_each_closed_task_has_a_short_form_that_is_open(self):
        """Checks that a short form is named as open in its division, its title and its name."""
        short = {file.name: file for file in map(read_file, ALL) if file.name.endswith("-small")}
        self.assertEqual({name.partition("-")[0] for name in short}, {name.partition("-")[0] for name in locked()})
        for file in short.values():
            self.assertEqual(file.division, "open")
            self.assertIn("open division, not the published task", file.title)
        programs = {name: {pathlib.PurePath(experiment.template.command[0]).name for experiment in file.experiments}
                    for name, file in ((path.stem, read_file(path)) for path in ALL)}
        for name in locked():
            self.assertLessEqual(programs[name], programs[f"{name.partition('-')[0]}-{'vgg16-' if name.startswith('cluster') else ''}small"], name)

    def test_what_is_closed_has_the_settings_of_its_program(self):
        for file in map(read_file, ALL):
            if file.division == "closed":
                for experiment in file.experiments:
                    self.assertIn("program", experiment.template.settings, f"{file.name}, {experiment.template.name}")

    def test_a_job_that_ends_before_one_of_its_ranks_can_be_killed(self):
        for ended, status in ((3, 3), (0, 1)):
            self.write("build/src/programs/muster-launch", f"#!/bin/sh\necho too cold; exit {ended}\n").chmod(0o755)
            done = subprocess.run(["sh", PRESETS / "in-mode.sh", self.folder / "build", "2", "elastic-kill", "true"], cwd=self.folder, capture_output=True,
                                  text=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (status, "too cold\n"), done.stderr)
            self.assertEqual("the job ended before a rank could be killed" in done.stderr, ended == 0)


class ToTheLetter(Case):
    """The commands that the authors of a task publish."""

    def commands(self, preset, *words):
        for name in ("logistic_regression", "resnet", "vgg16"):
            self.write(f"build/examples/{name}", "#!/bin/sh\n").chmod(0o755)
        return [line for line in self.bench("run", preset, "--dry-run", *words, "--place", f"build={self.folder}/build").stdout.splitlines()
                if line.startswith("  ")]

    def test_logistic_regression(self):
        file = read_file(PRESETS / "mlbench-2a.yaml")
        self.assertEqual([(goal.metric, goal.value) for goal in file.experiments[0].goals], [("accuracy", 0.89), ("val_loss", 0.2828)])
        for ranks, alpha in {1: 200, 2: 400, 4: 600, 8: 700, 16: 800, 32: 800, 64: 800}.items():
            lines = self.commands("mlbench-2a", "--only", f"ranks={ranks}")
            self.assertEqual(len(lines), 9)
            for line in lines:
                self.assertIn(f"--batch-per-rank 100 --l2 2.5e-6 --schedule inverse-sqrt:{alpha} ", line)
                self.assertTrue(f"-n {ranks} " in line or line.endswith(f"--ranks {ranks}"), line)
        self.assertEqual(sum("--synthetic epsilon:400000 " in line for line in lines), 6)   # as processes, and as threads
        # a program names its data in the words of the command
        published = {each.name: each for each in file.experiments}["published"].template
        self.assertEqual([published.settings[name] for name in ("train", "test")],
                         [(published.command[published.command.index(f"--{name}") + 1],) for name in ("train", "test")])

    def test_image_classification(self):
        self.write("data/cifar10/data_batch_1.bin", "")
        place = ["--place", f"data={self.folder}/data"]
        lines = self.commands("mlbench-1a", *place)
        self.assertEqual(len(lines), 2 * 4 * 6)
        for line in lines:
            self.assertIn("--max-train-seconds 7200 ", line)
            self.assertNotIn("--stop-at-goal", line)
        command, = self.commands("mlbench-1a", *place, "--only", "variant=v2", "--only", "depth=56", "--only", "ranks=32")
        self.assertRegex(command, r"-n 32 .*--variant v2 --depth 56 --preset mlbench-1a-2019 ")
        file = read_file(PRESETS / "mlbench-1a.yaml")
        self.assertEqual(file.accuracy_after, (7200,))

    def test_the_cluster_benchmark(self):
        self.write("data/cifar10/data_batch_1.bin", "")
        lines = self.commands("cluster-vgg16", "--place", f"data={self.folder}/data")
        for mode in ("bulk", "async"):
            for servers, trainers, batches in [(40, 100, (32, 64, 128, 256)), *[(servers, 100, (64,)) for servers in (10, 20, 40, 60)],
                                               *[(20, trainers, (64,)) for trainers in (1, *range(10, 101, 10))]]:
                for batch in batches:
                    words = f"--mode ps --servers {servers} --consistency {mode} --batch-per-rank {batch} "
                    self.assertTrue(any(f"-n {servers + trainers} " in line and words in line for line in lines), words)
        self.assertEqual(len(lines), 2 * (4 + 4 + 11))
        for name in ("cluster-vgg16", "simulated-cluster"):
            file = read_file(PRESETS / f"{name}.yaml")
            self.assertEqual([(form.columns, form.unit, form.per, form.speed_up) for form in file.forms[:3]],
                             [("batch", "mini-batches / s", "batch", False), ("servers", "mini-batches / s", "batch", False),
                              ("trainers", "mini-batches / s", "batch", True)])
            for experiment in file.experiments:
                self.assertEqual((experiment.template.resources.cpus_per_rank, experiment.template.resources.memory), (10, 5 << 30))
                for parameters, _, _ in experiment.runs():
                    self.assertEqual(parameters["ranks"], parameters["servers"] + parameters["trainers"])

    def test_a_simulated_step_has_the_samples_of_its_task(self):
        experiments = {each.name: each for each in read_file(PRESETS / "simulated-mlbench.yaml").experiments}
        self.assertEqual((experiments["logistic"].parameters["batch"], experiments["resnet20"].parameters["batch"]), (100, 32))

    def test_epsilon_as_published_is_unpacked_once_and_skipped_where_it_is_not(self):
        script, folder = PRESETS / "epsilon.sh", self.folder / "epsilon"
        folder.mkdir()

        def said(*words):
            done = subprocess.run(["sh", script, *words], capture_output=True, text=True)
            return done.returncode, done.stdout.strip()
        self.assertEqual(said("files", folder), (1, f"there is no {folder}/epsilon_normalized.bz2"))
        for name in ("epsilon_normalized", "epsilon_normalized.t"):
            (folder / f"{name}.bz2").write_bytes(bz2.compress(b"1 1:0.5\n"))
        self.assertEqual((said("files", folder)[0], said("unpack", folder)[0]), (0, 0))
        self.assertEqual((folder / "epsilon_normalized.t").read_text(), "1 1:0.5\n")
        self.assertEqual(said("memory", "1000000")[0], 1)
        self.assertIn("1000000 ranks need", said("memory", "1000000")[1])
        self.assertEqual(said("memory", "0"), (0, ""))


class OtherPrograms(Case):
    def test_a_pytorch_script(self):
        """Runs the preset; without PyTorch its runs are skipped with that reason."""
        self.bench("run", "pytorch", "--out", "out", "--set", "images=128", "--set", "epochs=1", "--set", "ranks=1")
        for row in self.results():
            if row["status"] == "skipped":
                self.assertIn("No module named 'torch'", row["why"])
            else:
                self.assertEqual(row["status"], "ok", row["why"])
                self.assertGreater(float(row["throughput"]), 0)
                self.assertLessEqual(float(row["accuracy"]), 1)


    def test_one_task_by_several_frameworks(self):
        """Checks that installed frameworks have the tracker's figures; missing or unknown ones are skipped with that
        reason."""
        self.bench("run", "frameworks", "--out", "out", "--place", f"rows={self.folder}/rows", "--place", f"python={sys.executable}", "--place",
                   f"build={self.folder}", "--set", "count=400", "--set", "epochs=2", "--set", "framework=[pytorch, tensorflow, jax]", "--only", "count=400",
                   "--only", "ranks=1", timeout=280)
        rows = {row["framework"]: row for row in self.results()}
        self.assertEqual((rows["jax"]["status"], rows["jax"]["why"].split(": ", 2)[2]),
                         ("skipped", "unknown framework 'jax' (known: muster, pytorch, tensorflow); use one of these"))
        for name, module in (("pytorch", "torch"), ("tensorflow", "tensorflow")):
            if rows[name]["status"] == "skipped":
                self.assertIn(f"{sys.executable} has no module {module}", rows[name]["why"])
            else:
                self.assertEqual(rows[name]["status"], "ok", rows[name]["why"])
                self.assertGreater(float(rows[name]["throughput"]), 0)
                self.assertLessEqual(float(rows[name]["accuracy"]), 1)


# A program that reports the effect that its variables and its caller have on its settings, like programs of muster.
TELLING = r'''#!{python}
import json, os, sys
ranks = int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1))
said = dict(program="resnet", model="resnet20-v1-B", mode=os.environ.get("MUSTER_MODE", "allreduce"), batch=str(32 * ranks),
            compress=os.environ.get("MUSTER_COMPRESS", "none"), elastic="off", optimizer="nesterov:0.9,decay=1e-4", augment="on",
            schedule=f"step:0.0125,epochs=82+109,factor=0.1,warmup=5,scale={{ranks}}", sync_batch_norm="off", epochs="164")
said.update({changed})
if os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0":
    with open(sys.argv[sys.argv.index("--json") + 1], "w") as file:
        json.dump(dict(format=1, world_size=ranks, transport="shm", epochs=[], annotations=said), file)
'''
ONE = ["--only", "variant=v1", "--only", "depth=20", "--only", "ranks=1"]


class Divisions(Case):
    def setUp(self):
        super().setUp()
        self.program()
        self.write("data/cifar10/data_batch_1.bin", "")
        self.place = ["--place", f"build={self.folder}/build", "--place", f"data={self.folder}/data"]

    def program(self, changed=""):
        self.write("build/examples/resnet", TELLING.format(python=sys.executable, changed=changed)).chmod(0o755)

    def test_closed_begins_with_a_clean_environment(self):
        strange = {"MUSTER_COMPRESS": "powersgd:2", "MUSTER_MODE": "local-sgd:8", "OMPI_MCA_btl": "nothing"}
        words = ["run", "mlbench-1a", *ONE, *self.place, "--out"]
        self.assertIn("1 of 1 runs ended well", self.bench(*words, "closed", **strange).stdout)
        kept, = json.loads((self.folder / "closed" / "results.json").read_text())["runs"]
        self.assertEqual((kept["settings"]["compress"], kept["settings"]["transport"]), ("none", "shm"))
        self.assertEqual(len(kept["program"]), 64)
        del strange["OMPI_MCA_btl"]
        done = self.bench(*words, "open", "--division", "open", status=1, **strange)
        self.assertIn("it ran with mode 'local-sgd:8' (this task has allreduce)", done.stderr)

    def test_another_program_is_not_closed(self):
        words = ["run", "mlbench-1a", *ONE, *self.place, "--out"]
        for number, (changed, says) in enumerate((
                ("compress='topk:0.01'", "it ran with compress 'topk:0.01' (this task has none)"),
                ("optimizer='adam'", "it ran with optimizer 'adam'"), ("program='other'", "it ran with program 'other'"))):
            self.program(changed)
            self.bench(*words, f"out{number}", status=1)
            row, = self.results(folder=f"out{number}")
            self.assertEqual(row["status"], "differs")
            self.assertIn(says, row["why"])
        self.write("build/examples/resnet", "#!/bin/sh\nwhile [ $1 != --json ]; do shift; done\n"
                   "echo '{\"format\": 1, \"world_size\": 1, \"epochs\": []}' > $2\n").chmod(0o755)
        self.bench(*words, "silent", status=1)
        self.assertIn("the program does not say its 'program' (this task has resnet)", self.results(folder="silent")[0]["why"])

    def test_a_part_of_a_closed_preset(self):
        done = self.bench("run", "mlbench-1a", "--dry-run", "--only", "depth=[20, 56]", "--only", "ranks=2", *self.place)
        self.assertIn("4 runs, closed division", done.stdout)
        self.refused("run", "mlbench-1a", "--dry-run", "--only", "depth=7", *self.place, says=["no run", "--only depth=7"])

    def test_closed_as_published(self):
        done = self.bench("run", "mlbench-1a", "--dry-run", *self.place)
        self.assertIn("48 runs, closed division", done.stdout)

    def test_an_override_is_refused_or_open(self):
        self.refused("run", "mlbench-1a", "--dry-run", "--set", "depth=8", *self.place,
                     says=["would change the closed preset", "--division open"])
        done = self.bench("run", "mlbench-1a", "--dry-run", "--set", "depth=8", "--division", "open", *self.place)
        self.assertIn("12 runs, open division", done.stdout)

    def test_a_changed_copy_is_not_closed(self):
        text = (PRESETS / "mlbench-1a.yaml").read_text()
        same = self.write("mlbench-1a.yaml", text.replace("build/release", "elsewhere").replace("0.05", "0.07") + "# a comment\n")
        self.assertIn("closed division", self.bench("run", same, "--dry-run", *self.place).stdout)
        for old, new in (("seconds 7200", "seconds 900"), ("compress: none", "compress: [none, qsgd8]"), ("name: mlbench-1a", "name: mlbench-2a")):
            copy = self.write("copy.yaml", text.replace(old, new))
            self.refused("run", copy, "--dry-run", *self.place, says="differs from the published file")

    def test_an_open_file_cannot_claim_to_be_closed(self):
        self.refused("run", self.experiment(["true"]), "--dry-run", "--division", "closed", says="of the open division")

    def test_the_result_says_it(self):
        self.run_file(self.experiment(["true"], sweep="{n: [1]}"))
        self.assertEqual(self.results()[0]["division"], "open")
        self.assertEqual(json.loads((self.folder / "out" / "results.json").read_text())["division"], "open")
        self.assertTrue(PLATFORM.is_dir())


if __name__ == "__main__":
    unittest.main()
