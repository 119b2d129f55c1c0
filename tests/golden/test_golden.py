#!/usr/bin/env python3
"""test_golden.py FORMAT: reads the golden files of a format and compares the values. A file of a later version must be refused in
one line with that version. Files that this build writes must have the same values, too."""
import difflib
import pathlib
import shutil
import sys
import tempfile

import golden
import write

SAME_WHEN_WRITTEN = ("checkpoint", "tables", "records", "store", "model")   # the other formats contain times


def compare(wanted, found, where):
    if wanted == found:
        return True
    print(f"{where}: the values differ")
    print("\n".join(difflib.unified_diff(wanted.splitlines(), found.splitlines(), "written", "read", lineterm="")))
    return False


def check(kind, scratch):
    values, good = golden.FORMATS[kind][1], True
    kept = sorted(folder for folder in golden.HERE.iterdir() if (folder / kind).is_dir() and (folder / "values").is_dir())
    assert kept, f"there is no golden file of {kind}"
    for folder in kept:
        wanted = (folder / "values" / f"{kind}.txt").read_text()
        place = shutil.copytree(folder / kind, scratch / folder.name, symlinks=True)
        good &= compare(wanted, values(place), folder / kind)
        for number, (later, says) in enumerate(golden.LATER[kind]):
            place = shutil.copytree(folder / kind, scratch / f"{folder.name}-{number}", symlinks=True)
            if kind == "model":
                values(place)   # decompresses the files
            later(place)
            try:
                values(place)
                print(f"{folder / kind}: a later version (number {number}) was accepted")
                good = False
            except golden.Refused as refused:
                text = str(refused)
                print(text, end="")
                *warnings, line = text.splitlines() or [""]
                if not all("warning: " in word for word in warnings) or not all(word in line for word in says):
                    print(f"{folder / kind}: the error is not one line with {says}, behind warnings")
                    good = False
    if kind in SAME_WHEN_WRITTEN:
        write.write(scratch / "now", [kind])
        good &= compare(wanted, (scratch / "now/values" / f"{kind}.txt").read_text(), f"{kind} as this build writes it")
    return good


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="muster-golden-") as folder:
        sys.exit(0 if check(sys.argv[1], pathlib.Path(folder)) else 1)
