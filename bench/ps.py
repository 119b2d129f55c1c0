#!/usr/bin/env python3
"""The parameter server's table: pushes and pulls between a server and a worker over shm and tcp, in turns with ps-lite and with
the limits of a ring in shared memory and of a connection.

usage: ps.py [--build build/release] [--rounds 3] [--ps-lite FOLDER] [--sweep] [--quick]

--ps-lite is the folder of a built ps-lite with bench/peers/ps_lite.cpp compiled there as ps_lite. --sweep adds 1 to 4
servers with 2 workers, and 1 to 6 workers with one server. Each figure is the median of the rounds; the runs of a round follow each
other.
"""
import argparse
import collections
import os
import pathlib
import re
import statistics
import subprocess

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--ps-lite", type=pathlib.Path)
parser.add_argument("--sweep", action="store_true")
parser.add_argument("--quick", action="store_true", help="shorter turns, and without Adam's 100 MB")
options = parser.parse_args()
if os.geteuid() == 0:
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
found = collections.defaultdict(lambda: collections.defaultdict(list))  # row -> contender -> figures
units = {}


def take(contender, command, **more):
    ran = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         timeout=600, **more)
    for path, figure, unit in re.findall(r"^(?:ps|ps-lite)/(\S+)  (\S+) (.+)$", ran.stdout, re.M):
        words = path.split("/")
        row = (words[0], 1, 1, words[1]) if len(words) == 2 else (words[0], int(words[1]), int(words[2]), words[3])
        found[row][contender].append(float(figure))
        units[row[0]] = unit
    if ran.returncode != 0:
        print(f"{contender} ended with {ran.returncode}:\n{ran.stdout[-800:]}")


def ours(transport, servers, workers, more=()):
    take(transport, ["mpirun", "--oversubscribe", "-n", servers + workers, options.build / "bench/ps", "--transport",
                     transport, "--servers", servers, "--replicas", 0, *more])


def lite(words):
    take(f"ps-lite {words}", ["bash", options.ps_lite / "tests/local.sh", 1, 1, options.ps_lite / "ps_lite", words],
         env={**os.environ, "DMLC_INTERFACE": "lo"})


for _ in range(options.rounds):
    for transport in ("shm", "tcp"):
        ours(transport, 1, 1, ["--only", "latency,push,pull,rate", "--seconds", "0.1"] if options.quick else ())
    for limit in ("ring", "socket"):
        take(limit, [options.build / "bench/peers/stream_limit", limit, 0.1 if options.quick else 0.3])
    if options.ps_lite:
        lite("discard")
        lite("add")
    if options.sweep:
        for transport in ("shm", "tcp"):
            for servers, workers in [(n, 2) for n in (1, 2, 3, 4)] + [(1, n) for n in (1, 3, 4, 5, 6)]:
                ours(transport, servers, workers, ["--only", "push,pull", "--seconds", "0.1"])
contenders = sorted({one for row in found.values() for one in row})
print(f"| what/servers/workers/bytes | | {' | '.join(contenders)} |\n|---|---|{'---|' * len(contenders)}")
for row in sorted(found, key=lambda row: (row[1], row[2], row[0], int(row[3]))):
    figures = [f"{statistics.median(found[row][one]):.4g}" if found[row][one] else "" for one in contenders]
    print(f"| {'/'.join(map(str, row))} | {units[row[0]]} | {' | '.join(figures)} |")
