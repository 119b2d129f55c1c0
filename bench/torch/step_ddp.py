#!/usr/bin/env python3
"""The training step of bench/torch/step.cpp in Python: bare, and with DistributedDataParallel over Gloo. Prints the median of the
seconds per step at the slowest rank, and the loss.

usage: step_ddp.py MODEL BATCH STEPS bare|ddp|ddp-view|ddp-muster   (RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT name the ranks)"""
import os
import statistics
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
import torch.distributed as dist
from torch import nn


def convolution(inner, outer, size, stride):
    return nn.Conv2d(inner, outer, size, stride, size // 2, bias=False)


class BasicBlock(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.body = nn.Sequential(convolution(inner, outer, 3, stride), nn.BatchNorm2d(outer), nn.ReLU(inplace=True),
                                  convolution(outer, outer, 3, 1), nn.BatchNorm2d(outer))
        self.shortcut = nn.Sequential(convolution(inner, outer, 1, stride), nn.BatchNorm2d(outer)) if stride != 1 or inner != outer else None

    def forward(self, x):
        return torch.relu_(self.body(x) + (x if self.shortcut is None else self.shortcut(x)))


def resnet18():
    layers, inner = [convolution(3, 64, 3, 1), nn.BatchNorm2d(64), nn.ReLU(inplace=True)], 64
    for outer in (64, 128, 256, 512):
        layers += [BasicBlock(inner, outer, 1 if outer == 64 else 2), BasicBlock(outer, outer, 1)]
        inner = outer
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)), (3, 32, 32)


def mlp():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)), (64,)


name, batch, steps, mode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
torch.set_num_threads(1)
torch.manual_seed(1)
net, shape = {"resnet18": resnet18, "mlp": mlp}[name]()
backend = "gloo"
if mode == "ddp-muster":
    import muster.torch  # noqa: F401  (registers the backend)
    backend = "muster"
if size > 1:
    dist.init_process_group(backend)
model = net if mode == "bare" else nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=mode != "ddp")
optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
torch.manual_seed(2 + rank)
images, target = torch.randn(batch, *shape), torch.randint(10, (batch,))
loss_of, seconds = nn.CrossEntropyLoss(), []
for step in range(steps + 2):
    begin = time.perf_counter()
    optimizer.zero_grad()
    loss = loss_of(model(images), target)
    loss.backward()
    optimizer.step()
    value = loss.item()
    seconds.append(time.perf_counter() - begin)
slowest = torch.tensor(seconds[2:], dtype=torch.float64)
if size > 1:
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
if rank == 0:
    print(f"{name} {mode} batch {batch} ranks {size}: {statistics.median(slowest.tolist()):.6f} s/step, loss {value:.4f}")
if size > 1:
    dist.destroy_process_group()
