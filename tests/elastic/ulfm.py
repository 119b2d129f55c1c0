#!/usr/bin/env python3
"""Elastic jobs under Open MPI with ULFM whose ranks are killed: the other ranks connect again by shrinking MPI's world, and
all end with 0 and the same state.

usage: ulfm.py [kill|refuse|late] --program PATH [--ranks 3] [--rounds 5] [--transport mpi|tcp|both] [--seed S]
               [--first I] [--victims 0,1]                                              (test_elastic_worker)
  kill     one or two ranks die by SIGKILL at a random moment, the second perhaps during the recovery from the first. If
           two ranks die and only these had committed the last step, the others may all end with 14, which is counted.
           --victims selects the ranks and their order
  refuse   a process of another mpirun tries to join: it ends with one line that explains the refusal, and the ranks continue
  late     a rank starts after more than half the quorum timeout: the others wait in MPI_Init, before any rank is a member

The printed time lasts from the first kill until the last survivor has finished its first step without the killed ranks.
With both transports the rounds alternate.
"""
import os
import random
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "comm"))
from ulfm_job import Job, arguments_of, run_rounds, skip_without_ulfm  # noqa: E402

parser = arguments_of(__doc__, 5)
parser.add_argument("what", choices=["kill", "refuse", "late"], nargs="?", default="kill")
parser.add_argument("--transport", choices=["mpi", "tcp", "both"], default="mpi")
parser.add_argument("--victims", help="ranks, separated by commas")
options = parser.parse_args()
skip_without_ulfm()
TRANSPORTS = ["mpi", "tcp"] if options.transport == "both" else [options.transport]
EPOCHS = 25 if options.what == "refuse" else 5  # 10 steps of 10 ms each: the joining process has to start MPI first
GUEST = "guest"
PATIENCE = 4 if options.what == "late" else 30


class Round:
    """A job and its faults."""

    def __init__(self, number, transport):
        self.draw = random.Random(f"{options.seed}.{number}")
        words = f"--samples 500 --batch 50 --epochs {EPOCHS} --values 200000 --steps --quorum-timeout {PATIENCE} --transport {transport}"
        self.job = Job(options.ranks, [options.program, *words.split()],
                       {"MUSTER_ELASTIC": "on", "MUSTER_JOB": f"ulfm-{os.getpid()}-{number}-{transport}",
                        "MUSTER_RENDEZVOUS": "file:FOLDER"}, limit=150)
        self.pids, self.ready, self.when = {}, set(), None
        self.killed = []
        self.steps, self.ends, self.done, self.sizes = {}, {}, {}, {}
        self.began = False

    def act(self):
        if options.what == "kill":
            time.sleep(0.2 * self.draw.random())
            drawn = self.draw.sample(range(options.ranks), self.draw.randint(1, 2))
            for victim in options.victims.split(",") if options.victims else drawn:
                self.kill(str(victim))
                time.sleep(self.draw.choice([0, 0.005, 0.03]))
        if options.what == "refuse":
            self.job.add(GUEST)

    def kill(self, rank):
        if self.when is None:
            self.when = time.monotonic_ns()
        self.killed.append(rank)
        try:
            os.kill(self.pids[rank], signal.SIGKILL)
        except ProcessLookupError:
            raise RuntimeError(f"{rank} ended before it was killed:\n{self.job.tail()}") from None

    def hear(self, rank, word, rest):
        if word == "pid":
            self.pids[rank] = int(rest)
            if options.what == "late" and rank == "1":
                os.kill(self.pids[rank], signal.SIGSTOP)
                threading.Timer(PATIENCE * 0.75, os.kill, [self.pids[rank], signal.SIGCONT]).start()
        elif word == "ready":
            self.ready.add(rank)
            if self.ready >= {str(rank) for rank in range(options.ranks)} and not self.began:
                self.began = True
                self.act()
        elif word == "status":
            self.ends[rank] = int(rest)
        elif word == "done":
            self.done[rank] = tuple(rest.split()[:2])
        elif word == "wrong":
            raise RuntimeError(f"{rank}: a wrong result: {rest}")
        elif word == "step":
            _, _, size, at = (int(text) for text in rest.split())
            self.sizes[size] = self.sizes.get(size, 0) + 1
            if self.when is not None and size == options.ranks - len(self.killed) and at > self.when:
                self.steps.setdefault(rank, at)

    def says(self, rank, text):
        return any(one == rank and text in rest for one, _, rest in self.job.lines)

    def run(self):
        """Returns the seconds from the kill to the first step without the victims; None if the state was lost with the victims."""
        try:
            for said in self.job.events():
                self.hear(*said)
        finally:
            self.job.close()
        left = {str(rank) for rank in range(options.ranks)} - set(self.killed)
        if len(self.killed) > 1 and all(self.ends.get(rank) == 14 for rank in left):
            return None
        wrong = [rank for rank in left if self.ends.get(rank) != 0 or rank not in self.done]
        if wrong or len(set(self.done.values())) != 1 or any(self.ends.get(rank) != 137 for rank in self.killed):
            raise RuntimeError(f"{self.killed} were killed; all end with {self.ends}, {self.done}:\n{self.job.tail()}")
        if options.what == "kill":
            if len(self.steps) != len(left):
                raise RuntimeError(f"{self.killed} were killed; steps without them by {self.steps}:\n{self.job.tail()}")
            return (max(self.steps.values()) - self.when) * 1e-9
        if options.what == "refuse" and (self.ends.get(GUEST) != 2 or not self.says(GUEST, "cannot join the job over "
                                         "transport mpi") or set(self.sizes) != {options.ranks}):
            raise RuntimeError(f"{GUEST} was not refused; steps were done by {self.sizes}:\n{self.job.tail()}")
        if options.what == "late" and set(self.sizes) != {options.ranks}:
            raise RuntimeError(f"steps were done by {self.sizes}:\n{self.job.tail()}")
        return 0.0


def quantile(times, share):
    return times[min(len(times) - 1, int(len(times) * share))] * 1e3


print(f"seed {options.seed}, rounds {options.first} to {options.first + options.rounds - 1}, {options.ranks} ranks over "
      f"{' and '.join(TRANSPORTS)}", flush=True)
kills = dict.fromkeys(TRANSPORTS, 0)


def one_round(number):
    """Runs a round over each transport and returns the times by transport."""
    times = {}
    for transport in TRANSPORTS:
        turn = Round(number, transport)
        times[transport] = turn.run()
        kills[transport] += len(turn.killed)
        span = times[transport]
        print(f"round {number} over {transport}: {', '.join(turn.killed) or 'no rank'} killed"
              + (f", {span * 1e3:.0f} ms" if span else ""), flush=True)
    return times


results = run_rounds(options, one_round)
if options.what == "kill":
    print("| ranks | over | rounds | kills | state died with its ranks | p50 | p95 | max |\n|---|---|---|---|---|---|---|---|")
    for transport in TRANSPORTS:
        all_times = [result[transport] for result in results]
        known = sorted(span for span in all_times if span is not None)
        print(f"| {options.ranks} | {transport} | {len(all_times)} | {kills[transport]} | {all_times.count(None)} | "
              f"{quantile(known, 0.5):.0f} ms | {quantile(known, 0.95):.0f} ms | {known[-1] * 1e3:.0f} ms |")
