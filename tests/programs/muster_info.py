#!/usr/bin/env python3
"""muster_info.py PROGRAM SETTINGS_MD: tests the output of muster-info, and compares its settings with the manual's
table."""
import json
import os
import re
import subprocess
import sys
import tempfile

program, manual = sys.argv[1:]
# The program that started the tests must not be detected as the launcher here.
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

# Each setting has its origin: the flag before the variable, the variable before the default.
mixed = report("--ranks", "3", MUSTER_RANKS="2", MUSTER_TIMEOUT="5")["settings"]
assert mixed["ranks"] == {"value": "3", "origin": "--ranks", "variable": "MUSTER_RANKS"}, mixed
assert mixed["timeout"]["value"] == "5" and mixed["timeout"]["origin"] == "MUSTER_TIMEOUT", mixed
assert mixed["check"]["origin"] == "default", mixed

# The launcher is detected, and one rank prints for all.
launched = report(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="4")["launcher"]
assert launched["name"] == "Open MPI" and launched["size"] == 4 and "OMPI_COMM_WORLD_SIZE" in launched["why"], launched
assert run(OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="4").stdout == ""

# The transports have constants. The choices of the world follow the rules, without a connection.
for name in ["self", "threads", "shm", *(part for part in alone["build"]["parts"] if part == "mpi")]:
    assert alone["transports"][name]["latency"] > 0, alone["transports"]
assert alone["world"] == {"transport": "self", "ranks": 1, "why": alone["launcher"]["why"]}, alone["world"]
assert alone["choices"] == {}, alone["choices"]
rules = "allreduce:0-4k:recursive_doubling,allreduce:4k-inf:ring,barrier:auto"
five = report("--ranks", "5", "--algorithm", rules)
assert five["world"]["transport"] == "threads" and five["world"]["ranks"] == 5, five
assert five["choices"]["allreduce"] == "allreduce:0-4k:recursive_doubling,allreduce:4k-inf:ring", five
assert set(five["choices"]) == {"broadcast", "reduce", "allreduce", "allgather", "reduce_scatter", "gather", "scatter",
                                "all_to_all", "barrier"}, five
assert "  allreduce: allreduce:0-4k:recursive_doubling,allreduce:4k-inf:ring\n" in run("--ranks", "5", "--algorithm", rules).stdout
if "mpi" in alone["build"]["parts"]:
    four = report(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="4", MUSTER_TRANSPORT="mpi")
    assert four["world"]["transport"] == "mpi" and four["world"]["ranks"] == 4 and four["choices"]["all_to_all"], four
if "tcp" in alone["build"]["parts"]:
    # If ranks share cores, the number of messages counts, instead of the number of rounds.
    starts = [dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE=size, LOCAL_WORLD_SIZE=here, MUSTER_TRANSPORT="tcp")
              for size, here in [("4", "1"), ("4096", "4096"), ("4096", "1")]]
    spread, crowded, apart = (report(**start)["choices"]["allreduce"] for start in starts)
    assert re.match(r"allreduce:0-\w+:recursive_doubling", spread), spread
    assert re.match(r"allreduce:(0-\w+:)?tree", crowded) and crowded != apart, (crowded, apart)
refused = report("--ranks", "2", "--algorithm", "allreduce:chain")
assert "allreduce:chain" in refused["world"]["error"] and refused["settings"]["ranks"]["value"] == "2", refused
assert "allreduce:chain" in run("--ranks", "2", "--algorithm", "allreduce:chain").stdout

# The text contains the values of the JSON.
text = run().stdout
for word in [alone["build"]["version"], *alone["build"]["parts"], alone["launcher"]["why"], *alone["settings"]]:
    assert word in text, f"{word} is not in:\n{text}"

lines = text.split("\nsettings\n")[1].splitlines()
assert all(re.fullmatch(r"  [a-z-]+: value \S*, origin \S+, variable MUSTER_\w+", line) for line in lines), lines
assert len(lines) == len(alone["settings"]), lines

# Questions are answered instead of a report, also with --calibrate.
version = f"muster {alone['build']['version']}\n"
for arguments in [["--version"], ["--calibrate", "--ranks", "2", "--version"]]:
    assert run(*arguments).stdout == version, run(*arguments)
for arguments in [["--help"], ["--calibrate", "--ranks", "2", "--help"]]:
    common = run(*arguments).stdout
    assert common.startswith("usage: muster-info") and "--missed-heartbeats" not in common, common
every = run("--help-all").stdout
assert all(f"  --{name} " in every for name in alone["settings"]), every

# Invalid arguments are refused in one line with the status of a configuration error.
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

# Measurements are printed, their rules are saved, and the rules then decide.
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "two.rules")
    measured = run("--calibrate", "--ranks", "2", "--json", "--save", path)
    assert measured.returncode == 0, measured
    found = json.loads(measured.stdout)
    rules = open(path).read().strip()
    assert rules == found["rules"], "what is saved is not what is printed"
    assert found["transport"] == "threads" and found["ranks"] == 2, found
    assert found["muster"] == alone["build"]["version"], found
    assert all(value >= 0 for value in found["constants"].values()) and found["constants"]["latency"] > 0, found
    measured = {"allreduce", "broadcast", "reduce", "allgather", "reduce_scatter", "all_to_all"}
    assert set(rule.split(":")[0] for rule in rules.split(",")) == measured, rules
    assert all(found[kind + "_us"]["64"] and found[kind + "_us"]["16m"] for kind in measured), found
    chosen = report("--ranks", "2", "--algorithm", rules)["choices"]
    assert all(rule in chosen[rule.split(":")[0]] for rule in rules.split(",")), (rules, chosen)

# The manual's table equals the program's.
rows = set(re.findall(r"^\| `--([a-z-]+) [A-Z]+` \| `(MUSTER_[A-Z_]+)` \| `([^`]*)` \|", open(manual).read(), re.M))
table = {(name, row["variable"], row["value"]) for name, row in alone["settings"].items()}
assert rows == table, f"docs/settings.md and the settings differ in {rows ^ table}"
print("all as expected")
