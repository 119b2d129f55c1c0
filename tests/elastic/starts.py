#!/usr/bin/env python3
"""Starts of elastic jobs whose ranks do not fit together, by every launcher: no rank then trains alone without a word.

usage: starts.py --launcher PATH --store-program PATH --program PATH   (test_elastic_worker)
"""
import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser()
parser.add_argument("--launcher", required=True)
parser.add_argument("--store-program", required=True)
parser.add_argument("--program", required=True)
options = parser.parse_args()
LIMIT = 100 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "MASTER_", "LAUNCHED_", "OMPI_", "PMIX_"))}
CLEAN |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "MUSTER_STORE_PROGRAM": options.store_program}
JOB = ["--samples", "500", "--batch", "50", "--epochs", "3", "--values", "1000"]
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def ran(*words, **variables):
    return subprocess.run(words, env=CLEAN | variables, **PIPES, timeout=LIMIT, check=False)


def by_hand(*words, before=([], []), ranks=(0, 1), size=2, place=None, **variables):
    """Starts the ranks, each after its own words, and returns their statuses, and all that they print."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        common = {"MUSTER_ELASTIC": "on", "MUSTER_JOB": "starts", "MUSTER_RENDEZVOUS": place or f"file:{folder}", "WORLD_SIZE": str(size)}
        started = [subprocess.Popen([*first, options.program, *JOB, *words], env=CLEAN | common | variables | {"RANK": str(rank)}, **PIPES)
                   for rank, first in zip(ranks, before)]
        output = [process.communicate(timeout=LIMIT) for process in started]
        return [process.returncode for process in started], "".join(map("".join, output))


def require(what, holds, output):
    if not holds:
        sys.exit(f"{what}:\n{output}")
    print(what, flush=True)


# A rank with another option, or other data.
ODD = {"--batch": 50, "--samples": 500, "--values": 1000}
for flag, value in ODD.items():
    odd = f'exec "$0" "$@" {flag} $(({value} + ${{RANK:-${{OMPI_COMM_WORLD_RANK:-0}}}} / 2))'
    jobs = {"muster-launch": [options.launcher, "-n", "3", "--restart", "3", "sh"]}
    if shutil.which("mpirun") and flag == "--batch":
        jobs["mpirun"] = ["mpirun", "--oversubscribe", "-n", "3", "sh"]
    for launcher, words in jobs.items():
        for transport in ("auto", "tcp"):
            job = ran(*words, "-c", odd, options.program, *JOB, "--transport", transport, MUSTER_ELASTIC="on")
            same = job.stdout.count("ended 6 the ranks cannot train together (")
            # mpirun kills the other ranks as soon as one has ended.
            holds = job.returncode == 6 and "done" not in job.stdout and "restarted" not in job.stderr and (same == 3 or launcher == "mpirun")
            require(f"{launcher}, one of three ranks has another {flag}, {transport}: an error at every rank", holds, job)

# A process that joins later with another option is refused, and the others continue.
with tempfile.TemporaryDirectory() as folder:
    enough, late = f"{folder}/enough", f"{folder}/late"
    odd = f'test -e {late} && set -- "$@" --batch 51; exec "$0" "$@"'
    job = subprocess.Popen([options.launcher, "-n", "2", "--max", "3", "sh", "-c", odd, options.program, *JOB, "--epochs", "3000", "--until", enough],
                           env=CLEAN, **PIPES)
    lines = [job.stdout.readline() for _ in range(2)]
    open(late, "w").close()
    job.send_signal(signal.SIGUSR2)
    while not lines[-1].startswith("ended ") and lines[-1]:
        lines.append(job.stdout.readline())
    open(enough, "w").close()
    rest, errors = job.communicate(timeout=LIMIT)
    holds = "ended 2 this rank cannot train with the others" in lines[-1] and rest.count("done ") == 2 and job.returncode == 2
    require("a joining process with another --batch is refused, and two ranks are done", holds, (lines, rest, errors))

# Ranks that do not find each other.
alone = ["--quorum-timeout", "2"]
status, output = by_hand(*alone, before=[[]], ranks=[0])
require("one of two ranks is alone", status == [13] and "1 of 2 joined; check" in output, output)
status, output = by_hand(*alone, "--min-ranks", "1", before=[[]], ranks=[0])
require("one of two ranks is alone, as the user wished", status == [0] and output.count("began with 1 of 2 ranks") == 1, output)
status, output = by_hand(*alone, size=3)
require("two of three ranks begin", status == [0, 0] and output.count("began with 2 of 3 ranks") == 1, output)
if os.geteuid() == 0 and shutil.which("setpriv"):
    other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    status, output = by_hand(*alone, "--timeout", "5", before=([], other))
    require("the ranks belong to two users, and one store file to each", status == [13, 5], (status, output))

# A launcher below a rank.
if shutil.which("mpirun"):
    inner = ["mpirun", "--oversubscribe", "-n", "2", options.program, *JOB, "--elastic", "on"]
    job = ran(options.launcher, "-n", "2", *inner)
    holds = job.returncode == 0 and job.stdout.count("done ") == 4 and job.stdout.count("rebuilt 1 ") == 4 and "rebuilt 2" not in job.stdout
    require("two mpirun below muster-launch are two jobs of two ranks", holds, job)

# Many more ranks than cores: starvation is no sign of a death.
core = ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
if shutil.which("taskset"):
    for transport in ("shm", "tcp"):
        job = ran(*core, options.launcher, "-n", "24", options.program, *JOB, "--transport", transport)
        holds = job.returncode == 0 and job.stdout.count("done ") == 24 and "died" not in job.stderr and "fenced" not in job.stderr
        require(f"24 ranks on a core, {transport}", holds, job)

# Ranks of one host that see each other's times or processes differently. Such a rank is no proof of a death.
apart = ["unshare", "--time", "--monotonic", "100000", "--boottime", "100000"]
if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode == 0:
    status, output = by_hand(before=([], apart))
    require("a rank in a time namespace", status == [0, 0] and "died" not in output and output.count("done ") == 2, (status, output))
hidden = ["unshare", "--mount", "sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid=65534 --regid=65534 --clear-groups "$0" "$@"']
if os.geteuid() == 0 and subprocess.run([*hidden, "true"], capture_output=True, check=False).returncode == 0:
    token = {"MUSTER_TOKEN": "of the test", "MUSTER_JOB": "auto"}  # the name of a job is of one user
    with subprocess.Popen([options.store_program, "--listen", "127.0.0.1:0"], env=CLEAN | token, **PIPES) as store:
        place = "tcp://" + store.stdout.readline().split()[-1]
        status, output = by_hand("--transport", "tcp", before=([], hidden), place=place, **token)
        store.terminate()
    require("a rank that /proc hides", status == [0, 0] and "died" not in output and output.count("done ") == 2, (status, output))
