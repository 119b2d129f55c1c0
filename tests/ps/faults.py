#!/usr/bin/env python3
"""Does things to the processes of a job with a parameter server, and looks whether all its pushes add up.

usage: faults.py WHAT --transport tcp|shm --program PATH [--colocated] [--recover] [--rounds N] [--seed S]

WHAT: server, worker, both: killed; stop: a server is stopped and continued; scale: servers come and leave as the program
wants; move: and one is killed meanwhile; strangers: garbage comes to every port. --colocated: each rank serves and works.
--recover: no replicas; what a dead server held comes back from its last save and from the workers.
"""
import argparse
import os
import random
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser()
parser.add_argument("what", choices=["server", "worker", "both", "stop", "scale", "move", "strangers"])
parser.add_argument("--transport", required=True)
parser.add_argument("--program", required=True)
parser.add_argument("--colocated", action="store_true")
parser.add_argument("--recover", action="store_true")
parser.add_argument("--rounds", type=int, default=1)
parser.add_argument("--seed", type=int, default=int(time.time()))
parser.add_argument("--steps", type=int, default=400)
options = parser.parse_args()
WORKERS, SERVERS, LIMIT = 2, 3, 60
STANDBY = 2 if options.what in ("scale", "move") else 0
if options.colocated:
    WORKERS, SERVERS = 4, 0
RANKS = WORKERS + SERVERS + STANDBY


class Rank:
    def __init__(self, rank, folder, more):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS),
                       "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(RANKS),
                       "MUSTER_RENDEZVOUS": f"file:{folder}", "MUSTER_JOB": os.path.basename(folder),
                       "MUSTER_TRANSPORT": options.transport}
        self.rank = rank
        self.serves = rank >= WORKERS
        self.says = ""
        self.harmed = False
        self.process = subprocess.Popen(
            [options.program, "--steps", str(options.steps), "--servers", "colocated" if options.colocated else str(SERVERS), "--standby", str(STANDBY),
             *(["--recover", folder + "/saved"] if options.recover else ["--replicas", "1"]), *more],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        os.set_blocking(self.process.stdout.fileno(), False)

    def listen(self):
        self.says += (self.process.stdout.read() or b"").decode()


def wait_for(ranks, holds, until):
    while not holds():
        for one in ranks:
            one.listen()
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def ports_of(process):
    """Where it listens."""
    inodes = set()
    for entry in os.listdir(f"/proc/{process.pid}/fd"):
        try:
            link = os.readlink(f"/proc/{process.pid}/fd/{entry}")
        except OSError:
            continue
        if link.startswith("socket:["):
            inodes.add(link[8:-1])
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not os.path.exists(table):
            continue
        for line in open(table).read().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                found.append(int(words[1].split(":")[1], 16))
    return found


def bother(draw, ranks):
    """Strangers come to all ports: some say nothing, some garbage, some what begins like a frame."""
    open_ones, ports = [], 0
    for one in ranks:
        for port in ports_of(one.process):
            ports += 1
            for _ in range(5):
                stranger = socket.socket()
                stranger.settimeout(2)
                try:
                    stranger.connect(("127.0.0.1", port))
                    stranger.sendall([b"", draw.randbytes(draw.randrange(1, 5000)), b"mrsp" + draw.randbytes(60),
                                      b"GET / HTTP/1.1\r\n\r\n"][draw.randrange(4)])
                except OSError:
                    pass  # it was shown out
                if draw.random() < 0.5:
                    open_ones.append(stranger)
                else:
                    stranger.close()
    if ports == 0:
        sys.exit("no rank listens anywhere: nothing is tested")
    return open_ones


def play(draw, folder):
    more = []
    if STANDBY > 0:  # one of them may die, and two keep all copies
        wanted = [draw.randrange(2, SERVERS + STANDBY + (options.what == "scale")) for _ in range(4)]
        more = ["--scale", ",".join(map(str, wanted))]
    ranks = [Rank(rank, folder, more) for rank in range(RANKS)]
    try:
        until = time.monotonic() + LIMIT
        begun = lambda: all("ready" in one.says or one.process.poll() is not None for one in ranks)
        if not wait_for(ranks, begun, until):
            return ranks, "the job does not begin"
        awaited = "scales to" if options.what == "move" else ""
        if not wait_for(ranks, lambda: awaited in ranks[0].says, until):
            return ranks, f"no worker {awaited}"
        time.sleep(draw.uniform(0, 0.15))
        server = draw.choice(ranks if options.colocated else ranks[WORKERS:])
        worker = ranks[draw.randrange(WORKERS)]
        harmed = {"worker": [worker], "both": [server, worker], "scale": [], "strangers": []}.get(options.what, [server])
        for one in harmed:
            one.harmed = True
            one.process.send_signal(signal.SIGSTOP if options.what == "stop" else signal.SIGKILL)
        if options.what == "strangers":
            strangers = bother(draw, ranks)  # noqa: F841: they stay
        if options.what == "stop":
            wait_for(ranks, lambda: False, time.monotonic() + draw.uniform(0.2, 2.5))
            server.process.send_signal(signal.SIGCONT)
        if not wait_for(ranks, lambda: all(one.process.poll() is not None for one in ranks), until):
            return ranks, f"it hangs: {[one.rank for one in ranks if one.process.poll() is None]} are still there"
        for one in ranks:
            one.listen()
            if one.serves == ("step 0" in one.says):
                return ranks, f"rank {one.rank} does not do what it should: work or serve"
            if not one.harmed and (one.process.returncode != 0 or "done" not in one.says):
                return ranks, f"rank {one.rank} ends with {one.process.returncode}"
            if not one.serves and not one.harmed and "all counts" not in one.says:
                return ranks, f"worker {one.rank} does not say that all counts"
        if options.recover and os.path.exists(folder + "/saved") and os.listdir(folder + "/saved"):
            return ranks, f"what was saved stays when the job is over: {os.listdir(folder + '/saved')}"
        if options.what == "scale" and not re.search(r"servers (\d+) of \1\b", ranks[0].says):
            return ranks, "the servers are not as many as the program wanted"
        if options.what == "stop" and server.process.returncode not in (0, 4):
            return ranks, f"the server that was stopped ends with {server.process.returncode}"
        return ranks, ""
    finally:
        for one in ranks:
            if one.process.poll() is None:
                one.process.kill()
            one.process.wait()
            one.listen()


longest = []
for turn in range(options.rounds):
    draw = random.Random(options.seed + turn)
    with tempfile.TemporaryDirectory(prefix="muster-ps-") as folder:
        ranks, problem = play(draw, folder)
    if problem:
        for one in ranks:
            print(f"--- rank {one.rank}{' (harmed)' if one.harmed else ''}: {one.process.returncode}\n{one.says[-1500:]}")
        sys.exit(f"{problem} (seed {options.seed + turn}; again: --seed {options.seed + turn} --rounds 1)")
    longest += [float(gap) for one in ranks for gap in re.findall(r"longest gap ([\d.]+)", one.says)]
longest = sorted(longest) or [0.0]
print(f"{options.rounds} rounds, seed {options.seed}; longest time without a push that counts: "
      f"median {longest[len(longest) // 2]:.3f} s, worst {longest[-1]:.3f} s")
