#!/usr/bin/env python3
"""Finds functions of include and src that are longer than 60 lines or have a cyclomatic complexity above 15, as
tools/lines.py counts them. functions.txt beside this file lists exceptions with their lines and complexity. The list only
shrinks: a function must not exceed its entry, and an entry must not exceed its function.

    functions.py ROOT            exits with 1 if a function or an entry is too large
    functions.py ROOT --write    lowers and removes entries; adds none
    functions.py --self-test"""
import pathlib
import sys

MOST_LINES, MOST_COMPLEXITY = 60, 15
LIST = pathlib.Path(__file__).with_suffix(".txt")
sys.path.insert(0, str(LIST.parents[2] / "tools"))
import lines as counted  # noqa: E402


def is_large(size):
    return size[0] > MOST_LINES or size[1] > MOST_COMPLEXITY


def sizes_of(functions):
    """Returns {"path function": (lines, complexity)} of the large functions, the larger where two have one name."""
    sizes = {}
    for length, where, complexity, name in functions:
        key = f"{where.rpartition(':')[0]} {name}"
        if is_large((length, complexity)):
            sizes[key] = tuple(map(max, sizes.get(key, (0, 0)), (length, complexity)))
    return sizes


def read(text):
    """Returns the entries of a list, in the form of sizes_of."""
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {" ".join(rest): (int(length), int(complexity)) for length, complexity, *rest in rows}


def findings(sizes, entries):
    for key, (length, complexity) in sorted(sizes.items()):
        listed = entries.get(key, (MOST_LINES, MOST_COMPLEXITY))
        if length > max(listed[0], MOST_LINES) or complexity > max(listed[1], MOST_COMPLEXITY):
            yield f"{key} has {length} lines and complexity {complexity} (the limits are {MOST_LINES} and {MOST_COMPLEXITY}, " \
                  f"or its entry in {LIST.name}); split it"
    for key, listed in sorted(entries.items()):
        if listed != lowered(sizes, {key: listed}).get(key):
            yield f"the entry of {key} is above the function's size, or needless (the list only shrinks); " \
                  f"run {pathlib.Path(__file__).name} ROOT --write"


def lowered(sizes, entries):
    """Returns the entries without those of functions within the limits, each at most its function's size."""
    return {key: tuple(map(min, entries[key], sizes[key])) for key in entries if key in sizes}


def self_test():
    text = "int f(int a) {\n" + "  if (a && a > 1 ||\n      a) g(\"if ? \");  // for\n" * 4 + "  return a ? 1 : 2;\n}\n"
    (found,) = counted.functions_of(text)
    assert found == (11, 14, "f", 1), found
    sizes = sizes_of([(70, "a.hpp:3", 2, "f"), (61, "a.hpp:90", 16, "f"), (60, "a.hpp:200", 15, "g")])
    assert sizes == {"a.hpp f": (70, 16)}, sizes
    assert read("# x\n70 16 a.hpp f\n") == sizes
    assert not list(findings(sizes, sizes))
    for entries in ({}, {"a.hpp f": (69, 16)}, {"a.hpp f": (70, 15)}, {"a.hpp f": (71, 16)}, {**sizes, "a.hpp g": (60, 15)}):
        assert len(list(findings(sizes, entries))) == 1, entries
    assert lowered(sizes, {"a.hpp f": (71, 15), "a.hpp g": (99, 99)}) == {"a.hpp f": (70, 15)}


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    counted.ROOT = pathlib.Path(sys.argv[1]).resolve()
    sizes, entries = sizes_of(counted.Count(None).functions), read(LIST.read_text())
    if sys.argv[2:] == ["--write"]:
        head = "".join(line + "\n" for line in LIST.read_text().splitlines() if line.startswith("#"))
        LIST.write_text(head + "".join(f"{length} {complexity} {key}\n" for key, (length, complexity) in sorted(lowered(sizes, entries).items())))
        return None
    problems = list(findings(sizes, entries))
    print(*problems, sep="\n")
    print(f"{len(entries)} exceptions, the longest with {max((size[0] for size in entries.values()), default=0)} lines")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
