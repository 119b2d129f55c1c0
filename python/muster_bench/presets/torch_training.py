#!/usr/bin/python3
"""A small network in PyTorch on generated images, for pytorch.yaml: the platform knows only the lines that a training script
prints for each epoch.

    torch_training.py [--ranks 2] [--batch 64] [--epochs 4] [--images 2000] [--seed 1]     # ranks: DistributedDataParallel
"""
import argparse
import os
import time

import torch
from torch import nn


def images(count, seed):
    """Returns images of ten classes, each class a pattern under noise."""
    draw = torch.Generator().manual_seed(7)
    patterns = torch.randn(10, 3, 32, 32, generator=draw)
    draw.manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=draw)
    return patterns[labels] + 3 * torch.randn(count, 3, 32, 32, generator=draw), labels


def network():
    return nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.BatchNorm2d(64),
                         nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64 * 16, 10))


def train(rank, chosen):
    torch.set_num_threads(1)
    if chosen.ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(chosen.port))
        torch.distributed.init_process_group("gloo", rank=rank, world_size=chosen.ranks)
    torch.manual_seed(chosen.seed)
    model = network()
    if chosen.ranks > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    data, labels = images(chosen.images, chosen.seed)
    test, answers = images(500, chosen.seed + 1000)
    mine = chosen.batch // chosen.ranks
    spent, done = 0.0, 0
    for epoch in range(1, chosen.epochs + 1):
        begin = time.perf_counter()
        order = torch.randperm(chosen.images, generator=torch.Generator().manual_seed(epoch))
        losses = []
        for first in range(0, chosen.images - chosen.batch + 1, chosen.batch):
            here = order[first + rank * mine:first + (rank + 1) * mine]
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(model(data[here]), labels[here])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            done += chosen.batch
        spent += time.perf_counter() - begin
        model.eval()
        with torch.no_grad():
            accuracy = (model(test).argmax(1) == answers).float().mean().item()
        model.train()
        if rank == 0:
            print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f} accuracy {accuracy:.4f} after {spent:.3f} s", flush=True)
    if rank == 0:
        print(f"{done / spent:.1f} images/s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("ranks", 1), ("batch", 64), ("epochs", 4), ("images", 2000), ("seed", 1), ("port", 29537)):
        parser.add_argument(f"--{name}", type=int, default=value)
    chosen = parser.parse_args()
    if chosen.ranks == 1:
        train(0, chosen)
    else:
        torch.multiprocessing.spawn(train, args=(chosen,), nprocs=chosen.ranks)


if __name__ == "__main__":
    main()
