#!/usr/bin/env python3
"""limits.py LAUNCHER PROGRAM WORKER [tcp]: checks that jobs whose processes reach a limit of the system (ulimit) name the limit at once,
and that no process is killed. PROGRAM: test_trouble; WORKER: test_elastic_worker."""
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


def job(resource_kind, limit, words, status, pattern):
    """Runs a job and checks its end, within a third of the deadline, so that the deadline does not end the job."""
    begun = time.monotonic()
    done = subprocess.run([launcher, *words], env=clean | {"MUSTER_TIMEOUT": str(60 * SLOWDOWN)}, capture_output=True, text=True, timeout=120 * SLOWDOWN,
                          preexec_fn=lambda: resource.setrlimit(resource_kind, (limit, limit)))
    span = time.monotonic() - begun
    text = done.stdout + done.stderr
    wrong = []
    if done.returncode not in (status if isinstance(status, tuple) else (status,)):
        wrong.append(f"ends with {done.returncode}, not {status}")
    if pattern and not re.search(pattern, text):
        wrong.append(f"does not print '{pattern}'")
    if re.search(r"signal|[Tt]imed out|deadline|another job", text):
        wrong.append("names another cause")
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
    # Elastic ranks have no descriptor for their sockets.
    job(resource.RLIMIT_NOFILE, 9, ["-n", "3", worker, *small], 1, r"(?s)^(?!.*set an address)(.*error[^\n]*ulimit -n){3}")
    job(resource.RLIMIT_AS, 4 << 30, ["-n", "2", worker, *small, "--transport", "tcp"], 0, "done ")
if problems:
    sys.exit("\n".join(problems))
print("every limit is named")
