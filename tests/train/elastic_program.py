#!/usr/bin/env python3
"""Runs the program of tests/train/program.cpp as an elastic job. A later job resumes from its checkpoint, bitwise for the
same number of ranks, and the job reaches its end although ranks are killed and join.

usage: elastic_program.py --launcher PATH --program PATH [--rounds N] [--seed S] [--first I]

In each round ranks are killed by SIGKILL and started again by the launcher, and others join, at moments drawn by the
seed. All remaining ranks must end with 0 and the same state, and the next job must resume from the checkpoint.
"""
import argparse
import os
import pathlib
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
parser.add_argument("--rounds", type=int, default=2)
parser.add_argument("--first", type=int, default=0)
parser.add_argument("--seed", type=int, default=int(os.environ.get("MUSTER_TEST_SEED", "20261124")))
options = parser.parse_args()
EPOCHS = 40


class Job:
    def __init__(self, ranks, folder, epochs, *more):
        words = [options.launcher, "-n", str(ranks), *more, options.program, folder, str(epochs)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.output = []
        self.listener = threading.Thread(target=lambda: self.output.extend(self.process.stdout))
        self.listener.start()

    def ranks(self):
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children", encoding="ascii") as children:
            return [int(child) for child in children.read().split()]

    def joined(self):
        """Returns the number of processes that have joined."""
        return sum(int(count) for count in re.findall(r"generation \d+: .*?(\d+) joined", "".join(self.output)))

    def trains(self):
        return self.process.poll() is None

    def end(self):
        """Returns the final states of the job's ranks, which must all have ended with 0 or by SIGKILL."""
        self.process.wait(120)
        self.listener.join()
        text = "".join(self.output)
        if self.process.returncode != 0 or re.search(r"ended with \d|by signal (?!9)", text):
            sys.exit(f"seed {options.seed}: the job ends with {self.process.returncode}:\n{text[-4000:]}")
        states = re.findall(r"^accuracy .*, state (\w+)$", text, re.M)
        if len(set(states)) != 1:
            sys.exit(f"seed {options.seed}: the ranks end with the states {states}:\n{text[-4000:]}")
        return states


def disturb(job, draw):
    """Kills and adds ranks, each when the previous change is over; returns the number of kills and joins."""
    kills = joins = 0
    while job.trains() and job.joined() == 0 and not os.path.isdir(job.folder):
        time.sleep(0.01)
    while job.trains() and kills < 4:
        time.sleep(draw.uniform(0, 0.3))
        ranks = job.ranks()
        if len(ranks) < 3:
            continue
        before = job.joined()
        if draw.random() < 0.3 and len(ranks) < 4:
            job.process.send_signal(signal.SIGUSR2)
            joins += 1
        else:
            os.kill(draw.choice(ranks), signal.SIGKILL)
            kills += 1
        while job.trains() and job.joined() == before:  # the state is lost if all ranks that have it die
            time.sleep(0.01)
    return kills, joins


with tempfile.TemporaryDirectory() as folder:
    straight = Job(2, f"{folder}/straight", 6).end()
    Job(2, f"{folder}/resumed", 2).end()
    resumed = Job(2, f"{folder}/resumed", 6).end()
    if len(straight) != 2 or straight != resumed:
        sys.exit(f"a job that was resumed ends with {resumed}, one that never stopped with {straight}")
    # SIGTERM to all: the last rank saves if no checkpoint of an epoch exists, and the same command reaches the same end.
    for ranks in (1, 2):
        ended = Job(ranks, f"{folder}/ended-{ranks}", 1000, "--min", "1")
        saved = pathlib.Path(f"{folder}/ended-{ranks}")
        while ended.trains() and not list(saved.glob("step-*.state")):  # all ranks have joined
            time.sleep(0.01)
        ended.process.send_signal(signal.SIGTERM)
        status = ended.process.wait(120)
        ended.listener.join()
        steps = re.findall(r"saved after step (\d+) in", "".join(ended.output))
        if status != 143 or len(steps) != 1:
            sys.exit(f"{ranks} ranks that get SIGTERM end with {status}, and say:\n{''.join(ended.output)}")
        if not any(f"step-{int(steps[0]):012}" in name for name in os.listdir(f"{folder}/ended-{ranks}")):
            sys.exit(f"step {steps[0]} is not there: {os.listdir(f'{folder}/ended-{ranks}')}")
        Job(ranks, f"{folder}/ended-{ranks}", max(6, int(steps[0]) // 7 + 2)).end()
    direct = subprocess.run([options.launcher, "-n", "2", options.program, f"{folder}/direct", "2"], capture_output=True, text=True,
                            env=os.environ | {"STEPS_CHANGE_PARAMETERS": "1"}, timeout=120, check=False)
    if direct.returncode != 2 or "a step changed parameters before its commit" not in direct.stderr:
        sys.exit(f"steps that change parameters themselves end with {direct.returncode}:\n{direct.stderr}")
    for number in range(options.first, options.first + options.rounds):
        draw = random.Random(f"{options.seed}.{number}")
        job = Job(3, f"{folder}/{number}", EPOCHS, "--max", "4", "--restart", "100")
        job.folder = f"{folder}/{number}"
        kills, joins = disturb(job, draw)
        print(f"round {number}: {kills} kills, {joins} joins, {len(job.end())} ranks at the end", flush=True)
        Job(2, job.folder, EPOCHS + 1).end()
