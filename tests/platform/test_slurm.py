"""Tests jobs on a real Slurm of four nodes (tools/slurm-local.sh): priorities, preemption, gangs, elastic jobs, shares
of accounts."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from bench import BUILD, absent

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = BUILD / "examples/logistic_regression"
STORE = BUILD / "src/programs/muster-store"
LOCAL = ROOT / "tools/slurm-local.sh"
PATIENCE = 120 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))
TRAIN = [PROGRAM, "--transport", "tcp", "--synthetic", "epsilon:20000", "--epochs"]
EPOCHS = "60"


def missing():
    if os.getuid() != 0:
        return "SKIPPED: Slurm's daemons are started by root"
    missing = [name for name in ("munged", "slurmctld", "slurmd", "slurmdbd", "sbatch", "mariadbd") if shutil.which(name) is None]
    return f"SKIPPED: {', '.join(missing)}: not installed" if missing else absent("examples/logistic_regression", "src/programs/muster-store")


@unittest.skipIf(missing(), missing())
class Jobs(unittest.TestCase):
    cores = "1"

    @classmethod
    def setUpClass(cls):
        cls.held = tempfile.TemporaryDirectory(prefix="muster-slurm-")
        cls.addClassCleanup(cls.held.cleanup)
        folder = pathlib.Path(cls.held.name) / "slurm"
        cls.addClassCleanup(subprocess.run, [LOCAL, "down", folder], check=True, timeout=PATIENCE)
        subprocess.run([LOCAL, "up", folder], check=True, timeout=PATIENCE, env={**os.environ, "MUSTER_SLURM_CPUS": cls.cores})
        cls.environment = {**{name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")},
                           "SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{STORE.parent}:{os.environ['PATH']}"}
        for name, priority in (("low", 10), ("middle", 20), ("high", 30), ("top", 100)):
            cls.run_words("sacctmgr", "-i", "add", "qos", name, f"priority={priority}")
        cls.run_words("sacctmgr", "-i", "modify", "qos", "top", "set", "preempt=low")
        cls.run_words("sacctmgr", "-i", "modify", "account", "all", "set", "qos=normal,low,middle,high,top")

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=self.held.name))
        self.addCleanup(self.run_words, "scancel", "--full", "-s", "KILL", "-u", "root")

    @classmethod
    def run_words(cls, *words):
        done = subprocess.run([str(word) for word in words], env=cls.environment, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            raise AssertionError(f"{words} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def submit(self, name, command, *words):
        return self.run_words("sbatch", "--parsable", "-J", name, "-o", self.folder / f"{name}.out", "--open-mode=append", *words, "--wrap",
                              " ".join(str(word) for word in command)).strip()

    def states(self):
        """Returns state and nodes by number for jobs that have not ended."""
        return {line.split()[0]: (line.split()[1], int(line.split()[2])) for line in
                self.run_words("squeue", "-h", "-o", "%i %T %D").splitlines()}

    def await_until(self, met, description):
        until = time.monotonic() + PATIENCE
        while not met():
            self.assertLess(time.monotonic(), until, f"{description}: {self.states()} {self.said()}")
            time.sleep(0.1)

    def await_state(self, job, state):
        self.await_until(lambda: self.states().get(job, ("", 0))[0] == state, f"{job} is not {state}")

    def await_end(self, *jobs):
        self.await_until(lambda: not any(job in self.states() for job in jobs), f"{jobs} do not end")

    def undisturbed(self, ranks):
        """Returns the model of the same training, undisturbed."""
        model = self.folder / "alone.model"
        self.await_end(self.submit("alone", ["srun", "--mpi=pmix", *TRAIN, EPOCHS, "--save", model], f"-n{ranks}"))
        return model.read_bytes()

    def said(self):
        return {path.name: path.read_text()[-800:] for path in self.folder.glob("*.out")}

    def history(self, *jobs):
        """Returns (job, state) of the starts, in their order."""
        rows = [line.split("|") for line in self.run_words("sacct", "-n", "-X", "-D", "-P", "-j", ",".join(jobs), "-o",
                                                           "start,jobidraw,state").splitlines()]
        return [(job, state.split()[0]) for start, job, state in sorted(rows) if start != "Unknown"]

    def test_orders_by_priority_and_resumes_what_was_preempted_bitwise(self):
        train = ["exec", "srun", "--mpi=pmix", *TRAIN, EPOCHS, "--checkpoint", self.folder / "saved", "--resume", "--save", self.folder / "b.model"]
        blocker = self.submit("blocker", ["sleep", "1000"], "-N4", "--qos=top")
        self.await_state(blocker, "RUNNING")
        b = self.submit("b", train, "-N4", "-n4", "--qos=low", "--requeue")
        d = self.submit("d", ["sleep", "1"], "-N4", "--qos=middle")
        c = self.submit("c", ["sleep", "1"], "-N4", "--qos=high")
        a = self.submit("a", ["sleep", "1"], "-N4", "--qos=top")
        self.run_words("scancel", blocker)  # all are queued
        self.await_until(lambda: re.search(r"^ +5 ", self.said().get("b.out", ""), re.M), "b does not train")
        late = self.submit("late", ["sleep", "1"], "-N4", "--qos=top")
        self.await_state(b, "PENDING")
        self.await_end(late)
        self.run_words("scontrol", "update", f"jobid={b}", "starttime=now")  # Slurm makes it wait for two minutes
        self.await_end(b)
        self.await_until(lambda: len(self.history(a, b, c, d, late)) == 6 and self.history(b)[-1][1] != "RUNNING", "the database is behind")
        self.assertEqual(self.history(a, b, c, d, late), [(a, "COMPLETED"), (c, "COMPLETED"), (d, "COMPLETED"), (b, "PREEMPTED"),
                                                          (late, "COMPLETED"), (b, "COMPLETED")])
        self.assertIn("the training was stopped by SIGTERM", (self.folder / "b.out").read_text())
        self.assertEqual((self.folder / "b.model").read_bytes(), self.undisturbed(4))

    def test_gangs_start_whole_or_not_at_all(self):
        jobs = [self.submit(f"gang{k}", ["srun", "sh", "-c", "'echo $SLURM_JOB_ID $SLURM_PROCID; sleep 1.5'"], "-N3", "-n3") for k in range(2)]
        seen = []

        def ended():
            states = self.states()
            seen.append({job: states[job] for job in jobs if job in states})
            return not seen[-1]
        self.await_until(ended, "the gangs do not end")
        running = [[job for job, (state, _) in at.items() if state == "RUNNING"] for at in seen]
        self.assertLessEqual(max(map(len, running)), 1)  # a gang uses three nodes out of four
        self.assertEqual({nodes for at in seen for state, nodes in at.values() if state == "RUNNING"}, {3})
        for k, job in enumerate(jobs):
            self.assertCountEqual(self.said()[f"gang{k}.out"].split("\n"), [f"{job} {rank}" for rank in range(3)] + [""])

    def test_an_elastic_job_starts_on_two_nodes_and_grows(self):
        with (self.folder / "store.out").open("w") as log:
            store = subprocess.Popen([STORE, "--listen", "127.0.0.1:0"], stdout=log, stderr=subprocess.STDOUT, env=self.environment)
        self.addCleanup(store.wait)
        self.addCleanup(store.kill)
        self.await_until(lambda: re.search(r":(\d+)", self.said()["store.out"]), "the store says no port")
        port = re.search(r":(\d+)", self.said()["store.out"])[1]
        words = ["exec", "srun", "--no-kill", "--kill-on-bad-exit=0", *TRAIN, "150", "--elastic", "on", "--job", "grows", "--rendezvous",
                 f"tcp://127.0.0.1:{port}", "--log-level", "info"]
        first = self.submit("first", [*words, "--min-ranks", "2"], "-N2", "-n2")
        self.await_until(lambda: re.search(r"^ +2 ", self.said().get("first.out", ""), re.M), "two ranks do not train")
        second = self.submit("second", words, "-N1", "-n1")
        self.await_end(first, second)
        self.await_until(lambda: [state for _, state in self.history(first, second)].count("COMPLETED") == 2, "the database is behind")
        self.assertEqual(self.history(first, second), [(first, "COMPLETED"), (second, "COMPLETED")])
        self.assertRegex((self.folder / "first.out").read_text(), "3 ranks")

    def test_a_manifest_is_taken_with_its_account_and_priority(self):
        file = self.folder / "file.yaml"
        file.write_text(f"""
muster-bench: 1
name: slurm
templates: {{train: {{launcher: srun, command: [{PROGRAM}, --transport, tcp, --synthetic, 'epsilon:2000', --json, '{{output}}/report.json']}}}}
experiments: {{two: {{template: train, sweep: {{ranks: [2]}}}}}}
""")
        bench = [str(BUILD / "python/muster-bench")]
        words = ["--out", self.folder / "made", "--kind", "slurm", "--results", self.folder / "shared"]
        script, = subprocess.run([*bench, "manifests", file, *words, "--account", "all", "--priority", "high", "--queue", "all"], check=True,
                                 capture_output=True, text=True, timeout=PATIENCE).stdout.split()
        job = self.run_words("sbatch", "--parsable", "-o", self.folder / "job.out", script).strip()
        self.await_end(job)
        self.assertLessEqual({"Account=all", "QOS=high", "Partition=all", "JobState=COMPLETED"}, set(self.run_words("scontrol", "show", "job", "-o", job).split()),
                             self.said())
        self.assertTrue(list(self.folder.glob("shared/experiments/*/output/1/report.json")))

    def test_a_step_of_a_workflow_that_is_preempted_goes_on(self):
        file = self.folder / "flow.yaml"
        file.write_text(f"""
muster-flow: 1
name: slurm
steps:
  train:
    command: "{PROGRAM} --transport tcp --synthetic epsilon:20000 --epochs {EPOCHS} --checkpoint {{checkpoint}} {{resume}} --save {{model}}"
    outputs: {{model: model}}
    ranks: 3
    launcher: mpirun
    resources: {{memory: 200M}}
  look:
    command: "cp {{trained}} {{copy}}"
    inputs: {{trained: "{{train.model}}"}}
    outputs: {{copy: copy}}
""")
        environment = {**self.environment, "PYTHONPATH": str(ROOT / "python")}
        words = [sys.executable, "-m", "muster_flow", "run", file, "--out", self.folder / "out", "--slurm", "--account=all --qos=low"]
        with (self.folder / "flow.out").open("w") as log:
            flow = subprocess.Popen([str(word) for word in words], env=environment, stdout=log, stderr=subprocess.STDOUT)
        self.addCleanup(flow.wait)
        self.addCleanup(flow.kill)
        rows = self.folder / "out/store"
        self.await_until(lambda: any(re.search(r"^ +5 ", path.read_text(), re.M) for path in rows.glob("*/output/*/log.txt")), "it does not train")
        step, = self.states()
        late = self.submit("late", ["sleep", "1"], "-N4", "--qos=top")
        self.await_state(step, "PENDING")
        self.await_end(late)
        self.run_words("scontrol", "update", f"jobid={step}", "starttime=now")
        self.assertEqual(flow.wait(timeout=PATIENCE), 0, self.said())
        self.await_until(lambda: [state for _, state in self.history(step)] == ["PREEMPTED", "COMPLETED"], f"it is {self.history(step)}")
        copy, = rows.glob("*/copy")
        self.assertEqual(copy.read_bytes(), self.undisturbed(3))

    def test_jobs_that_slurm_does_not_know_have_failed(self):
        words = [sys.executable, "-I", "-S", ROOT / "python/muster_flow/slurm_status.py"]
        ended = self.submit("ended", ["true"])
        self.await_end(ended)
        failed = self.submit("failed", ["false"])
        self.await_end(failed)
        for job, expected in ((ended, "success\n"), (failed, "failed\n"), ("999999", "failed\n")):
            self.assertEqual(self.run_words(*words, job), expected)
        # Slurm does not reply: Snakemake asks again
        away = {**self.environment, "SLURM_CONF": str(self.folder / "absent")}
        self.assertEqual(subprocess.run([*map(str, words), ended], env=away, capture_output=True, text=True, timeout=PATIENCE).stdout, "running\n")

    def test_no_other_folder_is_removed(self):
        (self.folder / "mine").write_text("kept")
        done = subprocess.run([LOCAL, "down", self.folder], capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual((done.returncode, (self.folder / "mine").read_text()), (1, "kept"))
        self.assertIn("was not made by this script", done.stderr)
        self.assertEqual(subprocess.run([LOCAL, "down", self.folder / "absent"], timeout=PATIENCE).returncode, 0)
        self.assertFalse((self.folder / "absent").exists())

    def test_refuses_an_account_that_is_not_there(self):
        with self.assertRaisesRegex(AssertionError, "Invalid account"):
            self.submit("stranger", ["true"], "--account=nobody")


if __name__ == "__main__":
    unittest.main()
