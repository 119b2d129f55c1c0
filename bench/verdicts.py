#!/usr/bin/env python3
"""Measures the error rates of muster-bench compare on this machine: compares each pair of sessions with the same binary (every verdict is
false), and sessions that take a tenth longer (every verdict other than "slower" is missed). The longer sessions train more epochs, so
that the whole time including start-up and data is a tenth longer. All run in turns, like the two sides of
muster-bench revisions, or with --apart, like two separate muster-bench run.
  python3 bench/verdicts.py build/release [--sessions 7] [--slower 3] [--repeats 5] [--apart] [--out DIR]"""
import argparse
import itertools
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

PLATFORM = pathlib.Path(__file__).resolve().parents[1] / "python"
sys.path.insert(0, str(PLATFORM))
from muster_bench import compare  # noqa: E402  (beside this file)
from muster_bench.experiment import read_file  # noqa: E402
from muster_bench.files import Digests  # noqa: E402
from muster_bench.plan import make_plan  # noqa: E402
from muster_bench.runner import Runner, run_side_by_side  # noqa: E402

TIMED = "import subprocess, sys, time; t = time.perf_counter(); subprocess.run(sys.argv[1:], check=True); print('seconds', time.perf_counter() - t)"
FILE = """
muster-bench: 1
name: verdicts
templates:
  timed:
    command: ["{python}", "-c", "{timed}", "{build}/examples/logistic_regression", "--synthetic", "epsilon:10000", "--ranks", "{{ranks}}",
              "--epochs", "{epochs}", "--batch", "{{batch}}", "--seed", "{{seed}}"]
    read: [{{log: {{seconds: 'seconds (\\S+)'}}}}]
experiments:
  timed: {{template: timed, parameters: {{ranks: 1}}, sweep: {{batch: [50, 75, 100, 150, 200, 300, 400, 600, 800, 1000]}}, repeats: {repeats}}}
"""


EPOCHS = 100


def seconds(chosen, epochs):
    words = [chosen.build / "examples/logistic_regression", "--synthetic", "epsilon:10000", "--epochs", str(epochs)]
    begin = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def a_tenth_longer(chosen):
    """Returns the epochs with which a run takes a tenth longer than with EPOCHS."""
    short, long = (statistics.median(seconds(chosen, epochs) for _ in range(5)) for epochs in (1, EPOCHS))
    return round(EPOCHS + 0.1 * long * (EPOCHS - 1) / (long - short))


def session(folder, name, chosen, epochs):
    path = folder / f"{name}.yaml"
    path.write_text(FILE.format(python=sys.executable, timed=TIMED, build=chosen.build.resolve(), epochs=epochs, repeats=chosen.repeats))
    file = read_file(path)
    return Runner(file, make_plan(file, Digests()), folder / name, file.division)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--sessions", type=int, default=7)
    parser.add_argument("--slower", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--apart", action="store_true", help="one session after the other")
    parser.add_argument("--out", type=pathlib.Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="muster-verdicts-") as held:
        folder = (chosen.out or pathlib.Path(held)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        epochs = a_tenth_longer(chosen)
        slower = [session(folder, f"slower{n}", chosen, epochs) for n in range(chosen.slower)]
        same = [session(folder, f"same{n}", chosen, EPOCHS) for n in range(chosen.sessions)]
        for some in [[each] for each in (*slower, *same)] if chosen.apart else [[*slower, *same]]:
            if status := run_side_by_side(some):
                sys.exit(status)
        slower, same = ([compare.load(each.folder) for each in some] for some in (slower, same))
    for title, pairs in (("the same twice", itertools.combinations(same, 2)),
                         (f"a tenth longer ({epochs} epochs for {EPOCHS})", itertools.product(same, slower))):
        rows = [row for pair in pairs for row in compare.compare(*pair)[0]]
        print(f"{title}, {chosen.repeats} repetitions, {len(rows)} comparisons: {compare.summary(rows)}")


if __name__ == "__main__":
    main()
