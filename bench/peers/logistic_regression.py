#!/usr/bin/env python3
"""Logistic regression beside PyTorch's eager loop and, from PyTorch 2 on, its compiled one: dense rows of 2,000 features
in memory, batch 100, one thread each. Runs them in turns and prints samples per second of every round, the medians and their ratios.

    bench/peers/logistic_regression.py [--build build/release] [--rounds 5] [--python /usr/bin/python3]
"""
import argparse
import json
import pathlib
import statistics
import subprocess

HERE = pathlib.Path(__file__).resolve().parent


def muster(options):
    ran = subprocess.run(
        [f"{options.build}/bench/logistic_regression", f"--rows={options.rows}", "--benchmark_filter=muster_step",
         "--benchmark_repetitions=1", "--benchmark_min_time=1", "--benchmark_format=json",
         "--benchmark_report_aggregates_only=false"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return json.loads(ran.stdout)["benchmarks"][0]["items_per_second"]


def torch(options, *arguments):
    ran = subprocess.run(
        [options.python, HERE / "logistic_regression_torch.py", f"--rows={options.rows}", "--repeats=1", *arguments],
        stdout=subprocess.PIPE, text=True, check=True)
    return float(ran.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=HERE.parent.parent / "build" / "release")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--python", default="/usr/bin/python3", help="one that has torch")
    options = parser.parse_args()

    ways = {"shuffled": (), "in order": ("--in-order",)}
    if not subprocess.run([options.python, "-c", "import torch; torch.compile"], stderr=subprocess.DEVNULL).returncode:
        ways.update({"compiled, shuffled": ("--compiled",), "compiled, in order": ("--compiled", "--in-order")})
    rounds = []
    print("samples/s     muster", *(f"{way:>18}" for way in ways))
    for _ in range(options.rounds):
        rounds.append((muster(options), *(torch(options, *flags) for flags in ways.values())))
        print(f"          {rounds[-1][0]:10.0f}", *(f"{figure:18.0f}" for figure in rounds[-1][1:]), flush=True)
    ours, *theirs = (statistics.median(figures) for figures in zip(*rounds))
    print(f"median    {ours:10.0f}", *(f"{figure:18.0f}" for figure in theirs))
    print(f"muster over it      ", *(f"{ours / figure:18.1f}" for figure in theirs))


if __name__ == "__main__":
    main()
