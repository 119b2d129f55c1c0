#!/usr/bin/env python3
"""Trains a9a with every codec and every mode on 4 ranks as threads, for the same epochs. Prints the accuracy beside the accuracy of the
exact allreduce, and the bytes that a rank has sent. Fails if an accuracy is more than half a percent worse.

    tests/examples/logistic_regression/convergence.py --program build/release/examples/logistic_regression --data FOLDER
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

CODECS = ["none", "float16", "bfloat16", "qsgd8", "sign", "topk:0.1", "powersgd:2"]
MODES = ["allreduce-weights", "local-sgd:8", "gossip:ring", "gossip:torus", "gossip:exponential"]
WORSE = 0.005


def train(options, flags):
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder, "report.json")
        command = [options.program, "--train", f"libsvm:{options.data}/a9a", "--test", f"libsvm:{options.data}/a9a.t",
                   "--ranks", "4", "--transport", "threads", "--epochs", str(options.epochs), "--json", str(report), *flags]
        subprocess.run([str(word) for word in command], stdout=subprocess.DEVNULL, check=True, timeout=300)
        read = json.loads(report.read_text())
    return read["epochs"][-1]["val_accuracy"], float(read["annotations"]["objective"]), int(read["annotations"]["bytes sent"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="the folder that has a9a and a9a.t")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    if not (options.data / "a9a.t").exists():
        print(f"skipped '{options.data}/a9a.t is not there'")
        return 0

    runs = [("--compress", codec) for codec in CODECS] + [("--mode", mode) for mode in MODES]
    print(f"a9a, 4 ranks, {options.epochs} epochs\n")
    print("| | accuracy | to exact | objective | bytes sent a rank | of exact |\n|---|---|---|---|---|---|")
    exact, worse = None, []
    for flag, name in runs:
        accuracy, objective, sent = train(options, [flag, name])
        exact = exact or (accuracy, sent)
        difference = accuracy - exact[0]
        print(f"| `{flag} {name}` | {100 * accuracy:.2f} % | {100 * difference:+.2f} % | {objective:.6f} | {sent:,} | "
              f"{sent / exact[1]:.3f} |", flush=True)
        if not difference >= -WORSE:
            worse.append(name)
    if worse:
        print(f"\nmore than {100 * WORSE} % worse than exact: {', '.join(worse)}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
