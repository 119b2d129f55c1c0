#!/usr/bin/env python3
"""Measures the cost of muster-flow: python3 bench/workflow.py [--steps 100] [--entries 100000]. Prints the time of so many trivial steps,
compared with a hand-written Snakefile that does the same; of a run without changes; and of removing so many results,
compared with rm -rf."""
import argparse
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

PLATFORM = pathlib.Path(__file__).resolve().parents[1] / "python"
FLOW = [sys.executable, "-m", "muster_flow"]


def timed(words, folder):
    """Returns (seconds, seconds of processors, output)."""
    begin, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, cwd=folder, env={**os.environ, "PYTHONPATH": str(PLATFORM)}, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - begin, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime, done.stdout


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("--entries", type=int, default=100_000)
    options.add_argument("--repeats", type=int, default=3)
    chosen = options.parse_args()
    by_hand, by_flow = [], []
    for _ in range(chosen.repeats):
        with tempfile.TemporaryDirectory(prefix="muster-workflow-") as name:
            folder = pathlib.Path(name)
            (folder / "Snakefile").write_text(f"rule all:\n    input: expand('made/{{n}}', n=range({chosen.steps}))\n"
                                              "rule make:\n    output: 'made/{n}'\n    shell: 'echo {wildcards.n} > {output}'\n")
            each = "".join(f"      n{n}: {{n: {n}}}\n" for n in range(chosen.steps))
            (folder / "flow.yaml").write_text("muster-flow: 1\nname: fan-out\nsteps:\n  make:\n    command: [sh, -c, 'echo $1 > $2', x, '{n}', '{made}']\n"
                                              f"    outputs: {{made: 'made/{{n}}'}}\n    each:\n{each}")
            by_hand.append(timed(["snakemake", "--cores", "all", "--scheduler", "greedy", "--quiet"], folder))
            by_flow.append(timed([*FLOW, "run", "flow.yaml", "--out", "out"], folder))
            again, _, output = timed([*FLOW, "run", "flow.yaml", "--out", "out"], folder)
            assert "nothing to run" in output, output
    more, more_used = ((min(times[which] for times in by_flow) - min(times[which] for times in by_hand)) / chosen.steps * 1000 for which in (0, 1))
    print(f"{chosen.steps} steps: Snakefile by hand {', '.join(f'{times[0]:.2f}' for times in by_hand)} s, muster-flow {', '.join(f'{times[0]:.2f}' for times in by_flow)} s: "
          f"{more:.0f} ms a step more, of processors {more_used:.0f} ms (of the shortest runs); a second run {again:.2f} s")
    with tempfile.TemporaryDirectory(prefix="muster-workflow-") as name:
        folder = pathlib.Path(name)
        (folder / "flow.yaml").write_text("muster-flow: 1\nname: removed\nsteps:\n  one: {command: 'true'}\n")
        for words in ([*FLOW, "gc", "flow.yaml", "--out", "out"], ["rm", "-rf", "out/store"]):
            for number in range(chosen.entries):
                entry = folder / "out" / "store" / f"{number:032x}"
                (entry / "output").mkdir(parents=True)
                (entry / "record.json").write_text("{}")
                os.utime(entry, (0, 0))
            os.sync()
            took, used, output = timed(words, folder)
            begin = time.monotonic()
            while list((folder / "out").glob("store/.*")):
                time.sleep(0.05)
            behind = time.monotonic() - begin
            print(f"{output.strip() or ' '.join(words)} ({took:.2f} s in all, {used:.2f} s of processors; {behind:.2f} s behind)", flush=True)


if __name__ == "__main__":
    main()
