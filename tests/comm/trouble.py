#!/usr/bin/env python3
"""Starts tests/comm/trouble on some ranks and checks its end: one line of error, the same status at every rank, no hang.

usage: trouble.py [--mpirun 'WORDS'] --ranks N --status S --says TEXT -- PROGRAM WORDS...
Without --mpirun the ranks are threads (--ranks N of the program) and the status is the process's.
"""
import argparse
import shlex
import subprocess
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--mpirun", default="")
parser.add_argument("--ranks", type=int, required=True)
parser.add_argument("--status", type=int, required=True)
parser.add_argument("--says", default="")
parser.add_argument("--asleep", type=int, default=0, help="so many ranks hang, and the launcher is to end them")
parser.add_argument("--each", action="store_true", 
                    help="the ranks cannot agree on who speaks: each does, until the first to end ends the others")
parser.add_argument("program", nargs=argparse.REMAINDER)
options = parser.parse_args()
program = options.program[1:] if options.program[:1] == ["--"] else options.program

if options.mpirun:
    # Each rank's own status, which mpirun does not report: the shell prints the status and succeeds. If the launcher
    # has to end ranks it must see a status.
    end = "exit $s" if options.asleep else "exit 0"
    wrapped = ["sh", "-c", f'"$@"; s=$?; echo "status=$s"; {end}', "rank"] + program
    command = shlex.split(options.mpirun) + ["-n", str(options.ranks)] + wrapped
else:
    command = program + ["--ranks", str(options.ranks)]

run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
print(run.stdout + run.stderr)
if options.mpirun:
    statuses = [int(line.split("=")[1]) for line in run.stdout.splitlines() if line.startswith("status=")]
else:
    statuses = [run.returncode] * options.ranks
# After a failed group ranks leave MPI without MPI_Finalize, and mpirun ends the remaining ranks: their statuses are
# ignored.
if options.mpirun and options.status == 5 and "exiting improperly" in run.stdout + run.stderr:
    own = [status for status in statuses if status not in (128 + 15, 128 + 9)]
    statuses = own + [options.status] * (options.ranks - len(own)) if own else statuses
awake = options.ranks - options.asleep
errors = [line for line in run.stderr.splitlines() if "error:" in line]

failures = []
if options.asleep:
    statuses = statuses[:awake]  # the launcher may end the others in any way
if options.each:
    awake = max(len(statuses), 1)
if statuses != [options.status] * awake:
    failures.append(f"exit statuses {statuses}, expected {options.status} at each of {awake} ranks")
if "slept to its end" in run.stdout:
    failures.append("the ranks that failed waited for the one that hangs")
few, many = (1, options.ranks) if options.each else (min(options.status, 1), min(options.status, 1))
if not few <= len(errors) <= many:
    failures.append(f"{len(errors)} lines of error, expected {few} to {many}")
if options.status and not any(options.says in line for line in errors):
    failures.append(f"no line says '{options.says}'")
sys.exit("\n".join(failures) or 0)
