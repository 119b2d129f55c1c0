#!/usr/bin/env python3
"""Starts tests/comm/survivors on some ranks over shm, tcp or both (as if on two hosts), disturbs some of the ranks,
and checks the others.

usage: survivors.py WHAT --program PATH --rounds N [--transport shm|tcp|hierarchical] [--seed S] [--first I]
  kill    SIGKILL of some ranks at a random moment: every other rank ends by itself, soon, with a peer_failure
          that names a killed rank, and no result was wrong; the ranks leave nothing behind
  pause   SIGSTOP of a rank for 300 ms: no rank fails
  freeze  SIGSTOP of every rank for longer than a silence, as when a virtual machine is suspended: no rank fails
  stop    SIGSTOP of a rank past the deadline: the others end with a timeout that names it (over tcp with a peer_failure,
          because its heartbeats are missing); after SIGCONT it ends too, and has not written into the memory of the others
          after their error
  leave   a rank returns from main while others need it: they end with a peer_failure that names it
  abort   a rank aborts, and may end at once: all end with its reason and its status
  finish  ranks have made their last call and end while a rank is late for the call and rank 0 waits: no rank is blamed
A failure names its round: --first I --rounds 1 with the same seed repeats that round.
"""
import argparse
import atexit
import os
import random
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time

from ranks import Failure, Process

parser = argparse.ArgumentParser()
parser.add_argument("what", choices=["kill", "pause", "freeze", "stop", "leave", "abort", "finish"])
parser.add_argument("--rounds", type=int, default=100)
parser.add_argument("--first", type=int, default=0)
parser.add_argument("--seed", type=int, default=int(os.environ.get("MUSTER_TEST_SEED", "20261121")))
parser.add_argument("--program", required=True)
parser.add_argument("--transport", choices=["shm", "tcp", "hierarchical"], default="shm")
options = parser.parse_args()


class Rank(Process):
    def __init__(self, job, rank, ranks, seed, words, hosts):
        environment = dict(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank),
                           LOCAL_WORLD_SIZE=str(ranks), MUSTER_JOB=job, MUSTER_TEST_SEED=str(seed))
        if options.transport != "shm":
            environment["MUSTER_RENDEZVOUS"] = f"file:{meetings}"
        if options.transport == "hierarchical":
            environment.update(MUSTER_HOST=f"host-{rank % hosts}", MUSTER_BETWEEN="tcp")
        super().__init__(rank, [options.program] + words, environment)

    def error(self):
        """Returns (nanoseconds, status, ranks named, text) from its error line."""
        line = self.expect("error")
        _, when, status, named, text = line.split(" ", 4)
        return int(when), int(status), [int(r) for r in named.split(",") if r != "-"], text


def left_behind(job, pids):
    """Returns the files and sockets that the job left in places where they have a name."""
    found = [line.split()[-1] for line in open("/proc/net/unix", encoding="ascii", errors="replace") if job in line]
    for place in ("/dev/shm", "/tmp"):
        if os.path.isdir(place):
            found += [f"{place}/{name}" for name in os.listdir(place)
                      if name not in before[place] and (job in name or set(re.split(r"[._-]", name)) & pids)]
    return found


before = {place: set(os.listdir(place)) if os.path.isdir(place) else set() for place in ("/dev/shm", "/tmp")}
delays = []      # seconds from the kill to the error
second_hand = 0  # errors that name a survivor which reports the killed rank


def check_results_of(rank):
    if any(line.startswith("wrong") for line in rank.lines):
        raise Failure(f"rank {rank.rank}: {rank.lines}")


def kill(draw, ranks, start):
    global second_hand
    crew = start(["60"], ["--progress", draw.choice(["auto", "on"])])
    for rank in crew:
        rank.expect("ready")
    count = ranks if draw.random() < 0.1 else draw.randint(1, ranks - 1) if draw.random() < 0.3 else 1
    victims = draw.sample(crew, count)
    # Every scale of time has the same probability: 10 microseconds to 20 milliseconds.
    time.sleep(1e-5 * 2000 ** draw.random())
    apart = draw.choice([0, 0, 0.0003, 0.003])
    when = time.monotonic_ns()
    for victim in victims:
        victim.process.kill()
        time.sleep(apart)
    for victim in victims:
        victim.end()
        check_results_of(victim)
    for rank in crew:
        if rank in victims:
            continue
        status = rank.end()
        check_results_of(rank)
        if status != 4:
            raise Failure(f"rank {rank.rank} ends with {status}, not 4: {rank.lines} {rank.errors}")
        moment, _, named, text = rank.error()
        delays.append((moment - when) * 1e-9)
        if not set(named) & {victim.rank for victim in victims}:
            second_hand += 1
            # In a group made from the world ranks have other numbers; the processes are the same.
            if not any(f"process {victim.pid} " in text for victim in victims):
                raise Failure(f"rank {rank.rank} names no killed rank: {text}")


def pause(draw, ranks, start, all_of_them=False):
    silence = ["--missed-heartbeats", "5"] if all_of_them else []
    crew = start([str(0.6 + draw.random() * 0.3)], silence)
    for rank in crew:
        rank.expect("ready")
    victims = crew if all_of_them else [draw.choice(crew)]
    time.sleep(1e-5 * 20000 ** draw.random())
    for victim in victims:
        os.kill(victim.pid, signal.SIGSTOP)
    time.sleep(1.2 if all_of_them else 0.3)  # five heartbeats take 0.5 s
    for victim in victims:
        os.kill(victim.pid, signal.SIGCONT)
    done = set()
    for rank in crew:
        status = rank.end()
        check_results_of(rank)
        if status != 0:
            raise Failure(f"rank {rank.rank} ends with {status}: {rank.lines} {rank.errors}")
        done.add(rank.expect("done"))
    if len(done) != 1:
        raise Failure(f"the ranks did not do the same: {done}")


def freeze(draw, ranks, start):
    pause(draw, ranks, start, all_of_them=True)


def stop(draw, ranks, start):
    crew = start(["60", "stay"], ["--timeout", "2" if options.transport == "shm" else "5",
                                  "--missed-heartbeats", "10"])
    for rank in crew:
        rank.expect("ready")
    victim = draw.choice(crew)
    time.sleep(1e-5 * 20000 ** draw.random())
    os.kill(victim.pid, signal.SIGSTOP)
    # Its own host detects that a stopped process lives; over tcp only its heartbeats show that.
    ends_with, symptom = (5, "did not finish in 2 s") if options.transport == "shm" else (4, "no heartbeat")
    others = [rank for rank in crew if rank is not victim]
    named_it = 0
    for rank in others:
        _, status, named, text = rank.error()
        if status != ends_with:
            raise Failure(f"rank {rank.rank} fails with {status}, not {ends_with}: {text}")
        named_it += (victim.rank in named or f"process {victim.pid} " in text) and symptom in text
    if named_it < (1 if options.transport == "shm" else len(others)):
        raise Failure(f"not all name rank {victim.rank}: {[rank.lines for rank in others]}")
    for rank in others:
        rank.expect("waits")
    os.kill(victim.pid, signal.SIGCONT)
    _, status, _, text = victim.error()
    if status != ends_with:
        raise Failure(f"the stopped rank {victim.rank} fails with {status}, not {ends_with}: {text}")
    victim.expect("waits")
    time.sleep(0.1)
    for rank in crew:
        rank.process.stdin.write(b"\n")
    for rank in crew:
        status = rank.end()
        check_results_of(rank)
        if status != ends_with:
            raise Failure(f"rank {rank.rank} ends with {status}, not {ends_with}: {rank.lines} {rank.errors}")
        if rank is not victim and "kept" not in rank.lines:
            raise Failure(f"somebody wrote into the memory of rank {rank.rank} after its error: {rank.lines}")


def leave(draw, ranks, start):
    leaver = draw.randrange(ranks)
    crew = start(["60", "leave", str(leaver)], [])
    for rank in crew:
        status = rank.end()
        check_results_of(rank)
        if rank.rank == leaver:
            if status != 0:
                raise Failure(f"rank {rank.rank}, which leaves, ends with {status}: {rank.lines} {rank.errors}")
            continue
        _, said, named, text = rank.error()
        knows = leaver in named or f"process {crew[leaver].pid} " in text or "is gone (it left before" in text
        if status != 4 or said != 4 or not knows:
            raise Failure(f"rank {rank.rank} ends with {status}, not 4 for rank {leaver}: {text}")


def give_up(draw, ranks, start):
    quitter = draw.randrange(ranks)
    command = draw.choice(["abort", "quit"])
    crew = start(["60", command, str(quitter)], [])
    for rank in crew:
        status = rank.end()
        check_results_of(rank)
        if command == "quit" and rank.rank == quitter:
            continue
        _, said, named, text = rank.error()
        if status != 9 or said != 9 or named != [quitter] or "had enough" not in text:
            raise Failure(f"rank {rank.rank} ends with {status}, not 9 for rank {quitter}: {text}")


def finish(draw, ranks, start):
    crew = start(["60", "finish"], [], hosts=draw.choice([1, 2]))

    def check(rank):
        status = rank.end()
        check_results_of(rank)
        if status != 0:
            raise Failure(f"rank {rank.rank} ends with {status}: {rank.lines} {rank.errors}")

    for rank in crew[2:]:
        check(rank)
    time.sleep(0.1)  # rank 0 looks for dead ranks every 10 ms
    crew[1].process.stdin.write(b"\n")
    for rank in crew[:2]:
        check(rank)


acts = {"kill": kill, "pause": pause, "freeze": freeze, "stop": stop, "leave": leave, "abort": give_up, "finish": finish}
meetings = tempfile.mkdtemp(prefix="muster-survivors-")
atexit.register(shutil.rmtree, meetings, ignore_errors=True)
print(f"seed {options.seed}, rounds {options.first} to {options.first + options.rounds - 1}")
begin = time.monotonic()
for number in range(options.first, options.first + options.rounds):
    draw = random.Random(f"{options.seed}.{number}")
    ranks = draw.randint(2, 5)
    job = f"survivors-{os.getpid()}-{number}"
    crew = []

    seed = draw.getrandbits(32)

    def start(words, flags, hosts=2):
        for rank in range(ranks):
            crew.append(Rank(job, rank, ranks, seed, words + ["--transport", options.transport] + flags, hosts))
        return crew

    try:
        acts[options.what](draw, ranks, start)
        left = left_behind(job, {str(rank.pid) for rank in crew})
        if left:
            raise Failure(f"left behind: {left}")
    except Failure as failure:
        sys.exit(f"round {number} ({ranks} ranks): {failure}\n"
                 f"again: survivors.py {options.what} --transport {options.transport} --program {options.program} --seed {options.seed} --first {number} --rounds 1")
    finally:
        for rank in crew:
            rank.close()
if delays:
    delays.sort()
    print(f"{len(delays)} survivors; from the kill to the error: median {statistics.median(delays) * 1e3:.2f} ms, "
          f"9 of 10 below {delays[len(delays) * 9 // 10] * 1e3:.2f} ms, at most {delays[-1] * 1e3:.2f} ms; "
          f"{second_hand} in another numbering or at second hand")
print(f"{options.rounds} rounds in {time.monotonic() - begin:.1f} s")
