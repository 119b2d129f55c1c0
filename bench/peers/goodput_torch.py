"""The job of bench/goodput.py (tests/train/leased.cpp with --hidden) under torchrun and under torchft, each with its best
settings: no sample is lost by the order of the data. The ranks of torchrun continue from a checkpoint that is at most 10 steps old
(about the result of Young's formula for a fault every 15 s), at its place in the order. The ranks of torchft take the batches after
the committed ones, by their number among the participants of the step.

usage: goodput_torch.py torchrun RANKS FOLDER WORDS...    the agent, with a checkpoint in that folder
       goodput_torch.py lighthouse                        of torchft; prints "lighthouse ADDRESS"
       goodput_torch.py torchft RANKS WORDS...            one replica group with one process, REPLICA
       goodput_torch.py torchft-muster RANKS WORDS...     the same with the backend "muster"
WORDS are options of test_leased.
"""
import argparse
import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

TIMEOUT = datetime.timedelta(seconds=5)  # for a collective: by it ranks detect a stopped rank
STEPS_BETWEEN = 10
torch.set_num_threads(1)
what = sys.argv[1]

if what == "lighthouse":
    from torchft.coordination import LighthouseServer
    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=100, quorum_tick_ms=10, heartbeat_timeout_ms=1000)
    print("lighthouse", server.address(), flush=True)
    time.sleep(1e6)
if what == "torchrun":
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    how = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=int(sys.argv[2]), run_id=str(os.getpid()), rdzv_backend="c10d",
                       rdzv_endpoint="localhost:0", max_restarts=1000000, monitor_interval=0.1)
    elastic_launch(how, sys.executable)("-u", os.path.abspath(__file__), "worker", *sys.argv[2:])
    sys.exit(0)

parser = argparse.ArgumentParser()
for name in ("samples", "epochs", "batch", "hidden"):
    parser.add_argument("--" + name, type=int)
parser.add_argument("--sample-time", type=float)
ranks, *rest = sys.argv[2:]
words = parser.parse_args(rest if what.startswith("torchft") else rest[1:])
each = words.batch // int(ranks)  # samples for each rank
batches = words.samples // each
torch.manual_seed(7)
data = torch.randn(words.samples, 32)
labels = (data[:, 0] > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(32, words.hidden), torch.nn.ReLU(), torch.nn.Linear(words.hidden, 2))
uses = torch.zeros(words.samples)
size = sum(one.numel() for one in model.parameters())
order = (-1, None)


def ids_of(batch):
    """Returns the samples of a rank's batch, counted over all epochs; empty after the last epoch."""
    global order
    epoch, at = divmod(batch, batches)
    if epoch >= words.epochs:
        return torch.zeros(0, dtype=torch.long)
    if order[0] != epoch:
        order = (epoch, torch.randperm(words.samples, generator=torch.Generator().manual_seed(epoch)))
    return order[1][at * each:(at + 1) * each]


def gradients(ids):
    """Returns the gradients of the network, followed by a gradient for each sample."""
    model.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(data[ids]), labels[ids], reduction="sum") / words.batch
    loss.backward()
    counted = torch.zeros(words.samples)
    counted[ids] = 1
    time.sleep(len(ids) * words.sample_time * 1e-3)
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()] + [counted])


def update(summed):
    with torch.no_grad():
        parts = summed[:size].split([parameter.numel() for parameter in model.parameters()])
        for parameter, gradient in zip(model.parameters(), parts):
            parameter -= 0.25 * gradient.view_as(parameter)
        uses.add_(summed[size:])


def state():
    return {"model": model.state_dict(), "uses": uses}


def load(of):
    model.load_state_dict(of["model"])
    uses.copy_(of["uses"])


def tell():
    more = uses - words.epochs
    wrong = int((more != 0).sum())
    print("each sample was used once an epoch" if wrong == 0 else
          f"{wrong} samples were not, and all {uses.sum():.1f} times: {-more.clamp(max=0).sum():.1f} uses lost, "
          f"{more.clamp(min=0).sum():.1f} doubled", flush=True)


if what == "worker":
    dist.init_process_group("gloo", timeout=TIMEOUT)
    saved = os.path.join(rest[0], "checkpoint")
    first = 0
    if os.path.exists(saved):
        of = torch.load(saved)
        load(of)
        first = of["step"]
    print("begins", os.getpid(), flush=True)
    for step in range(first, batches * words.epochs // int(ranks)):
        summed = gradients(ids_of(step * int(ranks) + dist.get_rank()))
        dist.all_reduce(summed)
        update(summed)
        if (step + 1) % STEPS_BETWEEN == 0 and dist.get_rank() == 0:
            torch.save({**state(), "step": step + 1}, saved + ".new")
            os.replace(saved + ".new", saved)
            print("saved", (step + 1) * words.batch, flush=True)
    if dist.get_rank() == 0:
        tell()
    sys.exit(0)

from torchft import Manager, ProcessGroupGloo  # noqa: E402
if what == "torchft-muster":
    from muster.torch.fault_tolerance import ProcessGroupMuster as ProcessGroupGloo
from torchft.process_group import ReduceOp  # noqa: E402

store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
manager = Manager(pg=ProcessGroupGloo(timeout=TIMEOUT), min_replica_size=1, load_state_dict=load, state_dict=state, rank=0, world_size=1,
                  use_async_quorum=False, timeout=TIMEOUT, quorum_timeout=datetime.timedelta(seconds=60), replica_id=os.environ["REPLICA"],
                  store_addr="127.0.0.1", store_port=store.port, hostname="127.0.0.1")
began = False
while manager.batches_committed() < batches * words.epochs:
    manager.start_quorum()
    if not began:
        print("begins", os.getpid(), flush=True)
        began = True
    rank = manager.participating_rank()
    summed = gradients(ids_of(manager.batches_committed() + rank) if rank is not None else torch.zeros(0, dtype=torch.long))
    manager.allreduce(summed, reduce_op=ReduceOp.SUM).wait()
    if manager.should_commit():
        update(summed)
    print("saved", manager.batches_committed() * each, flush=True)
tell()
os._exit(0)
