#!/usr/bin/env python3
"""limits.py LAUNCHER PROGRAM WORKER [tcp]: jobs whose processes meet a limit of the system (ulimit) name it at once, and none is
killed for it. PROGRAM: test_trouble; WORKER: test_elastic_worker."""
import os
import re
import resource
import subprocess
import sys
import time

launcher, program, worker, *more = sys.argv[1:]
SLOWDOWN = float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))
clean = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_") or name == "MUSTER_TEST_SLOWDOWN"}
problems = []


def job(which, limit, words, status, says):
    """Within a third of the deadline, so that it is no deadline that ends it."""
    begun = time.monotonic()
    done = subprocess.run([launcher, *words], env=clean | {"MUSTER_TIMEOUT": str(60 * SLOWDOWN)}, capture_output=True, text=True, timeout=120 * SLOWDOWN,
                          preexec_fn=lambda: resource.setrlimit(which, (limit, limit)))
    span = time.monotonic() - begun
    text = done.stdout + done.stderr
    wrong = []
    if done.returncode not in (status if isinstance(status, tuple) else (status,)):
        wrong.append(f"ends with {done.returncode}, not {status}")
    if says and not re.search(says, text):
        wrong.append(f"does not say '{says}'")
    if re.search(r"signal|[Tt]imed out|deadline|another job", text):
        wrong.append("speaks of something else")
    if span > 20 * SLOWDOWN:
        wrong.append(f"takes {span:.0f} s")
    if wrong:
        problems.append(f"{' '.join(map(os.path.basename, words))} with a limit of {limit}: {'; '.join(wrong)}:\n{text}")


fixed = ["--elastic", "off", program, "nothing"]
job(resource.RLIMIT_FSIZE, 1000 << 10, ["-n", "2", *fixed, "--transport", "shm"], 1, r"ulimit -f.*--transport tcp")
job(resource.RLIMIT_NOFILE, 32, ["-n", "16", *fixed, "--transport", "shm"], 1, r"ulimit -n")
job(resource.RLIMIT_AS, 1 << 30, ["-n", "2", *fixed, "--transport", "shm"], 1, r"ulimit -v.*--transport tcp")
if more:
    job(resource.RLIMIT_FSIZE, 1000 << 10, ["-n", "2", *fixed, "--transport", "tcp"], 0, "")
    job(resource.RLIMIT_NOFILE, 32, ["-n", "16", *fixed, "--transport", "tcp"], (1, 4), r"rank \d+ cannot connect with the others over tcp \(Too many open files\).*ulimit -n")
    small = ["--samples", "100", "--batch", "50", "--epochs", "2", "--values", "100"]
    job(resource.RLIMIT_AS, 4 << 30, ["-n", "2", worker, *small, "--transport", "tcp"], 0, "done ")
if problems:
    sys.exit("\n".join(problems))
print("every limit is named")
