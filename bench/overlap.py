#!/usr/bin/env python3
"""How much of the communication a backward pass hides over a slow link: starts bench/gradients on two hosts that are network
namespaces of this machine, joined by a link of a bounded rate. Needs root.

usage: overlap.py --program PATH [--rate BITS_PER_SECOND] [--progress on|off] [-- words of the program]
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "comm"))
import hosts  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--program", required=True)
parser.add_argument("--rate", type=int, default=1_000_000_000)
parser.add_argument("--progress", default="on")
parser.add_argument("words", nargs="*", default=[])
options = parser.parse_args()

why = hosts.missing()
if why:
    print(f"SKIPPED: {why}")
    sys.exit(hosts.SKIP)
words = options.words or ["overlap"]
with hosts.Network(2) as network, tempfile.TemporaryDirectory() as meetings:
    ranks = []
    for rank, host in enumerate(network.hosts):
        host.limit(options.rate)
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
                           MUSTER_TRANSPORT="tcp", MUSTER_RENDEZVOUS=f"file:{meetings}", MUSTER_TOKEN="of the bench",
                           MUSTER_INTERFACE="link0", MUSTER_HOST=f"host-{rank}", MUSTER_PROGRESS=options.progress)
        ranks.append(subprocess.Popen(host.inside(options.program, *words), env=environment))
    print(f"a link of {options.rate / 1e9:g} Gbit/s")
    sys.stdout.flush()
    status = max(rank.wait(timeout=600) for rank in ranks)
sys.exit(status)
