#!/usr/bin/env python3
"""Measures the peak memory of each rank of a training with --mode ps: a server holds its share of the parameters with the
copies, a worker holds parameters and gradients once. In bulk consistency the training ends with the parameters of mode
allreduce.

usage: held.py --program PATH [--transport tcp|shm] [--initial zero|direct|function]
"""
import argparse
import os
import re
import subprocess
import tempfile

parser = argparse.ArgumentParser()
parser.add_argument("--program", required=True)
parser.add_argument("--transport", choices=["tcp", "shm"], default="tcp")
parser.add_argument("--initial", default="function")
options = parser.parse_args()
LIMIT = 120 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))
MODEL = 64  # MiB of parameters
# MiB besides the arrays: pushes in transfer and frames, over shm also the pages of other ranks' buffers. The replicas of a
# range also keep pushes that other replicas have not acknowledged.
WORKER, SERVER = (48, 24) if options.transport == "tcp" else (80, 64)


def train(ranks, *words):
    """Returns the memory of each rank in MiB since its training began, the outputs, and the mean of the parameters."""
    with tempfile.TemporaryDirectory(prefix="muster-test-") as folder:
        started = [subprocess.Popen([options.program, "--initial", options.initial, "--transport", options.transport,
                                     "--rendezvous", f"file:{folder}", *words],
                                    env={**os.environ, "MUSTER_JOB": os.path.basename(folder), "RANK": str(rank),
                                         "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank),
                                         "LOCAL_WORLD_SIZE": str(ranks)},
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                   for rank in range(ranks)]
        outputs = []
        try:
            for process in started:
                outputs.append(process.communicate(timeout=LIMIT)[0])
                assert process.returncode == 0, outputs[-1]
        finally:
            for process in started:
                process.kill()
    held = [re.search(r"rank \d+ began with (\d+) KiB, held (\d+) KiB in (\d+) ms", output) for output in outputs]
    mean = re.search(r"mean (\S+)", "".join(outputs))
    memory = [(int(found[2]) - int(found[1])) / 1024 for found in held]
    print(f"{' '.join(words) or 'mode allreduce'}: {' '.join(f'{mib:.0f}' for mib in memory)} MiB, {held[0][3]} ms")
    return memory, outputs, float(mean[1])


together = train(2)[2]
for servers, replicas in ((2, 0), (4, 0), (4, 1)):
    memory, outputs, _ = train(2 + servers, "--mode", "ps", "--servers", str(servers), "--replicas", str(replicas))
    share = (1 + replicas) * MODEL / servers
    for rank, used in enumerate(memory):
        arrays = 2 * MODEL if rank < 2 else max(share, MODEL if options.initial == "direct" else 0)
        if rank >= 2 and replicas > 0:
            continue  # unacknowledged pushes on their way along a chain depend on the scheduling
        limit = arrays + (WORKER if rank < 2 else SERVER)
        assert used < limit, f"rank {rank} holds {used:.0f} MiB, more than {limit:.0f}, for arrays of {arrays:.0f}"
    report = re.search(r"servers were busy for (\d+) % of the time, their links for (\d+) % \(the most loaded server and "
                       r"its links for (\d+) %\); to train faster, add (workers|servers)", "".join(outputs))
    busy, links, most = map(int, report.groups()[:3])
    print(report[0])
    assert 0 < busy <= 100 and busy + links <= most + 1 <= 101, report[0]
    assert most == 50 or (report[4] == "servers") == (most > 50), report[0]
for servers in (1, 2):
    served = train(2 + servers, "--mode", "ps", "--servers", str(servers), "--consistency", "bulk")[2]
    assert abs(served - together) < 1e-5 * together, f"the mean is {served} on servers and {together} in mode allreduce"
