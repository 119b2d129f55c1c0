#!/usr/bin/env python3
"""Kills ranks of a job over Open MPI with ULFM, and looks at how the others find out: each ends by itself, soon, with a
peer_failure, no wrong result was seen, and somebody names a killed rank.

usage: ulfm.py --program PATH [--ranks 3] [--rounds 5] [--seed S] [--first I]      (test_survivors)

A failure names its round: --first I --rounds 1 with the same seed repeats that one. It is 77 that mpirun knows no ULFM.
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
parser.add_argument("--ranks", type=int, default=3)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--first", type=int, default=0)
parser.add_argument("--seed", type=int, default=int(os.environ.get("MUSTER_TEST_SEED", "20261122")))
options = parser.parse_args()
if shutil.which("ompi_info") is None or "FT MPI support: yes" not in subprocess.run(
        ["ompi_info"], capture_output=True, text=True, check=False).stdout:
    print("SKIPPED: there is no Open MPI with ULFM")
    sys.exit(77)
LIMIT = 60  # seconds
# So that each line says whose it is, and the launcher's own end hides nobody's.
TELL = f'echo "pid $OMPI_COMM_WORLD_RANK $$"; exec "{options.program}" 60 --transport mpi'
RANK = f'sh -c \'{TELL}\' 2>&1; echo "status $?"'
delays = []


def one_round(number):
    draw = random.Random(f"{options.seed}.{number}")
    victim = draw.randrange(options.ranks)
    job = subprocess.Popen(
        ["mpirun", "--with-ft", "ulfm", "--map-by", ":OVERSUBSCRIBE", "-n", str(options.ranks), "bash", "-c",
         f'while read -r line; do echo "$OMPI_COMM_WORLD_RANK: $line"; done < <({RANK})'],
        env=os.environ | {"MUSTER_TEST_SEED": str(number)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    timer = threading.Timer(LIMIT, job.kill)
    timer.start()
    pids, ready, when = {}, 0, None
    ends, named, lines = {}, set(), []
    for line in job.stdout:
        lines.append(line)
        found = re.match(r"(\d+): (\w+) ?(.*)", line)
        if not found:
            continue
        rank, word, rest = int(found[1]), found[2], found[3]
        if word == "pid":
            pids[rank] = int(rest.split()[1])
        ready += word == "ready"
        if ready == options.ranks and when is None:
            time.sleep(1e-5 * 20000 ** draw.random())
            when = time.monotonic_ns()
            os.kill(pids[victim], signal.SIGKILL)
        if word == "error":
            moment, status, ranks, text = rest.split(" ", 3)
            ends[rank] = int(status)
            named |= {int(r) for r in ranks.split(",") if r != "-"}
            # In a group made from the world ranks have other numbers.
            named |= {int(r) for r in re.findall(r"rank (\d+) of MPI_COMM_WORLD", text)}
            delays.append((int(moment) - when) * 1e-9)
        if word == "wrong":
            raise RuntimeError(f"a wrong result: {line}")
    job.wait()
    timer.cancel()
    survivors = set(range(options.ranks)) - {victim}
    if set(ends) != survivors or set(ends.values()) != {4} or victim not in named:
        raise RuntimeError(f"rank {victim} was killed; the others end with {ends} and name {named}:\n{''.join(lines[-30:])}")


print(f"seed {options.seed}, rounds {options.first} to {options.first + options.rounds - 1}, {options.ranks} ranks")
for number in range(options.first, options.first + options.rounds):
    try:
        one_round(number)
    except RuntimeError as failure:
        sys.exit(f"round {number}: {failure}")
print(f"{options.rounds} kills; from a kill to the error of another rank: median {statistics.median(delays) * 1e3:.0f} ms, "
      f"most {max(delays) * 1e3:.0f} ms")
