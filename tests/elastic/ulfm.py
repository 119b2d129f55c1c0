#!/usr/bin/env python3
"""Elastic jobs over Open MPI with ULFM whose ranks are killed: the others are connected anew by shrinking MPI's world, and end
well with the same state.

usage: ulfm.py --program PATH [--ranks 4] [--rounds 5] [--transport mpi|tcp] [--seed S] [--first I]    (test_elastic_worker)

One or two ranks die by SIGKILL at a random moment, the second perhaps during the recovery from the first. The time is that
from the first kill to the end of the first step that the last survivor has done without them. Where two die and only they
had committed the last step, the others may end with 14, all of them: that is counted. A failure names its round:
--first I --rounds 1 with the same seed repeats that one. It is 77 that mpirun knows no ULFM.
"""
import argparse
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--program", required=True)
parser.add_argument("--ranks", type=int, default=4)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--first", type=int, default=0)
parser.add_argument("--transport", choices=["mpi", "tcp"], default="mpi")
parser.add_argument("--seed", type=int, default=int(os.environ.get("MUSTER_TEST_SEED", "20261122")))
options = parser.parse_args()
if shutil.which("ompi_info") is None or "FT MPI support: yes" not in subprocess.run(
        ["ompi_info"], capture_output=True, text=True, check=False).stdout:
    print("SKIPPED: there is no Open MPI with ULFM")
    sys.exit(77)
LIMIT = 90  # seconds
JOB = f"--samples 500 --batch 50 --epochs 12 --values 200000 --steps --patience 10 --transport {options.transport}"
TELL = f'echo "pid $OMPI_COMM_WORLD_RANK $$"; exec "{options.program}" {JOB}'
RANK = f'sh -c \'{TELL}\' 2>&1; echo "status $?"'


def one_round(number):
    """Seconds from the kill to the first step without the victims; nothing when their state was lost with them."""
    draw = random.Random(f"{options.seed}.{number}")
    victims = draw.sample(range(options.ranks), draw.randint(1, 2))
    job = subprocess.Popen(
        ["mpirun", "--with-ft", "ulfm", "--map-by", ":OVERSUBSCRIBE", "-x", "MUSTER_ELASTIC", "-n", str(options.ranks), "bash",
         "-c", f'while read -r line; do echo "$OMPI_COMM_WORLD_RANK: $line"; done < <({RANK})'],
        env=os.environ | {"MUSTER_ELASTIC": "on"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    timer = threading.Timer(LIMIT, job.kill)
    timer.start()
    pids, ready, when = {}, set(), None
    steps, ends, done, lines = {}, {}, set(), []
    for line in job.stdout:
        found = re.match(r"(\d+): (\w+) ?(.*)", line)
        if not found:
            continue
        rank, word, rest = int(found[1]), found[2], found[3]
        if word != "step":
            lines.append(line)
        if word == "pid":
            pids[rank] = int(rest.split()[1])
        elif word == "ready":
            ready.add(rank)
        elif word == "status":
            ends[rank] = int(rest)
        elif word == "done":
            done.add(tuple(rest.split()[:2]))
        elif word == "step" and when is not None:
            _, _, size, at = (int(text) for text in rest.split())
            if size == options.ranks - len(victims):
                steps.setdefault(rank, at)
        if len(ready) == options.ranks and when is None:
            time.sleep(0.2 * draw.random())
            when = time.monotonic_ns()
            for victim in victims:
                os.kill(pids[victim], signal.SIGKILL)
                time.sleep(draw.choice([0, 0.005, 0.03]))
    job.wait()
    timer.cancel()
    if len(victims) > 1 and all(ends.get(rank) == 14 for rank in range(options.ranks) if rank not in victims):
        return None
    wanted = {rank: 137 if rank in victims else 0 for rank in range(options.ranks)}
    if ends != wanted or len(done) != 1 or len(steps) != options.ranks - len(victims):
        raise RuntimeError(f"ranks {victims} were killed; all end with {ends}, {done}:\n{''.join(lines[-40:])}")
    return (max(steps.values()) - when) * 1e-9


print(f"seed {options.seed}, rounds {options.first} to {options.first + options.rounds - 1}, {options.ranks} ranks over "
      f"{options.transport}")
times = []
for number in range(options.first, options.first + options.rounds):
    try:
        times.append(one_round(number))
    except RuntimeError as failure:
        sys.exit(f"round {number}: {failure}")
lost = times.count(None)
times = sorted(span for span in times if span is not None)
print(f"{len(times) + lost} rounds, in {lost} of them the state died with its ranks; first step of the rest after a kill: median {statistics.median(times) * 1e3:.0f} ms, 95 % "
      f"{times[min(len(times) - 1, len(times) * 95 // 100)] * 1e3:.0f} ms, most {times[-1] * 1e3:.0f} ms")
