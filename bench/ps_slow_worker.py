#!/usr/bin/env python3
"""Measures the time to an accuracy on a9a if one worker out of four is slower than the others: with an allreduce, and with a
parameter server that waits for the slow worker always, up to a bound, or never.

usage: ps_slow_worker.py --program build/release/tests/examples/paced_logistic_regression --data FOLDER [--goal 0.845]
                         [--slow 10]

A step's arithmetic is padded to 2 ms, and at the slow worker to a multiple (`--slow-times`), so that
the ranks do not compete for processors. The time runs from the first worker's batches to the end of the first epoch that
reaches the goal; the accuracy is measured after all workers have ended.
"""
import argparse
import json
import os
import pathlib
import subprocess
import tempfile

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--program", required=True)
parser.add_argument("--data", type=pathlib.Path, required=True, help="the folder that has a9a and a9a.t")
parser.add_argument("--goal", default="0.845")
parser.add_argument("--slow", default="10")
parser.add_argument("--epochs", default="2")
parser.add_argument("--transport", default="threads", help="threads, or one that mpirun starts")
options = parser.parse_args()
if os.geteuid() == 0:
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")

print("| | time to the goal | accuracy in the end |\n|---|---|---|")
for name, ranks, flags in [("allreduce", 4, []),
                           ("bulk", 5, ["--mode", "ps", "--consistency", "bulk"]),
                           ("bounded:16", 5, ["--mode", "ps", "--consistency", "bounded:16"]),
                           ("bounded:256", 5, ["--mode", "ps", "--consistency", "bounded:256"]),
                           ("async", 5, ["--mode", "ps", "--consistency", "async"])]:
    for slow in ("1", options.slow):
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder, "report.json")
            start = [] if options.transport == "threads" else ["mpirun", "--oversubscribe", "-n", str(ranks)]
            where = ["--ranks", str(ranks)] if options.transport == "threads" else ["--transport", options.transport]
            subprocess.run([*start, options.program, "--train", f"libsvm:{options.data}/a9a", "--test",
                            f"libsvm:{options.data}/a9a.t", "--epochs", options.epochs, "--goal",
                            f"accuracy={options.goal}", "--step-time", "0.002", "--slow-rank", "3", "--slow-times", slow,
                            "--json", report, *where, *flags], stdout=subprocess.DEVNULL, check=True, timeout=600)
            read = json.loads(report.read_text())
        reached = read["time_to_goal_seconds"]
        accuracy = float(read["annotations"].get("accuracy of all workers", read["epochs"][-1]["val_accuracy"]))
        print(f"| {name}, {'all alike' if slow == '1' else f'one {slow} times slower'} | "
              f"{'not reached' if reached is None else f'{reached:.2f} s'} | {100 * accuracy:.2f} % |", flush=True)
