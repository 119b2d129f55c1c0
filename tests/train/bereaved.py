#!/usr/bin/env python3
"""Kills a rank of a training at a random moment, repeatedly: each survivor must soon report that a peer failed and that
its state is the state after the last committed step.

usage: bereaved.py --program PATH --transport NAME --rounds N
"""
import argparse
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "comm"))
from ranks import Failure, Process  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--program", required=True)
parser.add_argument("--transport", required=True)
parser.add_argument("--rounds", type=int, required=True)
parser.add_argument("--seed", type=int, default=6)
options = parser.parse_args()
draw = random.Random(options.seed)
RANKS = 3
PEER_FAILURE = 4


def one_round(number, meetings):
    progress = draw.choice(["on", "off"])
    ranks = []
    try:
        for rank in range(RANKS):
            environment = dict(RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(RANKS),
                               MUSTER_JOB=f"bereaved-{os.getpid()}-{number}", MUSTER_TRANSPORT=options.transport,
                               MUSTER_TOKEN="of the test", MUSTER_PROGRESS=progress,
                               MUSTER_RENDEZVOUS=f"file:{meetings}")
            ranks.append(Process(rank, [options.program], environment))
        for rank in ranks:
            rank.expect("trains")
        victim = draw.randrange(RANKS)
        time.sleep(draw.uniform(0, 0.05))
        os.kill(ranks[victim].pid, signal.SIGKILL)
        for rank in ranks:
            if rank.rank == victim:
                continue
            line = rank.expect("alone")
            if line != "alone peer_failure same":
                raise Failure(f"rank {rank.rank} says '{line}'")
            status = rank.end()
            if status != PEER_FAILURE:
                raise Failure(f"rank {rank.rank} ends with {status} ({rank.errors})")
    finally:
        for rank in ranks:
            rank.close()


for number in range(options.rounds):
    with tempfile.TemporaryDirectory() as meetings:
        try:
            one_round(number, meetings)
        except Failure as failure:
            sys.exit(f"round {number} of seed {options.seed}: {failure}")
print(f"{options.rounds} deaths amid backward passes over {options.transport}, seed {options.seed}")
