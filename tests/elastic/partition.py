#!/usr/bin/env python3
"""An elastic job on hosts that are network namespaces, whose network is cut. The store is a muster-store on a further host.

usage: partition.py WHAT --program PATH --store-program PATH [--resets N] [--seed S]
  cut        the link to a host out of three is set down: the other two continue; the third, without them and the store, ends with 12
  one-way    the host can receive and not send: the same, or 10 if the host is notified first that it was fenced
  gone       all processes of the host are killed: two hosts continue
  halves     two hosts of two ranks each are cut from each other: neither has a majority, neither continues, and all ranks report that
  reset      the connections between two hosts are reset repeatedly: all three continue together
Ends with 77 and prints the reason if such hosts cannot be created.
"""
import argparse
import os
import random
import signal
import sys
import tempfile
import time

LOST = {"gone": [-signal.SIGKILL], "one-way": [10, 12]}   # the expected statuses of the host's ranks; [12] by default
TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(TESTS, "comm"), os.path.join(TESTS, "..", "python")]
from muster_bench import hosts  # noqa: E402
from ranks import DEADLINE, Failure, Process  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("what", choices=["cut", "one-way", "gone", "halves", "reset"])
parser.add_argument("--program", required=True)
parser.add_argument("--store-program", required=True)
parser.add_argument("--resets", type=int, default=5)
parser.add_argument("--seed", type=int, default=int(os.environ.get("MUSTER_TEST_SEED", "20261121")))
options = parser.parse_args()


def start(ranked, store, per_host, *words):
    where = [host for host in ranked for _ in range(per_host)]
    crew = []
    for rank, host in enumerate(where):
        environment = dict(RANK=str(rank), WORLD_SIZE=str(len(where)), MUSTER_ELASTIC="on",
                           MUSTER_JOB=f"partition-{os.getpid()}", MUSTER_RENDEZVOUS=store, MUSTER_MISSED_HEARTBEATS="10")
        flags = ["--samples", "500", "--batch", "50", *words, "--values", "50000", "--steps", "--quorum-timeout", "5"]
        crew.append(Process(rank, host.inside(options.program, *flags), environment))
        crew[-1].host = host
    return crew


def steps_of(rank):
    return [line.split(" ") for line in rank.lines if line.startswith("step ")]


def generations_of(rank):
    return [line.split(" ") for line in rank.lines if line.startswith("rebuilt ")]


def run_resets(network):
    """Checks that each reset leads to another generation with the same members."""
    draw = random.Random(options.seed)
    *ranked, apart = network.hosts
    serving, store = hosts.serve_store(options.store_program, apart)
    crew = start(ranked, store, 1, "--epochs", "1000000")
    took = []
    try:
        for number in range(options.resets + 1):
            before = time.monotonic()
            for rank in crew:
                while len(generations_of(rank)) <= number:
                    rank.read(before + DEADLINE)
            took.append(time.monotonic() - before)
            time.sleep(0.3 * draw.random())
            one, other = draw.sample(ranked, 2)
            if number < options.resets:
                hosts.run(*one.inside("ss", "-K", "dst", other.address))
        alone = [line for rank in crew for line in generations_of(rank) if line[3] != str(len(crew))]
        for rank in crew:
            os.kill(rank.pid, signal.SIGTERM)
        for rank in crew:
            status = rank.end()
            wrong = [line for line in rank.lines if line.startswith("wrong")]
            if status != 143 or wrong or alone:
                raise Failure(f"rank {rank.rank} ends with {status}, after generations of others {alone}: {wrong} {rank.errors}")
        print(f"{options.resets} resets, {len(generations_of(crew[0]))} generations of {len(crew)} ranks, a new one after "
              f"{sorted(took)[len(took) // 2] * 1e3:.0f} ms (median; at most {max(took[1:]) * 1e3:.0f})")
    finally:
        for rank in crew:
            rank.close()
        serving.kill()
        serving.wait()


def run(network):
    draw = random.Random(options.seed)
    *ranked, apart = network.hosts
    serving, store = hosts.serve_store(options.store_program, apart)
    folder = tempfile.TemporaryDirectory()
    crew = start(ranked, store, 2 if options.what == "halves" else 1, "--epochs", "3000", "--until", f"{folder.name}/enough")
    try:
        for rank in crew:
            rank.expect("ready")
        time.sleep(0.3 * draw.random())
        victim = draw.choice(ranked)
        when = time.monotonic_ns()
        if options.what == "one-way":
            victim.cut()
        elif options.what == "gone":
            for rank in crew:
                if rank.host is victim:
                    os.kill(rank.pid, signal.SIGKILL)
        else:
            victim.ip("link", "set", "link0", "down")
        if options.what != "halves":
            until = time.monotonic() + DEADLINE
            for rank in crew:
                while rank.open and rank.host is not victim and not any(int(step[2]) > 1 for step in steps_of(rank)):
                    rank.read(until)
            open(f"{folder.name}/enough", "w").close()
        for rank in crew:
            status = rank.end()
            wrong = [line for line in rank.lines if line.startswith("wrong")]
            lost = options.what == "halves" or rank.host is victim
            wanted = LOST.get(options.what, [12]) if lost else [0]
            if status not in wanted or wrong:
                raise Failure(f"rank {rank.rank} ends with {status}, not {wanted}: {wrong} {rank.lines[-2:]} {rank.errors}")
            if lost and options.what != "gone" and any(step[2] != "1" for step in steps_of(rank)):
                raise Failure(f"rank {rank.rank} was in the minority and went on")
            if not lost:
                first = next(int(step[4]) for step in steps_of(rank) if int(step[2]) > 1)
                print(f"rank {rank.rank}: its first step after {(first - when) * 1e-6:.0f} ms")
    finally:
        for rank in crew:
            rank.close()
        serving.kill()
        serving.wait()


reason = hosts.missing(*(["ss"] if options.what == "reset" else []))
if reason:
    print(f"skipped: {reason}")
    sys.exit(hosts.SKIP)
with hosts.Network(3 if options.what == "halves" else 4) as network:
    try:
        (run_resets if options.what == "reset" else run)(network)
    except Failure as failure:
        sys.exit(f"{failure}\nagain: partition.py {options.what} --program {options.program} --store-program "
                 f"{options.store_program} --seed {options.seed}")
