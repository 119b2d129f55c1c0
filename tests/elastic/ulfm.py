#!/usr/bin/env python3
"""Elastic jobs under Open MPI with ULFM whose ranks are killed while others join: the rest are connected anew by shrinking
what MPI had connected, those that join are connected to it, and all end well with the same state.

usage: ulfm.py [kill|join|replace|door] --program PATH [--ranks 3] [--rounds 5] [--transport mpi|tcp|both] [--seed S]
               [--first I] [--victims 0,1]                                              (test_elastic_worker)
  kill     one or two ranks die by SIGKILL at a random moment, the second perhaps during the recovery from the first. Where
           two die and only they had committed the last step, the others may end with 14, all of them: that is counted.
           With --victims it is these, in this order
  join     one or two processes join
  replace  a rank dies, and a process joins at nearly the same time
  door     a process joins, and dies by SIGKILL at a random moment of that. Where MPI is left waiting for it the others go on
           without MPI: that is counted

The time is that from the first kill to the end of the first step that the last survivor has done without the killed ones.
With both transports the rounds of one and the other take turns.
"""
import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "comm"))
from ulfm_job import Job, arguments_of, run_rounds, skip_without_ulfm  # noqa: E402

parser = arguments_of(__doc__, 5)
parser.add_argument("what", choices=["kill", "join", "replace", "door"], nargs="?", default="kill")
parser.add_argument("--transport", choices=["mpi", "tcp", "both"], default="mpi")
parser.add_argument("--victims", help="ranks, separated by commas")
options = parser.parse_args()
skip_without_ulfm()
TRANSPORTS = ["mpi", "tcp"] if options.transport == "both" else [options.transport]
EPOCHS = 5 if options.what == "kill" else 25  # of 10 steps of 10 ms: those that join start MPI first


class Round:
    """One job and what is done to it."""

    def __init__(self, number, transport):
        self.draw = random.Random(f"{options.seed}.{number}")
        words = f"--samples 500 --batch 50 --epochs {EPOCHS} --values 200000 --steps --patience 30 --transport {transport}"
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
        if options.what in ("join", "door"):
            for _ in range(self.draw.randint(1, 2) if options.what == "join" else 1):
                self.job.join()
        if options.what == "replace":
            self.job.join()
            time.sleep(self.draw.choice([0, 0.5]) + 0.5 * self.draw.random())
            self.kill(str(self.draw.randrange(options.ranks)))

    def kill(self, who):
        if self.when is None:
            self.when = time.monotonic_ns()
        self.killed.append(who)
        try:
            os.kill(self.pids[who], signal.SIGKILL)
        except ProcessLookupError:
            raise RuntimeError(f"{who} ended before it was killed:\n{self.job.tail()}") from None

    def hear(self, who, word, rest):
        if word == "pid":
            self.pids[who] = int(rest)
            if options.what == "door" and who.startswith("joiner"):
                time.sleep(self.draw.choice([0.3, 1]) * self.draw.random())
                self.kill(who)
        elif word == "ready":
            self.ready.add(who)
            if self.ready >= {str(rank) for rank in range(options.ranks)} and not self.began:
                self.began = True
                self.act()
        elif word == "status":
            self.ends[who] = int(rest)
        elif word == "done":
            self.done[who] = tuple(rest.split()[:2])
        elif word == "wrong":
            raise RuntimeError(f"{who}: a wrong result: {rest}")
        elif word == "step":
            _, _, size, at = (int(text) for text in rest.split())
            self.sizes[size] = self.sizes.get(size, 0) + 1
            if self.when is not None and size == options.ranks - len(self.killed) and at > self.when:
                self.steps.setdefault(who, at)

    def run(self):
        """Seconds from the kill to the first step without the victims; nothing when their state was lost with them."""
        try:
            for said in self.job.events():
                self.hear(*said)
        finally:
            self.job.close()
        everybody = {str(rank) for rank in range(options.ranks)} | {f"joiner{j}" for j in range(self.job.joined)}
        left = everybody - set(self.killed)
        if len(self.killed) > 1 and all(self.ends.get(who) == 14 for who in left):
            return None
        wrong = [who for who in left if self.ends.get(who) != 0 or who not in self.done]
        if wrong or len(set(self.done.values())) != 1 or any(self.ends.get(who) != 137 for who in self.killed):
            raise RuntimeError(f"{self.killed} were killed, {self.job.joined} joined; all end with {self.ends}, "
                               f"{self.done}:\n{self.job.tail()}")
        if options.what == "kill":
            if len(self.steps) != len(left):
                raise RuntimeError(f"{self.killed} were killed; steps without them by {self.steps}:\n{self.job.tail()}")
            return (max(self.steps.values()) - self.when) * 1e-9
        if options.what == "join" and not self.sizes.get(options.ranks + self.job.joined):
            raise RuntimeError(f"steps were done by {self.sizes}; {self.job.joined} joined:\n{self.job.tail()}")
        if options.what == "replace" and "joiner0" not in self.done:
            raise RuntimeError(f"who joined did not train:\n{self.job.tail()}")
        return 0.0


def quantile(times, share):
    return times[min(len(times) - 1, int(len(times) * share))] * 1e3


print(f"seed {options.seed}, rounds {options.first} to {options.first + options.rounds - 1}, {options.ranks} ranks over "
      f"{' and '.join(TRANSPORTS)}", flush=True)
kills = dict.fromkeys(TRANSPORTS, 0)
lost = []  # whether MPI was, in each round


def one_round(number):
    """Per transport."""
    times = {}
    for transport in TRANSPORTS:
        turn = Round(number, transport)
        times[transport] = turn.run()
        kills[transport] += len(turn.killed)
        span = times[transport]
        lost.append("goes on without MPI" in turn.job.tail())
        print(f"round {number} over {transport}: {', '.join(turn.killed) or 'nobody'} killed, {turn.job.joined} joined"
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
else:
    print(f"{len(results)} rounds, {sum(kills.values())} kills; {sum(lost)} went on without MPI")
