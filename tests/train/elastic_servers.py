#!/usr/bin/env python3
"""What muster-launch makes of an elastic job with --mode ps: a server without replicas that dies, the death of all
workers, a process of another configuration that joins.

usage: elastic_servers.py lost|deserted|stranger --launcher PATH --program PATH (test_leased) [--transport tcp|shm]
  [--seed S]
"""
import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

LIMIT = 120 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))
parser = argparse.ArgumentParser()
parser.add_argument("what", choices=["lost", "deserted", "stranger"])
parser.add_argument("--launcher", required=True)
parser.add_argument("--program", required=True)
parser.add_argument("--transport", choices=["tcp", "shm"], default="tcp")
parser.add_argument("--seed", type=int, default=int(time.time()))
options = parser.parse_args()
draw = random.Random(options.seed)
WORDS = ["--mode", "ps", "--servers", "1", "--replicas", "0", "--timeout", "10", "--quorum-timeout", "2",
         "--transport", options.transport]


def children(launcher):
    """In the order in which they were started: the server is the third."""
    with open(f"/proc/{launcher.pid}/task/{launcher.pid}/children") as file:
        return sorted(int(one) for one in file.read().split())


class Job:
    def __init__(self, folder):
        self.process = subprocess.Popen([options.launcher, "-n", "3", "--max", "6", options.program, *WORDS,
                                         "--tables", folder + "/saved", "--step-time", "8"],
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.said, self.heard = [], threading.Condition()
        self.listener = threading.Thread(target=self.listen)
        self.listener.start()

    def listen(self):
        for line in self.process.stdout:
            with self.heard:
                self.said.append(line.strip())
                self.heard.notify_all()

    def wait_for(self, word, times=1):
        with self.heard:
            if not self.heard.wait_for(lambda: sum(word in one for one in self.said) >= times, LIMIT):
                self.fail(f"it does not say '{word}'")

    def end(self):
        try:
            status = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.fail("it hangs")
        self.listener.join()
        return status

    def fail(self, why):
        self.process.kill()
        sys.exit("\n".join(self.said[-60:]) + f"\n{options.what}, seed {options.seed}: {why}")

    def require(self, condition, why):
        if not condition:
            self.fail(why)


with tempfile.TemporaryDirectory(prefix="muster-elastic-ps-") as folder:
    job = Job(folder)
    job.wait_for("step 50")
    if options.what == "lost":
        for turn in range(1, 3):
            time.sleep(draw.uniform(0, 0.5))
            os.kill(children(job.process)[2], signal.SIGKILL)
            job.wait_for("the job has lost tables; it is restarted", turn)
            job.wait_for("ready", 3 * (turn + 1))
        job.require(job.end() == 0, "it does not end with 0")
        job.require("each sample was used once an epoch" in job.said, "samples were lost or used twice")
    elif options.what == "deserted":
        for worker in children(job.process)[:2]:
            os.kill(worker, signal.SIGKILL)
        job.require(job.end() == 11, f"the server should end with 11, not {job.process.returncode}")
        job.require(any("all workers have died" in one for one in job.said), "it does not say why")
        job.require(os.path.exists(folder + "/saved/tables.json"), "no tables are saved")
    else:
        with open(f"/proc/{children(job.process)[0]}/environ") as file:
            environment = dict(one.split("=", 1) for one in file.read().split("\0") if "=" in one)
        for words, difference in [(["--consistency", "bulk"], "it has consistency: bulk, and the job has consistency: async"),
                                  (["--replicas", "1"], "it has replicas: 1, and the job has replicas: 0")]:
            ran = subprocess.run([options.program, *WORDS, *words], env=environment, capture_output=True, text=True,
                                 timeout=LIMIT)
            job.require(ran.returncode == 6 and difference in ran.stderr,
                        f"a stranger ends with {ran.returncode}: {ran.stderr}")
        job.require(job.end() == 0, "it does not end with 0")
        job.require("each sample was used once an epoch" in job.said, "samples were lost or used twice")
print(f"{options.what} over {options.transport}, seed {options.seed}: as it should be")
