#!/usr/bin/env python3
"""The program that needs -I alone, as two processes of a host, which share memory and read a file; then once more, from its
checkpoint.

usage: headers.py PROGRAM
"""
import os
import subprocess
import sys
import tempfile

program = sys.argv[1]
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
