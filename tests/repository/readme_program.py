#!/usr/bin/env python3
"""Runs the README's program in each way that a reader may: alone, on threads, under mpirun, with a parameter server, and under
muster-launch with a killed rank and a replacement that joins; on generated images. Its model records the samples
by committed step (recorded/mlp.hpp): each step has the same samples in every way.

usage: readme_program.py --program PATH [--mpirun "WORDS"] [--launcher PATH]
"""
import argparse
import hashlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples"))
import digits  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--program", required=True)
parser.add_argument("--mpirun", default="")
parser.add_argument("--launcher", default="")
options = parser.parse_args()
IMAGES, EPOCHS = 6000, 5


def epochs_of(way, text):
    """Returns the losses as printed; with a server only the first worker's losses."""
    seen = IMAGES // 2 if way == "on a server" else IMAGES
    lines = re.findall(r"^epoch (\d+): loss (\S+), (\d+) samples in \S+ s$", text, re.M)
    if [int(line[0]) for line in lines] != list(range(1, EPOCHS + 1)) or any(line[2] != str(seen) for line in lines):
        sys.exit(f"{way}: these are not {EPOCHS} epochs of {IMAGES} samples:\n{text}")
    return [line[1] for line in lines]


def committed(folder):
    """Returns the number of samples in the committed steps, and a digest of (epoch, position of the step's batch,
    sample)."""
    used = []
    for record in pathlib.Path(folder).glob("committed-*"):
        for line in record.read_text().splitlines():
            epoch, position, *ids = line.split()
            used += [(int(epoch), int(position), int(sample)) for sample in ids]
        record.unlink()
    return len(used), hashlib.sha256(repr(sorted(used)).encode()).hexdigest()[:16]


def start(folder, *words):
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(way, folder, *words):
    job = start(folder, *words)
    text = job.communicate(timeout=200)[0]
    if job.returncode != 0:
        sys.exit(f"{way} ends with {job.returncode}:\n{text}")
    return text


def killed(folder):
    """Kills a rank after the first epoch; the launcher starts another, which joins."""
    job = start(folder, options.launcher, "-n", "3", "--restart", "1", options.program)
    lines = []
    for line in job.stdout:
        lines.append(line)
        if line.startswith("epoch 1:"):
            with open(f"/proc/{job.pid}/task/{job.pid}/children", encoding="ascii") as children:
                os.kill(int(children.read().split()[-1]), signal.SIGKILL)
    text = "".join(lines)
    if job.wait() != 0 or not re.search(r"generation \d+: .*1 joined", text):
        sys.exit(f"with a rank killed it ends with {job.returncode}, or no rank joined:\n{text}")
    return text


def told_to_end(folder):
    """Sends SIGTERM after the first epoch: the state is saved, and the same command continues without a difference."""
    job = start(folder, options.program, "--ranks", "2")
    lines = []
    for line in job.stdout:
        lines.append(line)
        if line.startswith("epoch 1:"):
            job.send_signal(signal.SIGTERM)
    if job.wait() != 143 or "stopped by SIGTERM" not in lines[-1]:
        sys.exit(f"after SIGTERM it ends with {job.returncode}:\n{''.join(lines)}")
    return "".join(lines) + run("after SIGTERM", folder, options.program, "--ranks", "2")


ways = {"alone": [options.program], "on threads": [options.program, "--ranks", "2"]}
ways["on a server"] = [options.program, "--ranks", "3", "--mode", "ps", "--consistency", "bulk"]  # two workers
if options.mpirun:
    ways["under mpirun"] = [*options.mpirun.split(), "-n", "2", options.program]
losses, samples = {}, {}
with tempfile.TemporaryDirectory(prefix="muster-readme-") as images:
    digits.draw(images, IMAGES)
    for what, words in ways.items():
        losses[what] = epochs_of(what, run(what, images, *words))
        again = run(what, images, *words)
        if "has ended, after" not in again:
            sys.exit(f"{what}: the same command once more says:\n{again}")
        samples[what] = committed(images)
        subprocess.run(["rm", "-r", os.path.join(images, "checkpoints")], check=True)
    losses["told to end"] = epochs_of("told to end", told_to_end(images))
    samples["told to end"] = committed(images)
    subprocess.run(["rm", "-r", os.path.join(images, "checkpoints")], check=True)
    if options.launcher:
        losses["with a rank killed"] = epochs_of("with a rank killed", killed(images))
        samples["with a rank killed"] = committed(images)
        # killed after a step committed, before its record was written?
        if samples["with a rank killed"] != samples["alone"]:
            subprocess.run(["rm", "-r", os.path.join(images, "checkpoints")], check=True)
            losses["with a rank killed"] = epochs_of("with a rank killed", killed(images))
            samples["with a rank killed"] = committed(images)
if options.mpirun and losses["on threads"] != losses["under mpirun"]:
    sys.exit(f"threads and processes differ: {losses}")
if losses["told to end"][-1] != losses["on threads"][-1]:
    sys.exit(f"a training that was told to end, and went on, ends elsewhere: {losses}")
last = {what: float(values[-1]) for what, values in losses.items()}
if max(last.values()) - min(last.values()) > 1e-4 or max(last.values()) > 0.1:
    sys.exit(f"the last losses differ by more than 1e-4, or too little was learnt: {last}")
if len(set(samples.values())) != 1 or samples["alone"][0] != EPOCHS * IMAGES:
    sys.exit(f"the steps used different samples: {samples}")
print(f"the last losses: {last}")
print(f"samples of committed steps, and their digest: {samples}")
