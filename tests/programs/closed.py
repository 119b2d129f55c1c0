#!/usr/bin/env python3
"""closed.py [NAME=PROGRAM]... [PROGRAM]...: starts programs without their standard streams, like daemons, and with a
standard output that is full.

Descriptors 0, 1 and 2 of a process become the null device if they are closed at its start: its output reaches no
file, socket or shared memory of the process. Trained models are the same as with the streams.
NAME: launch, store, info, worker (test_elastic_worker), serve, train (an example with --save). Other programs run with
--help, which ends as with the streams.
"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

program = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
others = [word for word in sys.argv[1:] if "=" not in word]
SLOWDOWN = float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))
LAUNCHERS = re.compile("^(OMPI_|PMIX_|PMI_|SLURM_|RANK$|WORLD_SIZE$|LOCAL_RANK$|LOCAL_WORLD_SIZE$|MUSTER_)")
folder = tempfile.TemporaryDirectory(prefix="muster-test-")
clean = {name: value for name, value in os.environ.items() if not LAUNCHERS.match(name)} | {"TMPDIR": folder.name}
# A file remains usable only while its number is closed for others: a shell closes the number for the program that it
# becomes.
WITHOUT = 'for number in $0; do eval "exec $number>&-"; done; exec "$@"'


def start(numbers, *words, **variables):
    return subprocess.Popen(["sh", "-c", WITHOUT, numbers, *map(str, words)], env={**clean, **variables}, cwd=folder.name,
                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def children(process):
    return [int(child) for child in pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def streams(process):
    found = {}
    for name in os.listdir(f"/proc/{process}/fd"):
        if int(name) <= 2:
            found[int(name)] = os.readlink(f"/proc/{process}/fd/{name}")
    return found


def has_opened(process):
    """Returns true if the process has started: it has an anonymous file, or a socket."""
    links = [os.readlink(f"/proc/{process}/fd/{name}") for name in os.listdir(f"/proc/{process}/fd")]
    return any(link.startswith(("socket:", "anon_inode:", "/memfd:")) for link in links)


def wait_for(description, condition):
    until = time.monotonic() + 60 * SLOWDOWN
    while time.monotonic() < until:
        try:
            if condition():
                return
        except (FileNotFoundError, ProcessLookupError):
            pass
        time.sleep(0.01)
    sys.exit(f"{description}: never")


def check(description, process):
    wait_for(f"{description} opens something", lambda: has_opened(process))
    if streams(process) != dict.fromkeys(range(3), "/dev/null"):
        sys.exit(f"{description}: its standard streams are {streams(process)}")


def met(job):
    return subprocess.run([program["info"], "top", "--job", job], env=clean, capture_output=True, check=False).returncode == 0


def end(process):
    process.send_signal(signal.SIGTERM)
    process.wait(60 * SLOWDOWN)


ENDLESS = ["--samples", "500", "--batch", "50", "--epochs", "1000000", "--values", "1000"]
for numbers in ("1", "0 2", "0 1 2"):
    if "launch" in program:
        for transport in ("shm", "tcp"):
            job = start(numbers, program["launch"], "-n", "2", program["worker"], *ENDLESS, "--transport", transport, MUSTER_JOB="closed")
            wait_for("two ranks", lambda: len(children(job.pid)) == 2)
            wait_for("the ranks meet", lambda: met("closed"))
            for process in (job.pid, *children(job.pid)):
                check(f"a process of muster-launch without {numbers}, over {transport}", process)
            end(job)
    if "store" in program:
        store = start(numbers, program["store"], "--listen", "127.0.0.1:0", "--data", f"{folder.name}/data")
        check(f"muster-store without {numbers}", store.pid)
        end(store)
    if "serve" in program:
        models = pathlib.Path(folder.name, "models")
        models.mkdir(exist_ok=True)
        server = start(numbers, program["serve"], "--models", models, "--listen", "127.0.0.1:0")
        check(f"serve without {numbers}", server.pid)
        end(server)

for other in others:
    with open("/dev/full", "w", encoding="utf-8") as full:
        ended = subprocess.run([other, "--help"], env=clean, cwd=folder.name, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    by_muster = "inside_an_mpi_program" not in other  # whose own main prints
    if by_muster and (ended.returncode != 2 or "cannot write 'standard output' (" not in ended.stderr or ended.stderr.count("\n") != 1):
        sys.exit(f"{other} --help > /dev/full ends with {ended.returncode}: {ended.stderr}")
    if status := start("0 1 2", other, "--help").wait(60 * SLOWDOWN):
        sys.exit(f"{other} --help without its streams ends with {status}")

if "launch" in program and "train" in program:
    saved = {}
    for numbers in ("", "1", "0 1 2"):
        words = [program["launch"], "-n", "2", program["train"], "--synthetic", "epsilon:200", "--epochs", "2", "--seed", "1", "--save", "model"]
        status = start(numbers, *words).wait(120 * SLOWDOWN)
        saved[numbers] = (status, pathlib.Path(folder.name, "model").read_bytes())
        pathlib.Path(folder.name, "model").unlink()
    for numbers, kept in saved.items():
        if kept != saved[""] or kept[0] != 0:
            sys.exit(f"without {numbers} the training ends with {kept[0]}, and another model ({len(kept[1])} bytes)")
