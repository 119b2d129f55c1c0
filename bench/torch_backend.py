#!/usr/bin/env python3
"""The backend "muster" of torch.distributed beside Gloo and torch's `fake` backend, which communicates nothing, in turns in one run: the
time of all_reduce by size, and steps a second of a small model under DistributedDataParallel, also without communication.

usage: torchrun --nproc-per-node 2 bench/torch_backend.py [--rounds 9] [--seconds 0.2] [--pin]

Each figure is the median over the rounds of a round's mean; for 4 B also the tenth percentile, since on a busy machine a rank waits for
its core. --pin binds each rank to a core. Needs torch and the Python module (docs/torch.md).
"""
import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed import fake_pg  # noqa: F401  registers the backend fake

import muster.torch  # noqa: F401

parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=9)
parser.add_argument("--seconds", type=float, default=0.2, help="for a round of one backend")
parser.add_argument("--pin", action="store_true")
options = parser.parse_args()
torch.set_num_threads(1)
if options.pin:
    os.sched_setaffinity(0, {int(os.environ["LOCAL_RANK"])})
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
BACKENDS = {name: dist.new_group(backend=name) for name in ("muster", "gloo", "fake")}
GLOO = BACKENDS["gloo"]


def common(seconds):
    """Returns rank 0's value: all ranks make the same number of calls."""
    box = torch.tensor([seconds], dtype=torch.float64)
    dist.broadcast(box, 0, group=GLOO)
    return box.item()


def timed(call, calls):
    dist.barrier(group=GLOO)
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - began) / calls


def compare(title, calls_of, scale, unit):
    """Measures each call in turns and prints the medians of the slowest rank."""
    counts, times = {}, {name: [] for name in calls_of}
    for name, call in calls_of.items():
        counts[name] = max(3, int(options.seconds / max(common(timed(call, 3)), 1e-7)))
    for _ in range(options.rounds):
        for name, call in calls_of.items():
            slowest = torch.tensor([timed(call, counts[name])], dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX, group=GLOO)
            times[name].append(slowest.item())
    medians = {name: statistics.median(values) for name, values in times.items()}
    if rank == 0:
        cells = "  ".join(f"{name} {medians[name] * scale:.4g} {unit} (least {min(times[name]) * scale:.4g})" for name in times)
        print(f"{title:24} {cells}  gloo / muster {medians['gloo'] / medians['muster']:.2f}", flush=True)


for size in (4, 64 << 10, 64 << 20):
    data = torch.zeros(size // 4)
    compare(f"all_reduce, {size} B", {name: (lambda group=group: dist.all_reduce(data, group=group)) for name, group in BACKENDS.items()},
            1e6, "us")


def step_of(group):
    """Returns a training step of a small model whose gradients the group averages; without a group nothing is averaged."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    if group is not None:
        model = DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(32, 64), torch.randint(10, (32,))

    def step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return step


compare("DDP step of a small MLP", {"muster": step_of(BACKENDS["muster"]), "gloo": step_of(GLOO), "none": step_of(None)}, 1e6, "us")
dist.destroy_process_group()
