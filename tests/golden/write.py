#!/usr/bin/env python3
"""Writes a generation of golden files by the programs of a build, and the values that the same programs read.

    MUSTER_TEST_BUILD=build/release write.py FOLDER [FORMAT...]

FOLDER must not exist: golden files are never written again (README.md)."""
import pathlib
import shutil
import sys
import tempfile

import golden


def write(folder, formats):
    folder.mkdir(parents=True)
    (folder / "values").mkdir()
    if any(golden.FORMATS[name][0] is None for name in formats):
        golden.run(golden.BUILD / "tests/golden/golden_library", "write", folder)
    for name in formats:
        writes, values = golden.FORMATS[name]
        if writes is not None:
            (folder / name).mkdir()
            writes(folder / name)
        with tempfile.TemporaryDirectory() as scratch:
            (folder / "values" / f"{name}.txt").write_text(values(shutil.copytree(folder / name, pathlib.Path(scratch, name), symlinks=True)))


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]).absolute(), sys.argv[2:] or list(golden.FORMATS))
