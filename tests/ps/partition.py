#!/usr/bin/env python3
"""A job with a parameter server on three hosts (network namespaces), while their network is cut. Two hosts have a worker
and a server each, and the third host has a server. The store is a muster-store on a fourth host.

usage: partition.py WHAT --program PATH --store-program PATH [--rounds N] [--seed S]
  server   the third host's link fails: both workers continue with all acknowledged pushes; that server ends and prints the reason
  worker   the link of a host with a worker fails: the other worker continues
  one-way  no packet leaves the third host any more, and all packets reach it: as server
  heals    the third host's link recovers after a while: both workers continue, and the host's pushes meanwhile are void
Ends with status 77 and prints the reason if network namespaces are not available.
"""
import argparse
import os
import random
import re
import shutil
import sys
import tempfile
import time

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(TESTS, "comm"), os.path.join(TESTS, "..", "python")]
from muster_bench import hosts  # noqa: E402
from ranks import Failure, Process  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("what", choices=["server", "worker", "one-way", "heals"])
parser.add_argument("--program", required=True)
parser.add_argument("--store-program", required=True)
parser.add_argument("--rounds", type=int, default=1)
parser.add_argument("--seed", type=int, default=int(time.time()))
options = parser.parse_args()
PLACES = (0, 1, 0, 1, 2)  # the hosts of two workers and three servers


def start(network, store, folder):
    crew = []
    for rank, place in enumerate(PLACES):
        host = network.hosts[place]
        environment = dict(RANK=str(rank), WORLD_SIZE=str(len(PLACES)), MUSTER_JOB=f"partition-{os.getpid()}",
                           MUSTER_RENDEZVOUS=store, MUSTER_TRANSPORT="tcp", MUSTER_MISSED_HEARTBEATS="20")
        words = ["--steps", "100", "--until", folder + "/enough", "--servers", "3", "--replicas", "1"]
        crew.append(Process(rank, host.inside(options.program, *words), environment))
        crew[-1].host = host
    return crew


def run(draw, network, folder):
    serving, store = hosts.serve_store(options.store_program, network.hosts[3])
    crew = start(network, store, folder)
    try:
        for rank in crew:
            rank.expect("ready")
        for rank in crew[:2]:
            rank.expect("step")
        time.sleep(draw.uniform(0, 0.15))
        victim = network.hosts[draw.randrange(2) if options.what == "worker" else 2]
        if options.what == "one-way":
            victim.cut()
        else:
            victim.ip("link", "set", "link0", "down")
        if options.what == "heals":
            time.sleep(draw.uniform(0.1, 4))
            victim.ip("link", "set", "link0", "up")
        open(folder + "/enough", "w").close()  # the fault happened during training, and the job may end now
        for rank in crew:
            status = rank.end()
            lost = rank.host is victim
            if lost and status not in ((0, 4, 5) if options.what == "heals" else (4, 5)):
                raise Failure(f"rank {rank.rank} is cut off and ends with {status}: {rank.lines[-3:]} {rank.errors}")
            why = [line for line in rank.errors.splitlines() if not line.startswith("muster warning: ranges cannot be saved")]
            if lost and status != 0 and len(why) != 1:
                raise Failure(f"rank {rank.rank} is cut off and does not say why in a line: {rank.errors}")
            if not lost and (status != 0 or "done" not in rank.lines):
                raise Failure(f"rank {rank.rank} ends with {status}: {rank.lines[-3:]} {rank.errors}")
            if not lost and rank.rank < 2 and not any(line.startswith("all counts") for line in rank.lines):
                raise Failure(f"worker {rank.rank} does not say that all counts")
            yield from (float(gap) for line in rank.lines for gap in re.findall(r"longest gap ([\d.]+)", line) if not lost)
    finally:
        for rank in crew:
            rank.close()
        serving.kill()
        serving.wait()


reason = hosts.missing()
if reason:
    print(f"skipped: {reason}")
    sys.exit(hosts.SKIP)
gaps = []
for turn in range(options.rounds):
    folder = tempfile.mkdtemp(prefix="muster-partition-")
    with hosts.Network(4) as network:
        try:
            gaps += run(random.Random(options.seed + turn), network, folder)
        except Failure as failure:
            sys.exit(f"{failure}\nagain: partition.py {options.what} --program {options.program} --store-program "
                     f"{options.store_program} --seed {options.seed + turn}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
print(f"{options.rounds} rounds, seed {options.seed}; longest time without a push that counts: worst {max(gaps):.3f} s")
