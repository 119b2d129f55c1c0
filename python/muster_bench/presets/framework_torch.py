#!/usr/bin/python3
"""Tasks of frameworks.yaml by PyTorch's DistributedDataParallel over gloo: one process a rank, by RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT, or by mpirun's variables. (The torchrun of Debian's PyTorch 1.13 does not start under Python 3.11.)"""
import os

import numpy
import torch
from torch import distributed, nn

from framework_data import arguments, images, load, rate
from muster_bench.tracker import Tracker


class Block(nn.Module):
    """He et al. 2015, with projections."""

    def __init__(self, inside, outside, stride):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(),
                                  nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside))
        self.way = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)) if inside != outside else nn.Identity()

    def forward(self, x):
        return torch.relu(self.body(x) + self.way(x))


def resnet20():
    layers, inside = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()], 16
    for outside in (16, 32, 64):
        for block in range(3):
            layers.append(Block(inside, outside, 2 if block == 0 and outside > 16 else 1))
            inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def vgg16():
    layers, inside = [], 3
    for outside in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        layers += [nn.Conv2d(inside, outside, 3, 1, 1), nn.BatchNorm2d(outside), nn.ReLU()] if outside else [nn.MaxPool2d(2)]
        inside = outside or inside
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.5), nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, 512), nn.ReLU(),
                         nn.Linear(512, 10))


class Logistic(nn.Linear):
    def __init__(self, features):
        super().__init__(features, 1)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


def main():
    chosen = arguments()
    rank, ranks = (int(os.environ.get(name, os.environ.get(other, alone))) for name, other, alone in
                   (("RANK", "OMPI_COMM_WORLD_RANK", 0), ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", 1)))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29531")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    torch.manual_seed(chosen.seed)
    distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    train, labels, test, answers = load(chosen.task, chosen.data)
    logistic = chosen.task == "logistic"
    model = Logistic(train.shape[1]) if logistic else {"resnet20": resnet20, "vgg16": vgg16}[chosen.task]()
    whole = nn.parallel.DistributedDataParallel(model)
    optimizer = (torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=2.5e-6) if logistic else
                 torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, nesterov=True, weight_decay=1e-4))

    def losses(outputs, wanted):
        """Returns (the sum of losses, hits)."""
        if logistic:
            return nn.functional.softplus(-wanted * outputs[:, 0]).sum(), (outputs[:, 0] * wanted > 0).sum()
        return nn.functional.cross_entropy(outputs, wanted, reduction="sum"), (outputs.argmax(1) == wanted).sum()

    def total(*numbers):
        sums = torch.tensor(numbers, dtype=torch.float64)
        distributed.all_reduce(sums)
        return sums.tolist()

    def evaluate():
        model.eval()
        loss = hits = 0.0
        with torch.no_grad():
            for first in range(rank * 500, len(test), ranks * 500):
                here = test[first:first + 500]
                batch_loss, more = losses(model(torch.from_numpy(here if logistic else images(here))), torch.from_numpy(answers[first:first + 500]))
                loss, hits = loss + batch_loss.item(), hits + more.item()
        model.train()
        return [value / len(test) for value in total(loss, hits)]

    def gather(numbers):
        lists = [None] * ranks
        distributed.all_gather_object(lists, numbers)
        return lists
    tracker = Tracker(ranks, rank, gather, transport="gloo", lines=True)
    together, done = chosen.batch * ranks, 0
    steps = len(train) // together
    for epoch in range(chosen.epochs):
        order = numpy.random.default_rng([chosen.seed, epoch]).permutation(len(train))
        draw = numpy.random.default_rng([chosen.seed, epoch, rank])
        loss_sum = hit_sum = samples = 0
        with tracker.batches():
            for step in range(steps if not chosen.steps else min(steps, chosen.steps - done)):
                with tracker.data_wait():
                    here = order[step * together + rank * chosen.batch:][:chosen.batch]
                    batch, wanted = train[here] if logistic else images(train[here], draw), torch.from_numpy(labels[here])
                with tracker.phase("forward"):
                    loss, hits = losses(whole(torch.from_numpy(batch)), wanted)
                with tracker.phase("backward"):       # the sums of gradients are under way in it
                    optimizer.zero_grad()
                    (loss / len(here)).backward()
                with tracker.phase("optimizer_step"):
                    optimizer.param_groups[0]["lr"] = rate(chosen, ranks, done, steps)
                    optimizer.step()
                tracker.add_samples(len(here))
                loss_sum, hit_sum, samples, done = loss_sum + loss.item(), hit_sum + hits.item(), samples + len(here), done + 1
        loss_sum, hit_sum, samples = total(loss_sum, hit_sum, samples)
        val_loss, val_accuracy = evaluate()
        tracker.end_epoch(train_loss=loss_sum / samples, train_accuracy=hit_sum / samples, val_loss=val_loss, val_accuracy=val_accuracy)
        if done == chosen.steps:
            break
    for name, value in (("program", "framework_torch"), ("framework", f"PyTorch {torch.__version__}"), ("batch", together), ("mode", "allreduce")):
        tracker.annotate(name, value)
    tracker.write(chosen.json)


if __name__ == "__main__":
    main()
