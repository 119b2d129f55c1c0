#!/usr/bin/env python3
"""Kills and stops workers and servers of a training with --mode ps: the remaining workers must use each sample once an
epoch. With --elastic ranks join meanwhile. The test starts its own muster-store, so any rank may die. About half of the
rounds also train a small network: its accuracy must equal the accuracy of a round without faults, within noise. With
--transport hosts each rank has its own host, a network namespace, and may also be disconnected for good.

usage: leased.py --program PATH --store-program PATH [--transport tcp|shm|hosts] [--elastic] [--rounds N] [--seed S]
Ends with 77 and the reason where such hosts are not available.
"""
import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(TESTS, "ps"), os.path.join(TESTS, "..", "python")]
from muster_bench import hosts  # noqa: E402
from waiting import wait_for  # noqa: E402

LIMIT = 120 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))
FENCED = 4  # exit status of a rank that the other ranks fenced
LATE = [0, 13]  # exit statuses of a rank that joins when the job may be over
parser = argparse.ArgumentParser()
parser.add_argument("--transport", choices=["tcp", "shm", "hosts"], default="tcp")
parser.add_argument("--program", required=True)
parser.add_argument("--store-program", required=True)
parser.add_argument("--elastic", action="store_true")
parser.add_argument("--rounds", type=int, default=1)
parser.add_argument("--seed", type=int, default=int(time.time()))
options = parser.parse_args()
if options.transport == "hosts" and hosts.missing():
    print(hosts.missing())
    sys.exit(hosts.SKIP)
MOST = 14   # ranks, including joining ranks
CUT = "cut off"
NOISE = 0.03  # of the accuracy: asynchronous workers apply other workers' steps in a different order each time


class Rank:
    def __init__(self, rank, ranks, words, job, store, host):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0" if host else str(rank),
                       "LOCAL_WORLD_SIZE": "1" if host else str(ranks), "MUSTER_RENDEZVOUS": store, "MUSTER_JOB": job,
                       "MUSTER_TRANSPORT": "tcp" if host else options.transport, "MUSTER_MISSED_HEARTBEATS": "10" if options.elastic and not host else "20"}
        self.host = host
        if options.elastic:
            environment["MUSTER_ELASTIC"] = "on"
            words = [*words, "--step-time", "6"]
        self.rank, self.output, self.harm, self.joins = rank, "", None, False
        self.process = subprocess.Popen(at(host, options.program, *words), env=environment, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT)
        os.set_blocking(self.process.stdout.fileno(), False)

    def listen(self):
        self.output += (self.process.stdout.read() or b"").decode()

    def is_over(self):
        return self.process.poll() is not None

    def statuses(self):
        """Returns the permitted exit statuses. An elastic job kills a stopped rank on its own host."""
        if self.harm == signal.SIGKILL:
            return [-signal.SIGKILL, *LATE]
        if self.harm == signal.SIGSTOP:
            return [*LATE, FENCED, 5, 10, -signal.SIGKILL] if options.elastic else [0, FENCED]
        if self.harm == CUT:
            return [*LATE, FENCED, 5, 10, 12, 16]
        return LATE if self.joins and "step" not in self.output else [0]


def at(host, *words):
    return host.inside(*words) if host else list(words)


def harm(draw, ranks, member, until):
    """Kills a rank, or stops it for a while, perhaps for longer than the other ranks wait. Or disconnects its host."""
    member.harm = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP] + ([CUT] if member.host else []))
    if member.harm == CUT:
        return member.host.cut()
    member.process.send_signal(member.harm)
    if member.harm == signal.SIGSTOP:
        wait_for(ranks, lambda: False, min(until, time.monotonic() + draw.choice([0.3, 1, 6])))
        member.process.send_signal(signal.SIGCONT)


def keeps_majority(ranks):
    """Returns True if one more rank may be lost. No rank can prove the death of a process on another host, so a majority
    must live."""
    members = [member for member in ranks if "ready" in member.output]
    return options.transport != "hosts" or 2 * (1 + sum(member.harm is not None for member in members)) < len(members)


def harm_and_join(draw, ranks, workers, start, until):
    """Harms ranks and lets ranks join. A rank that trains is spared; a single server may be killed."""
    spared = None
    for _ in range(draw.randrange(2, 8)):
        wait_for(ranks, lambda: False, time.monotonic() + draw.uniform(0, 0.3))
        works = [member for member in ranks if member.harm is None and not member.is_over() and (member.joins or member.rank < workers)]
        action = draw.choice(["join", "join", "worker", "worker", "server"])
        if action == "join" and len(ranks) < MOST:
            ranks.append(start(draw.randrange(workers)))
            ranks[-1].joins = True
        spared = spared if spared in works else next((member for member in works if "ready" in member.output), None)
        if not keeps_majority(ranks):
            continue
        if action == "worker" and spared is not None and len(works) > 1:
            harm(draw, ranks, draw.choice([member for member in works if member is not spared]), until)
        serve = [member for member in ranks if member.rank >= workers]
        if action == "server" and all(member.harm is None for member in serve):  # the replicas tolerate one
            harm(draw, ranks, draw.choice(serve), until)


def problem_of(draw, ranks, workers, start, is_quiet):
    until = time.monotonic() + LIMIT
    if not wait_for(ranks, lambda: all("ready" in member.output or member.is_over() for member in ranks), until):
        return "the job does not begin"
    if options.elastic and not is_quiet:
        harm_and_join(draw, ranks, workers, start, until)
        if draw.random() < 0.25 and options.transport != "hosts":  # the servers wait for a worker
            for member in ranks:
                if member.harm is None and not member.is_over() and (member.joins or member.rank < workers):
                    member.harm = signal.SIGKILL
                    member.process.kill()
            ranks.append(start(0))
            ranks[-1].joins = True
    chosen = draw.sample(ranks[:workers], draw.randrange(1, workers)) if not (options.elastic or is_quiet) else []
    if chosen and draw.random() < 0.5:  # the replicas tolerate one
        chosen.append(draw.choice(ranks[workers:]))
    for member in draw.sample(chosen, len(chosen)):
        wait_for(ranks, lambda: False, time.monotonic() + draw.uniform(0, 0.6))
        if not member.is_over():
            harm(draw, ranks, member, until)
    if not wait_for(ranks, lambda: all(member.is_over() for member in ranks), until):
        return f"it hangs: {[member.rank for member in ranks if not member.is_over()]} are still there"
    for member in ranks:
        member.listen()
        if member.process.returncode not in member.statuses():
            return f"rank {member.rank} ends with {member.process.returncode}"
    reports = [line for member in ranks for line in member.output.splitlines() if "sample" in line]
    if options.elastic:  # a worker may be killed after it printed the line and before the servers know that it has finished
        reports = reports[:1] + [line for line in reports[1:] if line != reports[0]]
    if reports != ["each sample was used once an epoch"]:
        return f"a worker should say that each sample was used once an epoch, not {reports}"
    return ""


def run(draw, words, is_quiet=False):
    """Runs a job with these words until all ranks are over; returns the ranks and the problem."""
    with tempfile.TemporaryDirectory(prefix="muster-leased-") as folder, contextlib.ExitStack() as stack:
        apart, *places = (stack.enter_context(hosts.Network(MOST + 1)).hosts if options.transport == "hosts" else
                          [None] * (MOST + 1))
        serving = stack.enter_context(subprocess.Popen(
            at(apart, options.store_program, "--listen", f"{apart.address if apart else '127.0.0.1'}:0"), stdout=subprocess.PIPE, text=True))
        stack.callback(serving.kill)
        store = "tcp://" + serving.stdout.readline().split()[-1]
        start = lambda rank: Rank(rank, workers + servers, words, os.path.basename(folder), store, places[len(ranks)])
        ranks = []
        ranks += (start(rank) for rank in range(workers + servers))
        try:
            problem = problem_of(draw, ranks, workers, start, is_quiet)
        finally:
            for member in ranks:
                if member.process.poll() is None:
                    member.process.kill()
                member.process.wait()
                member.listen()
        return ranks, problem


def accuracy_of(ranks):
    return max(float(line.split()[1]) for member in ranks for line in member.output.splitlines() if line.startswith("accuracy "))


harms = joined = 0
undisturbed, accuracies = None, []
for turn in range(options.rounds):
    problem = ""
    draw = random.Random(options.seed + turn)
    workers, servers = draw.randrange(2, 5), draw.randrange(2, 4)
    words = ["--mode", "ps", "--servers", str(servers), "--timeout", "4", "--consistency",
             draw.choice(["async", "bounded:2", "bulk"])]
    if options.elastic:
        words += ["--quorum-timeout", "8"]
    learns = draw.random() < 0.5
    if learns:
        words += ["--hidden", "8"]
        if undisturbed is None:
            ranks, problem = run(random.Random(0), words, is_quiet=True)
            undisturbed = None if problem else accuracy_of(ranks)
    if not problem:
        ranks, problem = run(draw, words)
    if not problem and learns:
        accuracies.append(accuracy_of(ranks))
        if abs(accuracies[-1] - undisturbed) > NOISE:
            problem = f"the accuracy is {accuracies[-1]}, and {undisturbed} without faults"
    harms += sum(member.harm is not None for member in ranks)
    joined += sum(member.joins and "step" in member.output for member in ranks)
    if problem:
        for member in ranks:
            print(f"--- rank {member.rank}{' joins' if member.joins else ''} {member.harm or ''}: {member.process.returncode}\n{member.output[-1500:]}")
        sys.exit(f"{' '.join(words)}, {workers} workers: {problem} (seed {options.seed + turn}; again: --seed "
                 f"{options.seed + turn} --rounds 1)")
print(f"{options.rounds} rounds, {harms} ranks killed, stopped or cut off, {joined} joined, seed {options.seed}: each sample was "
      "used once an epoch" + (f"; accuracies {min(accuracies):.3f} to {max(accuracies):.3f}, {undisturbed:.3f} without faults"
                              if accuracies else ""))
