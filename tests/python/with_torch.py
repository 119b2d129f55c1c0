#!/usr/bin/env python3
"""Runs tests with PyTorch: the Python of MUSTER_TEST_TORCH, or one in a virtual environment that is made in the folder of the module,
with the torch of the index (some GB), and kept. Prints SKIPPED and the reason where neither is there.

usage: with_torch.py --module FOLDER TEST...
"""
import argparse
import os
import pathlib
import subprocess
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--module", required=True, type=pathlib.Path)
parser.add_argument("tests", nargs="+")
options = parser.parse_args()
HERE = pathlib.Path(__file__).resolve().parent


def has_torch(python):
    return subprocess.run([python, "-c", "import torch.distributed"], capture_output=True).returncode == 0


python = os.environ.get("MUSTER_TEST_TORCH")
if not python:
    python = options.module / "venv-torch/bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", options.module / "venv-torch"], check=True, capture_output=True)
    if not has_torch(python):
        done = subprocess.run([python, "-m", "pip", "install", "--quiet", "torch", "numpy"], capture_output=True, text=True)
        if done.returncode:
            print(f"SKIPPED: the backend has no PyTorch (pip: {done.stderr.strip().splitlines()[-1]}); MUSTER_TEST_TORCH names a Python")
            sys.exit(0)
if not has_torch(python):
    print(f"SKIPPED: the backend has no PyTorch ({python} has none)")
    sys.exit(0)
wheel, = (options.module / "wheel").glob("*.whl")
site = options.module / "site-torch"
# With the module's pip: a virtual environment of another tool may have none.
done = subprocess.run([options.module / "venv/bin/python", "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", site,
                       wheel], capture_output=True, text=True)
if done.returncode:
    sys.exit(done.stderr)
environment = os.environ | {"PYTHONPATH": str(site), "PATH": f"{pathlib.Path(python).parent}:{os.environ['PATH']}",
                            "XDG_CACHE_HOME": str(options.module / "cache")}
built = subprocess.run([python, "-m", "muster", "build-torch"], env=environment, capture_output=True, text=True)
if built.returncode:
    sys.exit(built.stdout[-4000:] + built.stderr[-4000:])
sys.exit(subprocess.run([python, HERE.parent / "platform/run.py", *options.tests], cwd=HERE, env=environment).returncode)
