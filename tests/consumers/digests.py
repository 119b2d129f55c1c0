#!/usr/bin/env python3
"""Programs that were compiled in different ways, against the library and from the headers alone, compute the same bits, and two
of them run as one job. A program that mixes the two forms of muster is refused.

usage: digests.py INCLUDE LIBRARIES SOURCE COMPILER...
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

include, libraries, source, *compilers = sys.argv[1:]
NATIVE = ["-O3", "-march=native"]  # with which g++ fuses multiplications and additions, and clang++ those of an expression


def build(folder, name, compiler, flags, compiled, sources=(source,), stderr=None):
    program = f"{folder}/{name}"
    link = [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lmuster_comm", "-lmuster_core"] if compiled else []
    subprocess.run([compiler, "-std=c++20", *flags, *(["-DMUSTER_COMPILED=1"] if compiled else []), f"-I{include}", *sources, *link, "-pthread",
                    "-o", program], check=True, stderr=stderr, text=True)
    return program


def digests(program):
    return subprocess.run([program, "--ranks", "3"], check=True, capture_output=True, text=True, timeout=60).stdout


with tempfile.TemporaryDirectory(prefix="muster-digests-") as folder:
    programs = {"library, -O0": build(folder, "slow", compilers[0], ["-O0"], True),
                "headers alone, -O3 -march=native": build(folder, "headers", compilers[0], NATIVE, False)}
    for number, compiler in enumerate(compilers):
        programs[f"library, {pathlib.Path(compiler).name} -O3 -march=native"] = build(folder, f"fast{number}", compiler, NATIVE, True)
    expected = digests(next(iter(programs.values()))).splitlines()
    if len(expected) < 60:
        sys.exit(f"only {len(expected)} digests")
    failed = False
    for how, program in programs.items():
        different = [line for line in digests(program).splitlines() if line not in expected]
        print(f"{how}: {len(expected) - len(different)} of {len(expected)} digests equal the first program's", *different, sep="\n  ", flush=True)
        failed = failed or bool(different)

    # Two of the programs as one job.
    both = [subprocess.Popen([program], stdout=subprocess.PIPE, text=True, env=os.environ | {
        "MUSTER_JOB": f"digests-{os.getpid()}", "MUSTER_RENDEZVOUS": f"file:{folder}", "MUSTER_TRANSPORT": "shm", "RANK": str(rank),
        "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}) for rank, program in enumerate([programs["library, -O0"], list(programs.values())[-1]])]
    texts = [process.communicate(timeout=60)[0] for process in both]
    print(f"two programs as one job: statuses {[process.returncode for process in both]}, {len(texts[0].splitlines())} digests")
    failed = failed or any(process.returncode for process in both) or len(texts[0].splitlines()) != len(expected)

    # One source from the headers alone, and the library.
    pathlib.Path(folder, "other.cpp").write_text("#define MUSTER_COMPILED 1\n#include <muster/collectives.hpp>\n"
                                                 "muster::group* unused() { return &muster::context().world(); }\n", encoding="ascii")
    subprocess.run([compilers[0], "-std=c++20", f"-I{include}", "-c", f"{folder}/other.cpp", "-o", f"{folder}/other.o"], check=True)
    try:
        mixed = build(folder, "mixed", compilers[0], ["-O0"], False,
                      [source, f"{folder}/other.o", f"-L{libraries}", "-lmuster_comm", "-lmuster_core"],
                      stderr=subprocess.PIPE)
    except subprocess.CalledProcessError as error:
        print("headers alone beside the library: not linked:", error.stderr.strip())
        failed = failed or not re.search(r"(multiple|duplicate).*muster::.*comm_plugin", error.stderr)
    else:
        done = subprocess.run([mixed, "--ranks", "2"], capture_output=True, text=True, check=False, timeout=60)
        print(f"headers alone beside the library: status {done.returncode}, {done.stderr.strip()}")
        failed = failed or done.returncode != 2 or "contains muster's headers alone and its compiled library" not in done.stderr
sys.exit(1 if failed else 0)
