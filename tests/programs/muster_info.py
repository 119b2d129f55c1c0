#!/usr/bin/env python3
"""muster_info.py PROGRAM SETTINGS_MD: what muster-info prints, and that the manual's table of settings is its table."""
import json
import os
import re
import subprocess
import sys

program, manual = sys.argv[1:]
# Whatever started the tests must not be taken for the launcher here.
LAUNCHERS = re.compile("^(OMPI_|PMIX_|PMI_|SLURM_|RANK$|WORLD_SIZE$|LOCAL_RANK$|MUSTER_)")


def run(*arguments, **variables):
    clean = {name: value for name, value in os.environ.items() if not LAUNCHERS.match(name)}
    return subprocess.run([program, *arguments], env={**clean, **variables}, capture_output=True, text=True, timeout=30)


def report(*arguments, **variables):
    done = run("--json", *arguments, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


alone = report()
assert alone["launcher"]["name"] == "none" and alone["launcher"]["size"] == 1, alone["launcher"]
assert "core" in alone["build"]["parts"], alone["build"]

# Each setting says where it comes from: the flag before the variable, the variable before the default.
mixed = report("--ranks", "3", MUSTER_RANKS="2", MUSTER_TIMEOUT="5")["settings"]
assert mixed["ranks"] == {"value": "3", "origin": "--ranks", "variable": "MUSTER_RANKS"}, mixed
assert mixed["timeout"]["value"] == "5" and mixed["timeout"]["origin"] == "MUSTER_TIMEOUT", mixed
assert mixed["check"]["origin"] == "default", mixed

# The launcher is found, and one rank speaks for all.
launched = report(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="4")["launcher"]
assert launched["name"] == "Open MPI" and launched["size"] == 4 and "OMPI_COMM_WORLD_SIZE" in launched["why"], launched
assert run(OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="4").stdout == ""

# The text holds what the JSON holds.
text = run().stdout
for word in [alone["build"]["version"], *alone["build"]["parts"], alone["launcher"]["why"], *alone["settings"]]:
    assert word in text, f"{word} is not in:\n{text}"

# What cannot be used is refused in one line with the status of a configuration error.
for arguments, variables, expected in [
    (["--jsn"], {}, "did you mean --json?"),
    (["--ranks"], {}, "--ranks needs a value"),
    ([], {"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_SIZE": "4"}, "OMPI_COMM_WORLD_RANK=4"),
    ([], {"RANK": "0"}, "WORLD_SIZE"),
]:
    done = run(*arguments, **variables)
    assert done.returncode == 2 and expected in done.stderr and done.stderr.count("\n") == 1, (done, expected)

# The manual's table is the program's.
rows = set(re.findall(r"^\| `--([a-z-]+) [A-Z]+` \| `(MUSTER_[A-Z_]+)` \| `([^`]*)` \|", open(manual).read(), re.M))
table = {(name, row["variable"], row["value"]) for name, row in alone["settings"].items()}
assert rows == table, f"docs/settings.md and the settings differ in {rows ^ table}"
print("all as expected")
