"""Compiles each case of refused.cpp alone: the compiler must refuse it, and print the words that follow its name.

    refused.py SOURCE INCLUDE COMPILER [EXCEPT...]    without the cases whose names begin with a word of EXCEPT
"""
import os
import re
import subprocess
import sys

source, include, compiler, *left_out = sys.argv[1:]
cases = re.findall(r"^#ifdef case_(\w+) +// ?(.*)$", open(source).read(), re.M)
assert len(cases) > 10, cases
failed = False
for name, words in cases:
    if name.startswith(tuple(left_out)):
        continue
    run = subprocess.run([compiler, "-std=c++20", "-O1", "-Werror", "-DMUSTER_COMPILED", f"-Dcase_{name}", f"-I{include}", "-c", "-o", os.devnull, source],
                         capture_output=True, text=True)
    # A valid case must compile; other cases must be refused with the words, without any other error.
    good = run.returncode == 0 if not words else run.returncode != 0 and words in run.stderr and run.stderr.count("error:") == 1
    print(f"{name}: {'as it should be' if good else 'expected: ' + (words or 'it compiles')}")
    if not good:
        print(run.stderr)
    failed = failed or not good
sys.exit(failed)
