#!/usr/bin/python3
"""PyTorch's eager loop on the task of bench/logistic_regression.cpp: dense rows of 2,000 features in memory, shuffled,
batch 100, logistic loss, SGD with L2, one thread; with --compiled the step is written by hand, as two products, and
compiled (PyTorch 2). Prints samples per second, one figure a repetition.

    /usr/bin/python3 bench/peers/logistic_regression_torch.py [--rows N] [--repeats N] [--in-order] [--compiled]

(Debian: apt-get install --no-install-recommends python3-torch libopenblas0-pthread; without OpenBLAS, torch of Debian
multiplies by the reference BLAS and is several times slower.)
"""
import argparse
import time

import torch


L2 = 2.5e-6


def two_products(rows, labels, batch, weight, bias, rate):
    if batch is not None:  # the compiler's gather is the faster one
        rows, labels = rows[batch], labels[batch]
    error = (torch.sigmoid(rows @ weight + bias) - labels) / len(rows)
    weight.sub_(rate * (rows.T @ error + L2 * weight))
    bias.sub_(rate * (error.sum() + L2 * bias))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--features", type=int, default=2_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--in-order", action="store_true", help="batches are slices: saves torch the copy of each row")
    parser.add_argument("--compiled", action="store_true", help="two products, without autograd")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    rows = torch.nn.functional.normalize(torch.randn(options.rows, options.features))
    labels = (rows @ torch.randn(options.features, 1) > 0).float()

    model = torch.nn.Linear(options.features, 1)
    loss_of = torch.nn.BCEWithLogitsLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=200.0, weight_decay=L2)
    compiled = torch.compile(two_products) if options.compiled else None
    weight, bias = torch.zeros(options.features, 1), torch.zeros(1)

    for repeat in range(options.repeats + 1):  # the first warms up
        if options.in_order:
            batches = [slice(first, first + options.batch) for first in range(0, options.rows, options.batch)]
        else:
            batches = torch.randperm(options.rows).split(options.batch)
        step = 0
        begin = time.perf_counter()
        for batch in batches:
            step += 1
            if compiled:
                data = (rows[batch], labels[batch], None) if options.in_order else (rows, labels, batch)
                compiled(*data, weight, bias, torch.tensor(200.0 / step**0.5))
                continue
            for group in optimizer.param_groups:
                group["lr"] = 200.0 / step**0.5
            optimizer.zero_grad()
            loss = loss_of(model(rows[batch]), labels[batch])
            loss.backward()
            optimizer.step()
        seconds = time.perf_counter() - begin
        if repeat > 0:
            print(f"{options.rows / seconds:.0f}", flush=True)


if __name__ == "__main__":
    main()
