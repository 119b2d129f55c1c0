"""Tests the runner: its stored results, programs with every kind of failure, and two runners at once."""
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

from bench import PROGRAM, Case

# a Python that may have more packages, for example from a venv
PYTHON = os.environ.get("MUSTER_TEST_VENV_PYTHON", sys.executable)
HAS_EVENTS = subprocess.run([PYTHON, "-c", "import tensorboardX"], capture_output=True).returncode == 0

TRACKER = {"format": 1, "world_size": 2, "transport": "shm", "goal": None, "time_to_goal_seconds": 2.5, "samples": 100,
           "train_seconds": 4.0, "samples_per_second": 25.0, "compute_seconds": 3.0, "communication_seconds": 0.8,
           "communication_bytes": 4096, "data_wait_seconds": 0.2, "mean_train_seconds": 4.0, "mean_compute_seconds": 2.0,
           "mean_communication_seconds": 1.0, "mean_data_wait_seconds": 0.2, "mean_other_seconds": 0.8, "phases": {"forward": {"max_seconds": 1.0, "mean_seconds": 0.9}},
           "epochs": [{"epoch": 1, "train_loss": 0.5, "val_loss": None, "val_accuracy": 0.6, "train_seconds": 1.5},
                      {"epoch": 2, "train_loss": 0.25, "val_loss": None, "val_accuracy": 0.8, "train_seconds": 2.5}],
           "annotations": {"seed": "7", "staleness_mean": "1.5", "data": "made"}}


class Results(Case):
    def test_layout_tables_and_order(self):
        path = self.experiment(["sh", "-c", "echo speed={n}.5; echo made > file"], sweep="{n: [3, 1]}", experiment="repeats: 2",
                               template="read: [{log: {throughput: 'speed=(\\S+)'}}]")
        self.run_file(path)
        rows = self.results()
        self.assertEqual([(row["n"], row["repeat"], row["throughput"]) for row in rows],
                         [("3", "1", "3.5"), ("3", "2", "3.5"), ("1", "1", "1.5"), ("1", "2", "1.5")])
        for row in rows:
            home = self.folder / "out" / "experiments" / row["id"]
            self.assertEqual(sorted(part.name for part in home.iterdir()), ["config", "output", "result"])
            self.assertEqual((home / "output" / "1" / "file").read_text(), "made\n")
            self.assertEqual(json.loads((home / "config" / "run.json").read_text())["seed"], int(row["repeat"]))
        environment = json.loads((self.folder / "out" / "environment.json").read_text())
        self.assertGreater(environment[0]["noise"]["median"], 0)
        self.assertTrue({"cpu", "cores", "memory_bytes", "kernel", "compiler", "mpi", "git"} <= set(environment[0]))
        self.assertTrue(any(name.startswith("libc") for name in environment[0]["libraries"]), environment[0]["libraries"])

    def test_finished_runs_are_not_repeated(self):
        self.write("data", "1")
        script = self.write("script.sh", "echo x >> $1/count; echo v=$(wc -l < $1/count)")
        path = self.experiment(["sh", str(script), str(self.folder)], experiment="",
                               template=f"inputs: [{script}]\n    data: [{self.folder}/data]\n    read: [{{log: {{v: 'v=(\\d+)'}}}}]")
        self.run_file(path)
        first = (self.folder / "out" / "results.csv").read_bytes()
        self.run_file(path)
        self.assertEqual((self.folder / "out" / "results.csv").read_bytes(), first)
        self.write("data", "2")                      # other data: other runs
        self.run_file(path)
        self.assertEqual([row["v"] for row in self.results()], ["3", "4"])
        script.write_text(script.read_text() + "# another program\n")
        self.run_file(path)
        self.assertEqual([row["v"] for row in self.results()], ["5", "6"])

    def test_readers(self):
        self.write("t.json", json.dumps(TRACKER))
        self.write("b.json", json.dumps({"benchmarks": [
            {"name": "a/4", "real_time": 2.0, "time_unit": "us", "bus_GB/s": 3.0, "cpu_time": 1}, {"name": "b/4", "real_time": 5, "time_unit": "ms"},
            {"name": "a/4_cv", "real_time": 0.1, "time_unit": "us", "aggregate_unit": "percentage"}]}))
        read = f"read: [{{tracker: '{self.folder}/t.json'}}, {{benchmark: '{self.folder}/b.json', rows: '^a'}}]"
        path = self.experiment(["touch", str(self.folder / "t.json"), str(self.folder / "b.json")], sweep="{ranks: [2]}", template=read + "\n    resources: {cpus-per-rank: 2}",
                               top="goal: {metric: accuracy, value: 0.7}\naccuracy-after: [1, 2, 3.97, 10]\n"
                               "prices: {currency: EUR, cpu-hour: 0.9}")
        self.run_file(path)
        row, = self.results()
        expected = {"row": "a/4", "seconds": "2e-06", "bus_GB/s": "3.0", "throughput": "25.0", "time_to_accuracy": "4.0",
                    "accuracy": "0.8", "communication_share": "0.25", "computation_share": "0.5", "data_wait_share": "0.05",
                    "other_share": "0.19999999999999996",
                    "bytes_sent": "4096", "staleness_mean": "1.5", "accuracy_after_1s": "", "accuracy_after_2s": "0.6",
                    "accuracy_after_3.97s": "0.8", "accuracy_after_10s": "0.8", "cost": repr(4.0 / 3600 * 2 * 2 * 0.9)}
        self.assertEqual({name: row[name] for name in expected}, expected)
        header = (self.folder / "out" / "results.csv").read_text().splitlines()[0].split(",")
        self.assertEqual(len(header), len(set(header)), "the program's seed is no measure")
        kept, = json.loads((self.folder / "out" / "results.json").read_text())["runs"]
        self.assertEqual(kept["settings"], {"ranks": "2", "transport": "shm", "seed": "7"})

    def test_the_largest_times_of_different_ranks_are_no_shares(self):
        for ranks, expected in ((2, ""), (1, "0.2")):
            self.write("t.json", json.dumps({name: value for name, value in {**TRACKER, "world_size": ranks}.items() if "mean" not in name}))
            path = self.experiment(["touch", str(self.folder / "t.json"), str(self.folder / str(ranks))], sweep="{n: [1]}", template=f"read: [{{tracker: '{self.folder}/t.json'}}]")
            self.run_file(path)
            self.assertEqual(self.results()[0].get("communication_share", ""), expected)

    def test_several_goals(self):
        epochs = [{"epoch": n, "val_accuracy": 0.5 + n / 10, "train_accuracy": 0.6 + n / 10, "val_loss": 1 / n, "train_loss": 1 / n, "train_seconds": 2.0} for n in (1, 2, 3)]
        self.write("t.json", json.dumps({**TRACKER, "epochs": epochs}))
        path = self.experiment(["touch", str(self.folder / "t.json")], sweep="{n: [1]}", template=f"read: [{{tracker: '{self.folder}/t.json'}}]",
                               top="goal: [{metric: accuracy, value: 0.6}, {metric: val_loss, value: 0.4}, {metric: train_loss, value: 0.1},"
                                   " {metric: train_accuracy, value: 0.8}]")
        self.run_file(path)
        row, = self.results()
        self.assertEqual((row["time_to_accuracy"], row["time_to_val_loss"], row["time_to_train_accuracy"]), ("2.0", "6.0", "4.0"))
        self.assertAlmostEqual(float(row["train_accuracy"]), 0.9)
        self.assertNotIn("time_to_train_loss", row)   # no run reached the goal
        page = (self.folder / "out" / "report.html").read_text()
        self.assertIn("goal accuracy 0.6 and val_loss 0.4 and train_loss 0.1 and train_accuracy 0.8", page)
        self.assertIn("time to the validation loss, s", page)
        self.assertIn("time to the training loss, s", page)
        self.assertIn("only: training accuracy over time", page)
        self.assertEqual(page.count("goal not reached"), 1)

    def test_speed_ups_against_both_baselines(self):
        path = self.write("e.yaml", """
muster-bench: 1
name: s
plain-baseline: {experiment: plain}
templates:
  one: {command: 'echo rate=110 {batch}', read: [{log: {throughput: 'rate=(\\S+)'}}]}
  t: {command: 'echo rate={rate} {batch}', read: [{log: {throughput: 'rate=(\\S+)'}}]}
experiments:
  plain: {template: one, parameters: {batch: 32}}
  many1: {template: t, parameters: {rate: 100, ranks: 1, mode: a, batch: 32}}
  many: {template: t, parameters: {rate: 150, mode: a, batch: 32}, sweep: {ranks: [2]}}
  large: {template: t, parameters: {rate: 200, mode: a, batch: 64}, sweep: {ranks: [2]}}
""")
        self.run_file(path)
        by = {row["experiment"]: row for row in self.results("summary.csv")}
        self.assertAlmostEqual(float(by["many"]["speedup_plain"]), 150 / 110)
        self.assertAlmostEqual(float(by["many"]["efficiency_plain"]), 150 / 110 / 2)
        self.assertEqual(by["many"]["speedup_rank"], "")    # one rank of another experiment is another mode
        self.assertEqual(by["many1"]["speedup_rank"], "1.0")
        self.assertEqual(by["large"]["speedup_plain"], "")  # no run measured one plain thread with that batch


@unittest.skipUnless(HAS_EVENTS, "SKIPPED: tensorboardX is not installed (MUSTER_TEST_VENV_PYTHON names a Python that has it)")
class Events(Case):
    runner = [PYTHON, "-m", "muster_bench"]

    def scalars(self):
        """Returns [(tag, step, value)] of the one event file, by its framing: length, its checksum, an event, its
        checksum."""
        file, = (self.folder / "board").glob("*/events.out.tfevents.*")
        script = ("import struct, sys\nfrom tensorboardX.proto.event_pb2 import Event\nwith open(sys.argv[1], 'rb') as file:\n"
                  "    while head := file.read(12):\n        event = Event.FromString(file.read(struct.unpack('<Q', head[:8])[0]))\n        file.read(4)\n"
                  "        for value in event.summary.value: print(value.tag, event.step, round(value.simple_value, 6))\n")
        done = subprocess.run([PYTHON, "-c", script, file], capture_output=True, text=True, check=True)
        return [tuple(line.split()) for line in done.stdout.splitlines()]

    def test_event_files(self):
        self.write("t.json", json.dumps(TRACKER))
        path = self.experiment(["true"], sweep="{n: [1]}", template=f"read: [{{tracker: '{self.folder}/t.json'}}]")
        expected = [("train_loss", "1", "0.5"), ("val_accuracy", "1", "0.6"), ("train_loss", "2", "0.25"), ("val_accuracy", "2", "0.8")]
        for _ in range(2):      # the second time nothing runs
            self.run_file(path, "--tensorboard", "board")
            self.assertEqual(self.scalars(), expected)

    def test_without_tensorboardx(self):
        self.write("hidden/tensorboardX.py", "raise ImportError('none', name='tensorboardX')\n")
        self.refused("run", self.experiment(["true"]), "--out", "out", "--tensorboard", "board", says="event files need tensorboardX",
                     PYTHONPATH=f"{self.folder}/hidden:{os.environ['PYTHONPATH']}")
        self.assertFalse((self.folder / "out").exists())


class Trouble(Case):
    """A run that fails is reported with its reason; the others continue."""

    def check(self, command, says, status, template="", timeout=60, read="v=(\\S+)", **more):
        """Checks that the run n=1 fails in this way, and n=2 succeeds."""
        read = f"read: [{{log: {{v: '{read}'}}}}]"
        path = self.experiment(["sh", "-c", f"if [ {{n}} = 2 ]; then echo v=1; exit; fi; {command}"],
                               template=template + "\n    " + read)
        done = self.run_file(path, status=1, timeout=timeout, **more)
        first, second = self.results()
        self.assertEqual((first["status"], second["status"], second["v"]), (status, "ok", "1"))
        self.assertIn(says, first["why"])
        self.assertIn(says, done.stderr)
        return first

    def test_crash(self):
        self.check("echo it is over >&2; exit 3", "it ended with status 3: it is over", "crash")

    def test_crash_under_mpirun(self):
        if shutil.which("mpirun") is None:
            self.skipTest("SKIPPED: 'mpirun' is not here (Debian: openmpi-bin)")
        self.check("exec mpirun --allow-run-as-root --oversubscribe -n 2 sh -c 'echo too cold >&2; exit 3'", "it ended with status 3: too cold", "crash")

    def test_signal(self):
        self.check("kill -SEGV $$", "killed by SIGSEGV", "crash")

    def test_never_ends(self):
        begin = time.monotonic()
        self.check("trap '' TERM; sleep 1000 & sleep 1000; sleep 1000", "did not end within 3 s", "timeout",
                   template="timeout: 3")
        self.assertLess(time.monotonic() - begin, 40)

    def test_child_that_goes_away(self):
        self.check("setsid sleep 987 & sleep 1000", "did not end within 3 s", "timeout", template="timeout: 3")
        left = subprocess.run(["pgrep", "-f", "^sleep 987$"], capture_output=True, text=True).stdout
        self.assertEqual(left, "")

    def test_garbage(self):
        self.check("head -c 100000 /dev/urandom | tr -d v", "has no 'v'", "unreadable")

    def test_no_number(self):
        self.check("echo v=nan", "no finite number", "unreadable")

    def test_what_no_reader_expects(self):
        """Checks that the run fails with one line, the other run continues, and there is a report."""
        good = {"format": 1, "world_size": 1, "samples": 64, "train_seconds": 1.0, "epochs": [], "annotations": {"batch": "32"}}
        for number, (changed, status) in enumerate((({"phases": None}, "unreadable"), ({"samples": 10 ** 400}, "unreadable"), ({"annotations": {"batch": "32 x 4"}}, "ok"),
                                                    ({"annotations": {"batch": "0"}}, "ok"))):
            with self.subTest(changed=str(changed)[:60]):
                self.write("1.json", json.dumps({**good, **changed}))
                self.write("2.json", json.dumps(good))
                path = self.experiment(["cp", "{here}/{n}.json", "{output}/t.json"], template="read: [{tracker: t.json}]")
                done = self.bench("run", path, "--out", f"out{number}", status=0 if status == "ok" else 1)
                self.assertEqual([row["status"] for row in self.results(folder=f"out{number}")], [status, "ok"])
                self.assertNotIn("Traceback", done.stderr)
                self.assertTrue((self.folder / f"out{number}" / "report.html").exists())
        self.check("if [ {n} = 1 ]; then echo diverged; fi", "has no 'v'", "unreadable", read="v=(\\S+)|diverged")

    def test_names_that_are_numbers_and_commands_that_are_none(self):
        path = self.experiment(["sh", "-c", "echo v=1"], template="configure: ''\n    read: [{log: {v: 'v=(\\S+)'}}]", experiment="follows: {size: {n: {1: 2, 2: 3}}}")
        path.write_text(path.read_text().replace("  only:", "  2026:") + "\ntables: [{experiment: '2026', columns: n, measure: v, published: {theirs: {1: 5, all: 7}}}]\n")
        self.run_file(path)
        self.assertEqual([row["experiment"] for row in self.results()], ["2026", "2026"])
        self.refused("run", self.experiment(["true"], template="needs: [5]"), "--dry-run", says="'5' is no command")

    def test_endless_output(self):
        self.check("yes | head -c 30000000; exit 1", "status 1", "crash", template="limits: {log: 1M}")
        log, = (self.folder / "out" / "experiments").glob("*n=1*/output/1/log.txt")
        self.assertLess(log.stat().st_size, 1_100_000)
        self.check("echo v=7; yes | head -c 1000", "'log.txt' was cut", "unreadable", template="limits: {log: 500}")

    def test_fills_the_disk(self):
        self.check("head -c 20000000 /dev/zero > big; sleep 1000", "wrote more than 4 MiB", "disk", template="limits: {disk: 4M}")

    def test_no_json(self):
        path = self.experiment(["sh", "-c", "echo '{{' > a.json"], template="read: [{tracker: '{output}/a.json'}]")
        self.run_file(path, status=1)
        self.assertIn("is no JSON", self.results()[0]["why"])
        path = self.experiment(["true"], template="read: [{tracker: '{output}/a.json'}]")
        self.run_file(path, status=1)
        self.assertIn("was not written", self.results()[0]["why"])

    def test_retries(self):
        counts = "echo x >> {here}/c{n}; [ $(wc -l < {here}/c{n}) = 3 ] || exit 9"
        path = self.experiment(["sh", "-c", counts], template="retries: {attempts: 3}")
        self.run_file(path)
        self.assertEqual([row["attempts"] for row in self.results()], ["3", "3"])
        path = self.experiment(["sh", "-c", "exit 9"], template="retries: {attempts: 3, on: [timeout]}")
        self.run_file(path, status=1)
        self.assertEqual([row["attempts"] for row in self.results()], ["1", "1"])

    def test_failed_runs_stay_unless_asked(self):
        path = self.experiment(["sh", "-c", "echo x >> {here}/count; test -e {here}/good"])
        self.run_file(path, status=1)
        self.run_file(path, status=1)
        self.assertEqual((self.folder / "count").read_text().count("x"), 2)
        self.write("good", "")
        self.run_file(path, "--retry-failed")
        self.assertEqual((self.folder / "count").read_text().count("x"), 4)

    def test_what_is_lacking_skips_a_run_until_it_is_there(self):
        path = self.experiment(["sh", "-c", "echo v=1"], template="""
    needs: ["sh -c 'test -e {here}/torch || {{ echo no torch here; exit 1; }}'"]
    read: [{log: {v: 'v=(\\d)'}}]""")
        done = self.run_file(path)
        self.assertEqual([row["status"] for row in self.results()], ["skipped"] * 2)
        self.assertIn("no torch here", self.results()[0]["why"])
        self.assertIn("0 of 2 runs ended well, 2 were skipped", done.stdout)
        self.assertIn("Skipped runs", (self.folder / "out" / "report.html").read_text())
        self.assertEqual([(row["runs"], row["failed"], row["skipped"]) for row in self.results("summary.csv")], [("1", "0", "1")] * 2)
        self.write("torch", "")
        self.run_file(path)
        self.assertEqual([(row["status"], row["v"]) for row in self.results()], [("ok", "1")] * 2)

    def test_steps(self):
        path = self.experiment(["sh", "-c", "cat {scratch}/made; exit 4"], sweep="{n: [1]}", template="""
    configure: ["sh -c 'echo configured > {scratch}/made'"]
    clean-up: ["sh -c 'echo cleaned > {here}/cleaned'", "false"]""")
        done = self.run_file(path, status=1)
        self.assertIn("status 4: configured", self.results()[0]["why"])
        self.assertEqual((self.folder / "cleaned").read_text(), "cleaned\n")
        self.assertIn("clean-up: false: it ended with status 1", done.stderr)

    def test_full_disk(self):
        if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
            self.skipTest("SKIPPED: only root can make a small disk")
        small = self.folder / "small"
        small.mkdir()
        path = self.experiment(["sh", "-c", "[ {n} = 1 ] || head -c 60000000 /dev/zero > big; sleep 3"], template="limits: {disk: 1G}")
        script = (f"mount -t tmpfs -o size=100m none {small} && {' '.join(PROGRAM)} run {path} --out {small}/out; "
                  f"status=$?; rm -rf {small}/out/experiments/*n=2*/output; {' '.join(PROGRAM)} run {path} --out {small}/out "
                  f"--set n=1; cat {small}/out/results.csv; exit $status")
        done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=100, cwd=self.folder)
        if "mount" in done.stderr and "denied" in done.stderr:
            self.skipTest("SKIPPED: no small disk can be made here")
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("is full", done.stderr)
        self.assertIn("1 runs, 1 of them finished before", done.stderr)
        self.assertNotIn("Traceback", done.stderr)


class Folders(Case):
    def test_two_runners(self):
        path = self.experiment(["sh", "-c", "until [ -e {here}/go ]; do sleep 0.05; done"], sweep="{n: [1]}")
        first = subprocess.Popen([*PROGRAM, "run", path, "--out", self.folder / "out"], stderr=subprocess.PIPE,
                                 stdout=subprocess.DEVNULL, text=True)
        self.assertIn("1 runs, 0 of them", first.stderr.readline())
        self.refused("run", path, "--out", self.folder / "out", says=["another runner works in", f"process {first.pid}"], status=3)
        self.write("go", "")
        self.assertEqual(first.wait(60), 0)
        first.stderr.close()

    def test_strangers(self):
        path = self.experiment(["true"])
        self.write("out/mine.txt", "mine")
        self.refused("run", path, "--out", self.folder / "out", says="'mine.txt' is there")
        self.assertEqual([each.name for each in (self.folder / "out").iterdir()], ["mine.txt"])
        (self.folder / "out" / "mine.txt").unlink()
        self.run_file(path)
        path.write_text(path.read_text().replace("name: of the test", "name: another"))
        self.refused("run", path, "--out", self.folder / "out", says="holds the results of 'of the test'")

    def test_may_not_write(self):
        self.refused("run", self.experiment(["true"]), "--out", "/proc/nothing/here", says="cannot write", status=4)

    def test_interrupted(self):
        path = self.experiment(["sh", "-c", "[ {n} = 1 ] || until [ -e {here}/go ]; do sleep 0.05; done; echo v=1"], sweep="{n: [1, 2, 9]}", template="read: [{log: {v: 'v=(\\d)'}}]")
        first = subprocess.Popen([*PROGRAM, "run", path, "--out", self.folder / "out"], stderr=subprocess.PIPE,
                                 stdout=subprocess.DEVNULL, text=True)
        while "[1/3]" not in first.stderr.readline():
            pass
        first.send_signal(signal.SIGINT)
        output = first.stderr.read()
        first.stderr.close()
        self.assertEqual(first.wait(60), 130, output)
        self.assertIn("the same command continues", output)
        self.write("go", "")
        self.assertIn("1 of them finished before", self.run_file(path).stderr)
        self.assertEqual(len(self.results()), 3)

    def test_jobs(self):
        path = self.experiment(["sh", "-c", "echo v={n}"], sweep="{n: {from: 1, to: 20}}", template="read: [{log: {v: 'v=(\\d+)'}}]")
        self.run_file(path, "--jobs", "4")
        self.assertEqual([row["v"] for row in self.results()], [str(n) for n in range(1, 21)])


if __name__ == "__main__":
    unittest.main()
