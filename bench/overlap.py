#!/usr/bin/env python3
"""Measures the share of communication that a backward pass hides over a slow link: starts bench/gradients on two hosts that are
network namespaces on this machine, joined by a link of a bounded rate. Needs root.

usage: overlap.py --program PATH [--limit PATH] [--rate BITS_PER_SECOND] [--progress on|off] [-- words of the program]
--limit: bench/peers/overlap_limit, which runs before and after: it measures plain blocking sockets over the same link.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from muster_bench import hosts  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--program", required=True)
parser.add_argument("--limit")
parser.add_argument("--rate", type=int, default=1_000_000_000)
parser.add_argument("--progress", default="on")
parser.add_argument("words", nargs="*", default=[])
options = parser.parse_args()

why = hosts.missing()
if why:
    print(f"SKIPPED: {why}")
    sys.exit(hosts.SKIP)
words = options.words or ["overlap"]


def run(ranks):
    """Returns the worst exit status of the ranks."""
    return max(rank.wait(timeout=600) for rank in ranks)


def limit(network):
    sys.stdout.flush()
    return run([subprocess.Popen(host.inside(options.limit, str(rank), network.hosts[0].address, "25", "11"))
                for rank, host in enumerate(network.hosts)]) if options.limit else 0


def program(network, meetings):
    ranks = []
    for rank, host in enumerate(network.hosts):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
                           MUSTER_TRANSPORT="tcp", MUSTER_RENDEZVOUS=f"file:{meetings}", MUSTER_TOKEN="of the bench",
                           MUSTER_JOB=os.path.basename(meetings),
                           MUSTER_INTERFACE="link0", MUSTER_HOST=f"host-{rank}", MUSTER_PROGRESS=options.progress)
        ranks.append(subprocess.Popen(host.inside(options.program, *words), env=environment))
    return run(ranks)


with hosts.Network(2) as network, tempfile.TemporaryDirectory() as meetings:
    for host in network.hosts:
        host.limit(options.rate)
    print(f"a link of {options.rate / 1e9:g} Gbit/s")
    sys.exit(limit(network) or program(network, meetings) or limit(network))
