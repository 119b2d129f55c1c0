"""Measures the code that a program compiles if it includes muster: the lines of preprocessed headers, and unneeded standard headers.

    closure.py INCLUDE COMPILER
"""
import re
import subprocess
import sys

include, compiler = sys.argv[1:]
# With the compiled library. Lines that are not blank: comments leave blank lines. With these muster.hpp has about 100,000 lines.
LIMITS = {"muster/muster.hpp": 75_000, "muster/collectives.hpp": 54_000}
# 1,500 to 8,600 lines each: code that needs them is compiled, or has its own loop.
LEFT_OUT = {"algorithm", "cmath", "condition_variable", "deque", "filesystem", "iostream", "random", "ranges", "regex", "variant"}

failed = False
for header, limit in LIMITS.items():
    program = f"#include <{header}>\nfloat sum(muster::group& world, float x) {{ return muster::allreduce(world, x, muster::sum); }}\n"
    text = subprocess.run([compiler, "-std=c++20", "-DMUSTER_COMPILED", f"-I{include}", "-E", "-x", "c++", "-"], input=program, check=True,
                          capture_output=True, text=True).stdout
    lines = sum(1 for line in text.splitlines() if line.strip())
    needless = sorted(LEFT_OUT & set(re.findall(r'^# \d+ "[^"]*/([a-z_]+)" 1', text, re.M)))
    good = lines < limit and not needless
    print(f"{header}: {lines} lines (fewer than {limit})" + "".join(f"; includes <{name}>" for name in needless))
    failed = failed or not good
sys.exit(failed)
