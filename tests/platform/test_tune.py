"""Tests tuning by Optuna: every method, trials that end early, the state after a kill or a lost database, and bad
files."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

from bench import BUILD, Case, absent

from muster_bench.tuning import Rungs

PYTHON = os.environ.get("MUSTER_TEST_VENV_PYTHON", sys.executable)   # a Python that has Optuna, for example from a venv
HAS_OPTUNA = subprocess.run([PYTHON, "-c", "import optuna"], capture_output=True).returncode == 0
# Trains from its checkpoint to an epoch: the accuracy is best at alpha 30 and batch 50. An epoch takes 0.1 s of the
# tracker's time. With an alpha of STAYS it does not end by itself, and the HOLDS-th start waits for a file 'go'.
TRAINING = r'''
import json, os, sys, time
alpha, batch, epochs, output, checkpoint = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
here = os.path.dirname(__file__)
open(os.path.join(here, "started"), "a").write(f"{alpha:g} {batch} {epochs}\n")
held = len(open(os.path.join(here, "started")).readlines()) == int(os.environ.get("HOLDS", 0))
while held and not os.path.exists(os.path.join(here, "go")): time.sleep(0.01)
first = int(open(checkpoint).read()) + 1 if os.path.exists(checkpoint) else 1
rows = []
for epoch in range(first, epochs + 1):
    accuracy = (1 - 0.5 / epoch) * (1 - abs(alpha - 30) / 100) * (1 if batch == 50 else 0.9)
    print(f"{epoch:5d}  {1 / epoch:10.4f}  {1 / epoch:10.4f}  {accuracy:8.4f}  {0.1:8.3f}  {1e4:10.3g}", flush=True)
    rows.append(dict(epoch=epoch, train_loss=1 / epoch, val_loss=1 / epoch, val_accuracy=accuracy, train_seconds=0.1))
    time.sleep(float(os.environ.get("PACE", 0)))
if f"{alpha:g}" in os.environ.get("STAYS", "").split(): time.sleep(100)
os.makedirs(os.path.dirname(checkpoint), exist_ok=True)
open(checkpoint, "w").write(str(epochs))
json.dump(dict(format=1, world_size=1, transport="self", epochs=rows, annotations={}), open(os.path.join(output, "t.json"), "w"))
'''
FILE = """
muster-bench: 1
name: tuned
{goal}
templates:
  t: {{command: '{python} {{here}}/training.py {{alpha}} {{batch}} {{epochs}} {{output}} {{checkpoint}}', read: [{{tracker: t.json}}]}}
experiments:
  search: {{template: t, parameters: {{alpha: 10, batch: 50, epochs: 12}}}}
tune: {tune}
"""
GOAL = "goal: {metric: accuracy, value: 0.8}"
GRID = "{method: grid, over: {alpha: [10, 30], batch: [50, 100]}}"
RANDOM = "{method: random, trials: 6, measure: best_accuracy, prune: false, over: {alpha: {from: 1.0, to: 100.0, log: true}}}"


class Tuned(Case):
    runner = [PYTHON, "-m", "muster_bench"]

    def setUp(self):
        super().setUp()
        self.write("training.py", TRAINING)

    def file(self, tune, goal=GOAL):
        return self.write("tune.yaml", FILE.format(python=sys.executable, tune=tune, goal=goal))

    def wait_for(self, tuner, says):
        for line in tuner.stderr:
            if line.startswith(says):
                return
        self.fail(f"it ended before it said '{says}'")

    def started(self):
        return (self.folder / "started").read_text().splitlines()


@unittest.skipUnless(HAS_OPTUNA, "SKIPPED: Optuna is not installed (MUSTER_TEST_VENV_PYTHON names a Python that has it)")
class Searches(Tuned):
    def tune(self, tune, *words, goal=GOAL, **more):
        done = self.bench("tune", self.file(tune, goal), "--out", "out", *words, **more)
        return done.stdout, self.results("trials.csv")

    def test_a_grid_by_time_to_the_goal(self):
        output, trials = self.tune(GRID, STAYS="30")
        self.assertEqual([(row["alpha"], row["batch"]) for row in trials], [("10", "50"), ("10", "100"), ("30", "50"), ("30", "100")])
        self.assertEqual([row["state"] for row in trials], ["pruned", "pruned", "complete", "complete"])
        # from its lines only
        self.assertEqual((trials[2]["time_to_accuracy"], trials[2]["why"]), ("0.3", "goal reached in epoch 3"))
        self.assertIn("best: trial 2, time_to_accuracy 0.3: --set alpha=30 --set batch=50", output)
        page = (self.folder / "out" / "report.html").read_text()
        self.assertIn("4 trials, grid; the best is trial 2", page)
        self.assertIn("Complete trials over batch", page)

    def test_by_time_what_is_slower_than_the_best_ends(self):
        _, trials = self.tune("{method: grid, prune: true, over: {alpha: [30, 10], batch: [50]}}", STAYS="30 10")
        self.assertEqual((trials[1]["state"], trials[1]["why"]), ("pruned", "slower than trial 0"))

    def test_random_goes_on(self):
        _, first = self.tune(RANDOM)
        self.assertEqual([row["state"] for row in first], ["complete"] * 6)
        self.assertEqual(len({row["alpha"] for row in first}), 6)
        _, second = self.tune(RANDOM, "--trials", "8")
        self.assertEqual(second[:6], first)
        self.assertEqual(len(second), 8)
        self.assertEqual(len(self.started()), 8)

    def test_bayesian_finds_what_random_trials_surround(self):
        _, trials = self.tune("{trials: 24, measure: val_loss, over: {alpha: {from: 0, to: 60}, batch: [50, 100]}}", "--jobs", "2", goal="", PACE="0.06")
        self.assertEqual(len(trials), 24)
        self.assertTrue({row["state"] for row in trials} <= {"complete", "pruned"})

    def test_equal_trials_at_once_are_one_run(self):
        _, trials = self.tune("{trials: 4, measure: val_loss, over: {alpha: [30], batch: [50]}}", "--jobs", "2", goal="", PACE="0.06")
        self.assertEqual([row["state"] for row in trials], ["complete"] * 4)
        self.assertEqual(len(self.started()), 1)
        self.tune("{trials: 5, measure: val_loss, over: {alpha: [30], batch: [50]}}", goal="")
        self.assertEqual(len(self.results()), 1)

    def test_trials_below_the_median_end(self):
        _, trials = self.tune("{method: grid, prune: true, measure: best_accuracy, over: {alpha: [20, 22, 24, 26, 28, 90]}}", goal="", STAYS="90")
        self.assertEqual([row["state"] for row in trials], [*["complete"] * 5, "pruned"])
        self.assertIn("in epoch 1 worse than the median", trials[5]["why"])

    def test_patience(self):
        self.write("training.py", TRAINING.replace("1 - 0.5 / epoch", "min(epoch, 4) / 4"))
        _, trials = self.tune("{method: grid, measure: best_accuracy, patience: 3, over: {alpha: [30]}}", goal="", STAYS="30")
        self.assertEqual((trials[0]["state"], trials[0]["why"], trials[0]["best_accuracy"]), ("complete", "no better for 3 epochs", "1"))

    def test_hyperband_goes_on_from_checkpoints(self):
        tune = "{method: hyperband, measure: accuracy, over: {alpha: {from: 1.0, to: 100.0}}, rungs: {most: 9}}"
        _, trials = self.tune(tune, goal="")
        self.assertEqual(len(trials), 9 + 5 + 3)
        self.assertEqual(sorted(row["epochs"] for row in trials), ["1"] * 6 + ["3"] * 6 + ["9"] * 5)
        at_nine = [json.loads(file.read_text())["epochs"] for file in (self.folder / "out").glob("experiments/*/output/1/t.json")]
        self.assertEqual(sorted(epochs[0]["epoch"] for epochs in at_nine if epochs[-1]["epoch"] == 9), [1, 1, 1, 4, 4])   # 4: after a rung
        started = self.started()
        self.assertEqual(self.tune(tune, goal="")[1], trials)
        self.assertEqual(self.started(), started)

    def test_killed(self):
        """Checks that finished trials are not repeated, and interrupted trials are."""
        words = [*self.runner, "tune", self.file(RANDOM), "--out", "out"]
        tuner = subprocess.Popen(words, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "HOLDS": "3"})
        self.wait_for(tuner, "trial 1:")
        until = time.monotonic() + 60
        while len(self.started()) < 3 and time.monotonic() < until:
            time.sleep(0.01)
        tuner.send_signal(signal.SIGKILL)
        tuner.wait()
        tuner.stderr.close()
        _, trials = self.tune(RANDOM)
        self.assertEqual([row["state"] for row in trials].count("complete"), 6)
        started = self.started()
        self.assertEqual((len(started), started[2]), (7, started[3]))

    def test_a_trial_that_fails_is_one_of_the_report(self):
        self.write("training.py", TRAINING + "\nif batch == 100: sys.exit('it diverged')\n")
        for _ in range(2):      # the second time nothing is measured
            _, trials = self.tune("{method: grid, measure: accuracy, prune: false, over: {batch: [100, 50]}}", goal="")
            self.assertEqual([row["state"] for row in trials], ["failed", "complete"])
            self.assertIn("it diverged", trials[0]["why"])
            self.assertEqual(len(self.started()), 2)

    def test_a_database_that_goes_away(self):
        url, stop, start = self.postgres()
        if subprocess.run([PYTHON, "-c", "import psycopg2"], capture_output=True).returncode != 0:
            self.skipTest("SKIPPED: psycopg2 is not installed")
        words = ["tune", self.file(RANDOM), "--out", "out", "--storage", url]
        tuner = subprocess.Popen([*self.runner, *words], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                 env={**os.environ, "HOLDS": "3"})
        self.wait_for(tuner, "trial 1:")
        stop()
        self.write("go", "")
        output = tuner.communicate(timeout=100)[1]
        self.assertEqual(tuner.returncode, 4, output)
        self.assertRegex(output.splitlines()[-1], r"^muster-bench: the trials in .* cannot be used \(.*\); what was measured stays")
        self.assertNotIn("Traceback", output)
        self.assertEqual([row["state"] for row in self.results("trials.csv")][:2], ["complete"] * 2)
        self.refused(*words, says="cannot be used", status=4)
        self.assertGreaterEqual(len(self.results()), 2)
        start()
        self.bench(*words)
        self.assertEqual([row["state"] for row in self.results("trials.csv")].count("complete"), 6)
        self.assertLessEqual(len(self.started()), 7)

    @unittest.skipIf(absent("examples/cnn"), "SKIPPED: examples/cnn is not built")
    def test_a_program_of_muster_goes_on_at_the_next_rung(self):
        path = self.write("cnn.yaml", f"""
muster-bench: 1
name: cnn
templates:
  cnn:
    command: >-
      {BUILD}/examples/cnn --data cifar-like:400 --holdout 0.2 --schedule constant:{{rate}} --epochs {{epochs}}
      --checkpoint {{checkpoint}} --resume --seed {{seed}} --json {{output}}/t.json --ranks 1
    read: [{{tracker: t.json}}]
experiments: {{search: {{template: cnn, parameters: {{rate: 0.01, epochs: 1}}}}}}
tune: {{method: hyperband, measure: val_loss, over: {{rate: [0.001, 0.01, 0.05]}}, rungs: {{most: 3}}}}
""")
        self.bench("tune", path, "--out", "out", timeout=300)
        logs = [log.read_text() for log in (self.folder / "out").glob("experiments/*epochs=3*/output/1/log.txt")]
        firsts = [int(re.search(r"^ *(\d+)  ", log, re.MULTILINE).group(1)) for log in logs]
        self.assertIn(2, firsts)
        self.assertEqual([row["state"] for row in self.results("trials.csv")].count("failed"), 0)


class Refused(Tuned):
    def test_brackets_as_published(self):
        self.assertEqual(Rungs("epochs", 1, 81, 3).brackets(),   # table 1 of the paper
                         [(81, (1, 3, 9, 27, 81)), (34, (3, 9, 27, 81)), (15, (9, 27, 81)), (8, (27, 81)), (5, (81,))])

    def test_files(self):
        for tune, says in (
                ("{over: {}}", "is over no parameter"),
                ("{over: {alpah: [1, 2]}}", ["is over 'alpah', which is no parameter", "did you mean 'alpha'?"]),
                ("{method: bayes, over: {alpha: [1]}}", ["unknown method 'bayes'", "did you mean 'bayesian'?"]),
                ("{over: {alpha: {from: 9, to: 1}}}", "is no range"),
                ("{over: {alpha: {from: 0, to: 1, log: true}}}", "is no range"),
                ("{method: grid, over: {alpha: {from: 1, to: 9, log: true}}}", "a grid has no values of a range with log"),
                ("{measure: time_to_val_loss, over: {alpha: [1]}}", "is the time to a goal that 'search' does not have"),
                ("{method: hyperband, over: {alpha: [1]}}", "hyperband cannot judge by 'time_to_accuracy'"),
                ("{method: hyperband, measure: accuracy, over: {alpha: [1]}, rungs: {parameter: steps}}", "the budget 'steps' is no parameter"),
                ("{method: hyperband, measure: accuracy, over: {alpha: [1]}, rungs: {most: 1}}", "there are no rungs from 1 to 1"),
                ("{trials: 0, over: {alpha: [1]}}", "there cannot be 0 trials"),
                ("{over: {alpha: [1]}, sampler: x}", "unknown key 'sampler'"),
                ("{method: grid, over: {alpha: {from: 1, to: 10000}, batch: {from: 1, to: 10000}, epochs: {from: 1, to: 10}}}",
                 "asks for 1,000,000,000 trials (at most 10,000)")):
            with self.subTest(tune=tune):
                self.refused("tune", self.file(tune), "--out", "out", says=says)
        path = self.file(GRID)
        self.refused("tune", self.experiment(["true"]), "--out", "out", says="has no search")
        self.refused("tune", path, "--out", "out", "--only", "alpha=1", says="--only cannot restrict a search")
        self.refused("tune", path, "--out", "out", "--trials", "0", says="are 1 or more")
        self.assertFalse((self.folder / "out").exists())
        path.write_text(path.read_text().replace("search: {", "search: {repeats: 2, "))
        self.refused("tune", path, "--out", "out", says="sweeps or repeats")

    def test_without_optuna(self):
        self.write("hidden/optuna.py", "raise ImportError('none', name='optuna')\n")
        self.refused("tune", self.file(GRID), "--out", "out", says=["tuning needs Optuna", "pip install 'muster-bench[tune]'"],
                     PYTHONPATH=f"{self.folder}/hidden:{os.environ['PYTHONPATH']}")
        self.assertFalse((self.folder / "out").exists())

    @unittest.skipUnless(HAS_OPTUNA, "SKIPPED: Optuna is not installed")
    def test_storage(self):
        self.refused("tune", self.file(GRID), "--out", "out", "--storage", "mysql://x", says="is no storage of trials")
        self.refused("tune", self.file(GRID), "--out", "out", "--storage", "sqlite:/nowhere/trials.db", says="cannot be used", status=4)


if __name__ == "__main__":
    unittest.main()
