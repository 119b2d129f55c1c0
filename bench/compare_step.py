#!/usr/bin/env python3
"""muster's training step and PyTorch's in turns, and the ratio of the medians of their rates: PyTorch's at its best of
both layouts and torch.compile (PyTorch 2), with an allocator that keeps its pages. With --kernels avx2 PyTorch and its
oneDNN are kept to AVX2 as well.

    bench/compare_step.py [--programs build/release/bench] [--python /usr/bin/python3] [--rounds 3] [--batch 32]
                          [--models resnet20,resnet56,vgg16,cnn] [--ranks 1] [--kernels avx2]
                          [--backend winograd] [--threads 1] [--cpu-time]
"""
import argparse
import collections
import os
import pathlib
import re
import statistics
import subprocess

from compare.contenders import TUNING

LINE = re.compile(r"^(muster|torch) (\S+) (\S+) batch (\d+) ranks (\d+) (\S+) images/s$")


def run(command, environment):
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=1800, env=environment, check=True)
    for line in ran.stdout.splitlines():
        if found := LINE.match(line):
            yield found.group(1), found.group(2), found.group(3), float(found.group(6))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=pathlib.Path, default=pathlib.Path("build/release/bench"))
    parser.add_argument("--python", default="/usr/bin/python3", help="one that has torch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default="resnet20,resnet56,vgg16,cnn")
    parser.add_argument("--batch", default="32", help="images a rank and step")
    parser.add_argument("--steps", default="5")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of a rank")
    parser.add_argument("--kernels", default="", help="muster's, instead of the best; avx2 is PyTorch's limit too")
    parser.add_argument("--backend", default="winograd", help="muster's way to convolve: winograd, direct, eigen")
    parser.add_argument("--cpu-time", action="store_true", help="count the processor's time: on a machine that is shared")
    chosen = parser.parse_args()

    shared = ["--models", chosen.models, "--batch", chosen.batch, "--steps", chosen.steps, "--threads", str(chosen.threads)]
    if chosen.cpu_time:
        shared.append("--cpu-time")
    ours = [chosen.programs / "train_step", *shared, "--backend", chosen.backend] + (["--kernels", chosen.kernels] if chosen.kernels else [])
    if chosen.ranks > 1:
        ours = ["mpirun", "-n", str(chosen.ranks), "--oversubscribe", *ours]
    peer = pathlib.Path(__file__).parent / "peers" / "step_torch.py"
    theirs = [chosen.python, peer, *shared, "--ranks", str(chosen.ranks)]
    environment = dict(os.environ, OMP_NUM_THREADS=str(chosen.threads))
    if os.geteuid() == 0:
        environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    for_theirs = dict(environment, **dict([TUNING]))
    if chosen.kernels == "avx2":
        for_theirs.update(ATEN_CPU_CAPABILITY="avx2", ONEDNN_MAX_CPU_ISA="AVX2", DNNL_MAX_CPU_ISA="AVX2",
                          OPENBLAS_CORETYPE="Haswell")

    rates = collections.defaultdict(list)
    for _ in range(chosen.rounds):
        for command, variables in ((ours, environment), (theirs, for_theirs)):
            for contender, model, way, rate in run(list(map(str, command)), variables):
                rates[model, contender, way].append(rate)
    print(f"batch {chosen.batch} a rank, {chosen.ranks} rank(s) of {chosen.threads} thread(s), images/s, medians of {chosen.rounds} rounds")
    ways = ("nchw", "nhwc", "compiled")
    print(f"{'model':10} {'muster':>10}", *(f"{'torch ' + way:>15}" for way in ways), f"{'ratio':>7}")
    for model in chosen.models.split(","):
        mine = statistics.median(rates[model, "muster", chosen.backend])
        theirs = [statistics.median(rates[model, "torch", way] or [0]) for way in ways]
        print(f"{model:10} {mine:10.1f}", *(f"{rate:15.1f}" for rate in theirs), f"{mine / max(theirs):7.2f}")


if __name__ == "__main__":
    main()
