#!/usr/bin/env python3
"""Jobs that hang, and the report of muster-launch.

usage: hang.py --launcher PATH --program PATH   (test_trouble)
"""
import argparse
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser()
parser.add_argument("--launcher", required=True)
parser.add_argument("--program", required=True)
options = parser.parse_args()
DEADLINE = 60 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))
# Without eu-stack, or without permission to inspect another process, the report has this text instead.
STACK = "nanosleep" if shutil.which("eu-stack") else "no stack (eu-stack"


def said(*words, asks=False):
    """Returns the output up to the stacks of the last rank, which sleeps. `asks`: requests reports repeatedly by
    SIGQUIT."""
    with tempfile.TemporaryDirectory() as folder:
        job = subprocess.Popen([options.launcher, "-n", "3", "--elastic", "off", "--grace", "1", options.program, "asleep", "1000", *words],
                               stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=dict(os.environ, TMPDIR=folder))
        text, until = "", time.monotonic() + DEADLINE
        started = False  # after the start SIGQUIT is handled by the launcher
        try:
            while not ("its stacks" in text and (STACK in text or "no stack" in text)):
                if time.monotonic() > until:
                    sys.exit(f"{words}: no report of the hang:\n{text}")
                started = started or bool(open(f"/proc/{job.pid}/task/{job.pid}/children").read().strip())
                if asks and started:
                    job.send_signal(signal.SIGQUIT)
                if select.select([job.stderr], [], [], 0.5)[0]:
                    text += os.read(job.stderr.fileno(), 65536).decode()
        finally:
            job.terminate()
            job.wait()
        if os.listdir(folder):
            sys.exit(f"{words}: {os.listdir(folder)} is left behind")
        return text


for transport in ("shm", "tcp"):
    for words, asks in ((["--timeout", "1"], False), (["--timeout", "1000"], True)):
        text = said("--transport", transport, *words, asks=asks)
        for part in ("world of 3: ranks 0 and 1: wait in call 1 (allreduce of 1000 float32, sum, ",
                     "world of 3: rank 2: missing: in no collective", "started as rank 2) wrote no record"):
            if part not in text:
                sys.exit(f"over {transport}, {words}: '{part}' is not said:\n{text}")
