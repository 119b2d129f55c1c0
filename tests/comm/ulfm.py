#!/usr/bin/env python3
"""Kills ranks of a job over Open MPI with ULFM, and checks the other ranks: each ends by itself, soon, with a
peer_failure, no result was wrong, and at least one rank names a killed rank.

usage: ulfm.py --program PATH [--ranks 3] [--rounds 5] [--seed S] [--first I]      (test_survivors)
"""
import os
import random
import re
import signal
import statistics
import time

from ulfm_job import Job, arguments_of, run_rounds, skip_without_ulfm

options = arguments_of(__doc__, 5).parse_args()
skip_without_ulfm()
delays = []


def one_round(number):
    draw = random.Random(f"{options.seed}.{number}")
    victim = draw.randrange(options.ranks)
    job = Job(options.ranks, [options.program, "60", "--transport", "mpi"], {"MUSTER_TEST_SEED": str(number)}, limit=90)
    pids, ready, when = {}, 0, None
    ends, named = {}, set()
    try:
        for source, word, rest in job.events():
            rank = int(source)
            if word == "pid":
                pids[rank] = int(rest)
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
                raise RuntimeError(f"a wrong result: {rest}")
    finally:
        job.close()
    survivors = set(range(options.ranks)) - {victim}
    if set(ends) != survivors or set(ends.values()) != {4} or victim not in named:
        raise RuntimeError(f"rank {victim} was killed; the others end with {ends} and name {named}:\n{job.tail()}")


print(f"seed {options.seed}, rounds {options.first} to {options.first + options.rounds - 1}, {options.ranks} ranks")
run_rounds(options, one_round)
print(f"{options.rounds} kills; from a kill to the error of another rank: median {statistics.median(delays) * 1e3:.0f} ms, "
      f"most {max(delays) * 1e3:.0f} ms")
