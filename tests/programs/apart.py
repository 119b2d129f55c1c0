#!/usr/bin/env python3
"""apart.py MUSTER_LAUNCH PROGRAM: checks that ranks of two muster-launch on one host do not meet, and that errors are one
line. PROGRAM: test_trouble."""
import os
import subprocess
import sys

launcher, program = sys.argv[1:]
LIMIT = 60 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))
clean = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "MASTER_", "LAUNCHED_")) or name == "MUSTER_TEST_SLOWDOWN"}


def start(*words, **variables):
    return subprocess.Popen([launcher, *words], env=clean | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# The second job begins while rank 0 of the first job waits for its rank 1.
late = 'test $RANK = 0 || sleep 3; exec "$0" nothing --transport shm'
first = start("-n", "2", "--elastic", "off", "sh", "-c", late, program, MUSTER_JOB="same")
second = start("-n", "2", "--elastic", "off", "sh", "-c", 'sleep 1; exec "$0" nothing --transport shm', program, MUSTER_JOB="same")
for job in (first, second):
    _, said = job.communicate(timeout=LIMIT)
    assert job.returncode == 0, f"one of two jobs with one MUSTER_JOB ends with {job.returncode}: {said}"

# A muster-launch that is a rank starts a job of its own, and joins the outer job's store only with a new MUSTER_JOB.
names = 'echo "$MUSTER_JOB $MUSTER_RENDEZVOUS $MUSTER_TOKEN $MASTER_PORT"'
for outer in ({}, {"MUSTER_JOB": "mine"}):
    job = start("-n", "1", "sh", "-c", f'{names}; "$0" -n 1 sh -c \'{names}\'; MUSTER_JOB=new "$0" -n 1 sh -c \'{names}\'', launcher, **outer)
    printed, said = job.communicate(timeout=LIMIT)
    lines = [line.split() for line in printed.splitlines()]
    assert job.returncode == 0 and len(lines) == 3, (printed, said)
    assert not set(lines[0]) & set(lines[1]), f"the inner job has variables of the outer job: {printed}"
    assert lines[2][0] == "new" and lines[2][1:] == lines[0][1:], printed

job = start("-n", "2", "--ma\nx")
_, said = job.communicate(timeout=LIMIT)
assert job.returncode == 2 and said.count("\n") == 1, said
