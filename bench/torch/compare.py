#!/usr/bin/env python3
"""Measures a step of LibTorch with muster beside DistributedDataParallel over Gloo in Python, and beside the same step without
communication: two processes with a thread each, the same LibTorch.

usage: compare.py --program build/release/bench/torch_step --python VENV/bin/python [--launcher muster-launch] [--rounds 5]
       [--models resnet18:32,resnet18:128,mlp:32] [--steps N] [--rate BITS_PER_SECOND] [--muster-backend]

In each round every contender runs once, in a new order. A figure is the median over the rounds of a contender's median step.
--rate puts the two processes on two hosts, network namespaces that a link of this rate joins (needs root)."""
import argparse
import contextlib
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from muster_bench import hosts  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--program", required=True)
parser.add_argument("--python", required=True)
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--steps", type=int, default=0)
parser.add_argument("--models", default="resnet18:32,resnet18:128,mlp:32")
parser.add_argument("--contenders", default="")
parser.add_argument("--rate", type=int, default=0)
parser.add_argument("--ranks", type=int, default=2)
options = parser.parse_args()
PEER = pathlib.Path(__file__).with_name("step_ddp.py")
SCRIPT = {"python bare": "bare", "ddp": "ddp", "ddp, views": "ddp-view"}
NATIVE = {"libtorch bare": "bare", "muster": "hooks", "muster training": "training", "behind": "behind"}
chosen = options.contenders.split(",") if options.contenders else [*SCRIPT, *NATIVE]
if options.rate and hosts.missing():
    print(f"SKIPPED: {hosts.missing()}")
    sys.exit(hosts.SKIP)


def step(network, contender, model, batch, steps):
    """Returns the seconds of a step."""
    words = [model, batch, str(steps), {**SCRIPT, **NATIVE}[contender]]
    with tempfile.TemporaryDirectory() as meetings:
        ranks = []
        for rank in range(options.ranks):
            here = network.hosts[rank] if network else None
            address = network.hosts[0].address if network else "127.0.0.1"
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(options.ranks), MASTER_ADDR=address, MASTER_PORT="29517", OMP_NUM_THREADS="1",
                               LOCAL_RANK="0" if here else str(rank), LOCAL_WORLD_SIZE="1" if here else str(options.ranks))
            if contender in NATIVE:
                environment |= {"MUSTER_RENDEZVOUS": f"file:{meetings}", "MUSTER_JOB": "bench", "MUSTER_TOKEN": "of the bench"}
                if here:
                    environment |= {"MUSTER_TRANSPORT": "tcp", "MUSTER_INTERFACE": "link0", "MUSTER_HOST": f"host-{rank}", "MUSTER_PROGRESS": "on"}
                run = [options.program, *words]
            else:
                environment |= {"GLOO_SOCKET_IFNAME": "link0" if here else "lo"}
                run = [options.python, str(PEER), *words]
            command = here.inside(*run) if here else run
            ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        outputs = [rank.communicate(timeout=1800) for rank in ranks]
    found = re.search(r"ranks \d+: ([\d.]+) s/step", outputs[0][0])
    if not found or any(rank.returncode for rank in ranks):
        sys.exit(f"{contender}: {outputs}")
    return float(found[1])


def table(network):
    for entry in options.models.split(","):
        model, batch = entry.split(":")
        steps = options.steps or (400 if model == "mlp" else 8)
        found = {contender: [] for contender in chosen}
        for number in range(options.rounds):
            for contender in random.Random(number).sample(chosen, len(chosen)):
                found[contender].append(step(network, contender, model, batch, steps))
        medians = {contender: statistics.median(values) for contender, values in found.items()}
        print(f"\n{model}, batch {batch} a rank, {options.ranks} ranks, {options.rounds} rounds, {steps} steps each"
              + (f", {options.rate / 1e9:g} Gbit/s" if options.rate else ""))
        for contender, median in medians.items():
            spread = (max(found[contender]) - min(found[contender])) / median
            against = "".join(f", {median / medians[other]:.3f} of {other}" for other in ("libtorch bare", "ddp") if other in medians and other != contender)
            print(f"  {contender:16} {1000 * median:9.3f} ms/step (spread {100 * spread:.0f} %){against}", flush=True)


with hosts.Network(options.ranks) if options.rate else contextlib.nullcontext() as made:
    for host in made.hosts if made else ():
        host.limit(options.rate)
    table(made)
