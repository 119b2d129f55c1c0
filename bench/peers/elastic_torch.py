"""The worker of bench/elastic.py under torch's elastic agent: the same step. With the word "launch": the agent, with three
workers, as torchrun starts it (torchrun itself of PyTorch 1.13 does not run under Python 3.11)."""
import os
import sys
import time

import torch
import torch.distributed as dist

if sys.argv[1:] == ["launch"]:
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    how = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=3, run_id=str(os.getpid()), rdzv_backend="c10d",
                       rdzv_endpoint="localhost:0", max_restarts=1, monitor_interval=0.1)
    elastic_launch(how, sys.executable)("-u", os.path.abspath(__file__))
    sys.exit(0)

dist.init_process_group("gloo")
gradient = torch.ones(200000)
print("ready", dist.get_rank(), os.getpid(), flush=True)
for number in range(100000):
    time.sleep(0.01)
    dist.all_reduce(gradient)
    gradient.fill_(1.0)
    print("step", number, time.monotonic_ns(), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), flush=True)
sys.exit(0)
