#!/usr/bin/python3
"""PyTorch's SGD and AdamW on 100 tensors, one thread, its default and its foreach form: prints a line of JSON each,
with the time of the processor.

    /usr/bin/python3 bench/peers/optimizer_torch.py [--parameters N] [--rounds N]
"""
import argparse
import json
import statistics
import time

import torch

TENSORS = 100


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=25_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sgd, adamw = torch.optim.SGD, torch.optim.AdamW
    contenders = [("sgd", sgd, {"lr": 1e-3}),
                  ("momentum:0.9,decay=1e-4", sgd, {"lr": 1e-3, "momentum": 0.9, "weight_decay": 1e-4}),
                  ("nesterov:0.9,decay=1e-4", sgd, {"lr": 1e-3, "momentum": 0.9, "weight_decay": 1e-4, "nesterov": True}),
                  ("adamw,decay=1e-2", adamw, {"lr": 1e-3, "weight_decay": 1e-2})]
    for name, make, arguments in contenders:
        times = {}
        for foreach in (None, True):  # None is the default
            tensors = [torch.nn.Parameter(torch.full((10, options.parameters // TENSORS // 10), 0.5)) for _ in range(TENSORS)]
            for tensor in tensors:
                tensor.grad = torch.full_like(tensor, 1e-3)
            times[foreach] = (make(tensors, foreach=foreach, **arguments), [])
        for turn in range(-2, options.rounds):
            for optimizer, seconds in times.values():
                begin = time.thread_time()
                optimizer.step()
                if turn >= 0:
                    seconds.append(time.thread_time() - begin)
        print(json.dumps({"optimizer": name, "default_seconds": statistics.median(times[None][1]),
                          "foreach_seconds": statistics.median(times[True][1])}), flush=True)


if __name__ == "__main__":
    main()
