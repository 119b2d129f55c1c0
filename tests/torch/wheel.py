#!/usr/bin/env python3
"""Builds the tests of muster::torch against an installed muster and the LibTorch of the Python package torch, and runs them.

usage: wheel.py --folder FOLDER --stage PREFIX --source tests/torch --generator G --compiler CXX [--launcher CCACHE]

The package is installed below FOLDER by pip, without what its C++ part does not need (550 MB), unless MUSTER_TEST_TORCH names the
folder of an installed one. Where the package cannot be had the test is skipped."""
import argparse
import os
import pathlib
import subprocess
import sys

# The newest version, and the libraries of CUDA that libtorch_cpu.so is linked with.
PACKAGES = ("torch==2.15.0", "nvidia-cuda-runtime>=13.2,<13.3", "nvidia-cuda-cupti>=13.2,<13.3")

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
for name in ("folder", "stage", "source"):
    parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
for name in ("generator", "compiler"):
    parser.add_argument(f"--{name}", required=True)
parser.add_argument("--launcher", default="")
options = parser.parse_args()


def installed():
    """Returns the folder of the package torch, installed if it is missing."""
    if os.environ.get("MUSTER_TEST_TORCH"):
        return pathlib.Path(os.environ["MUSTER_TEST_TORCH"])
    target = options.folder / "site"
    found = target / "torch" / "lib" / "libtorch_cpu.so"
    if not found.exists():
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), *PACKAGES]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode != 0:
            print(f"SKIPPED: pip cannot install {PACKAGES[0]}: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
            sys.exit(0)
    return target / "torch"


def run(*words):
    print("$", *words, flush=True)
    subprocess.run([str(word) for word in words], check=True)


torch = installed()
build = options.folder / "build"
run("cmake", "-S", options.source / "wheel", "-B", build, "-G", options.generator, f"-DCMAKE_CXX_COMPILER={options.compiler}", "-DCMAKE_BUILD_TYPE=Debug",
    "-DCMAKE_CXX_FLAGS_DEBUG=-O0", f"-DCMAKE_PREFIX_PATH={options.stage}", f"-DTorch_ROOT={torch}",
    *([f"-DCMAKE_CXX_COMPILER_LAUNCHER={options.launcher}"] if options.launcher else []))
run("cmake", "--build", build, "--parallel", "2")
run(build / "test_torch")
