#!/usr/bin/env python3
"""odd_names.py PROGRAM...: checks that a program whose name, or whose argument, has control characters prints one line of
error."""
import os
import re
import subprocess
import sys
import tempfile

LIMIT = 60 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))
clean = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "MASTER_"))}
problems = []
with tempfile.TemporaryDirectory() as folder:
    for number, program in enumerate(sys.argv[1:]):
        name = f"{folder}/a\nb\x1b[31m\x7f{number}"
        os.symlink(program, name)
        for word in ("--no-such-flag", "--no\nsuch\x1b[31mflag"):
            ran = subprocess.run([name, word], env=clean, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT, check=False)
            if ran.returncode not in (1, 2) or ran.stderr.count(b"\n") != 1 or re.search(rb"[\x00-\x09\x0b-\x1f\x7f]", ran.stderr):
                problems.append(f"{program} {word!r} ends with {ran.returncode}: {ran.stderr!r}")
sys.exit("\n".join(problems) or 0)
