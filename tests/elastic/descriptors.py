#!/usr/bin/env python3
"""Checks that deaths leave no descriptor open in the survivors, and that a rank without a free descriptor ends while the others continue.

usage: descriptors.py --launcher PATH --program PATH   (test_elastic_worker)
"""
import argparse
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser()
parser.add_argument("--launcher", required=True)
parser.add_argument("--program", required=True)
parser.add_argument("--kills", type=int, default=14)
options = parser.parse_args()
KEPT = 5  # deaths after which a survivor releases a former group for each new group (elastic_backend::groups_kept and one)
LIMIT = 60 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))


def opened(process):
    """Returns the number of open descriptors of each kind."""
    kinds = {}
    for name in os.listdir(f"/proc/{process}/fd"):
        try:
            link = os.readlink(f"/proc/{process}/fd/{name}")
        except OSError:
            continue
        kind = re.sub(r"\d+", "", link)
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


class Job:
    def __init__(self, folder, restarts):
        self.enough = f"{folder}/enough-{restarts}"
        self.errors = open(f"{folder}/errors-{restarts}", "w+", encoding="utf-8")
        self.process = subprocess.Popen([options.launcher, "-n", "3", "--restart", str(restarts), options.program, "--samples", "500", "--batch", "50",
                                         "--epochs", "100000", "--values", "1000", "--until", self.enough],
                                        stdout=subprocess.PIPE, stderr=self.errors, text=True)

    def next_ready(self):
        for line in self.process.stdout:
            if line.startswith("ready "):
                return int(line.split()[1])
        sys.exit(f"the job ended: {self.error_text()}")

    def error_text(self):
        self.errors.seek(0)
        return self.errors.read()

    def end(self):
        open(self.enough, "w").close()
        output = self.process.stdout.read()
        status = self.process.wait(LIMIT)
        if status != 0:
            sys.exit(f"the job ended with {status}: {self.error_text()}")
        return output


with tempfile.TemporaryDirectory() as folder:
    job = Job(folder, options.kills + 1)

    def settled(process, most):
        """Returns the open descriptors once there are at most `most`, or after ten seconds."""
        until = time.monotonic() + LIMIT / 6
        while sum((kinds := opened(process)).values()) > most and time.monotonic() < until:
            time.sleep(0.1)
        return kinds

    ranks = [job.next_ready() for _ in range(3)]
    survivor, before = ranks[0], None
    for kill in range(options.kills):
        os.kill(ranks[1 + kill % 2], signal.SIGKILL)
        ranks[1 + kill % 2] = job.next_ready()
        if kill == KEPT:  # the survivor holds as many former groups as it ever does
            time.sleep(1)
            before = opened(survivor)
    # A descriptor that stays open for each death exceeds this; a connection that is made or closed just then does not.
    most = sum(before.values()) + (options.kills - 1 - KEPT) // 2
    after = settled(survivor, most)
    job.end()
    print(f"after {KEPT + 1} deaths {sum(before.values())} descriptors, after {options.kills} deaths {sum(after.values())}")
    if sum(after.values()) > most:
        sys.exit(f"descriptors stay open after deaths: {before}, then {after}")

    for limited in (0, 1):
        job = Job(folder, 4 + limited)
        ranks = [job.next_ready() for _ in range(3)]
        room = sum(opened(ranks[limited]).values()) + 3
        resource.prlimit(ranks[limited], resource.RLIMIT_NOFILE, (room, room))
        os.kill(ranks[2], signal.SIGKILL)
        joined = [job.next_ready() for _ in range(2)]
        output = job.end()
        if output.count("done ") != 3:
            sys.exit(f"{output.count('done ')} ranks are done: {job.error_text()}")
        if "ulimit -n" not in job.error_text():
            sys.exit(f"the rank without a descriptor does not say so: {job.error_text()}")
        ended = [line for line in job.error_text().splitlines() if line.startswith("muster-launch") and "ended with" in line]
        if len(ended) != 1 or f"process {ranks[limited]} " not in ended[0]:
            sys.exit(f"more ended than the one rank without a descriptor, {ranks[limited]} of {ranks}: {job.error_text()}")
        print(f"one rank of {ranks} ended for a lack of descriptors, and {joined} joined")
