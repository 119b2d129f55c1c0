#!/usr/bin/env python3
"""Does things to the processes of a job with a parameter server, and looks whether all its pushes add up.

usage: faults.py server|worker|both|stop --transport tcp|shm --program PATH [--rounds N] [--seed S]
"""
import argparse
import os
import random
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser()
parser.add_argument("what", choices=["server", "worker", "both", "stop"])
parser.add_argument("--transport", required=True)
parser.add_argument("--program", required=True)
parser.add_argument("--rounds", type=int, default=1)
parser.add_argument("--seed", type=int, default=int(time.time()))
parser.add_argument("--steps", type=int, default=400)
options = parser.parse_args()
WORKERS, SERVERS, LIMIT = 2, 3, 60


class Rank:
    def __init__(self, rank, folder):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(WORKERS + SERVERS),
                       "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(WORKERS + SERVERS),
                       "MUSTER_RENDEZVOUS": f"file:{folder}", "MUSTER_JOB": os.path.basename(folder),
                       "MUSTER_TRANSPORT": options.transport}
        self.rank = rank
        self.serves = rank >= WORKERS
        self.says = ""
        self.harmed = False
        self.process = subprocess.Popen(
            [options.program, "--steps", str(options.steps), "--servers", str(SERVERS), "--replicas", "1"],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        os.set_blocking(self.process.stdout.fileno(), False)

    def listen(self):
        self.says += (self.process.stdout.read() or b"").decode()


def wait_for(ranks, holds, until):
    while not holds():
        for one in ranks:
            one.listen()
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def play(draw, folder):
    ranks = [Rank(rank, folder) for rank in range(WORKERS + SERVERS)]
    try:
        until = time.monotonic() + LIMIT
        begun = lambda: all("ready" in one.says or one.process.poll() is not None for one in ranks)
        if not wait_for(ranks, begun, until):
            return ranks, "the job does not begin"
        time.sleep(draw.uniform(0, 0.15))
        server = ranks[WORKERS + draw.randrange(SERVERS)]
        worker = ranks[draw.randrange(WORKERS)]
        harmed = {"server": [server], "worker": [worker], "both": [server, worker], "stop": [server]}[options.what]
        for one in harmed:
            one.harmed = True
            one.process.send_signal(signal.SIGSTOP if options.what == "stop" else signal.SIGKILL)
        if options.what == "stop":
            wait_for(ranks, lambda: False, time.monotonic() + draw.uniform(0.2, 2.5))
            server.process.send_signal(signal.SIGCONT)
        if not wait_for(ranks, lambda: all(one.process.poll() is not None for one in ranks), until):
            return ranks, f"it hangs: {[one.rank for one in ranks if one.process.poll() is None]} are still there"
        for one in ranks:
            one.listen()
            if one.serves == ("step 0" in one.says):
                return ranks, f"rank {one.rank} does not do what it should: work or serve"
            if not one.harmed and (one.process.returncode != 0 or "done" not in one.says):
                return ranks, f"rank {one.rank} ends with {one.process.returncode}"
            if not one.serves and not one.harmed and "all counts" not in one.says:
                return ranks, f"worker {one.rank} does not say that all counts"
        if options.what == "stop" and server.process.returncode not in (0, 4):
            return ranks, f"the server that was stopped ends with {server.process.returncode}"
        return ranks, ""
    finally:
        for one in ranks:
            if one.process.poll() is None:
                one.process.kill()
            one.process.wait()
            one.listen()


longest = []
for turn in range(options.rounds):
    draw = random.Random(options.seed + turn)
    with tempfile.TemporaryDirectory(prefix="muster-ps-") as folder:
        ranks, problem = play(draw, folder)
    if problem:
        for one in ranks:
            print(f"--- rank {one.rank}{' (harmed)' if one.harmed else ''}: {one.process.returncode}\n{one.says[-1500:]}")
        sys.exit(f"{problem} (seed {options.seed + turn}; again: --seed {options.seed + turn} --rounds 1)")
    longest += [float(gap) for one in ranks for gap in re.findall(r"longest gap ([\d.]+)", one.says)]
longest.sort()
print(f"{options.rounds} rounds, seed {options.seed}; longest time without a push that counts: "
      f"median {longest[len(longest) // 2]:.3f} s, worst {longest[-1]:.3f} s")
