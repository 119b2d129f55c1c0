"""Kills the runner at random moments: its finished runs stay, the table at the end is the same, and no process
survives."""
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time
import unittest

from bench import PLATFORM, PROGRAM, Case

KILLS = int(os.environ.get("MUSTER_TEST_KILLS", "6"))
SEED = int(os.environ.get("MUSTER_TEST_SEED", "0")) or random.randrange(1, 1 << 30)
RUNS = 20


class Killed(Case):
    def test_same_table(self):
        print(f"MUSTER_TEST_SEED={SEED}")
        draw = random.Random(SEED)
        script = self.write("work.sh", "sleep 0.1; echo $1 $2 >> $3/log; [ $1 != 5 ] || exit 7; echo value=$(($1 * $1 + $2))")
        path = self.experiment(["sh", str(script), "{n}", "{seed}", str(self.folder)], sweep=f"{{n: {{from: 1, to: {RUNS // 2}}}}}",
                               experiment="repeats: 2", template="read: [{log: {value: 'value=(\\d+)'}}]\n    retries: {attempts: 2}")
        self.bench("run", path, "--out", "whole", status=1)
        whole = {name: (self.folder / "whole" / name).read_bytes() for name in ("results.csv", "summary.csv")}
        (self.folder / "log").unlink()

        kills, folders = 0, 0
        while kills < KILLS:  # uses another folder if a folder is complete before enough kills
            folders += 1
            kills += self.killed_until_done(path, f"out{folders}", KILLS - kills, draw)
            for name, content in whole.items():
                self.assertEqual((self.folder / f"out{folders}" / name).read_bytes(), content)
        # A finished run was not repeated; a run that was active at a kill was.
        attempts = folders * (RUNS + 2)          # two runs fail, twice each
        lines = (self.folder / "log").read_text().count("\n")
        self.assertLessEqual(lines, attempts + kills * 2)
        print(f"{kills} kills of {folders} folders, {lines} commands where {attempts} were needed")

    def killed_until_done(self, path, folder, most, draw):
        """Starts the runner and kills it at random moments until it ends by itself; returns the number of kills."""
        finished = set()
        for kills in range(most + 1):
            words = [*PROGRAM, "run", path, "--out", folder]
            with open(self.folder / "said", "w") as log_file:
                runner = subprocess.Popen(words, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=log_file)
            if draw.random() < 0.75:  # most are killed during runs, the others may be killed during the start
                while runner.poll() is None and not (self.folder / "said").read_text():
                    time.sleep(0.005)
            try:
                self.assertEqual(runner.wait(draw.uniform(0.0, 0.7) if kills < most else 100), 1)
                return kills
            except subprocess.TimeoutExpired:
                runner.send_signal(signal.SIGKILL)
                runner.wait()
            now = {file.parent.parent.name for file in (self.folder / folder).glob("experiments/*/result/result.json")}
            self.assertLessEqual(finished, now, "a finished run is gone")
            finished = now
        raise AssertionError("unreachable")

    def test_what_it_started_dies_with_it(self):
        runner, pids = self.started()
        runner.kill()
        runner.wait()
        self.all_end(pids)

    def test_what_it_started_dies_with_its_owner(self):
        runner, pids = self.started()
        owner, = (int(stat.parent.name) for stat in pathlib.Path("/proc").glob("[0-9]*/stat") if parent_of(stat) == runner.pid)
        os.kill(owner, signal.SIGKILL)
        self.all_end(pids)
        self.assertEqual(runner.wait(60), 1)

    def started(self):
        """Starts a runner and the processes of a run: children, and their children in separate sessions and groups
        without parents, like ranks of mpirun."""
        starts = ("import os, sys, time\nfor depth in range(3):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork(): os._exit(0)\n"
                  "        open(f'{sys.argv[1]}/pid{depth}', 'w').write(str(os.getpid()))\n        break\n"
                  "while True: time.sleep(0.01)\n")
        path = self.experiment([sys.executable, str(self.write("starts.py", starts)), str(self.folder)], sweep="{n: [1]}")
        runner = subprocess.Popen([*PROGRAM, "run", path, "--out", "out"], cwd=self.folder, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        names = [self.folder / f"pid{depth}" for depth in range(3)]
        self.wait_until(lambda: all(name.is_file() and name.read_text() for name in names))
        self.addCleanup(runner.wait)
        self.addCleanup(runner.kill)
        return runner, [int(name.read_text()) for name in names]

    def all_end(self, pids):
        try:
            self.wait_until(lambda: not any(map(alive, pids)))
        finally:
            for pid in filter(alive, pids):
                os.kill(pid, signal.SIGKILL)

    def test_what_it_started_is_killed_with_the_first_thread(self):
        """Checks a killed runner whose first thread ends before the others: its processes must not start to clean
        up."""
        command = ["sh", "-c", "trap 'touch told; exit' TERM; touch runs; while :; do sleep 0.02; done"]
        started = []

        def start():
            started.append(subprocess.Popen([sys.executable, PLATFORM / "muster_bench/owner.py", str(os.getpid()), "", *command], cwd=self.folder))
            self.wait_until((self.folder / "runs").exists)
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        started[0].wait(60)
        self.assertFalse((self.folder / "told").exists())

    def wait_until(self, done):
        until = time.monotonic() + 60
        while not done():
            self.assertLess(time.monotonic(), until, "it did not come to that")
            time.sleep(0.01)


def parent_of(stat):
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


if __name__ == "__main__":
    unittest.main()
