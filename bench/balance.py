#!/usr/bin/env python3
"""Measures the gain of --balance speed if ranks have unequal shares of a processor: each rank runs in its own cgroup
with a quota. Needs root and permission to make cgroups (version 1 or 2). Ends with 77 without that permission.

usage: balance.py --launcher muster-launch --program cnn [--quotas 0.5,0.5,0.25] [--seconds 20] [--rounds 3]
Prints for each round the samples a second of every rank alone, and the total with equal parts and with parts by speed, as a
share of the sum of the speeds alone.
"""
import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from muster_bench import holding  # noqa: E402

holding.PERIOD = 10_000   # microseconds: a slower processor, instead of a processor that pauses for most of a step

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--launcher", required=True)
parser.add_argument("--program", required=True, help="examples/cnn")
parser.add_argument("--quotas", default="0.5,0.5,0.25", help="processors of each rank")
parser.add_argument("--seconds", type=float, default=20, help="of each run")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--batch", type=int, default=512)
parser.add_argument("words", nargs="*", help="more words of the program")
options = parser.parse_args()
quotas = [float(quota) for quota in options.quotas.split(",")]


def enter(folder):
    """Returns the command of a shell that enters a group."""
    return f"echo $$ > {folder}/cgroup.procs"


def rate(groups, *words):
    """Returns the samples a second with one rank in every given group, over the last two thirds of the epochs."""
    cases = " ".join(f"{rank}) {enter(group)};;" for rank, group in enumerate(groups))
    shell = f'case $RANK in {cases} esac; exec "$0" "$@"'
    run = subprocess.run([options.launcher, "-n", str(len(groups)), "--elastic", "off", "sh", "-c", shell, options.program,
                          "--data", "cifar-like:2048", "--batch", str(options.batch), "--epochs", "1000", "--threads", "0",
                          "--max-train-seconds", str(options.seconds), *words, *options.words],
                         capture_output=True, text=True, timeout=60 + 10 * options.seconds)
    rates = [float(rate) for rate in re.findall(r"^ *\d+(?: +[\d.e-]+){6} +([\d.]+)$", run.stdout, re.MULTILINE)]
    if run.returncode or len(rates) < 3:
        sys.exit(f"{' '.join(words)}: {run.returncode}\n{run.stdout}{run.stderr}")
    return statistics.harmonic_mean(rates[len(rates) // 3:])


groups = []
try:
    for number, quota in enumerate(quotas):
        for files in (holding._version_2(quota, 0), holding._version_1(quota, 0)):
            made = holding._make(f"muster-balance-{os.getpid()}-{number}", files)
            if made:
                groups += made
                break
    if len(groups) < len(quotas):
        print("SKIPPED: no cgroup with a quota can be made here")
        sys.exit(77)
    print(f"{'alone':>24}  {'sum':>7}  equal parts      by speed")
    shares = []
    for _ in range(options.rounds):
        alone = [rate([group]) for group in groups]
        equal, speed = rate(groups), rate(groups, "--balance", "speed")
        shares.append(speed / sum(alone))
        print(f"{' '.join(f'{one:7.1f}' for one in alone):>24}  {sum(alone):7.1f}  {equal:7.1f} ({equal / sum(alone):.2f})"
              f"  {speed:7.1f} ({speed / sum(alone):.2f})", flush=True)
    print(f"by speed, the median of {options.rounds}: {statistics.median(shares):.2f} of the sum")
finally:
    for group in groups:
        group.rmdir()
