#!/usr/bin/env python3
"""Runs many servers and workers on few cores. Each process waits for a processor most of the time, and none is declared dead.

usage: crowd.py --launcher PATH --program PATH [--servers N] [--workers N] [words for the program...]   (test_ps_crowd)
"""
import argparse
import os
import re
import subprocess
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--launcher", required=True)
parser.add_argument("--program", required=True)
parser.add_argument("--servers", type=int, default=60)
parser.add_argument("--workers", type=int, default=100)
parser.add_argument("--rounds", type=int, default=5)
options, words = parser.parse_known_args()
SLOWDOWN = float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))
clean = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
begun = time.monotonic()
job = subprocess.run([options.launcher, "-n", str(options.servers + options.workers), "--elastic", "off", options.program, str(options.rounds), "--servers", str(options.servers),
                      "--timeout", "240", *words], env=clean, capture_output=True, text=True, timeout=1000 * SLOWDOWN)
print(f"{options.servers} servers and {options.workers} workers, {' '.join(words)}: status {job.returncode} after {time.monotonic() - begun:.0f} s; {job.stdout[-200:]}")
losses = [line for line in (job.stdout + job.stderr).splitlines() if re.search(r"fenced|is gone|silent|no heartbeat|have died|is lost|left out", line)]
if job.returncode != 0 or losses:
    sys.exit("\n".join([*losses[:20], *job.stderr.splitlines()[-20:]]))
