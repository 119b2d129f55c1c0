"""The worker of bench/elastic.py under torchrun: the same step, and the rank restarts from nothing as torchrun has it."""
import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
gradient = torch.ones(200000)
print("ready", dist.get_rank(), os.getpid(), flush=True)
for number in range(100000):
    time.sleep(0.01)
    dist.all_reduce(gradient)
    gradient.fill_(1.0)
    print("step", number, time.monotonic_ns(), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), flush=True)
sys.exit(0)
