"""Formats of golden files: a function that writes each by the programs of a build, and a function that reads its values."""
import gzip
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = pathlib.Path(os.environ.get("MUSTER_TEST_BUILD", ROOT / "build" / "release"))
EXPERIMENT = r"""muster-bench: 1
name: golden
title: Results that are kept
goal: {metric: accuracy, value: 0.5}
templates:
  counted:
    command: [sh, -c, "echo seconds={n}.5 accuracy=0.{n}"]
    read: [{log: {seconds: 'seconds=(\S+)', accuracy: 'accuracy=(\S+)'}}]
experiments:
  only: {template: counted, sweep: {n: [1, 7]}, repeats: 3}
"""
WORKFLOW = """muster-flow: 1
name: golden
steps:
  numbers:
    command: [sh, -c, "echo 1 2 3 > {numbers}"]
    outputs: {numbers: numbers.txt}
  sum:
    command: [sh, -c, "tr ' ' + < {numbers} > {sum}"]
    inputs: {numbers: numbers.txt}
    outputs: {sum: sum.txt}
"""


class Refused(Exception):
    """An error of a program; the text is its standard error."""


def run(*words, **more):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    clean.update(PYTHONPATH=str(ROOT / "python"), PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120, env=clean, check=False, **more)
    if done.returncode != 0:
        raise Refused(done.stderr)
    return done.stdout


def module(name, *words, **more):
    return run(sys.executable, "-m", name, *words, **more)


def of_library(kind):
    return lambda folder: run(BUILD / "tests/golden/golden_library", kind, folder)


def write_models(folder):
    run(BUILD / "tests/golden/golden_model", "write", folder)
    for path in folder.glob("*/1/model.muster"):
        path.with_suffix(".muster.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        path.unlink()


def values_of_models(folder):
    for path in folder.glob("*/1/model.muster.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    program = BUILD / "tests/golden/golden_model"
    return run(program, folder / "net/1/model.muster") + run(program, "served", folder / "line")


def write_profile(folder):
    run(BUILD / "src/programs/muster-info", "--calibrate", "--ranks", 2, "--save", folder / "two.rules")


def values_of_profile(folder):
    report = json.loads(run(BUILD / "src/programs/muster-info", "--ranks", 2, "--json", "--algorithm", (folder / "two.rules").read_text().strip()))
    if "error" in report["world"]:
        raise Refused(report["world"]["error"] + "\n")
    return "".join(f"{name} {choice}\n" for name, choice in sorted(report["choices"].items()))


def write_results(folder):
    (folder / "experiment.yaml").write_text(EXPERIMENT)
    module("muster_bench", "run", "experiment.yaml", "--out", "results", cwd=folder)
    for path in [folder / "results/report.html", folder / "results/lock", *folder.glob("results/experiments/*/output")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def values_of_results(folder):
    """Returns the rows of `compare` and of the dashboard. The runner must accept the folder, too."""
    module("muster_bench", "run", "experiment.yaml", "--out", "results", "--only", "n=1", cwd=copy_of(folder))
    listed = module("muster_bench", "compare", "results", "results", cwd=folder)
    seen = run(sys.executable, "-c", "import sys, pathlib\nfrom muster_bench.dashboard.runs import Runs\n"
               "for row in sorted(Runs(pathlib.Path(sys.argv[1])).list(), key=lambda row: row['id']):\n"
               "    if row['status'] == 'unreadable':\n        sys.exit(row['why'])\n"
               "    print(row['id'], row['title'], row['status'], row['parameters'], row['metrics'])", folder)
    return "\n".join(listed.splitlines()[1:-1]) + "\n" + seen


def write_workflow(folder):
    (folder / "workflow.yaml").write_text(WORKFLOW)
    module("muster_flow", "run", "workflow.yaml", "--out", "flow", cwd=folder)
    for name in (".snakemake", "run", "Snakefile", "snakemake.log", "lock"):
        path = folder / "flow" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def values_of_workflow(folder):
    """Returns the states of the steps. A copy has other modification times, so its steps are due; that part is cut off."""
    output = module("muster_flow", "status", "workflow.yaml", "--out", "flow", cwd=folder)
    return re.sub(", to run: .*", "", output) + (folder / "flow/sum.txt").read_text()


def copy_of(folder):
    copy = folder.with_name(f"{folder.name}-copy")
    shutil.rmtree(copy, ignore_errors=True)
    return shutil.copytree(folder, copy, symlinks=True)


# format: (function that writes a folder, None for golden_library; function that reads the values)
FORMATS = {**{kind: (None, of_library(kind)) for kind in ("checkpoint", "tables", "records", "store")},
           "model": (write_models, values_of_models), "profile": (write_profile, values_of_profile),
           "results": (write_results, values_of_results), "workflow": (write_workflow, values_of_workflow)}


# ---- files of a later version ----

def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def replaced(path, old, new):
    data = path.read_bytes()
    assert data.count(old) >= 1, f"{path} has no {old}"
    path.write_bytes(data.replace(old, new, 1))


def numbered(path, at, version):
    data = bytearray(path.read_bytes())
    data[at:at + 4] = struct.pack("<I", version)
    path.write_bytes(data)


def later_cursor(folder):
    """Changes the version of the cursor, which begins at byte 56 of the head."""
    path = next(folder.glob("momentum/*.state"))
    data = bytearray(path.read_bytes())
    data[56:60] = struct.pack("<I", 3)
    head = 56 + 96
    data[head:head + 4] = struct.pack("<I", crc32c(data[:head]))
    data[-4:] = struct.pack("<I", crc32c(data[:-4]))
    path.write_bytes(data)


def later_manifest(folder):
    path = folder / "bytes/MANIFEST"
    first, rest = path.read_bytes().split(b"\n", 1)
    line = first[9:].replace(b" 1", b" 2")
    path.write_bytes(b"%08x %s\n%s" % (crc32c(line), line, rest))


# format: [(function that changes the version in a folder, words of the error)]
LATER = {
    "checkpoint": [(lambda folder: numbered(next(folder.glob("momentum/*.state")), 8, 5), ("version 5", "version 4")),
                   (later_cursor, ("the version is 3 there and 2 here",))],
    "tables": [(lambda folder: replaced(folder / "of workers/tables.json", b'"format": 2', b'"format": 9'), ("format (9;", "reads 2 and 3"))],
    "records": [(lambda folder: numbered(next(folder.glob("bytes/records-*.muster")), 8, 2), ("version 2", "supports 1")),
                (later_manifest, ("muster-records 2", "muster-records 1"))],
    "store": [(lambda folder: replaced(folder / "store", b"muster-store 1", b"muster-store 2"), ("muster-store 2", "muster-store 1"))],
    "model": [(lambda folder: replaced(folder / "net/1/model.muster", b"muster-model-2", b"muster-model-3"), ("muster-model-3", "muster-model-2")),
              (lambda folder: replaced(folder / "line/1/model.muster", b"muster-model-2", b"muster-model-3"), ("muster-model-3", "muster-model-2"))],
    "profile": [(lambda folder: (folder / "two.rules").write_text("allreduce:0-4k:quantum"), ("quantum",))],
    "results": [(lambda folder: replaced(folder / "results/results.json", b'"format": 1', b'"format": 2'), ("format 2", "reads 1")),
                (lambda folder: replaced(folder / "results/muster-bench.json", b'"format": 1', b'"format": 2'), ("format 2", "reads 1")),
                (lambda folder: replaced(next(folder.glob("results/experiments/only-n=1*/result/result.json")), b'"format": 1', b'"format": 2'), ("format 2", "reads 1"))],
    "workflow": [(lambda folder: replaced(folder / "flow/muster-flow.json", b'"format": 1', b'"format": 2'), ("format 2", "reads 1"))],
}
