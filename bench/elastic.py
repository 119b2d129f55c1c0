#!/usr/bin/env python3
"""Measures the pause of an elastic job when a rank dies, stops or joins.

usage: elastic.py --program build/release/tests/elastic/test_elastic_worker [--kills 200] [--stops 10] [--torch PYTHON]
       elastic.py --program ... --idle 10       processor time of the threads beside the ranks' while nothing happens
       elastic.py --program ... --state 500     transfer of so many megabytes to a joining rank, and over a plain connection

muster-store must be in PATH (build/release/src/programs).

Three workers on one host reduce 200,000 floats in each step, besides 10 ms of work. A rank is killed at a random
moment; the time runs from the signal to the end of the first step that all survivors have done without it. Then another
process is started, and the time runs from its start to its first step. For the other ranks the pause is the longest time
between two steps around that moment, minus the usual time. Each time is the slowest rank's.

With --torch (a Python with PyTorch), torchrun's time from the kill of a worker (three in all) to the first step after its
restart is measured in the same way, before and after.
"""
import argparse
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tests", "comm"))
from ranks import Failure, Process  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--program", required=True)
parser.add_argument("--kills", type=int, default=200)
parser.add_argument("--stops", type=int, default=10)
parser.add_argument("--idle", type=float, help="seconds")
parser.add_argument("--state", type=float, help="megabytes")
parser.add_argument("--rounds", type=int, default=5, help="of --state")
parser.add_argument("--hosts", choices=["one", "each"], default="one", help="ranks that count as on one host, or not")
parser.add_argument("--json", help="a file for the medians, as Google Benchmark writes its rows")
parser.add_argument("--torch", help="a Python that has PyTorch")
parser.add_argument("--torch-kills", type=int, default=3)
parser.add_argument("--seed", type=int, default=1)
options = parser.parse_args()
draw = random.Random(options.seed)
ENDLESS = "1000000"
rows = []  # for --json


class Worker(Process):
    def __init__(self, job, number, *more):
        host = "auto" if options.hosts == "one" else f"host-{number}"
        environment = dict(RANK=str(min(number, job.ranks - 1)), WORLD_SIZE=str(job.ranks), MUSTER_ELASTIC="on", MUSTER_JOB=job.name,
                           MUSTER_RENDEZVOUS=job.store, MUSTER_HOST=host,
                           MUSTER_LOG_LEVEL="info" if more else "error", MUSTER_LOG_RANKS="all")
        self.started = time.monotonic_ns()
        words = ["--samples", "100000", "--batch", "48", "--epochs", ENDLESS, "--values", "200000", "--work", "10", "--steps",
                 *more]
        super().__init__(number, [options.program, *words], environment)
        self.steps = []  # (generation, ranks, nanoseconds)
        self.taken = 0

    def look(self, until):
        """Reads the worker's output. Returns true if it contains a step."""
        self.read(until)
        for line in self.lines[self.taken:]:
            if line.startswith("wrong"):
                raise Failure(line)
            if line.startswith("step "):
                _, _, generation, ranks, at = line.split(" ")
                self.steps.append((int(generation), int(ranks), int(at)))
        self.taken = len(self.lines)

    def first_after(self, when, ranks):
        """Returns when the worker has done its first step with `ranks` ranks after `when`."""
        until = time.monotonic() + 60
        while True:
            for generation, size, at in self.steps:
                if at > when and size == ranks:
                    return at
            self.look(until)


class Job:
    def __init__(self, ranks=3, *more):
        self.ranks = ranks
        self.more = more
        self.folder = tempfile.mkdtemp(prefix="muster-bench-")
        self.name = f"bench-{os.getpid()}-{time.monotonic_ns()}"
        self.store = f"file:{self.folder}"
        self.count = 0
        self.crew = []
        for _ in range(ranks):
            self.add()

    def add(self):
        self.crew.append(Worker(self, self.count, *self.more))
        self.count += 1
        return self.crew[-1]

    def close(self):
        for worker in self.crew:
            worker.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def row(name, times, goal):
    times = sorted(times)
    if times:
        rows.append({"name": name, "run_type": "iteration", "real_time": statistics.median(times), "time_unit": "ms"})
        half, most = statistics.median(times), times[min(len(times) - 1, len(times) * 95 // 100)]
        print(f"{name:<46} {len(times):5d} {half:9.1f} {most:9.1f} {times[-1]:9.1f}   {goal}", flush=True)


def kills_and_joins(count):
    dead, back, pause = [], [], []
    job = Job()
    try:
        for worker in job.crew:
            worker.expect("ready")
        for _ in range(count):
            time.sleep(0.05 + 0.1 * draw.random())
            victim = draw.choice(job.crew)
            when = time.monotonic_ns()
            os.kill(victim.pid, signal.SIGKILL)
            job.crew.remove(victim)
            dead.append(max(worker.first_after(when, 2) - when for worker in job.crew) * 1e-6)
            victim.close()
            time.sleep(0.1)
            others = list(job.crew)
            joined = job.add()
            back.append((joined.first_after(0, 3) - joined.started) * 1e-6)
            for worker in others:
                worker.first_after(joined.started, 3)
                moments = [at for _, _, at in worker.steps[-30:]]
                gaps = [b - a for a, b in zip(moments, moments[1:])]
                pause.append((max(gaps) - statistics.median(gaps)) * 1e-6)
            for worker in job.crew:
                worker.steps = worker.steps[-50:]
                worker.lines, worker.taken = [], 0
    finally:
        job.close()
    return dead, back, pause


def stops(count):
    times = []
    for _ in range(count):
        job = Job()
        try:
            for worker in job.crew:
                worker.expect("ready")
            time.sleep(0.1 + 0.1 * draw.random())
            victim = draw.choice(job.crew)
            when = time.monotonic_ns()
            os.kill(victim.pid, signal.SIGSTOP)
            times.append(max(worker.first_after(when, 2) - when for worker in job.crew if worker is not victim) * 1e-6)
        finally:
            job.close()
    return times


def idle(span):
    """Returns the microseconds in 10 ms that the threads beside a rank's own use, for each rank."""

    def taken(worker):
        of = f"/proc/{worker.pid}/task"
        total = 0
        for thread in os.listdir(of):
            if int(thread) != worker.pid:
                with open(f"{of}/{thread}/schedstat", encoding="ascii") as times:
                    total += int(times.read().split()[0])
        return total

    job = Job()
    try:
        for worker in job.crew:
            worker.expect("ready")
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            for worker in job.crew:
                worker.look(time.monotonic() + 10)
        before, began = [taken(worker) for worker in job.crew], time.monotonic()
        while time.monotonic() < began + span:
            for worker in job.crew:
                worker.look(time.monotonic() + 10)
                worker.steps, worker.lines, worker.taken = [], [], 0
        spent = time.monotonic() - began
        return [(taken(worker) - was) * 1e-3 / (spent * 100) for worker, was in zip(job.crew, before)]
    finally:
        job.close()


def plain_tcp(size):
    """Returns the seconds to send so many bytes over one connection of this host, from memory to memory."""
    door = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        with socket.create_connection(door.getsockname()) as to:
            to.sendall(bytes(size))
            to.recv(1)
        os._exit(0)
    connection, _ = door.accept()
    memory = memoryview(bytearray(size))
    memory[::4096] = bytes(len(memory[::4096]))  # touches its pages
    at, began = 0, None
    while at < size:
        at += connection.recv_into(memory[at:])
        began = began or time.monotonic()
    took = time.monotonic() - began
    connection.send(b"!")
    os.waitpid(child, 0)
    connection.close()
    door.close()
    return took


def states(megabytes, rounds):
    """Returns for each round: the seconds to send the state to a rank that joins a job with two ranks, the same over a
    plain connection, and the pause of the two ranks."""
    by_us, plain, pause = [], [], []
    options.hosts = "each"
    for _ in range(rounds):
        plain.append(plain_tcp(int(megabytes * 1e6)))
        job = Job(2, "--ballast", str(megabytes))
        try:
            for worker in job.crew:
                worker.expect("ready")
            time.sleep(0.5)
            others = list(job.crew)
            joined = job.add()
            joined.first_after(0, 3)
            for worker in others:
                worker.first_after(time.monotonic_ns(), 3)
                moments = [at for _, _, at in worker.steps]
                gaps = [b - a for a, b in zip(moments, moments[1:])]
                pause.append((max(gaps) - statistics.median(gaps)) * 1e-9)
            for worker in job.crew:
                worker.process.kill()
                worker.end()
            state_line = re.search(r"1 joined.* state ([0-9.]+),", "".join(worker.errors for worker in others))
            if state_line is None:
                raise Failure(f"no member reports the time of the state's copy: {joined.errors}")
            by_us.append(float(state_line.group(1)) * 1e-3)
        finally:
            job.close()
    return by_us, plain, pause


def torchrun(count):
    times = []
    for _ in range(count):
        words = [options.torch, os.path.join(HERE, "peers", "elastic_torch.py"), "launch"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            pids, when, seen = {}, None, 0
            for line in process.stdout:
                words = line.split()
                if words[:1] == ["ready"] and when is None:
                    pids[words[1]] = int(words[2])
                if words[:1] != ["step"]:
                    continue
                seen += 1
                if when is None and len(pids) == 3 and seen > 60:
                    when = time.monotonic_ns()
                    os.kill(draw.choice(list(pids.values())), signal.SIGKILL)
                elif when is not None and int(words[2]) > when + 100_000_000 and words[3] == "1":
                    times.append((int(words[2]) - when) * 1e-6)
                    break
        finally:
            process.terminate()
            process.wait()
    return times


if options.idle is not None:
    for share in idle(options.idle):
        print(f"{share:.1f} us in 10 ms: {share / 100:.2f} %   (goal: 1 %)")
    sys.exit()
if options.state is not None:
    try:
        ours, raw, still = states(options.state, options.rounds)
    except Failure as failure:
        sys.exit(f"failed: {failure}")
    for one, other in zip(ours, raw):
        print(f"state {one:.3f} s, plain connection {other:.3f} s: {other / one:.2f} of its rate")
    print(f"median {statistics.median(raw) / statistics.median(ours):.2f}   (goal: 0.7)")
    print(f"pause that the others see of it: median {statistics.median(still) * 1e3:.0f} ms, at most "
          f"{max(still) * 1e3:.0f} ms   (goal: 100)")
    sys.exit()
try:
    print(f"{'milliseconds':<46} {'n':>5} {'median':>9} {'95 %':>9} {'most':>9}   goal")
    if options.torch:
        row("torchrun: kill -9, first step after", torchrun(options.torch_kills), "")
    dead, back, pause = kills_and_joins(options.kills)
    row("kill -9, first step of the rest", dead, "30, 95 %: 100")
    row("a process started, its first step", back, "200 + its own start")
    row("pause that the others see of it", pause, "100")
    row("SIGSTOP, first step of the rest", stops(options.stops), "1000")
    if options.torch:
        row("torchrun: kill -9, first step after", torchrun(options.torch_kills), "")
    if options.json:
        with open(options.json, "w", encoding="ascii") as file:
            json.dump({"benchmarks": rows}, file)
except Failure as failure:
    sys.exit(f"failed: {failure}")
