#!/usr/bin/env python3
"""muster_info.py PROGRAM SETTINGS_MD: what muster-info prints, and that the manual's table of settings is its table."""
import json
import os
import re
import subprocess
import sys
import tempfile

program, manual = sys.argv[1:]
# Whatever started the tests must not be taken for the launcher here.
LAUNCHERS = re.compile("^(OMPI_|PMIX_|PMI_|SLURM_|RANK$|WORLD_SIZE$|LOCAL_RANK$|MUSTER_)")


def run(*arguments, **variables):
    clean = {name: value for name, value in os.environ.items() if not LAUNCHERS.match(name)}
    return subprocess.run([program, *arguments], env={**clean, **variables}, capture_output=True, text=True, timeout=150 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1")))


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

# The transports have constants; what the world would choose follows the rules, and nobody is connected for it.
for name in ["self", "local", "shm", *(part for part in alone["build"]["parts"] if part == "mpi")]:
    assert alone["transports"][name]["latency"] > 0, alone["transports"]
assert alone["world"] == {"transport": "self", "ranks": 1, "why": alone["launcher"]["why"], "choices": {}}, alone["world"]
rules = "allreduce:0-4k:recursive_doubling,allreduce:4k-inf:ring,barrier:auto"
world = report("--ranks", "5", "--algorithm", rules)["world"]
assert world["transport"] == "local" and world["ranks"] == 5, world
assert world["choices"]["allreduce"] == [[4096, "recursive_doubling"], [None, "ring"]], world
assert set(world["choices"]) == {"broadcast", "reduce", "allreduce", "allgather", "reduce_scatter", "gather", "scatter",
                                 "all_to_all", "barrier"}, world
assert "up to 4.0 KiB recursive_doubling, above ring" in run("--ranks", "5", "--algorithm", rules).stdout
if "mpi" in alone["build"]["parts"]:
    world = report(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="4", MUSTER_TRANSPORT="mpi")["world"]
    assert world["transport"] == "mpi" and world["ranks"] == 4 and world["choices"]["all_to_all"], world
if "tcp" in alone["build"]["parts"]:
    # Where ranks share cores few messages count, and not few rounds.
    starts = [dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE=size, LOCAL_WORLD_SIZE=here, MUSTER_TRANSPORT="tcp")
              for size, here in [("4", "1"), ("4096", "4096"), ("4096", "1")]]
    spread, crowded, apart = (report(**start)["world"]["choices"]["allreduce"] for start in starts)
    assert spread[0][1] == "recursive_doubling", spread
    assert crowded[0][1] == "tree" and crowded != apart, (crowded, apart)
refused = report("--ranks", "2", "--algorithm", "allreduce:chain")
assert "allreduce:chain" in refused["world"]["error"] and refused["settings"]["ranks"]["value"] == "2", refused
assert "allreduce:chain" in run("--ranks", "2", "--algorithm", "allreduce:chain").stdout

# The text holds what the JSON holds.
text = run().stdout
for word in [alone["build"]["version"], *alone["build"]["parts"], alone["launcher"]["why"], *alone["settings"]]:
    assert word in text, f"{word} is not in:\n{text}"

columns = [line.split() for line in text.split("\nsettings\n")[1].splitlines()]
assert all(len(line) == 3 for line in columns) and len(columns) == len(alone["settings"]), columns

# Questions are answered instead of a report, also where it would measure.
version = f"muster {alone['build']['version']}\n"
for arguments in [["--version"], ["--calibrate", "--ranks", "2", "--version"]]:
    assert run(*arguments).stdout == version, run(*arguments)
for arguments in [["--help"], ["--calibrate", "--ranks", "2", "--help"]]:
    common = run(*arguments).stdout
    assert common.startswith("usage: muster-info") and "--missed-heartbeats" not in common, common
every = run("--help-all").stdout
assert all(f"  --{name} " in every for name in alone["settings"]), every

# What cannot be used is refused in one line with the status of a configuration error.
for arguments, variables, expected in [
    (["--jsn"], {}, "did you mean --json?"),
    (["--ranks"], {}, "--ranks needs a value"),
    ([], {"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_SIZE": "4"}, "OMPI_COMM_WORLD_RANK=4"),
    ([], {"RANK": "0"}, "WORLD_SIZE"),
    (["--save"], {}, "--save needs a value"),
    (["--save", "x.json"], {}, "add --calibrate"),
    (["--calibrate"], {}, "one rank sends no messages"),
    (["--calibrate", "--ranks", "2", "--sav", "x.json"], {}, "did you mean --save?"),
    (["--calibrate", "--ranks", "2", "--save", "/nowhere/x.json"], {}, "/nowhere"),
]:
    done = run(*arguments, **variables)
    assert done.returncode == 2 and expected in done.stderr and done.stderr.count("\n") == 1, (done, expected)

# What is measured is saved, printed, and then chosen by; by a world of another size it is not.
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "two.json")
    measured = run("--calibrate", "--ranks", "2", "--json", "--save", path)
    assert measured.returncode == 0, measured
    profile = json.loads(measured.stdout)
    assert profile == json.load(open(path)), "what is saved is not what is printed"
    assert profile["transport"] == "local" and profile["ranks"] == 2, profile
    assert profile["muster"] == alone["build"]["version"], profile
    assert all(value >= 0 for value in profile["constants"].values()) and profile["constants"]["latency"] > 0, profile
    assert set(profile["choices"]) == {"allreduce", "broadcast", "reduce", "allgather", "reduce_scatter", "all_to_all"}
    world = report("--ranks", "2", "--profile", path)["world"]
    assert profile["choices"].items() <= world["choices"].items(), (profile, world)
    other = run("--json", "--ranks", "3", MUSTER_PROFILE=path)
    assert other.returncode == 0 and "the profile is not used" in other.stderr, other
    assert json.loads(other.stdout)["world"]["choices"] == report("--ranks", "3")["world"]["choices"], other

# The manual's table is the program's.
rows = set(re.findall(r"^\| `--([a-z-]+) [A-Z]+` \| `(MUSTER_[A-Z_]+)` \| `([^`]*)` \|", open(manual).read(), re.M))
table = {(name, row["variable"], row["value"]) for name, row in alone["settings"].items()}
assert rows == table, f"docs/settings.md and the settings differ in {rows ^ table}"
print("all as expected")
