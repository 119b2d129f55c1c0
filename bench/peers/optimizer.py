#!/usr/bin/env python3
"""The optimizer's step beside the memory limit and PyTorch's default and foreach forms: runs bench/optimizer and
optimizer_torch.py in turns and prints the medians and the ratios beside the goals.

    bench/peers/optimizer.py [--build build/release] [--rounds 3] [--parameters 25000000] [--python /usr/bin/python3]
"""
import argparse
import json
import pathlib
import statistics
import subprocess

HERE = pathlib.Path(__file__).resolve().parent


def lines_of(command):
    ran = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True)
    return {line["optimizer"]: line for line in map(json.loads, ran.stdout.splitlines())}


def muster_rows(command):
    ran = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True)
    return {row["name"]: {"step_seconds": row["real_time"], "limit_seconds": row["limit_seconds"]}
            for row in json.loads(ran.stdout)["benchmarks"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=HERE.parent.parent / "build" / "release")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parameters", type=int, default=25_000_000)
    parser.add_argument("--python", default="/usr/bin/python3", help="one that has torch")
    options = parser.parse_args()
    size = ["--parameters", options.parameters, "--rounds", 9]
    rounds = []
    for _ in range(options.rounds):
        muster = muster_rows([f"{options.build}/bench/optimizer", "--benchmark_format=json", *size])
        torch = lines_of([options.python, HERE / "optimizer_torch.py", *size])
        rounds.append({name: {**muster[name], **torch.get(name, {})} for name in muster})
    print(f"{options.parameters} parameters, one thread, medians of {options.rounds} rounds, ms\n")
    print(f"{'optimizer':26} {'muster':>8} {'limit':>8} {'of it':>6} {'default':>8} {'times':>6} {'foreach':>8} {'times':>6}")
    print(f"{'goal':26} {'':8} {'':8} {'0.9':>6} {'':8} {'3':>6} {'':8} {'1.5':>6}")
    for name in rounds[0]:
        def median(measure):
            return statistics.median(1e3 * row[name][measure] for row in rounds)
        step, limit = median("step_seconds"), median("limit_seconds")
        text = f"{name:26} {step:8.2f} {limit:8.2f} {limit / step:6.2f}"
        if "default_seconds" in rounds[0][name]:
            default, foreach = median("default_seconds"), median("foreach_seconds")
            text += f" {default:8.2f} {default / step:6.2f} {foreach:8.2f} {foreach / step:6.2f}"
        print(text)


if __name__ == "__main__":
    main()
