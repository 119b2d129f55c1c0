#!/usr/bin/env python3
"""muster-launch from outside: what it starts, what it starts again, how it ends.

usage: launch.py --launcher PATH --program PATH   (test_elastic_worker)
"""
import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser()
parser.add_argument("--launcher", required=True)
parser.add_argument("--program", required=True)
options = parser.parse_args()
JOB = ["--samples", "500", "--batch", "50", "--epochs", "8", "--values", "1000"]


class Run:
    def __init__(self, *words):
        self.process = subprocess.Popen([options.launcher, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ranks(self, count):
        """The processes of the first so many ranks that are ready."""
        found = []
        while len(found) < count:
            line = self.process.stdout.readline()
            if not line:
                sys.exit(f"the job ended before {count} ranks were ready: {self.process.stderr.read()}")
            if line.startswith("ready "):
                found.append(int(line.split()[1]))
        return found

    def end(self, status, *says, done=None):
        out, err = self.process.communicate(timeout=60)
        problems = [f"ends with {self.process.returncode}, not {status}"] if self.process.returncode != status else []
        problems += [f"does not say '{text}'" for text in says if text not in err]
        if done is not None and out.count("done ") != done:
            problems.append(f"{out.count('done ')} ranks are done, not {done}")
        if problems:
            sys.exit(f"muster-launch {'; '.join(problems)}\n{err}\n{out[-2000:]}")


Run("-n", "3", options.program, *JOB).end(0, done=3)

killed = Run("-n", "3", "--restart", "2", options.program, *JOB)
os.kill(killed.ranks(3)[1], signal.SIGKILL)
killed.end(0, "was killed by signal 9; it is restarted", "4 processes were started, 1 died, and the job is done", done=3)

# One that is stopped is killed by the others of its host, and comes back as somebody new.
stopped = Run("-n", "3", "--restart", "2", options.program, *JOB, "--epochs", "25")
os.kill(stopped.ranks(3)[1], signal.SIGSTOP)
stopped.end(0, "was killed by signal 9; it is restarted", "4 processes were started, 1 died, and the job is done", done=3)

left = Run("-n", "3", options.program, *JOB)
os.kill(left.ranks(3)[0], signal.SIGKILL)
left.end(0, "was killed by signal 9\n", done=2)

more = Run("-n", "2", "--max", "3", options.program, *JOB)
more.ranks(2)
more.process.send_signal(signal.SIGUSR2)
more.end(0, done=3)

# One process that others join later.
alone = Run("-n", "1", "--max", "2", options.program, *JOB)
alone.ranks(1)
alone.process.send_signal(signal.SIGUSR2)
alone.end(0, done=2)

few = Run("-n", "2", "--min", "2", options.program, "--quorum-timeout", "1", *JOB)
os.kill(few.ranks(2)[0], signal.SIGKILL)
few.end(11, "ended with 11")

ended = Run("-n", "2", options.program, "--epochs", "100000")
ended.ranks(2)
time.sleep(0.1)
ended.process.send_signal(signal.SIGTERM)
ended.end(143)

Run("-n", "2", "--restart", "5", options.program, "--heartbeat", "none").end(2, "--heartbeat cannot be 'none'")
# Ranks that differ between exchanges cannot be done without.
for mode in ("local-sgd", "local-sgd:4", "gossip", "gossip:torus"):
    Run("-n", "2", options.program, "--mode", mode).end(2, f"--mode asks for {mode} (", "--elastic off")

# A process that mpirun did not start has no part in MPI's world.
Run("-n", "2", options.program, "--transport", "mpi").end(2, "asks for transport mpi", "use --transport shm or tcp")

# The others of the job never come. The store is started by rank 0, and without it nothing more is needed of that.
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
