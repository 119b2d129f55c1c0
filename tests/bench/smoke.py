#!/usr/bin/env python3
"""smoke.py [--ranks-of-rows=N] COMMAND...: a Google Benchmark program, perhaps under a launcher, runs and its JSON can be
read; every row is of so many ranks."""
import json
import subprocess
import sys

flags = ["--benchmark_min_time=0.01", "--benchmark_format=json"]
ranks = next((int(word.split("=")[1]) for word in sys.argv if word.startswith("--ranks-of-rows=")), None)
command = [word for word in sys.argv[1:] if not word.startswith("--ranks-of-rows=")]
done = subprocess.run([*command, *flags], stdout=subprocess.PIPE, text=True)
assert done.returncode == 0, f"exit status {done.returncode}"
report = json.loads(done.stdout)
assert report["benchmarks"], "no benchmark ran"
broken = [row["name"] for row in report["benchmarks"] if row.get("error_occurred")]
assert not broken, f"these stopped with an error: {broken}"
if ranks is not None:
    for row in report["benchmarks"]:
        assert row.get("ranks") == ranks, f"{row['name']} is of {row.get('ranks')} ranks, not {ranks}"
print(f"{len(report['benchmarks'])} results")
