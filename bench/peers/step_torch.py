#!/usr/bin/python3
"""PyTorch's training step on the models of bench/step.cpp: synthetic data, float32, SGD with Nesterov's momentum, eager
in both layouts and, from PyTorch 2 on, compiled with channels last.
Prints one line a repetition: model, layout, batch, images per second.

    /usr/bin/python3 bench/peers/step_torch.py [--models resnet20,resnet56,vgg16,cnn] [--batch 32] [--steps N]
    /usr/bin/python3 bench/peers/step_torch.py --ranks 2 ...     # DistributedDataParallel over Gloo, a thread a rank

(Debian: apt-get install --no-install-recommends python3-torch libopenblas0-pthread.)
"""
import argparse
import os
import statistics
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed
import torch.multiprocessing
from torch import nn


class Block(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer))
        self.shortcut = nn.Identity()
        if stride != 1 or inner != outer:
            self.shortcut = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        return torch.relu_(self.body(x) + self.shortcut(x))


def resnet(depth):
    layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    inner = 16
    for outer, stride in ((16, 1), (32, 2), (64, 2)):
        for block in range((depth - 2) // 6):
            layers.append(Block(inner, outer, stride if block == 0 else 1))
            inner = outer
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)), (3, 32, 32)


def vgg16():
    layers, inner = [], 3
    for outer in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        if outer == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(inner, outer, 3, 1, 1), nn.BatchNorm2d(outer), nn.ReLU(inplace=True)]
        inner = outer
    head = [nn.Flatten()]
    for _ in range(2):
        head += [nn.Dropout(), nn.Linear(512, 512), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, *head, nn.Linear(512, 10)), (3, 32, 32)


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(inplace=True),
        nn.MaxPool2d(2), nn.Conv2d(64, 64, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(576, 64),
        nn.ReLU(inplace=True), nn.Linear(64, 10)), (1, 28, 28)


def make(name):
    if name.startswith("resnet"):
        return resnet(int(name[len("resnet"):]))
    return {"vgg16": vgg16, "cnn": cnn}[name]()


def train(rank, options):
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    if options.ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(options.port))
        torch.distributed.init_process_group("gloo", rank=rank, world_size=options.ranks)
    clock = time.process_time if options.cpu_time else time.perf_counter
    layouts = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last, "compiled": torch.channels_last}
    for name in options.models.split(","):
        for layout in options.layouts.split(","):
            if layout == "compiled" and not hasattr(torch, "compile"):
                continue
            torch.manual_seed(1)
            model, shape = make(name)
            model = model.to(memory_format=layouts[layout])
            if options.ranks > 1:
                model = nn.parallel.DistributedDataParallel(model)
            if layout == "compiled":
                model = torch.compile(model)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4)
            images = torch.randn(options.batch, *shape).to(memory_format=layouts[layout])
            labels = torch.randint(0, 10, (options.batch,))
            loss_of = nn.CrossEntropyLoss()
            times = []
            for _ in range(options.steps + 2):  # two warm up
                begin = clock()
                optimizer.zero_grad(set_to_none=True)
                loss_of(model(images), labels).backward()
                optimizer.step()
                times.append(clock() - begin)
            if rank == 0:
                rate = options.batch * options.ranks / statistics.median(times[2:])
                print(f"torch {name} {layout} batch {options.batch} ranks {options.ranks} {rate:.1f} images/s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="resnet20")
    parser.add_argument("--layouts", default="nchw,nhwc,compiled")
    parser.add_argument("--batch", type=int, default=32, help="images a rank and step")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true", help="count the processor's time: on a machine that is shared")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of a rank")
    parser.add_argument("--port", type=int, default=29517)
    options = parser.parse_args()
    if options.ranks == 1:
        train(0, options)
    else:
        torch.multiprocessing.spawn(train, args=(options,), nprocs=options.ranks)


if __name__ == "__main__":
    main()
