#!/usr/bin/env python3
"""Runs examples/13_libtorch.cpp on digits of MNIST as jobs of processes: resumed to the bit, and elastic with ranks that are killed.

usage: elastic.py --launcher PATH --program PATH [--rounds N] [--seed S] [--data FOLDER]

The data are MNIST's 10,000 test images, 2,400 to train and 1,000 to validate. Each round kills a rank of three by SIGKILL in a
step that the seed draws; the launcher restarts it, and it joins. Every job must end with 0, with the accuracy of the undisturbed
job less 0.03."""
import argparse
import gzip
import hashlib
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--launcher", required=True)
parser.add_argument("--program", required=True)
parser.add_argument("--rounds", type=int, default=2)
parser.add_argument("--seed", type=int, default=int(os.environ.get("MUSTER_TEST_SEED", "20261130")))
parser.add_argument("--data", type=pathlib.Path, required=True)
options = parser.parse_args()
LIMIT = 300 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))
STEPS = 19  # a batch of 128 in 2,400 images


def split(folder):
    """Writes MNIST's files with images of the test set alone."""
    images = gzip.open(options.data / "mnist" / "t10k-images-idx3-ubyte.gz").read()[16:]
    labels = gzip.open(options.data / "mnist" / "t10k-labels-idx1-ubyte.gz").read()[8:]
    for name, begin, end in (("train", 0, 2400), ("t10k", 9000, 10000)):
        (folder / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, end - begin, 28, 28) + images[784 * begin:784 * end])
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, end - begin) + labels[begin:end])


def run(ranks, epochs, checkpoints, *more, kill=None):
    """Returns (the accuracy of the last epoch, the output) of a job."""
    words = [options.launcher, "-n", str(ranks), *more, options.program, f"mnist:{folder}", str(epochs), *([checkpoints] if checkpoints else [])]
    environment = dict(os.environ, OMP_NUM_THREADS="1", **({"KILL": str(kill)} if kill else {}))
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT, env=environment)
    text = done.stdout + done.stderr
    found = re.findall(r"^epoch \d+: .*val_accuracy ([\d.]+)", text, re.M)
    if done.returncode != 0 or not found:
        sys.exit(f"seed {options.seed}: {' '.join(words)}\nends with {done.returncode}:\n{text}")
    return float(found[-1]), text


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


if not (options.data / "mnist" / "t10k-images-idx3-ubyte.gz").exists():
    print(f"SKIPPED: there is no {options.data}/mnist")
    sys.exit(0)
draw = random.Random(options.seed)
with tempfile.TemporaryDirectory(prefix="muster-torch-") as name:
    folder = pathlib.Path(name)
    split(folder)
    # Fixed ranks: what is resumed after an epoch ends with the bits of what was not interrupted.
    fixed = ("--elastic", "off")
    whole, _ = run(2, 3, f"{folder}/whole", *fixed)
    run(2, 1, f"{folder}/parted", *fixed)
    parted, text = run(2, 3, f"{folder}/parted", *fixed)
    if not re.search(rf"resumes after step {STEPS}", text) or digest(folder / "whole" / "model.pt") != digest(folder / "parted" / "model.pt"):
        sys.exit(f"the resumed model is another one (accuracies {whole} and {parted}):\n{text}")
    print(f"3 epochs, and 1 and 2 of them: the same model to the bit, accuracy {whole}")
    undisturbed, _ = run(3, 3, None)
    if undisturbed < 0.85:
        sys.exit(f"the undisturbed job has an accuracy of {undisturbed}")
    for number in range(options.rounds):
        step = draw.randrange(1, 3 * STEPS - 1)
        reached, text = run(3, 3, None, "--restart", "1", kill=step)
        if "was killed by signal 9" not in text or not re.search(r"rank 2 died", text):
            sys.exit(f"seed {options.seed}: no rank was killed in step {step}:\n{text}")
        if reached < undisturbed - 0.03:
            sys.exit(f"seed {options.seed}: after a death in step {step} the accuracy is {reached}, undisturbed {undisturbed}:\n{text}")
        joined = len(re.findall(r"1 joined", text))
        print(f"round {number}: killed in step {step}, {joined} joined, accuracy {reached} (undisturbed {undisturbed})")
