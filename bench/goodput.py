#!/usr/bin/env python3
"""Measures the training rate of a job while ranks die, stop and join: samples per second and live rank, relative to the
same job without a fault.

usage: goodput.py [--build build/release] [--seconds 1800] [--interval 15] [--ranks 8] [--modes allreduce,ps]
                  [--peers torchrun,torchft,torchft-muster --torch PYTHON] [--seed 1] [--json FILE]

Each job trains a small network on samples of --sample-time milliseconds each, in which a rank waits: 8 ranks fit on two processors. Its
length is the number of epochs that --ranks ranks train in --seconds. Every --interval seconds there is a fault: in turn a rank
is lost, by SIGKILL or by a permanent SIGSTOP as drawn from the seed, and another process joins. A rank is live from its process's start
to its loss. In a torchrun job torchrun itself restarts the lost process at once, so all its ranks are always live. A job of mode ps has two servers with a replica, without faults.

The model has an element for each sample, which counts its uses. A missing use is a lost sample, a use above one an epoch is doubled, and
neither is counted in the table. The jobs of a system with and without faults run at the same time, so that other load on the
machine affects both. A job of a peer that takes more than twice the time is ended; its saved or committed samples count.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

PEER = pathlib.Path(__file__).resolve().parent / "peers/goodput_torch.py"
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
parser.add_argument("--seconds", type=float, default=1800)
parser.add_argument("--interval", type=float, default=15)
parser.add_argument("--ranks", type=int, default=8)
parser.add_argument("--modes", default="allreduce,ps")
parser.add_argument("--peers", default="", help="torchrun, torchft, torchft-muster; their scripts are in bench/peers")
parser.add_argument("--torch", default=sys.executable, help="a Python that has the peers")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--samples", type=int, default=20480, help="of an epoch; a multiple of the global batch")
parser.add_argument("--batch", type=int, default=32, help="of a rank")
parser.add_argument("--sample-time", type=float, default=1, help="milliseconds")
parser.add_argument("--json", type=pathlib.Path)
options = parser.parse_args()
epochs = max(1, round(options.ranks * options.seconds * 1000 / options.sample_time / options.samples))
WORDS = ["--samples", options.samples, "--epochs", epochs, "--batch", options.ranks * options.batch, "--hidden", 32, "--sample-time",
         options.sample_time]
SERVERS = 2
LEASE = 5  # seconds after which a stopped worker has lost its lease; the peers wait the same time for a stopped rank


class Process:
    """A process that a job has started, and its output."""

    def __init__(self, words, **environment):
        self.begun = self.lost = None
        self.says, self.rest = [], b""
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen([str(word) for word in words], env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.errors)
        self.started = time.monotonic()
        self.pid = self.process.pid
        os.set_blocking(self.process.stdout.fileno(), False)

    def listen(self):
        """Reads the lines since the last call."""
        *lines, self.rest = (self.rest + (self.process.stdout.read() or b"")).split(b"\n")
        fresh = [line.decode() for line in lines]
        self.says += fresh
        if self.begun is None and any(line.startswith("begins") for line in fresh):
            self.begun = time.monotonic()
        return fresh

    def is_over(self):
        return self.process.poll() is not None

    def close(self):
        if not self.is_over():
            self.process.kill()
        self.process.wait()
        self.listen()
        self.process.stdout.close()


class Muster:
    """Ranks with a separate muster-store, so that any rank may die."""

    def __init__(self, mode, folder):
        self.mode, self.joins = mode, True
        self.name = os.path.basename(folder)
        self.beside = [Process([options.build / "src/programs/muster-store", "--listen", "127.0.0.1:0"])]
        while not self.beside[0].listen():
            time.sleep(0.01)
        self.store = "tcp://" + self.beside[0].says[0].split()[-1]
        self.workers = []
        self.all = options.ranks + (0 if mode == "allreduce" else SERVERS)
        for rank in range(options.ranks):
            self.join(rank)
        self.beside += [self.start(rank) for rank in range(options.ranks, self.all)]

    def start(self, rank):
        variables = {} if self.mode == "allreduce" else {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(self.all)}
        words = [] if self.mode == "allreduce" else ["--servers", SERVERS, "--timeout", LEASE]
        return Process([options.build / "tests/train/test_leased", "--mode", self.mode, *words, *WORDS], RANK=str(rank),
                       WORLD_SIZE=str(self.all), MUSTER_RENDEZVOUS=self.store, MUSTER_JOB=self.name, MUSTER_ELASTIC="on", **variables)

    def join(self, rank=None):
        self.workers.append(self.start(options.ranks - 1 if rank is None else rank))

    def lose(self, draw, signal_number):
        victim = draw.choice([worker for worker in self.workers if worker.lost is None and worker.begun and not worker.is_over()] or [None])
        if victim is None:
            return  # the processes end at this moment
        victim.lost = time.monotonic()
        os.kill(victim.pid, signal_number)

    def live_seconds(self, begin, end):
        return sum(max(0, (worker.lost or end) - max(begin, worker.started)) for worker in self.workers)


class TorchFT(Muster):
    """Replica groups with one process each, and a lighthouse."""
    what = "torchft"

    def __init__(self, mode, folder):
        self.joins, self.workers = True, []
        self.beside = [Process([options.torch, PEER, "lighthouse"])]
        while not self.beside[0].says:
            self.beside[0].listen()
            time.sleep(0.05)
        for _ in range(options.ranks):
            self.join()

    def join(self):
        self.workers.append(Process([options.torch, PEER, self.what, options.ranks, *WORDS],
                                    REPLICA=str(len(self.workers)), TORCHFT_LIGHTHOUSE=self.beside[0].says[0].split()[-1]))


class TorchFTOverMuster(TorchFT):
    """The same with the backend "muster"."""
    what = "torchft-muster"


class Torchrun:
    """An agent that restarts all ranks from the last checkpoint when a rank fails."""
    joins = False

    def __init__(self, mode, folder):
        self.workers = [Process([options.torch, PEER, "torchrun", options.ranks, folder, *WORDS])]
        self.beside = []

    def lose(self, draw, signal_number):
        # The processes that began last.
        pids = [int(line.split()[-1]) for line in self.workers[0].says if line.startswith("begins")][-options.ranks:]
        try:
            os.kill(draw.choice(pids), signal_number)
        except ProcessLookupError:
            pass  # it restarts at this moment

    def live_seconds(self, begin, end):
        return options.ranks * (end - begin)


def run(system, mode, with_faults):
    """Returns the trained samples and the time of a job; fails if the job does not end."""
    draw = random.Random(options.seed)
    faults = {"SIGKILL": 0, "SIGSTOP": 0, "join": 0}
    with tempfile.TemporaryDirectory(prefix="muster-goodput-") as folder:
        job = system(mode, folder)
        try:
            ready_by = time.monotonic() + 120
            while sum(line.startswith("begins") for worker in job.workers for line in worker.says) < options.ranks:
                for worker in job.workers:
                    worker.listen()
                if time.monotonic() > ready_by or all(worker.is_over() for worker in job.workers):
                    return problem(job, "it does not begin")
                time.sleep(0.01)
            begin = time.monotonic()
            due, missing, summary = begin + options.interval, 0, None
            while summary is None:
                for worker in job.workers:
                    summary = summary or next((line for line in worker.listen() if re.match(r"each sample was|\d+ samples were", line)), None)
                now = time.monotonic()
                if now > begin + 2 * options.seconds + 60:
                    saved = [int(line.split()[-1]) for worker in job.workers for line in worker.says if line.startswith("saved")]
                    if not saved:
                        return problem(job, "it is not over")
                    summary = f"0 uses lost, 0 doubled, {options.samples * epochs - max(saved)} left"
                if all(worker.is_over() for worker in job.workers) and summary is None:
                    return problem(job, "its ranks have ended early")
                if with_faults and now >= due:
                    if missing % 2 and job.joins:
                        job.join()
                        faults["join"] += 1
                        missing = 0
                    else:
                        signal_name = draw.choice(["SIGKILL", "SIGSTOP"])
                        job.lose(draw, getattr(signal, signal_name))
                        faults[signal_name] += 1
                        missing += 1
                    due += options.interval
                time.sleep(0.005)
            end = time.monotonic()
        finally:
            for worker in job.workers + job.beside:
                worker.close()
    wrong = re.search(r"([\d.]+) uses lost, ([\d.]+) doubled(?:, (\d+) left)?", summary)
    lost, doubled, left = (float(word or 0) for word in wrong.groups()) if wrong else (0.0, 0.0, 0.0)
    return {**faults, "seconds": end - begin, "live_rank_seconds": job.live_seconds(begin, end), "samples": options.samples * epochs - lost - left,
            "lost": lost, "doubled": doubled}


def problem(job, message):
    for member in job.workers + job.beside:
        member.errors.seek(0)
    tail = [f"{member.pid} {member.process.poll()} {member.says[-2:]} {member.errors.read()[-600:].decode()}" for member in job.workers]
    print("\n".join(tail), file=sys.stderr)
    return {"problem": message}


systems = [(f"muster, {mode}", Muster, mode) for mode in options.modes.split(",") if mode]
systems += [(name, {"torchrun": Torchrun, "torchft": TorchFT, "torchft-muster": TorchFTOverMuster}[name], "allreduce") for name in options.peers.split(",") if name]
print(f"| {options.ranks} ranks, {epochs} epochs of {options.samples} samples, a fault every {options.interval:g} s, seed {options.seed} | "
      "kills, stops, joins | samples in a live rank-second: without faults | with | share | lost | doubled |\n|---|---|---|---|---|---|---|")
rows = []
for name, system, mode in systems:
    with concurrent.futures.ThreadPoolExecutor() as both:
        quiet, disturbed = both.map(lambda with_faults: run(system, mode, with_faults), (False, True))
    rows.append({"system": name, "quiet": quiet, "disturbed": disturbed})
    wrong = quiet.get("problem") or disturbed.get("problem")
    if wrong:
        print(f"| {name} | {wrong} | | | | | |", flush=True)
        continue
    rates = [one["samples"] / one["live_rank_seconds"] for one in (quiet, disturbed)]
    print(f"| {name} | {', '.join(str(disturbed[what]) for what in ('SIGKILL', 'SIGSTOP', 'join'))} | {rates[0]:.1f} | {rates[1]:.1f} | "
          f"{100 * rates[1] / rates[0]:.1f} % | {disturbed['lost']:.0f} | {disturbed['doubled']:.0f} |", flush=True)
if options.json:
    options.json.write_text(json.dumps({"options": {key: str(value) for key, value in vars(options).items()}, "rows": rows}, indent=1))
