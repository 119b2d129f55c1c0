#!/usr/bin/env python3
"""Checks the exports of muster's shared libraries, and the libraries that a program without uses of their symbols still needs.

usage: exported.py LIBRARIES PROGRAM
"""
import glob
import re
import subprocess
import sys

libraries, program = sys.argv[1:]
# Mangled names in namespace muster: functions and variables, with their typeinfo, tables, thunks, guards and temporaries.
own = re.compile(r"(_Z(GV|GR|T[CHISTVW]|Th\w+?_|Tv0_\w+?_|Tc\w+?_|TAXtl)?Z?N[KRO]*6muster|muster_)")
wrong = []
exported = set()
files = sorted(glob.glob(f"{libraries}/libmuster_*.so"))
for file in files:
    lines = subprocess.run(["nm", "-D", "--defined-only", "--format=posix", file], check=True, capture_output=True, text=True).stdout
    names = {line.split()[0].split("@")[0] for line in lines.splitlines()}
    exported |= names
    foreign = sorted(name for name in names if not own.match(name))
    if foreign:
        shown = subprocess.run(["c++filt", *foreign[:10]], check=True, capture_output=True, text=True).stdout.splitlines()
        wrong.append(f"{file} exports {len(foreign)} of {len(names)} symbols that are not muster's: " + "; ".join(shown))
if len(files) < 6 or len(exported) < 1000:
    wrong.append(f"{libraries} holds {len(files)} libraries of {len(exported)} symbols: these are not all layers")
if not any(name.startswith("_ZTIN6muster") and name.endswith("5errorE") for name in exported):
    wrong.append("no library exports the typeinfo of muster::error")

needed = subprocess.run(["readelf", "-d", program], check=True, capture_output=True, text=True).stdout
needed = re.findall(r"\(NEEDED\).*\[lib(\w+)", needed)
for layer in ("comm", "elastic", "ps", "train"):
    if f"muster_{layer}" not in needed:
        wrong.append(f"{program} does not need libmuster_{layer}, so it does not know the settings of that layer")
if "unused" in needed:
    wrong.append(f"{program} needs a library of the user's that it uses nothing of, although it is linked by --as-needed")
print(f"{len(files)} libraries export {len(exported)} symbols; the program needs {' '.join(needed)}")
sys.exit("\n".join(wrong) or 0)
