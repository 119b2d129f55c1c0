#!/usr/bin/env python3
"""Deaths leave no descriptor open in the ranks that survive them.

usage: descriptors.py --launcher PATH --program PATH   (test_elastic_worker)
"""
import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser()
parser.add_argument("--launcher", required=True)
parser.add_argument("--program", required=True)
parser.add_argument("--kills", type=int, default=8)
options = parser.parse_args()
LIMIT = 60 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))


def opened(process):
    """How many of each kind it has open."""
    kinds = {}
    for name in os.listdir(f"/proc/{process}/fd"):
        try:
            link = os.readlink(f"/proc/{process}/fd/{name}")
        except OSError:
            continue
        kind = re.sub(r"\d+", "", link)
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


with tempfile.TemporaryDirectory() as folder:
    job = subprocess.Popen([options.launcher, "-n", "3", "--restart", str(options.kills + 1), options.program, "--samples", "500", "--batch", "50",
                            "--epochs", "100000", "--values", "1000", "--until", f"{folder}/enough"],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def next_ready():
        for line in job.stdout:
            if line.startswith("ready "):
                return int(line.split()[1])
        sys.exit("the job ended")

    def settled(process, most):
        """What it has open, once that is no more than `most`, or after a while."""
        until = time.monotonic() + LIMIT / 6
        while sum((kinds := opened(process)).values()) > most and time.monotonic() < until:
            time.sleep(0.1)
        return kinds

    ranks = [next_ready() for _ in range(3)]
    survivor, before = ranks[0], None
    for kill in range(options.kills):
        os.kill(ranks[1 + kill % 2], signal.SIGKILL)
        ranks[1 + kill % 2] = next_ready()
        if kill == 1:  # both of the others were started again: what this takes once is there
            time.sleep(1)
            before = opened(survivor)
    after = settled(survivor, sum(before.values()))
    open(f"{folder}/enough", "w").close()
    job.stdout.read()
    status = job.wait(LIMIT)
print(f"after 2 deaths {sum(before.values())} descriptors, after {options.kills} deaths {sum(after.values())}")
if sum(after.values()) > sum(before.values()):
    sys.exit(f"descriptors stay open after deaths: {before}, then {after}")
if status != 0:
    sys.exit(f"the job ended with {status}")
