#!/usr/bin/env python3
"""Kills servers of jobs that have no replica: muster-launch starts the job again, and the job continues from the newest tables.

usage: restart.py --launcher PATH --program PATH (test_ps_process) [--servers N] [--transport shm|tcp] [--seed S]
"""
import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--launcher", required=True)
parser.add_argument("--program", required=True)
parser.add_argument("--servers", type=int, default=1)
parser.add_argument("--transport", choices=["shm", "tcp"], default="shm")
parser.add_argument("--seed", type=int, default=int(time.time()))
options = parser.parse_args()
draw = random.Random(options.seed)
STEPS, WORKERS, LIMIT = 60, 2, 100


class Job:
    def __init__(self, folder, restarts):
        ranks = WORKERS + options.servers
        self.process = subprocess.Popen(
            [options.launcher, "-n", str(ranks), "--elastic", "off", "--restart", str(restarts), options.program,
             "--transport", options.transport, "--servers", str(options.servers), "--replicas", "0", "--steps", str(STEPS),
             "--save", folder + "/tables", "--until", folder + "/enough", "--resume"],
            env={**os.environ, "MUSTER_MISSED_HEARTBEATS": "20"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines = []
        self.new_line = threading.Condition()
        self.listener = threading.Thread(target=self.listen)
        self.listener.start()

    def listen(self):
        for line in self.process.stdout:
            with self.new_line:
                self.lines.append(line.rstrip())
                self.new_line.notify()

    def await_lines(self, pattern, count):
        """Waits for `count` lines that match the pattern, and returns the matches."""
        found = lambda: [match for match in (re.match(pattern, line) for line in self.lines) if match]
        with self.new_line:
            if not self.new_line.wait_for(lambda: len(found()) >= count, LIMIT):
                self.fail(f"not {count} lines are like '{pattern}'")
            return found()

    def end(self):
        try:
            self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.fail("it hangs")
        self.listener.join()
        return self.process.returncode

    def fail(self, problem):
        self.process.kill()
        print("\n".join(self.lines[-60:]))
        print(f"{problem} (seed {options.seed})")
        os._exit(1)  # the listener waits for ranks that may live


def kill_a_server(job, life):
    """Kills a server of the present start of the job, after tables were saved in that start."""
    servers = job.await_lines(r"ready (\d+) to serve", life * options.servers)[-options.servers:]
    job.await_lines("saved$", life * WORKERS)
    time.sleep(draw.uniform(0.05, 0.4))
    os.kill(int(draw.choice(servers)[1]), signal.SIGKILL)


# Two kills. The third start of the job reaches its end.
with tempfile.TemporaryDirectory(prefix="muster-ps-") as folder:
    job = Job(folder, 2)
    kill_a_server(job, 1)
    kill_a_server(job, 2)
    job.await_lines(r"ready \d+ to work", 3 * WORKERS)
    open(folder + "/enough", "w").close()
    status = job.end()
    resumed_at = [int(match[1]) for match in job.await_lines(r"goes on at step (\d+)", 2 * WORKERS)]
    if status != 0 or sum(line.startswith("all counts") for line in job.lines) != WORKERS:
        job.fail(f"it ends with {status}")
    is_common = len(resumed_at) == 2 * WORKERS and resumed_at[0] == resumed_at[1] and resumed_at[2] == resumed_at[3]
    if not is_common or not 0 < resumed_at[0] < resumed_at[2]:
        job.fail(f"it went on at steps {resumed_at}")
    if sum("it is restarted" in line for line in job.lines) != 2:
        job.fail("it was not started again twice")

# Without a further start the exit status gives the reason.
with tempfile.TemporaryDirectory(prefix="muster-ps-") as folder:
    job = Job(folder, 0)
    kill_a_server(job, 1)
    status = job.end()
    if status != 16 or not any("is lost (all servers that held it have died)" in line for line in job.lines):
        job.fail(f"it ends with {status}")
print(f"it went on at steps {resumed_at[0]} and {resumed_at[2]} (seed {options.seed})")
