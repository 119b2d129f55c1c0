#!/usr/bin/env python3
"""Tests ranks on hosts that are network namespaces.

usage: across_hosts.py WHAT --program PATH --transport NAME --hosts 2,2 [--seed S] [-- WORDS...]
  oracle   PATH (test_over_processes) gets every collective right
  traffic  PATH (test_traffic): an allreduce sends 2(H-1)/H times its bytes from each host, within 5 %
  rate     PATH (test_traffic): the share of a 1 Gb/s link that an allreduce uses; printed, without a limit
  loss     PATH (test_survivors): one packet in a hundred is lost, and no rank fails
  cut, cut-one-way, reset
           PATH (test_survivors): the link of a host, at a random moment; every rank ends soon with an error that names
           an unreachable rank, and no result was wrong
Ends with 77 and the reason if there can be no such hosts.
"""
import argparse
import os
import random
import sys
import time

from ranks import Failure, Process

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
from muster_bench import hosts  # noqa: E402

COUNTED = 64 << 20  # bytes of the allreduce whose traffic is counted

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("what", choices=["oracle", "traffic", "rate", "loss", "cut", "cut-one-way", "reset"])
parser.add_argument("--program", required=True)
parser.add_argument("--transport", default="hierarchical", choices=["tcp", "hierarchical"])
parser.add_argument("--hosts", default="2,2", help="ranks on each")
parser.add_argument("--seed", type=int, default=int(os.environ.get("MUSTER_TEST_SEED", "20261121")))
parser.add_argument("--bytes", type=int, default=COUNTED)
parser.add_argument("words", nargs="*")
options = parser.parse_args()


class Rank(Process):
    def __init__(self, host, rank, ranks, local, meeting, words):
        environment = dict(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(local), MUSTER_RENDEZVOUS=meeting,
                           MUSTER_JOB=f"across-{os.getpid()}", MUSTER_TEST_SEED=str(options.seed))
        flags = ["--transport", options.transport]
        if options.transport == "hierarchical":
            flags += ["--between", "tcp"]
        if options.what in ("oracle", "traffic", "rate"):
            flags += ["--heartbeat", "2"]  # all ranks live, but a machine with fewer cores than ranks may be busy
        if options.what.startswith("cut"):
            flags += ["--missed-heartbeats", "10"]
        super().__init__(rank, host.inside(options.program, *words, *flags), environment)

    def say(self):
        self.process.stdin.write(b"\n")


def start(network, sizes, words):
    meeting = f"tcp://{network.hosts[0].address}:23456"
    where = [(host, local) for host, size in zip(network.hosts, sizes) for local in range(size)]
    return [Rank(host, rank, len(where), local, meeting, words) for rank, (host, local) in enumerate(where)]


def end_well(crew):
    for rank in crew:
        status = rank.end()
        if status != 0 or any(line.startswith("wrong") for line in rank.lines):
            raise Failure(f"rank {rank.rank} ends with {status}: {rank.lines} {rank.errors}")


def oracle(network, crew):
    end_well(crew)
    print(crew[0].lines[0])


def time_of_turn(crew):
    for rank in crew:
        rank.expect("ready")
    time.sleep(0.3)  # waits for packets in flight
    for rank in crew:
        rank.say()
    return max(float(rank.expect("done").split(" ")[1]) for rank in crew)


def traffic(network, crew):
    for rank in crew:
        rank.expect("ready")
    before = [host.sent() for host in network.hosts]
    time_of_turn(crew)
    after = [host.sent() for host in network.hosts]
    for rank in crew:
        rank.say()
    end_well(crew)
    count = len(network.hosts)
    wanted = 2 * (count - 1) / count * options.bytes
    for host, first, last in zip(network.hosts, before, after):
        share = (last - first) / wanted
        print(f"{host.name}: {last - first:,} bytes for an allreduce of {options.bytes:,}: {share:.3f} of 2(H-1)/H")
        if abs(share - 1) > 0.05:
            raise Failure(f"host {host.name} sent {share:.3f} of what it should")


def rate(network, crew):
    seconds = time_of_turn(crew)
    for rank in crew:
        rank.say()
    end_well(crew)
    count = len(network.hosts)
    bound = 2 * (count - 1) / count * options.bytes * 8 / 1e9
    print(f"{options.bytes:,} bytes in {seconds:.4f} s: {bound / seconds:.3f} of a link of 1 Gb/s")


def fault(network, crew):
    draw = random.Random(options.seed)
    for rank in crew:
        rank.expect("ready")
    time.sleep(1e-4 * 5000 ** draw.random())
    victim = network.hosts[-1]
    when = time.monotonic_ns()
    if options.what == "reset":
        victim.reset()
    else:
        victim.cut()
        if options.what == "cut":
            network.hosts[0].cut()
    latest = 0
    for rank in crew:
        status = rank.end()
        if status not in (4, 5) or any(line.startswith("wrong") for line in rank.lines):
            raise Failure(f"rank {rank.rank} ends with {status}: {rank.lines} {rank.errors}")
        _, moment, _, named, text = rank.expect("error").split(" ", 4)
        latest = max(latest, int(moment) - when)
        print(f"rank {rank.rank}: {text}")
        if named == "-":
            raise Failure(f"rank {rank.rank} names nobody")
    print(f"the last error came {latest * 1e-6:.0f} ms after the fault")


sizes = [int(size) for size in options.hosts.split(",")]
reason = hosts.missing(*(["iptables"] if options.what in ("loss", "reset") else []))
if reason:
    print(f"skipped: {reason}")
    sys.exit(hosts.SKIP)
words = {"oracle": options.words or ["300"], "traffic": [str(options.bytes), "1"], "rate": [str(options.bytes), "5"],
         "loss": ["1.5"]}.get(options.what, ["60"])
crew = []
with hosts.Network(len(sizes)) as network:
    try:
        for host in network.hosts:
            if options.what == "rate":
                host.limit(1000000000)
            if options.what == "loss":
                host.lose(0.01)
        crew = start(network, sizes, words)
        {"oracle": oracle, "traffic": traffic, "rate": rate, "loss": lambda _, c: end_well(c)}.get(
            options.what, fault)(network, crew)
    except Failure as failure:
        sys.exit(f"{failure}\nagain: across_hosts.py {' '.join(sys.argv[1:])} --seed {options.seed}")
    finally:
        for rank in crew:
            rank.close()
