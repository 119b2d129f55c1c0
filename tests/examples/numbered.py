#!/usr/bin/env python3
"""Runs the numbered examples. The comment at the top of an example has its commands and their output; the commands run in this
order, in one folder. "..." in the output matches any text within a line. Output to stderr is not compared.

usage: numbered.py EXAMPLE.cpp --programs FOLDER [--mpirun "WORDS"] [--launcher PATH]
"""
import argparse
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import digits

parser = argparse.ArgumentParser()
parser.add_argument("source", type=pathlib.Path)
parser.add_argument("--programs", type=pathlib.Path, required=True)
parser.add_argument("--mpirun", default="")
parser.add_argument("--launcher", default="")
options = parser.parse_args()
LIMIT = 100 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))  # seconds; each example takes a second or two


def launches(text):
    """Returns [(command, [line])] from the comment at the top."""
    found = []
    for line in text.splitlines():
        if not line.startswith("//"):
            return found
        text_line = line.removeprefix("//").removeprefix("   ")
        if text_line.startswith("$ "):
            found.append((text_line.removeprefix("$ "), []))
        elif found and line.startswith("//   "):
            found[-1][1].append(text_line)
        elif line != "//" and found:
            return found
    return found


def words_of(command):
    """Returns the command with the build's paths; None if its launcher is missing."""
    words = shlex.split(command)
    for name, with_path in (("mpirun", options.mpirun), ("muster-launch", options.launcher)):
        if words[0] == name:
            if not with_path:
                return None
            words = [*shlex.split(with_path), *words[1:]]
    name = options.source.stem
    words[words.index(name)] = str(options.programs / name)
    return words


def run(words, folder):
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=LIMIT)


code = options.source.read_text()
wanted = launches(code)
if not wanted:
    sys.exit(f"{options.source} does not say how it is started ('//   $ COMMAND' on top)")
if len(code.splitlines()) > 120:
    sys.exit(f"{options.source} has {len(code.splitlines())} lines, more than 120")
# The README's table has a command for each example. A copy of the examples without the README has nothing to compare.
readme = options.source.resolve().parents[1] / "README.md"
for row in readme.read_text().splitlines() if readme.exists() else ():
    if f"(examples/{options.source.name}) |" in row and not any(f"`{command}`" in row for command, _ in wanted):
        sys.exit(f"the README's row of {options.source.name} has none of its launches: {row}")
skipped = 0
with tempfile.TemporaryDirectory(prefix="muster-example-") as folder:
    digits.draw(folder, 6000)
    for command, lines in wanted:
        words = words_of(command)
        if words is None:
            skipped += 1
            continue
        done = run(words, folder)
        pattern = "\n".join(".*".join(map(re.escape, line.split("..."))) for line in lines) + "\n"
        if done.returncode != 0 or not re.fullmatch(pattern, done.stdout):
            sys.exit(f"$ {command}\nends with {done.returncode} and prints\n{done.stdout}{done.stderr}\nit is to print\n" + "\n".join(lines))
        print(f"$ {command}\n{done.stdout}", end="")
    for flag, status, says in (("--help", 0, "--ranks N"), ("--help-all", 0, "--missed-heartbeats N"), ("--version", 0, "muster "),
                               ("--rnaks=2", 2, "did you mean --ranks?")):
        done = run([str(options.programs / options.source.stem), flag], folder)
        if done.returncode != status or says not in done.stdout + done.stderr:
            sys.exit(f"{flag} ends with {done.returncode} and prints\n{done.stdout}{done.stderr}")
if skipped == len(wanted):
    print("SKIPPED: there is no mpirun, or no muster-launch, to start it with")
