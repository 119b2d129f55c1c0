#!/usr/bin/env python3
"""Starts ranks of test_opened as a plain launcher would, and checks how each rank ends.

opened.py PROGRAM [--tcp]   --tcp: the program has muster::tcp
"""
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "python/muster_bench/presets"))
from ports import free_port  # noqa: E402

program, with_tcp = sys.argv[1], "--tcp" in sys.argv[2:]
failures = []


def run(what, size, status, says, *, words=(), of_rank=lambda rank: (), variables=None):
    """Starts `size` ranks; all must end with `status`, and with one line on stderr that contains `says` (no line if None)."""
    started = []
    for rank in range(size):
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("MUSTER_", "OMPI_", "PMIX_", "PMI_", "SLURM_", "MASTER_"))}
        environment |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)} | (variables or {})
        started.append(subprocess.Popen([program, "--timeout", "20", *words, *of_rank(rank)], env=environment,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    for rank, one in enumerate(started):
        out, err = one.communicate(timeout=60)
        good = one.returncode == status and (says in err and err.count("\n") == 1 if says is not None else not err)
        if not good:
            failures.append(f"{what}: rank {rank} ended with {one.returncode} and said {out}{err}")


run("nowhere to meet", 2, 2, "set --rendezvous tcp://HOST:PORT")
for bad in ("tcp//x:1", "tcp:x:1", "folder", "http://x:1", "file:folder"):
    run(f"at '{bad}'", 1, 2, f"cannot be '{bad}'", words=[f"--rendezvous={bad}"])

def by_file():
    """Checks that the file through which ranks find the store is removed at the end, whatever its contents were."""
    with tempfile.TemporaryDirectory() as folder:
        rank_file = pathlib.Path(folder) / f"muster-{os.geteuid()}-a-b.c"

        def meet(what, **more):
            run(what, 4, 0, None, words=["--rendezvous", f"file:{folder}", "--by", "file"],
                variables={"MUSTER_JOB": "a-b.c", **more})
            if left := list(pathlib.Path(folder).iterdir()):
                failures.append(f"{what}: {left} is left")

        meet("in a folder")
        meet("in a folder, with a token", MUSTER_TOKEN="a secret")
        meet("in a folder, by a name with other characters", MUSTER_JOB="a/b c")
        rank_file.write_text(f"muster-store-1 127.0.0.1:{free_port()} of-a-job-that-was-killed\n")
        meet("where a job that was killed has left its file")
        with socket.create_server(("127.0.0.1", 0)) as silent:
            rank_file.write_text(f"muster-store-1 127.0.0.1:{silent.getsockname()[1]} of-a-host-that-is-silent\n")
            meet("where the file names what says nothing")
        run("in no folder", 2, 2, "choose a folder that every rank may write to",
            words=["--rendezvous", f"file:{folder}/none"], variables={"MUSTER_JOB": "a"})
        run("in a folder to which rank 0 does not come", 1, 5, "No such file", of_rank=lambda _: ["--timeout", "1"],
            words=["--rendezvous", f"file:{folder}"], variables={"MUSTER_JOB": "a", "RANK": "1", "WORLD_SIZE": "2"})
        run("one host, as the launcher says", 3, 0, None, words=["--by", "file"],
            variables={"LOCAL_WORLD_SIZE": "3", "MUSTER_JOB": "test-opened-" + str(os.getpid()), "TMPDIR": folder})
        if left := list(pathlib.Path(folder).iterdir()):
            failures.append(f"one host: {left} is left")

    # In the folder of temporary files the file of a killed job stays until the next job of the same user starts. A live
    # job keeps its file.
    with tempfile.TemporaryDirectory() as folder:
        def start_another(what):
            run(what, 2, 0, None, words=["--by", "file"],
                variables={"LOCAL_WORLD_SIZE": "2", "MUSTER_JOB": "another", "TMPDIR": folder})
        lone = subprocess.Popen([program, "--timeout", "50", "--by", "file"], stderr=subprocess.DEVNULL,
                                env={"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2",
                                     "MUSTER_JOB": "lone", "TMPDIR": folder})
        rank_file = pathlib.Path(folder) / f"muster-{os.geteuid()}-lone"
        while not rank_file.exists() and lone.poll() is None:
            time.sleep(0.01)
        start_another("beside a job that lives")
        if not rank_file.exists():
            failures.append("a job that lives has lost its file")
        lone.kill()
        lone.wait()
        start_another("after a job that was killed")
        if left := list(pathlib.Path(folder).iterdir()):
            failures.append(f"a job that was killed leaves {left}")


if with_tcp:
    by_file()
    run("at a port", 4, 0, None, words=["--rendezvous", f"tcp://127.0.0.1:{free_port()}", "--by", "tcp"])
    run("at a port of a name", 3, 0, None, words=["--rendezvous", f"tcp://localhost:{free_port()}"],
        variables={"MUSTER_TOKEN": "a secret"})
    run("at MASTER_ADDR", 3, 0, None, words=["--by", "tcp"],
        variables={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())})
    run("at no address", 2, 2, "cannot be 'here'", words=["--rendezvous", "tcp://here"])
    run("at no host", 2, 2, "host 'no-such-host.invalid' cannot be found",
        words=["--rendezvous", "tcp://no-such-host.invalid:29500", "--timeout", "1"])
    # Rank 1 has another token: it ends with the reason, and rank 0 reports that rank 1 is missing.
    port = free_port()
    started = [subprocess.Popen([program, "--timeout", "3", "--rendezvous", f"tcp://127.0.0.1:{port}", "--token", token],
                                env={"RANK": str(rank), "WORLD_SIZE": "2"}, stderr=subprocess.PIPE, text=True)
               for rank, token in enumerate(("one", "another"))]
    for rank, (status, says) in enumerate(((5, "(missing: rank 1)"), (2, "does not have this job's token"))):
        err = started[rank].communicate(timeout=60)[1]
        if started[rank].returncode != status or says not in err:
            failures.append(f"with another token: rank {rank} ended with {started[rank].returncode} and said {err}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        run("where something else listens and says nothing", 2, 5, "answered in time",
            words=["--timeout", "1", "--rendezvous", f"tcp://127.0.0.1:{taken.getsockname()[1]}"])
else:
    with tempfile.TemporaryDirectory() as folder:
        run("in a folder without muster::tcp", 2, 2, "linked without muster::tcp", words=["--rendezvous", f"file:{folder}"],
            variables={"MUSTER_JOB": "a"})
    run("without muster::tcp", 2, 2, "linked without muster::tcp", words=["--rendezvous", "tcp://127.0.0.1:29500"])

print("\n".join(failures) if failures else "every rank ended as it should")
sys.exit(1 if failures else 0)
