#!/usr/bin/env python3
"""smoke.py COMMAND...: a Google Benchmark program, perhaps under a launcher, runs and its JSON can be read."""
import json
import subprocess
import sys

flags = ["--benchmark_min_time=0.01", "--benchmark_format=json"]
done = subprocess.run([*sys.argv[1:], *flags], stdout=subprocess.PIPE, text=True)
assert done.returncode == 0, f"exit status {done.returncode}"
report = json.loads(done.stdout)
assert report["benchmarks"], "no benchmark ran"
broken = [row["name"] for row in report["benchmarks"] if row.get("error_occurred")]
assert not broken, f"these stopped with an error: {broken}"
print(f"{len(report['benchmarks'])} results")
