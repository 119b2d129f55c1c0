#!/usr/bin/env python3
"""Injects faults into the processes of a job with a parameter server, and checks that all its pushes add up.
The test starts its own muster-store, so that any rank may die.

usage: faults.py WHAT --program PATH --store-program PATH [--transport tcp|shm] [--colocated] [--save] [--rounds N] [--seed S]

WHAT: server, worker, both: killed; stop: a server is stopped and continued; scale: servers join and leave as the program
requests; move: as scale, and one is killed meanwhile; strangers: garbage arrives at every port; break: connections between
two ranks end repeatedly, and all ranks live on; any: each round draws among all faults.
--colocated: each rank serves and works. --save: the faults happen while all workers save their tables repeatedly; the last
save is complete.
"""
import argparse
import ctypes
import errno
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

from waiting import wait_for

WHATS = ["server", "worker", "both", "stop", "scale", "move", "strangers", "break"]
LIMIT = 60
SKIP = 77
parser = argparse.ArgumentParser()
parser.add_argument("what", choices=[*WHATS, "any"])
parser.add_argument("--transport", choices=["tcp", "shm"], default="tcp")
parser.add_argument("--program", required=True)
parser.add_argument("--store-program", required=True)
parser.add_argument("--colocated", action="store_true")
parser.add_argument("--save", action="store_true")
parser.add_argument("--rounds", type=int, default=1)
parser.add_argument("--seed", type=int, default=int(time.time()))
parser.add_argument("--steps", type=int, default=400)
options = parser.parse_args()


class Shape:
    """The parameters of a round."""

    def __init__(self, draw):
        self.what, self.transport = options.what, options.transport
        self.colocated, self.save = options.colocated, options.save
        if self.what == "any":
            self.what, self.transport = draw.choice(WHATS), draw.choice(["tcp", "shm"])
            if self.what in ("strangers", "break"):
                self.transport = "tcp"
            self.save = draw.random() < 0.3
            self.colocated = not self.save and self.what in ("server", "stop", "strangers") and draw.random() < 0.4
        self.workers, self.servers = (4, 0) if self.colocated else (2, 3)
        self.standby = 2 if self.what in ("scale", "move") else 0
        self.ranks = self.workers + self.servers + self.standby

    def __str__(self):
        words = [word for word in ("colocated", "save") if getattr(self, word)]
        return " ".join([self.what, self.transport, *words])

    def words(self, folder):
        return ["--servers", "colocated" if self.colocated else str(self.servers), "--standby", str(self.standby), "--replicas", "1",
                *(["--save", folder + "/tables"] if self.save else ["--until", folder + "/enough"])]


class Rank:
    def __init__(self, rank, shape, folder, store, more):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(shape.ranks),
                       "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(shape.ranks),
                       "MUSTER_RENDEZVOUS": store, "MUSTER_JOB": os.path.basename(folder),
                       "MUSTER_TRANSPORT": shape.transport, "MUSTER_MISSED_HEARTBEATS": "20"}
        self.rank = rank
        self.serves = rank >= shape.workers
        self.says = ""
        self.harmed = False
        self.process = subprocess.Popen(
            [options.program, "--steps", str(options.steps), *shape.words(folder), *more],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        os.set_blocking(self.process.stdout.fileno(), False)

    def listen(self):
        self.says += (self.process.stdout.read() or b"").decode()


LISTENS, STANDS = "0A", "01"


def sockets_of(process, state):
    """Returns (descriptor, own address, peer address) for each TCP socket in that state; addresses in the format of /proc."""
    descriptors = {}
    for entry in os.listdir(f"/proc/{process.pid}/fd"):
        try:
            link = os.readlink(f"/proc/{process.pid}/fd/{entry}")
        except OSError:
            continue
        if link.startswith("socket:["):
            descriptors[link[8:-1]] = int(entry)
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not os.path.exists(table):
            continue
        for line in open(table).read().splitlines()[1:]:
            words = line.split()
            if words[3] == state and words[9] in descriptors:
                found.append((descriptors[words[9]], words[1], words[2]))
    return found


def break_connections(draw, ranks):
    """Ends a connection between two ranks, or all connections, as if a network device had dropped its state."""
    rank, peer = draw.sample(ranks, 2)
    ends = {own for _, own, _ in sockets_of(peer.process, STANDS)}
    between = [descriptor for descriptor, _, there in sockets_of(rank.process, STANDS) if there in ends]
    if not between:
        return 0
    process = os.pidfd_open(rank.process.pid)
    chosen = between if draw.random() < 0.3 else [draw.choice(between)]
    for descriptor in chosen:
        pidfd_getfd = 438
        copy = ctypes.CDLL(None, use_errno=True).syscall(pidfd_getfd, process, descriptor, 0)
        if copy < 0 and ctypes.get_errno() == errno.EBADF:  # the process has just ended
            continue
        if copy < 0:
            print(f"skipped: no connection of another process can be ended here ({os.strerror(ctypes.get_errno())})")
            sys.exit(SKIP)
        with socket.socket(fileno=copy) as connection:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the connection has ended
    os.close(process)
    return len(between)


def bother(draw, ranks):
    """Connects strangers to all ports: some send nothing, some garbage, some the beginning of a frame."""
    strangers, ports = [], 0
    for rank in ranks:
        for _, own, _ in sockets_of(rank.process, LISTENS):
            port = int(own.split(":")[1], 16)
            ports += 1
            for _ in range(5):
                stranger = socket.socket()
                stranger.settimeout(2)
                try:
                    stranger.connect(("127.0.0.1", port))
                    stranger.sendall([b"", draw.randbytes(draw.randrange(1, 5000)), b"mrsp" + draw.randbytes(60),
                                      b"GET / HTTP/1.1\r\n\r\n"][draw.randrange(4)])
                except OSError:
                    pass  # the rank closed the connection
                if draw.random() < 0.5:
                    strangers.append(stranger)
                else:
                    stranger.close()
    if ports == 0:
        sys.exit("no rank listens anywhere: nothing is tested")
    crowd = [socket.socket() for _ in range(150)]  # more pending connections than a listener accepts, and none sends a byte
    for stranger in crowd:
        stranger.setblocking(False)
        stranger.connect_ex(("127.0.0.1", port))
    return strangers + crowd


def play(draw, shape, folder, store):
    more = []
    if shape.standby > 0:  # a server may die, and two servers keep all copies
        most = shape.servers + shape.standby + (shape.what == "scale")
        targets = [draw.randrange(2, most) for _ in range(4)]
        more = ["--scale", ",".join(map(str, targets))]
    ranks = [Rank(rank, shape, folder, store, more) for rank in range(shape.ranks)]
    try:
        until = time.monotonic() + LIMIT
        started = lambda: all("ready" in rank.says or rank.process.poll() is not None for rank in ranks)
        if not wait_for(ranks, started, until):
            return ranks, "the job does not begin"
        awaited = "scales to" if shape.what == "move" else "saves" if shape.save else ""
        if not wait_for(ranks, lambda: awaited in ranks[0].says, until):
            return ranks, f"no worker {awaited}"
        time.sleep(draw.uniform(0, 0.15))
        server = draw.choice(ranks if shape.colocated else ranks[shape.workers:])
        worker = ranks[draw.randrange(shape.workers)]
        harmed = {"worker": [worker], "both": [server, worker], "scale": [], "strangers": [],
                  "break": []}.get(shape.what, [server])
        for rank in harmed:
            rank.harmed = True
            rank.process.send_signal(signal.SIGSTOP if shape.what == "stop" else signal.SIGKILL)
        if shape.what == "strangers":
            strangers = bother(draw, ranks)  # noqa: F841: the connections stay open
        if shape.what == "break":
            broken = 0
            for _ in range(draw.randrange(1, 6)):
                if all(rank.process.poll() is None for rank in ranks):
                    broken += break_connections(draw, ranks)
                wait_for(ranks, lambda: False, time.monotonic() + draw.choice([0, 0.02, 0.5]))
            if broken == 0:
                return ranks, "no two ranks have a connection: nothing is tested"
        if shape.what == "stop":
            wait_for(ranks, lambda: False, time.monotonic() + draw.uniform(0.2, 3.2))
            server.process.send_signal(signal.SIGCONT)
        open(folder + "/enough", "w").close()  # the fault happened during training, and the job may end now
        if not wait_for(ranks, lambda: all(rank.process.poll() is not None for rank in ranks), until):
            return ranks, f"it hangs: {[rank.rank for rank in ranks if rank.process.poll() is None]} are still there"
        if shape.save and shape.what in ("server", "scale", "strangers") and "not looked at" in ranks[0].says:
            return ranks, "no worker died, and yet they do not meet"
        for rank in ranks:
            rank.listen()
            works = "step 0" in rank.says  # a killed worker may have finished no step
            if rank.serves and works or not rank.serves and not works and not rank.harmed:
                return ranks, f"rank {rank.rank} does not do what it should: work or serve"
            if not rank.harmed and (rank.process.returncode != 0 or "done" not in rank.says):
                return ranks, f"rank {rank.rank} ends with {rank.process.returncode}"
            if not rank.serves and not rank.harmed and "all counts" not in rank.says:
                return ranks, f"worker {rank.rank} does not say that all counts"
        if shape.what in ("scale", "move") and not re.search(r"servers (\d+) of \1\b", ranks[0].says):
            return ranks, "the servers are not as many as the program wanted"
        if shape.what == "stop" and server.process.returncode not in (0, 4):
            return ranks, f"the server that was stopped ends with {server.process.returncode}"
        return ranks, ""
    finally:
        for rank in ranks:
            if rank.process.poll() is None:
                rank.process.kill()
            rank.process.wait()
            rank.listen()


longest = []
for turn in range(options.rounds):
    draw = random.Random(options.seed + turn)
    shape = Shape(draw)
    with tempfile.TemporaryDirectory(prefix="muster-ps-") as folder, subprocess.Popen(
            [options.store_program, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True) as serving:
        ranks, problem = play(draw, shape, folder, "tcp://" + serving.stdout.readline().split()[-1])
        serving.kill()
    if problem:
        for rank in ranks:
            print(f"--- rank {rank.rank}{' (harmed)' if rank.harmed else ''}: {rank.process.returncode}\n{rank.says[-1500:]}")
        sys.exit(f"{shape}: {problem} (seed {options.seed + turn}; again: --seed {options.seed + turn} --rounds 1)")
    longest += [float(gap) for rank in ranks for gap in re.findall(r"longest gap ([\d.]+)", rank.says)]
longest = sorted(longest) or [0.0]
print(f"{options.rounds} rounds, seed {options.seed}; longest time without a push that counts: "
      f"median {longest[len(longest) // 2]:.3f} s, worst {longest[-1]:.3f} s")
