#!/usr/bin/env python3
"""Starts ranks by hand, as a shell does with RANK and WORLD_SIZE, and checks how each rank ends.

by_hand.py PROGRAM [--tcp]   --tcp: the program has muster::tcp
"""
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python/muster_bench/presets"))
from ports import free_port  # noqa: E402

program, with_tcp = sys.argv[1], "--tcp" in sys.argv[2:]
failures = []


def run(case, status, says, *, words=(), variables=None, wrap=(), sizes=(2, 2)):
    """Runs two ranks on one host. Each ends with `status` and prints one line that contains `says`; both may be pairs."""
    status, says = (each if isinstance(each, tuple) else (each, each) for each in (status, says))
    started = []
    for rank in range(2):
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("MUSTER_", "OMPI_", "PMIX_", "PMI_", "SLURM_", "MASTER_"))}
        size = str(sizes[rank])
        environment |= {"RANK": str(rank), "WORLD_SIZE": size, "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": size, **(variables or {})}
        started.append(subprocess.Popen([*wrap, program, "nothing", "--timeout", "10", *words], env=environment,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    for rank, rank_process in enumerate(started):
        output = rank_process.communicate(timeout=60)[0]
        if rank_process.returncode != status[rank] or says[rank] not in output or output.count("\n") > 1:
            failures.append(f"{case}: rank {rank} ended with {rank_process.returncode} and said {output}")


# Otherwise a second job from the same shell would have the same name.
for transport in ("auto", "shm") + (("hierarchical", "tcp") if with_tcp else ()):
    run(f"of no name over {transport}", 2, "set MUSTER_JOB=NAME", words=["--transport", transport])
run("with half of a place", 2, "set MUSTER_JOB=NAME", variables={"MASTER_ADDR": "127.0.0.1"})
name = f"by-hand-{os.getpid()}"
with tempfile.TemporaryDirectory() as folder:
    run("in a folder that may be another's too", 2, "set MUSTER_JOB=NAME", words=["--rendezvous", f"file:{folder}", "--transport", "tcp"])
run("named", 0, "", variables={"MUSTER_JOB": name})
run("named, each rank with a parent of its own", 0, "", variables={"MUSTER_JOB": name}, wrap=["timeout", "60"])
for sizes in ((2, 3), (3, 2)):
    for transport in ("shm", "tcp") if with_tcp else ("shm",):
        where = {"MUSTER_JOB": f"{name}-{sizes[0]}", **({} if transport == "shm" else {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())})}
        run(f"with the sizes {sizes} over {transport}", 2, f"rank 0 was started with a size of {sizes[0]}, and rank 1 with a size of {sizes[1]} (",
            words=["--transport", transport], variables=where, sizes=sizes)
# Rank 0 with a size of 1 is a job by itself, and cannot detect the other rank, which is told what to look at.
if with_tcp:
    run("rank 0 with a size of 1", (0, 5), ("", "check that rank 0 runs with the same WORLD_SIZE"), sizes=(1, 2),
        words=["--timeout", "1", "--transport", "tcp"], variables={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())})
    for transport in ("auto", "hierarchical", "tcp"):
        run(f"with a place, over {transport}", 0, "", wrap=["timeout", "60"],
            words=["--transport", transport, "--rendezvous", f"tcp://127.0.0.1:{free_port()}"])
        run(f"with MASTER_ADDR and MASTER_PORT, over {transport}", 0, "", words=["--transport", transport],
            variables={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}, wrap=["timeout", "60"])

print("\n".join(failures) if failures else "every rank ended as it should")
sys.exit(1 if failures else 0)
