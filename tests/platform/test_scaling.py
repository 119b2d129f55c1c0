"""Figures for many workers on one machine: real losses with the times of another experiment's steps, prices, and
comparisons with real runs."""
import csv
import sys
import unittest

from bench import Case

# N ranks need 8 / N epochs of 1,000 samples to the goal, with 10 samples a rank and step. Its own times are arbitrary.
TRAINING = r'''
import json, sys
ranks, output = int(sys.argv[1]), sys.argv[2]
epochs = [dict(epoch=n, train_loss=0.5 / n, val_loss=1 / n, val_accuracy=min(1, n * ranks / 8), samples=1000, train_seconds=99.0) for n in range(1, 9)]
json.dump(dict(format=1, world_size=ranks, transport="threads", epochs=epochs, samples=8000, train_seconds=792.0, samples_per_second=1, mean_train_seconds=792,
               mean_compute_seconds=792, annotations=dict(batch=str(10 * ranks))), open(output + "/t.json", "w"))
'''
FILE = """
muster-bench: 1
name: scaling
goal: {{metric: accuracy, value: 1.0}}
prices: {{currency: USD, rank-hour: 3600, preemptible: {{rank-hour: 360, gpu-hour: 36}}}}
templates:
  train: {{command: '{python} {{here}}/training.py {{ranks}} {{output}}', read: [{{tracker: t.json}}], resources: {{gpus-per-rank: 2}}}}
  step: {{command: 'echo seconds {{seconds}} compute 0.01', read: [{{log: {{step_seconds: 'seconds (\\S+)', step_compute_seconds: 'compute (\\S+)'}}}}]}}
experiments:
  workers: {{template: train, clock: {clock}, parameters: {{}}, sweep: {{ranks: [1, 2, 4, 8]}}}}
  steps: {{template: step, parameters: {{}}, cases: [{{ranks: 1, seconds: 0.01}}, {{ranks: 2, seconds: 0.02}}, {{ranks: 4, seconds: 0.04}}]}}
  real: {{template: step, parameters: {{}}, cases: [{{ranks: 2, seconds: 0.025}}, {{ranks: 4, seconds: 0.041}}]}}
tables: [{{title: Held to real runs, experiment: real, beside: steps, measure: step_seconds, columns: ranks}}]
"""


class Scaling(Case):
    def file(self, clock="steps"):
        self.write("training.py", TRAINING)
        return self.write("scaling.yaml", FILE.format(python=sys.executable, clock=clock))

    def test_times_are_those_of_the_clock(self):
        output = self.run_file(self.file()).stdout
        rows = {int(row["ranks"]): row for row in self.results() if row["experiment"] == "workers"}
        for ranks, seconds in ((1, 8 * 100 * 0.01), (2, 4 * 50 * 0.02), (4, 2 * 25 * 0.04)):
            self.assertAlmostEqual(float(rows[ranks]["time_to_accuracy"]), seconds)
            self.assertAlmostEqual(float(rows[ranks]["communication_share"]), 1 - 1 / ranks)
            self.assertAlmostEqual(float(rows[ranks]["cost"]), seconds * ranks)
            self.assertAlmostEqual(float(rows[ranks]["cost_preemptible"]), seconds * ranks * (0.1 + 2 * 0.01))
            self.assertAlmostEqual(float(rows[ranks]["throughput"]), 10 * ranks / (0.01 * ranks))
        self.assertEqual((rows[8]["status"], rows[8]["why"]), ("skipped", "its clock, 'steps', was not measured at 8 ranks"))
        with open(self.folder / "out" / "summary.csv", newline="") as file:
            speed_ups = {row["ranks"]: row["speedup_time_rank"] for row in csv.DictReader(file) if row["experiment"] == "workers"}
        self.assertAlmostEqual(float(speed_ups["4"]), 4)
        self.assertIn("Held to real runs", output)
        self.assertRegex(output, r"real +0.025 +0.041\n *steps +0.02 +0.04\n *steps / real +0.8 +0.9756")
        page = (self.folder / "out" / "report.html").read_text()
        for text in ("workers: validation loss over time", "workers: speed-up of the time to accuracy", "cost, preemptible, USD", "steps / real"):
            self.assertTrue(text in page, text)

    def test_a_clock_that_is_swept(self):
        """Checks that a training has separate times for its settings."""
        path = self.file()
        path.write_text(path.read_text().replace("{ranks: 4, seconds: 0.04}]", "{ranks: 4, seconds: 0.04}], sweep: {network: [fast, slow]}")
                        .replace("seconds: 0.041}]", "seconds: 0.041}], sweep: {network: [fast]}").replace("seconds {seconds}", "{network} seconds {seconds}"))
        self.run_file(path)
        rows = [row for row in self.results() if row["experiment"] == "workers" and row["status"] == "ok"]
        self.assertEqual([(row["ranks"], row["network"]) for row in rows], [(n, name) for n in "124" for name in ("fast", "slow")])
        self.assertTrue("workers: validation loss over time" in (self.folder / "out" / "report.html").read_text())

    def test_refused(self):
        self.refused("run", self.file("stepz"), "--out", "out", says=["unknown experiment 'stepz' for its clock", "did you mean 'steps'?"])
        path = self.file()
        text = path.read_text()
        for old, new, says in (("beside: steps", "beside: unreal", ["is beside the unknown experiment 'unreal'", "did you mean 'real'?"]),
                               ("currency: USD, ", "", "has no currency"), ("gpu-hour: 36", "tpu-hour: 36", "unknown key 'tpu-hour'"),
                               ("gpus-per-rank: 2", "gpus-per-rank: -1", "-1 gpus-per-rank")):
            path.write_text(text.replace(old, new))
            self.refused("run", path, "--out", "out", says=says)


if __name__ == "__main__":
    unittest.main()
