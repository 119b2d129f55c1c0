#!/usr/bin/env python3
"""storage.py BENCHMARK BUILD: the storage benchmark runs with small files. Every sample is read once by each reader, the bytes are those
of the columns, and a program that fails is named."""
import json
import subprocess
import sys
import tempfile

try:
    import numpy  # noqa: F401
    import pyarrow  # noqa: F401
except ImportError as missing:
    print(f"SKIPPED: {missing} (pip install pyarrow numpy)")
    sys.exit(0)


def run(*words, status=0):
    done = subprocess.run([sys.executable, sys.argv[1], *map(str, words), "--build", sys.argv[2]], capture_output=True, text=True)
    assert done.returncode == status, (words, done.stdout, done.stderr)
    return done.stdout if status == 0 else done.stderr


for layout, shrink, samples, values in (("flux", 1000, 96, 524 + 1 + 8 + 8 + 1), ("dlrm", 1, 30000, 40)):
    with tempfile.TemporaryDirectory() as folder:
        words = [layout, "--folder", f"{folder}/data", "--files", 2, "--samples", samples, "--shrink", shrink, "--accelerators", 3, "--rounds", 1]
        found = json.loads(run(*words, "--seconds", 0.01, "--json"))
        for reader in ("muster", "pyarrow"):
            (result,) = found["readers"][reader]
            assert result["samples"] == 2 * samples and result["each_once"] is True, (reader, result)
            assert result["bytes"] == 2 * samples * values * 4, (reader, result)
            assert 0 < result["utilisation"] <= 1, (reader, result)
        assert run(*words, "--seconds", 0).count("each once") == 2
        assert "other files" in run(*[folder if word == f"{folder}/data" else word for word in words], status=1)
        print(layout, found)
