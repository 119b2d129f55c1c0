#!/usr/bin/env python3
"""The program that needs -I alone, as two processes of a host, which share memory and read a file; then once more, from its
checkpoint. Started by the compiled muster-launch, whose store authenticates by OpenSSL, it names the reason of its failure.

usage: headers.py PROGRAM [MUSTER-LAUNCH]
"""
import os
import subprocess
import sys
import tempfile

program, *launcher = sys.argv[1:]
with tempfile.TemporaryDirectory(prefix="muster-headers-") as folder:
    with open(f"{folder}/line.csv", "w", encoding="ascii") as points:
        points.writelines(f"{k / 500 - 1:g},{2 * (k / 500 - 1) - 1:g}\n" for k in range(1000))
    words = [program, "--transport", "shm", f"csv:{folder}/line.csv?label=1", f"{folder}/checkpoints"]
    for start in range(2):
        ranks = [subprocess.Popen(words, env=os.environ | {
            "MUSTER_JOB": f"headers-{os.getpid()}-{start}", "MUSTER_RENDEZVOUS": f"file:{folder}/{start}", "RANK": str(rank),
            "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}) for rank in range(2)]
        if any(rank.wait(50) != 0 for rank in ranks):
            sys.exit("a rank has failed")
        print(f"start {start + 1}: {sorted(os.listdir(folder + '/checkpoints'))}", flush=True)
if launcher:
    launched = subprocess.run([*launcher, "-n", "2", program], capture_output=True, text=True, timeout=50, check=False)
    lines = [line for line in launched.stderr.splitlines() if "without OpenSSL, so it cannot authenticate there" in line]
    print(launched.stderr, flush=True)
    if launched.returncode != 2 or len(lines) != 2:
        sys.exit(f"status {launched.returncode}, {len(lines)} lines that name OpenSSL, instead of 2 and 2")
