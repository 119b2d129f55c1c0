#!/usr/bin/env python3
"""Runs a program with an invalid argument: it must fail with one line that names its last argument, and end
with a status of muster.

usage: one_line.py PROGRAM WORDS..."""
import subprocess
import sys

ran = subprocess.run(sys.argv[1:], capture_output=True, text=True, check=False)
print(f"status {ran.returncode}\n{ran.stderr}", end="")
path = sys.argv[-1].split(":", 1)[-1]
good = ran.returncode in (1, 2, 3) and ran.stderr.count("\n") == 1 and path in ran.stderr and " (" in ran.stderr
sys.exit(0 if good else "that is not one line naming the file, with status 1, 2 or 3")
