#!/usr/bin/env python3
"""Elastic jobs that mpirun starts: with --enable-recovery mpirun does not end the other ranks when a rank dies. It then ends with
0 whatever the ranks' statuses are, so a shell around each rank prints the status.

usage: mpirun.py --program PATH   (test_elastic_worker; muster-store is in PATH)
"""
import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading

parser = argparse.ArgumentParser()
parser.add_argument("--program", required=True)
options = parser.parse_args()
if shutil.which("mpirun") is None or "Open MPI" not in subprocess.run(["mpirun", "--version"], capture_output=True,
                                                                     text=True, check=False).stdout:
    print("SKIPPED: there is no mpirun of Open MPI")
    sys.exit(77)
RANKS = 4
ULFM = "FT MPI support: yes" in subprocess.run(["ompi_info"], capture_output=True, text=True, check=False).stdout
LAUNCH = ["--with-ft", "ulfm", "--map-by", ":OVERSUBSCRIBE"] if ULFM else ["--enable-recovery", "--oversubscribe"]
JOB = ["--samples", "500", "--batch", "50", "--epochs", "20"]  # two seconds, so that the ranks die before the end


def run(what, victims, done, status, *flags, before=""):
    """Kills the victims when all ranks train; checks the status of the others, and how many have finished."""
    tell = f'{before}"{options.program}" "$@"; echo "status $?"'
    job = subprocess.Popen(["mpirun", *LAUNCH, "-n", str(RANKS), "sh", "-c", tell, "sh", *JOB,
                            *flags], env=os.environ | {"MUSTER_ELASTIC": "on", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                                                       "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    timer = threading.Timer(60, job.kill)
    timer.start()
    pids, lines = [], []
    for line in job.stdout:
        lines.append(line)
        if line.startswith("ready "):
            pids.append(int(line.split()[1]))
            if len(pids) == RANKS:
                for victim in victims:
                    os.kill(pids[victim], signal.SIGKILL)
    errors = job.stderr.read()
    job.wait()
    timer.cancel()
    said = [sum(line.startswith(text) for line in lines) for text in ("done ", f"status {status}\n", "status 137\n")]
    if said != [done, RANKS - len(victims), len(victims)]:
        sys.exit(f"{what}: of done, status {status} and killed there are {said}\n{''.join(lines[-20:])}\n{errors}")
    print(f"{what}: {done} done, {len(victims)} killed")


for victim in range(RANKS):  # victims by the order in which the ranks were ready: any rank, also rank 0
    run("one is killed, shm", [victim], 3, 0)
run("two are killed, shm", [1, 2], 2, 0)
run("one is killed, tcp", [0], 3, 0, "--transport", "tcp")
# Ranks on several hosts find the store through PMIx, not through a file.
apart = "export OMPI_COMM_WORLD_LOCAL_SIZE=1; "
run("rank 0 is killed, as if on several hosts", [0], 3, 0, before=apart)
run("two are killed, as if on several hosts", [0, 1], 2, 0, before=apart)
run("too few are left", [1, 2], 0, 11, "--min-ranks", "3", "--quorum-timeout", "1")
