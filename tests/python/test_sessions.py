"""Sessions and tables from Python: steps that commit or did not happen, elastic ranks, checkpoints, pushes and pulls."""
import re
import subprocess
import sys
import unittest

from module import LIMIT, Case

# Fits the line y = 2x - 1 and counts each use of a sample. A rank kills itself in the step that the environment names.
TRAINING = """
import os, signal, sys, time
import numpy as np
import muster

class counted:
    def __init__(self): self.steps = 0
    def state_dict(self): return {"steps": self.steps}
    def load_state_dict(self, state): self.steps = state["steps"]

specification, epochs = sys.argv[1], int(sys.argv[2])
context = muster.context()
loader = muster.open(specification) | muster.shuffle(1) | muster.batch(20) | muster.prefetch(2)
weights, uses, counter = np.zeros(2), np.zeros(1000), counted()
folder = os.environ.get("FOLDER")
session = muster.session(context, {"weights": weights, "uses": uses}, loader, objects={"counter": counter}, checkpoint=folder)
if folder:
    session.load()
gradient = np.zeros(1002)
while session.run(epochs=epochs):
    while session.goes_on():
        with session.step() as step:
            if step.generation == 1 and step.number == int(os.environ.get("KILL", -1)) and step.rank == step.size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(float(os.environ.get("PAUSE", 0)))
            batch = loader.next(step.rank, step.size)
            x = np.column_stack([batch.values, np.ones(len(batch))])
            gradient[:] = 0
            gradient[:2] = x.T @ (x @ weights - batch.labels) / batch.global_size
            np.add.at(gradient[2:], batch.samples, 1)
            step.group.allreduce(gradient)
            weights -= 0.5 * gradient[:2]
            uses += gradient[2:]
            counter.steps += 1
    if folder:
        session.save()
assert np.all(uses == epochs), (uses.min(), uses.max())
np.testing.assert_allclose(weights, [2, -1], atol=1e-3)
assert counter.steps == session.steps == 50 * epochs
sys.stdout.write(f"digest {session.digest()}\\n")
"""


class Sessions(Case):
    def test_fixed_ranks(self):
        outputs = self.run_ranks(TRAINING, 2, [self.csv(), "4"])
        self.assertEqual(len(set(outputs)), 1, outputs)

    def test_a_checkpoint_continues_on_another_number_of_ranks(self):
        checkpoints = str(self.folder / "checkpoints")
        first = self.run_ranks(TRAINING, 2, [self.csv(), "4"], FOLDER=checkpoints)
        again = self.run_ranks(TRAINING, 1, [self.csv(), "4"], FOLDER=checkpoints)   # it has ended before
        self.assertEqual(set(first), set(again))
        self.run_ranks(TRAINING, 3, [self.csv(), "6"], FOLDER=checkpoints)

    def test_a_rank_dies_and_another_joins(self):
        launch = self.program("muster-launch")
        path = self.write("training.py", TRAINING)
        done = subprocess.run([launch, "-n", "3", "--restart", "1", sys.executable, path, self.csv(), "4"], capture_output=True, text=True,
                              timeout=LIMIT, cwd=self.folder, env={**__import__("os").environ, "KILL": "30", "PAUSE": "0.01"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stderr, r"rank 2 died: proof.*1 steps run again")
        digests = re.findall(r"digest \d+", done.stdout)
        self.assertGreaterEqual(len(digests), 2, done.stdout)
        self.assertEqual(len(set(digests)), 1, digests)

    def test_an_exception_restores_the_state_and_goes_on(self):
        program = """
import numpy as np, muster
context = muster.context()
values = np.zeros(3)
session = muster.session(context, {"values": values})
session.run(steps=3)
try:
    while session.goes_on():
        with session.step() as step:
            values += 1
            if step.number == 2:
                raise KeyError("in the step")
except KeyError:
    print(values.tolist(), session.steps)
"""
        self.assertEqual(self.run_ranks(program, 1), ["[2.0, 2.0, 2.0] 2\n"])

    def test_mistakes(self):
        program = """
import numpy as np, muster
context = muster.context()
def refused(call):
    try:
        call()
    except muster.configuration_error as failure:
        print(failure)
refused(lambda: muster.session(context, {"values": [1, 2]}))
session = muster.session(context, {"values": np.zeros(2)})
refused(lambda: session.goes_on())
refused(lambda: session.run())
refused(lambda: session.save())
session.run(steps=1)
with session.step() as step:
    pass
refused(lambda: session.step())
refused(lambda: step.group.barrier())
"""
        lines = self.run_ranks(program, 1)[0].splitlines()
        for line, words in zip(lines, ("is a list", "no run", "would not end", "no checkpoints", "no further step", "closed"), strict=True):
            self.assertIn(words, line)


class Tables(Case):
    PROGRAM = """
import sys
import numpy as np, muster
context = muster.context(sys.argv)
job = muster.tables(context, {"weights": {"size": 10, "update": "add"}, "rows": {"width": 4, "update": "add"}})
if job.is_server:
    job.serve()
else:
    for clock in range(20):
        job.push("weights", np.arange(10, dtype="float32"))
        job.push("rows", np.ones((2, 4), "float32"), keys=np.array([7, 2**40]))
        job.next_clock()
    workers = job.workers
    values, rows = np.empty(10, "float32"), np.empty((1, 4), "float32")
    while job.pull("weights", values)[1] < 20 * workers or job.pull("rows", rows, keys=np.array([2**40]))[0, 0] < 20 * workers:
        pass
    assert values.tolist() == [20.0 * workers * k for k in range(10)], values
    assert rows.tolist() == [[20.0 * workers] * 4], rows
    try:
        job.push("nothing", values)
    except muster.configuration_error as failure:
        sys.stdout.write(f"{failure}\\n")
    job.finish()
"""

    def test_every_push_is_applied_once(self):
        outputs = self.run_ranks(self.PROGRAM, 3)
        self.assertEqual(sum("there is no table 'nothing'" in out for out in outputs), 2, outputs)


if __name__ == "__main__":
    unittest.main()
