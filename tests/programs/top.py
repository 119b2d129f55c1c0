#!/usr/bin/env python3
"""top.py MUSTER_INFO MUSTER_LAUNCH TEST_ELASTIC_WORKER: tests that `muster-info top` finds active jobs, and its output
for them."""
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile

info, launcher, worker = sys.argv[1:]
folder = tempfile.TemporaryDirectory()
clean = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")} | {"TMPDIR": folder.name}
LIMIT = 150 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))
TRAIN = [worker, "--samples", "500", "--batch", "50", "--epochs", "1000000", "--values", "200000", "--work", "2"]


def top(*words, **variables):
    return subprocess.run([info, "top", *words], env={**clean, **variables}, capture_output=True, text=True, timeout=LIMIT)


def refused(message, *words, **variables):
    done = top(*words, **variables)
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1 and not done.stdout, (message, done)


class Job:
    def __init__(self, name, ranks, *words):
        self.ranks = ranks
        self.process = subprocess.Popen([launcher, "-n", str(ranks), *words], env={**clean, "MUSTER_JOB": name}, stdout=subprocess.PIPE, text=True)

    def await_steps(self):
        """Waits for enough steps to have an estimate of the traffic."""
        ready = 0
        while ready < self.ranks:
            ready += self.process.stdout.readline().startswith("ready")
        while not self.process.stdout.readline().startswith("step 100 "):
            pass

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=LIMIT)


def shown(*words):
    done = top("--json", *words)
    assert done.returncode == 0, done
    return json.loads(done.stdout)


refused("finds no running job (", "--json")
refused("finds no running job 'one' (", "--job", "one")
refused("did you mean --json?", "--jsn")
assert "muster-info top" in top("--help").stdout

one = Job("one", 3, *TRAIN, "--steps", "--transport", "tcp")
one.await_steps()
seen = shown()
assert seen["job"] == "one" and seen["generation"] == 1 and seen["step"] >= 100 and seen["waiting"] == 0, seen
assert [row["rank"] for row in seen["ranks"]] == [0, 1, 2], seen
for row in seen["ranks"]:
    assert row["answers"] and row["steps_per_second"] > 0 and row["own_step_ms"] >= 2, row
    os.kill(row["process"], 0)
    peers = [link["to"] for link in row["links"]]
    assert peers and len(set(peers)) == len(peers) and set(peers) <= {0, 1, 2} - {row["rank"]}, row
    assert all(link["megabytes_per_second"] > 0 and link["round_trip_ms"] >= 0 for link in row["links"]), row
text = top().stdout
assert "rank 2, process " in text and "steps_per_second" in text and "links to 0, megabytes_per_second" in text, text

# Ranks on this host: here all, on another host none. A stopped rank does not reply, and the others have not expelled it
# yet.
assert top("--here").returncode == 0 and shown("--here")["ranks"][2]["rank"] == 2
assert top("--here", MUSTER_HOST="another").returncode == 1
still = subprocess.Popen([launcher, "-n", "1", worker, *TRAIN[1:], "--steps"], env={**clean, "MUSTER_JOB": "still"}, stdout=subprocess.PIPE, text=True)
process = int(next(line for line in still.stdout if line.startswith("ready")).split()[1])
os.kill(process, signal.SIGSTOP)
assert top("--here", "--job", "still").returncode == 3
os.kill(process, signal.SIGCONT)
still.send_signal(signal.SIGTERM)
still.communicate(timeout=LIMIT)

two = Job("two", 2, *TRAIN, "--steps", "--transport", "shm")
two.await_steps()
refused("finds 2 running jobs (one, two); choose a job by --job NAME")
seen = shown("--job", "two")
# The system measures no bandwidth of shared memory.
assert seen["job"] == "two" and [row["links"] for row in seen["ranks"]] == [[], []], seen
assert "links -\n" in top("--job=two").stdout

# On a terminal it runs until the job ends.
ours, its = pty.openpty()
live = subprocess.Popen([info, "top", "--job", "two"], env=clean, stdout=its, stderr=subprocess.PIPE)
os.close(its)
text = ""
while text.count("\x1b[H") < 2:
    text += os.read(ours, 65536).decode()
two.end()
while "the job has ended" not in text:
    text += os.read(ours, 65536).decode()
assert live.wait(LIMIT) == 0 and live.stderr.read() == b""
one.end()
refused("finds no running job (")

# A job that is not elastic has no group to query. A named store is queried directly.
once = Job("once", 1, "--elastic", "off", "sh", "-c", 'echo "ready"; echo "step 100 $MUSTER_RENDEZVOUS $MUSTER_TOKEN"; exec sleep 1000')
once.process.stdout.readline()
_, _, place, token = once.process.stdout.readline().split()
refused("finds no group in the job at ")
refused("finds no group in the job at ", "--rendezvous", place, MUSTER_TOKEN=token)
refused("does not have this job's token", "--rendezvous", place, MUSTER_TOKEN="another")
once.end()
