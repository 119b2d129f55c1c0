#!/usr/bin/env python3
"""The heat solver alone and with its surrogate: at most ten changed lines, which the manual shows; the same temperatures; and a
surrogate that learns, equally well on any number of ranks.

usage: solver.py diff SOURCES
       solver.py run --solver PATH --alone PATH --mpirun WORDS
"""
import argparse
import difflib
import os
import pathlib
import re
import shlex
import subprocess
import sys

RANKS = (1, 2, 3, 4)
LIMIT = 120 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))  # seconds for each run, of which a run takes one or two


def changes(sources):
    """Returns the changed lines of the solver, as diff prints them, without comments at the top."""
    alone, with_surrogate = (
        (sources / "examples" / name).read_text().partition("#include")[1:] for name in ("solver/heat.cpp", "12_solver.cpp"))
    lines = difflib.unified_diff("".join(alone).splitlines(), "".join(with_surrogate).splitlines(), n=0, lineterm="")
    return [line for line in list(lines)[2:] if line[0] in "+-"]


def check_changes(sources):
    found = changes(sources)
    added = [line for line in found if line[0] == "+" and line != "+"]
    if not 5 <= len(added) <= 10:
        sys.exit(f"the solver changes by {len(added)} lines, and not by at most 10:\n" + "\n".join(found))
    code = len((sources / "examples/12_solver.cpp").read_text().splitlines())
    if code > 150:
        sys.exit(f"the solver has {code} lines, more than 150")
    page = (sources / "docs/collectives.md").read_text()
    shown = "```diff\n" + "\n".join(line for line in found if line not in "+-") + "\n```"
    if shown not in page:
        sys.exit("docs/collectives.md does not show the diff of the solver:\n" + shown)
    print(f"{len(added)} lines of {code} are new")


def run(program, ranks, mpirun):
    done = subprocess.run([*shlex.split(mpirun), "-n", str(ranks), program], capture_output=True, text=True, timeout=LIMIT)
    if done.returncode != 0:
        sys.exit(f"{program} on {ranks} ranks ends with {done.returncode} and prints\n{done.stdout}{done.stderr}")
    return done.stdout.splitlines()


def check_runs(options):
    alone = run(options.alone, 2, options.mpirun)
    last_errors = []
    for ranks in RANKS:
        lines = run(options.solver, ranks, options.mpirun)
        print(f"{ranks} ranks:", *lines, sep="\n  ")
        if len(lines) != 2 or lines[0] != alone[0]:
            sys.exit(f"the solver alone prints {alone}")
        first, last = map(float, re.findall(r" by (\d\.\d+)", lines[1]))
        # Without training the error is that of a small random function, about 1.
        if first < 0.8 or last > 0.3:
            sys.exit("the surrogate has not learnt")
        last_errors.append(last)
    # All ranks learn from the same cells, whatever rank has them; only the rounding of sums differs.
    if max(last_errors) - min(last_errors) > 0.1:
        sys.exit(f"the surrogate depends on the number of ranks: {last_errors}")


parser = argparse.ArgumentParser()
parser.add_argument("check", choices=("diff", "run"))
parser.add_argument("sources", type=pathlib.Path, nargs="?")
parser.add_argument("--solver")
parser.add_argument("--alone")
parser.add_argument("--mpirun", default="mpirun")
options = parser.parse_args()
if options.check == "diff":
    check_changes(options.sources)
else:
    check_runs(options)
