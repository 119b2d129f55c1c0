#!/usr/bin/env python3
"""Tests muster-launch as a program: the processes that it starts and restarts, and its exit status.

usage: launch.py --launcher PATH --program PATH   (test_elastic_worker)
"""
import argparse
import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser()
parser.add_argument("--launcher", required=True)
parser.add_argument("--program", required=True)
parser.add_argument("--seed", type=int, default=int(os.environ.get("MUSTER_TEST_SEED", "20261127")))
options = parser.parse_args()
JOB = ["--samples", "500", "--batch", "50", "--epochs", "8", "--values", "1000"]
ENDLESS = [*JOB, "--epochs", "3000", "--until", "ENOUGH"]  # until the test requests the end
FOLDER = tempfile.TemporaryDirectory()


class Run:
    count = 0

    def __init__(self, *words, prepare=None):
        Run.count += 1
        self.enough = f"{FOLDER.name}/{Run.count}"
        self.joined = set()  # processes that have printed "ready"
        words = [self.enough if word == "ENOUGH" else word for word in words]
        self.process = subprocess.Popen([options.launcher, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=prepare)

    def ranks(self, count):
        """Returns the processes of the next `count` ranks that are ready."""
        found = []
        while len(found) < count:
            line = self.process.stdout.readline()
            if not line:
                sys.exit(f"the job ended before {count} ranks were ready: {self.process.stderr.read()}")
            if line.startswith("ready "):
                found.append(int(line.split()[1]))
        self.joined |= set(found)
        return found

    def end(self, status, *says, done=None):
        open(self.enough, "w").close()
        out, err = self.process.communicate(timeout=200)
        problems = [f"ends with {self.process.returncode}, not {status}"] if self.process.returncode != status else []
        problems += [f"does not say '{text}'" for text in says if text not in err]
        if done is not None and out.count("done ") != done:
            problems.append(f"{out.count('done ')} ranks are done, not {done}")
        if problems:
            sys.exit(f"muster-launch {'; '.join(problems)}\n{err}\n{out[-2000:]}")

    def all_join(self):
        """Waits until each running process is a member: a joining process finds no job after the others end."""
        of_job = set(map(int, subprocess.check_output(["pgrep", "-P", str(self.process.pid)]).split()))
        while not of_job <= self.joined:
            self.ranks(1)

    def is_at(self, size):
        """Waits until so many ranks run; the job's output stays unread until the end."""
        until = time.monotonic() + 60
        while ask(self.control, "status") != {"ranks": size, "size": size, "min": 1, "max": 4}:
            if time.monotonic() > until:
                sys.exit(f"the job does not come to {size} ranks (seed {options.seed}): {ask(self.control, 'status')}")
            time.sleep(0.01)


def ask(control, *requests):
    """Sends requests over one connection and returns the reply to the last request."""
    with socket.socket(socket.AF_UNIX) as to:
        to.settimeout(60)
        to.connect(control)
        for request in requests:
            to.sendall(request.encode() + b"\n")
        answers = to.makefile()
        return [json.loads(answers.readline()) for _ in requests][-1]


Run("-n", "3", options.program, *JOB).end(0, done=3)

killed = Run("-n", "3", "--restart", "2", options.program, *ENDLESS)
os.kill(killed.ranks(3)[1], signal.SIGKILL)
killed.ranks(1)
killed.end(0, "was killed by signal 9; it is restarted", "4 processes were started, 1 died, and the job is done", done=3)

# A stopped rank is killed by the other ranks on the same host, and restarted as a new member.
stopped = Run("-n", "3", "--restart", "2", options.program, *ENDLESS)
os.kill(stopped.ranks(3)[1], signal.SIGSTOP)
stopped.ranks(1)
stopped.end(0, "was killed by signal 9; it is restarted", "4 processes were started, 1 died, and the job is done", done=3)

left = Run("-n", "3", options.program, *ENDLESS)
os.kill(left.ranks(3)[0], signal.SIGKILL)
left.end(0, "was killed by signal 9\n", done=2)

more = Run("-n", "2", "--max", "3", options.program, *ENDLESS)
more.ranks(2)
more.process.send_signal(signal.SIGUSR2)
more.ranks(1)
more.end(0, done=3)

# A single process, which others join later.
alone = Run("-n", "1", "--max", "2", options.program, *ENDLESS)
alone.ranks(1)
alone.process.send_signal(signal.SIGUSR2)
alone.ranks(1)
alone.end(0, done=2)

# The control socket: with any requests, each sample is used once (the ranks compare), and a rank that left did not die.
with tempfile.TemporaryDirectory() as place:
    control, draw = f"{place}/control", random.Random(options.seed)
    with socket.socket(socket.AF_UNIX) as before:
        before.bind(control)  # a killed job leaves its socket behind
    steered = Run("-n", "2", "--max", "4", "--restart", "1", "--control", control, options.program, *ENDLESS)
    steered.control = control
    steered.ranks(2)
    if stat.S_IMODE(os.stat(control).st_mode) != 0o600:
        sys.exit("others may use the socket")
    Run("-n", "1", "--control", control, options.program).end(2, "another process listens there")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(control)
        for size in [1, 4, *(draw.randint(1, 4) for _ in range(6))]:
            if ask(control, f"size {size}")["size"] != size:
                sys.exit(f"it is not to have {size} ranks")
            if draw.random() < 0.7:  # otherwise the next request arrives during the change
                steered.is_at(size)
    for wrong in ("size 0", "size 5"):
        if f"size cannot be {wrong[-1]} (it is 1 to 4" not in ask(control, "status", wrong)["error"]:
            sys.exit(f"'{wrong}' is not refused")
    for wrong in ("", "size", "size two", "size 2 ", "stop"):
        if "this is no request" not in ask(control, wrong)["error"]:
            sys.exit(f"'{wrong}' is not refused")
    with socket.socket(socket.AF_UNIX) as endless:
        endless.connect(control)
        endless.sendall(b"x" * 1000)
        try:
            if endless.recv(1) != b"":
                sys.exit("a request without an end is answered")
        except ConnectionResetError:
            pass
    ask(control, "size 3")
    steered.is_at(3)
    steered.all_join()
    steered.end(0, " 0 died, and the job is done", done=3)
    if os.path.exists(control):
        sys.exit("the socket is left behind")
    with open(control, "w", encoding="ascii"):
        Run("-n", "1", "--control", control, options.program).end(2, "a file that is not a socket exists")
    Run("-n", "1", "--control", f"{place}/none/control", options.program).end(2, "No such file or directory")
    Run("-n", "1", "--control", place * 9, options.program).end(2, "1 to 107 bytes")
    Run("-n", "1", "--elastic", "off", "--control", control, options.program).end(2, "do not change")

# A rank that does not leave is killed, and not restarted.
DEAF = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, b"ready %d\\n" % os.getpid())
time.sleep(5 if os.environ["RANK"] == "0" else 60)
"""
with tempfile.TemporaryDirectory() as place:
    control = f"{place}/control"
    stays = Run("-n", "2", "--restart", "1", "--grace", "0.5", "--control", control, sys.executable, "-c", DEAF)
    stays.ranks(2)
    ask(control, "size 1")
    stays.end(0, "was killed by signal 9\n", "2 processes were started, 1 died, and the job is done")

few = Run("-n", "2", "--min", "2", options.program, "--quorum-timeout", "3", *ENDLESS)
os.kill(few.ranks(2)[0], signal.SIGKILL)
few.end(11, "ended with 11")

ended = Run("-n", "2", options.program, "--epochs", "100000")
ended.ranks(2)
time.sleep(0.1)
ended.process.send_signal(signal.SIGTERM)
ended.end(143)

# An error in a step's function is not a failure of a rank, whatever its type: the step is not repeated.
Run("-n", "2", options.program, *JOB, "--throws", "3").end(5, "the program's own store did not answer", done=0)
# A group that fails twice in the same step: the ranks compare the counts, and a single step is repeated.
Run("-n", "2", options.program, *JOB, "--breaks", "3").end(0, "step 3 failed 2 times with the same ranks", "1 steps run again", done=2)
# Ctrl-C is sent to all processes of the terminal: only muster-launch acts on it.
interrupted = Run("-n", "2", options.program, *ENDLESS, prepare=os.setsid)
interrupted.ranks(2)
os.killpg(interrupted.process.pid, signal.SIGINT)
interrupted.end(143, "ended with 143")

# Settings that a process may inherit: SIGCHLD ignored, nohup, blocked signals.
Run("-n", "3", options.program, *JOB, prepare=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)).end(0, done=3)
nohup = Run("-n", "2", options.program, *ENDLESS, prepare=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
nohup.ranks(2)
nohup.process.send_signal(signal.SIGHUP)
nohup.process.send_signal(signal.SIGUSR1)  # forwarded to ranks that catch it: they print the members
nohup.end(0, " is process ", done=2)
blocked = Run("-n", "2", options.program, *ENDLESS, prepare=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]))
blocked.ranks(2)
blocked.process.send_signal(signal.SIGTERM)
blocked.end(143)

# A program of torch.distributed finds its rank 0. Under another launcher muster-launch still numbers the ranks.
SAYS = "import os; print('ready', os.environ['MASTER_PORT'], os.environ['MASTER_ADDR'], 'SLURM_PROCID' in os.environ, flush=True)"
torch = Run("-n", "2", "--elastic", "off", sys.executable, "-c", SAYS, prepare=lambda: os.environ.update(SLURM_PROCID="0"))
ports = torch.ranks(2)
if ports[0] != ports[1] or ports[0] <= 0:
    sys.exit(f"the ranks get the ports {ports}")
torch.end(0)

# A program that fails at its start is restarted with a delay.
failing = Run("-n", "1", "--restart", "4", sys.executable, "-c", "import time; print('ready', int(time.monotonic() * 1000), flush=True); raise SystemExit(3)")
starts = failing.ranks(5)
failing.end(3)
if starts[4] - starts[0] < 1500:
    sys.exit(f"a program that fails was started at {starts} ms")

Run("-n", "2", "--restart", "5", options.program, "--heartbeat", "none").end(2, "--heartbeat cannot be 'none'")
# Modes whose ranks differ between exchanges cannot lose a rank.
for mode in ("local-sgd", "local-sgd:4", "gossip", "gossip:torus"):
    Run("-n", "2", options.program, "--mode", mode).end(2, f"--mode asks for {mode} (", "--elastic off")

# A process that mpirun did not start has no part in MPI's world.
Run("-n", "2", options.program, "--transport", "mpi").end(2, "asks for transport mpi", "use --transport shm or tcp")

# The other ranks of the job never start. Rank 0 starts the store, so the other ranks cannot connect without it.
for rank, words, status, says, more in (
        (1, ["--heartbeat", "none"], 2, "--heartbeat cannot be 'none'", {}),
        (0, ["--transport", "mpi"], 2, "mpirun did not start this process", {"PMIX_RANK": "0"}),  # by prun
        (1, ["--timeout", "1"], 5, "check that rank 0 runs", {}),
        (0, ["--quorum-timeout", "1", "--min-ranks", "2"], 13, "1 of 2 joined", {})):
    with tempfile.TemporaryDirectory() as folder:
        place = dict(RANK=str(rank), WORLD_SIZE="2", MUSTER_ELASTIC="on", MUSTER_JOB="late", MUSTER_RENDEZVOUS=f"file:{folder}", **more)
        late = subprocess.run([options.program, *words, *JOB], env=os.environ | place, capture_output=True, text=True,
                              timeout=25)
        if late.returncode != status or says not in late.stderr:
            sys.exit(f"a process without the others ends with {late.returncode}, not {status}: {late.stderr}")

Run("-n", "2", "/no/such/program").end(127, "cannot be started")
Run("-n", "2", "--min", "3", options.program).end(2, "--min is 3")
Run("--ranks", "3", options.program).end(2, "does not know '--ranks'")
Run().end(2, "nothing to start")
