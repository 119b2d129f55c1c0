#!/usr/bin/env python3
"""Programs for other processors, in qemu: `arm64` compiles muster's headers by a cross compiler and runs collectives over
threads, shared memory and TCP, a training that reads a file and resumes, and the tests of the portable kernels. `x86-64`
runs programs that were built here on a processor without AVX and SSE4. qemu does not reorder
as a processor of arm64 does: `comm: memory orders of shm` examines reordering.

usage: other_processors.py arm64 FOLDER_OF_THE_SOURCES CATCH2_MAJOR | x86-64 PROGRAM...
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

LIMIT = 1500


def need(*programs):
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        print(f"SKIPPED: there is no {' and no '.join(missing)}")
        sys.exit(0)


def run(name, words, says="", **more):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=LIMIT, **more)
    if done.returncode != 0 or says not in done.stdout:
        sys.exit(f"{name}: status {done.returncode}\n{done.stdout}{done.stderr}")
    print(f"{name}: {(done.stdout.strip().splitlines() or ['compiled'])[-1]}", flush=True)


def processes(name, words, folder, says):
    """Runs two ranks as processes."""
    meeting = folder / name.replace(" ", "-")
    meeting.mkdir()
    ranks = [subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, text=True, env=os.environ | {
        "MUSTER_JOB": f"qemu-{os.getpid()}", "MUSTER_RENDEZVOUS": f"file:{meeting}", "RANK": str(rank), "WORLD_SIZE": "2",
        "LOCAL_RANK": str(rank)}) for rank in range(2)]
    texts = [rank.communicate(timeout=LIMIT)[0] for rank in ranks]
    if any(rank.returncode != 0 for rank in ranks) or says not in "".join(texts):
        sys.exit(f"{name}: {[rank.returncode for rank in ranks]}\n{''.join(texts)}")
    print(f"{name}: {(''.join(texts).strip().splitlines() or ['both ranks ended well'])[-1]}", flush=True)


def arm64(root, catch2):
    need("aarch64-linux-gnu-g++", "qemu-aarch64")
    with tempfile.TemporaryDirectory(prefix="muster-arm64-") as name:
        folder = pathlib.Path(name)

        def compiled(program, *sources, flags=()):
            run(f"compile {program}", ["aarch64-linux-gnu-g++", "-std=c++20", "-O1", "-static", "-I", root / "include", *flags, *(root / source for source in sources),
                                       "-o", folder / program, "-pthread"])
            return ["qemu-aarch64", folder / program]

        hello = compiled("hello", "examples/01_allreduce.cpp")
        result = "2 ranks: the sum of 0 to 1 is 1, and the mean of the vectors begins with 0.5"
        run("ranks as threads", [*hello, "--ranks", "2"], result)
        for transport in ("shm", "tcp"):
            processes(f"two processes over {transport}", [*hello, "--transport", transport], folder, result)

        training = compiled("training", "tests/consumers/headers.cpp")
        (folder / "line.csv").write_text("".join(f"{k / 500 - 1:g},{2 * (k / 500 - 1) - 1:g}\n" for k in range(1000)))
        for start in ("first start", "resumed"):
            processes(start, [*training, "--transport", "shm", f"csv:{folder}/line.csv?label=1", folder / "checkpoints"], folder, "")

        codecs = compiled("codecs", "tests/main.cpp", "tests/core/codec/properties.cpp", "tests/core/codec/powersgd.cpp", "tests/core/convert.cpp",
                          "tests/core/wire.cpp", "tests/core/crc32c.cpp",
                          flags=["-I", root / "tests", f"-DMUSTER_CATCH2_VERSION={catch2}"])
        run("portable kernels and core", codecs, "All tests passed")


def x86_64(programs):
    need("qemu-x86_64")
    for program in programs:
        run(pathlib.Path(program).name, ["qemu-x86_64", "-cpu", "qemu64", program], "All tests passed")


if sys.argv[1] == "arm64":
    arm64(pathlib.Path(sys.argv[2]).resolve(), sys.argv[3])
else:
    x86_64(sys.argv[2:])
