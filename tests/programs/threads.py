#!/usr/bin/env python3
"""threads.py PROGRAM MUSTER-DATA: checks processes of a user who may start no more threads (ulimit -u): data is read by the
caller alone, with a warning, and ranks as threads end with the limit's name. PROGRAM: test_trouble."""
import os
import resource
import subprocess
import sys
import tempfile

program, data = sys.argv[1:]
SLOWDOWN = float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))
USER = 50_000 + os.getpid() % 10_000  # the limit counts the processes of a user
clean = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}


def run(words, status, pattern):
    """Runs a program as a user with one thread, and checks its end."""
    done = subprocess.run(words, env=clean, capture_output=True, text=True, timeout=60 * SLOWDOWN, check=False, user=USER, group=USER,
                          extra_groups=[], preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (1, 1)))
    text = done.stdout + done.stderr
    print(text, flush=True)
    if done.returncode != status or pattern not in text or "ulimit -u" not in text:
        sys.exit(f"{' '.join(words)}: status {done.returncode} instead of {status}, or no '{pattern}' with 'ulimit -u'")


if os.geteuid() != 0:
    sys.exit("SKIPPED: only root starts processes of another user")
with tempfile.TemporaryDirectory(prefix="muster-threads-") as folder:
    os.chmod(folder, 0o777)
    with open(f"{folder}/rows.csv", "w", encoding="ascii") as rows:
        rows.writelines(f"{k % 7},{k}\n" for k in range(500_000))
    try:
        run([data, "convert", f"csv:{folder}/rows.csv?label=0&header=0", f"{folder}/rows"], 0, "the caller does the work")
    except OSError as refused:
        sys.exit(f"SKIPPED: another user may not start the programs ({refused})")
    run([program, "nothing", "--ranks", "3"], 1, "no thread can be started")
