#!/usr/bin/env python3
"""Measures a training step of ResNet-20 by PyTorch on an NVIDIA device, for comparison with test_nn_device: one line for each way.

    bench/peers/resnet_torch.py [--batch 128] [--steps 200] [--ways float32,tf32,bfloat16]

The model, optimizer (SGD with momentum 0.9) and batch of MLBench's task 1a; channels last. A way is measured eagerly,
compiled, and compiled with its kernels recorded as a graph of CUDA (mode "max-autotune" and "reduce-overhead"). The
batch is copied from pinned memory of the host in each step and the loss is copied back, as in muster.
"""
import argparse
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, before, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.around = nn.Sequential()
        if before != channels:
            self.around = nn.Sequential(nn.Conv2d(before, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.around(x))


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        blocks, before = [], 16
        for channels in (16, 32, 64):
            for block in range(3):
                blocks.append(Block(before, channels, 2 if channels > 16 and block == 0 else 1))
                before = channels
        self.blocks = nn.Sequential(*blocks)
        self.dense = nn.Linear(64, 10)

    def forward(self, x):
        x = self.blocks(F.relu(self.norm(self.conv(x))))
        return self.dense(x.mean((2, 3)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ways", default="float32,tf32,bfloat16")
    parser.add_argument("--modes", default="eager,compiled,reduce-overhead,max-autotune")
    options = parser.parse_args()
    print(f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, {torch.cuda.get_device_name()}")
    for way in options.ways.split(","):
        for mode in options.modes.split(","):
            measure(way, mode, options)


def measure(way, mode, options):
    torch.manual_seed(1)
    torch._dynamo.reset()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = way != "float32"
    torch.backends.cuda.matmul.allow_tf32 = way != "float32"
    model = ResNet20().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    images = torch.randn(options.batch, 3, 32, 32).to(memory_format=torch.channels_last).pin_memory()
    labels = torch.randint(10, (options.batch,)).pin_memory()

    def loss_of(images, labels):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=way == "bfloat16"):
            logits = model(images)
        return F.cross_entropy(logits.float(), labels)

    if mode == "compiled":
        loss_of = torch.compile(loss_of)
    elif mode != "eager":
        loss_of = torch.compile(loss_of, mode=mode)
    on_device = torch.empty_like(images, device="cuda"), torch.empty_like(labels, device="cuda")
    seconds = []
    for step in range(options.steps + 20):
        begin = time.perf_counter()
        on_device[0].copy_(images, non_blocking=True)
        on_device[1].copy_(labels, non_blocking=True)
        optimizer.zero_grad()
        loss = loss_of(*on_device)
        loss.backward()
        optimizer.step()
        loss.item()
        if step >= 20:
            seconds.append(time.perf_counter() - begin)
    median = statistics.median(seconds)
    print(f"ResNet-20, batch {options.batch}, {way}, {mode}: {median * 1e3:.3f} ms a step ({min(seconds) * 1e3:.3f} .. "
          f"{max(seconds) * 1e3:.3f}), {options.batch / median:.0f} images/s", flush=True)


if __name__ == "__main__":
    main()
