#!/usr/bin/env python3
"""Compares SimGrid's times of two ranks with real times of two ranks, and with the chooser's model of costs.

    bench/validate_simulation.py [--build build/release] [--rounds 3] [--models resnet20] [--only sums or steps]

Sums: muster-info --calibrate over the mpi transport fits the two constants of the network (latency, seconds a byte);
with them each algorithm is simulated at each size and measured by bench/collectives. The constants are measured on this machine, so
the test checks the form: that one latency and one bandwidth explain all sizes and algorithms. The model also counts the
additions, which take no time in a simulation.
Steps: bench/step measures the computation of a rank at two ranks side by side, without communication; a whole step with its
gradients over mpi is simulated with that time, and measured by bench/train_step.
Real figures are the minimum over all calls, without disturbances.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))
from muster_bench import simgrid  # noqa: E402  (beside this file)

ALGORITHMS = ("recursive_doubling", "halving_doubling", "ring", "tree", "direct")
SIZES = (64, 1024, 16384, 262144, 4194304)
BUCKET = 4 << 20  # the default of gradient_sync
BATCH = 32


def output(words, **variables):
    ran = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, text=True, timeout=1800,
                         env={**os.environ, **variables}, check=True)
    return ran.stdout


class Machine:
    def __init__(self, build):
        self.build = pathlib.Path(build)
        self.root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}

    def real(self, program, *flags):
        return output(["mpirun", "-n", "2", self.build / program, *flags], **self.root)

    def simulated(self, latency, bandwidth, *flags):
        """Returns the numbers in the printed line, by the words before them."""
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "platform.xml")
            # A message crosses two links, so each has half the latency.
            file.write_text(simgrid.platform("flat", 2, f"{8 * bandwidth:.0f}", repr(latency / 2)))
            line = output([*simgrid.words(2, file), self.build / "bench" / "simulate", *map(str, flags)])
        return {name: float(value) for name, value in re.findall(r"(\w+) ([-\d.e+]+)\b", line)}

    def constants(self, rounds):
        """Returns seconds, bytes a second, seconds to add up a byte."""
        found = [json.loads(self.real("src/programs/muster-info", "--transport", "mpi", "--calibrate", "--json"))["constants"]
                 for _ in range(rounds)]
        latency, per_byte, reduction = (min(measured[name] for measured in found) for name in ("latency", "per_byte", "reduce_per_byte"))
        return latency, 1 / per_byte, reduction


def rows_of(text):
    return {row["name"]: row for row in json.loads(text[text.index("{"):])["benchmarks"]}


def sums(machine, latency, bandwidth, reduction, rounds):
    wanted = f"^allreduce/muster_mpi_({'|'.join(ALGORITHMS)})/2/({'|'.join(map(str, SIZES))})/"
    times = collections.defaultdict(list)
    for _ in range(rounds):
        rows = rows_of(machine.real("bench/collectives", "--algorithms", "--rounds=3", f"--benchmark_filter={wanted}",
                                    "--benchmark_format=json"))
        for name, row in rows.items():
            _, contender, _, size, *_ = name.split("/")
            times[contender.removeprefix("muster_mpi_"), int(size)].append(row["least_us"] * 1e-6)
    print(f"\nallreduce, 2 ranks, microseconds\n{'algorithm':20} {'bytes':>9} {'real':>10} {'simulated':>10} {'model':>10} {'sim/real':>9}")
    for algorithm in ALGORITHMS:
        for size in SIZES:
            if (algorithm, size) not in times:
                continue
            real = min(times[algorithm, size])
            found = machine.simulated(latency, bandwidth, "allreduce", "--bytes", size, "--how", algorithm, "--per-host", 1, "--latency",
                                      latency, "--bandwidth", bandwidth, "--reduction", reduction)
            print(f"{algorithm:20} {size:9} {real * 1e6:10.1f} {found['seconds'] * 1e6:10.1f} {found['model'] * 1e6:10.1f} "
                  f"{found['seconds'] / real:9.2f}", flush=True)


def steps(machine, latency, bandwidth, rounds, models):
    print(f"\na step of {BATCH} images a rank, 2 ranks, seconds\n{'model':10} {'computing':>10} {'real':>10} {'simulated':>10} {'sim/real':>9}")
    for model in models:
        alone, whole = [], []
        for _ in range(rounds):
            rows = rows_of(machine.real("bench/step", f"--benchmark_filter=^{model}/{BATCH}/direct$", "--benchmark_format=json"))
            alone += [row["real_time"] * 1e-3 for row in rows.values()]
            whole += [row["real_time"] for row in rows_of(machine.real(
                "bench/train_step", "--transport", "mpi", "--models", model, "--batch", BATCH, "--benchmark_format=json")).values()]
        compute, real = min(alone), min(whole)
        found = machine.simulated(latency, bandwidth, "step", "--model", model, "--batch", BATCH, "--compute", compute, "--bucket", BUCKET)
        print(f"{model:10} {compute:10.4f} {real:10.4f} {found['seconds']:10.4f} {found['seconds'] / real:9.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=HERE.parent / "build" / "release")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", default="resnet20,vgg16")
    parser.add_argument("--only", choices=("sums", "steps"))
    chosen = parser.parse_args()
    machine = Machine(chosen.build)
    latency, bandwidth, reduction = machine.constants(chosen.rounds)
    print(f"fitted: latency {latency * 1e6:.2f} us, {bandwidth * 1e-9:.2f} GB/s, adding up {1e-9 / reduction:.2f} GB/s", flush=True)
    if chosen.only != "steps":
        sums(machine, latency, bandwidth, reduction, chosen.rounds)
    if chosen.only != "sums":
        steps(machine, latency, bandwidth, chosen.rounds, chosen.models.split(","))


if __name__ == "__main__":
    main()
