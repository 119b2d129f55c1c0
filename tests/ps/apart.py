#!/usr/bin/env python3
"""Servers that are started separately from the launch, and find their job through the store of --rendezvous.

usage: apart.py WHAT --program PATH [--transport tcp|shm] [--store tcp|file] [--mpirun COMMAND] [--seed S]
  all      a launch of two workers; both servers are started separately, before or after the launch
  some     a launch of two workers and a server; one more server is started separately
  killed   as all, with a replica; a server is killed during training
  late     as killed, after the first worker, whose process serves the store, has finished its work
  many     one more server is started than the job needs: it ends and prints the reason, and the job is not affected
  few      a server is not started: all ranks print which rank is missing
"""
import argparse
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python/muster_bench/presets"))
from ports import free_port  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("what", choices=["all", "some", "killed", "late", "many", "few"])
parser.add_argument("--program", required=True)
parser.add_argument("--transport", default="auto")
parser.add_argument("--store", choices=["tcp", "file"], default="tcp")
parser.add_argument("--mpirun", default="", help="starts the launch; else it is as a plain launcher would")
parser.add_argument("--seed", type=int, default=int(time.time()))
options = parser.parse_args()
draw = random.Random(options.seed)
LIMIT = 60
CLEAN = {name: value for name, value in os.environ.items()
         if not name.startswith(("MUSTER_", "OMPI_COMM", "PMIX_", "PMI_", "SLURM_", "MASTER_", "RANK", "WORLD_SIZE"))}
CLEAN["MUSTER_MISSED_HEARTBEATS"] = "20"  # a busy machine is no dead rank


class Started:
    def __init__(self, name, command, environment):
        self.name, self.harmed = name, False
        self.out = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, env={**CLEAN, **environment}, stdout=self.out, stderr=subprocess.STDOUT)

    def says(self):
        self.out.seek(0)
        return self.out.read()


def play(folder):
    where = f"tcp://127.0.0.1:{free_port()}" if options.store == "tcp" else f"file:{folder}"
    job = f"apart-{os.getpid()}"
    remote = 1 if options.what == "some" else 2
    ranks = 3 if options.what == "some" else 2
    common = [options.program, "--steps", "300", "--servers", "2", "--replicas", "1", "--transport", options.transport,
              "--rendezvous", where, "--job", job, "--timeout", "3" if options.what == "few" else "30"]
    launched, own = [], []

    def launch():
        words = [*common, "--remote-servers", str(remote)]
        if options.mpirun:
            launched.append(Started("the launch", [*shlex.split(options.mpirun), "-n", str(ranks), *words], {}))
            return
        for rank in range(ranks):
            if options.what == "late":
                words[words.index("--steps") + 1] = "20" if rank == 0 else "2000"
            launched.append(Started(f"rank {rank}", words, {"RANK": str(rank), "WORLD_SIZE": str(ranks)}))

    def serve():
        own.append(Started(f"server {len(own)}", [*common, "--role", "server"], {}))

    starts = [launch] + [serve] * (remote - (options.what == "few"))
    draw.shuffle(starts)
    for start in starts:
        time.sleep(draw.uniform(0, 0.3))
        start()
    until = time.monotonic() + LIMIT
    if options.what == "many":
        while not all("ready" in started.says() for started in own) and time.monotonic() < until:
            time.sleep(0.01)
        common[common.index("--timeout") + 1] = "2"
        serve()
    if options.what in ("killed", "late"):
        awaited = "step 0" if options.what == "killed" else "all counts"
        while awaited not in launched[0].says() or "step 0" not in launched[1].says():
            if time.monotonic() > until:
                break
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.1))
        victim = draw.choice(own)
        victim.harmed = True
        victim.process.kill()
    try:
        for started in launched + own:
            started.process.wait(max(0.1, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return f"{started.name} hangs", launched + own
    finally:
        for started in launched + own:
            started.process.kill()
            started.process.wait()
    everybody = launched + own
    if options.what == "few":
        for started in everybody:
            names_rank = started.process.returncode == 5 and "missing: rank 3" in started.says()
            lost = started.process.returncode == 4 and "is lost" in started.says()  # rank 0, which served the store, has ended
            if not names_rank and (started is launched[0] or not lost):
                return f"{started.name} ends with {started.process.returncode}", everybody
        return "", everybody
    if options.what == "many":
        extra = own.pop()
        if extra.process.returncode != 2 or "more --remote-servers" not in extra.says():
            return f"the server too many ends with {extra.process.returncode}", everybody
    for started in launched + own:
        if not started.harmed and (started.process.returncode != 0 or "done" not in started.says()):
            return f"{started.name} ends with {started.process.returncode}", everybody
    if sum(started.says().count("all counts") for started in launched) != 2:
        return "not both workers say that all counts", everybody
    if any("step 0" in started.says() for started in own):
        return "a server works", everybody
    return "", everybody


with tempfile.TemporaryDirectory(prefix="muster-apart-") as folder:
    problem, everybody = play(folder)
if problem:
    for started in everybody:
        print(f"--- {started.name}{' (harmed)' if started.harmed else ''}: {started.process.returncode}\n{started.says()[-1500:]}")
    sys.exit(f"{problem} (seed {options.seed}; again: --seed {options.seed})")
print(f"all ended as they should (seed {options.seed})")
