#!/usr/bin/env python3
"""Compares the machine code of two builds: a commit that only renames must not change it.

  tools/same_text.py build/before build/after

Compares the multiset of executable sections in all object files (.text, .text.*), regardless of their names and symbols. Prints the
number of sections that only one build has, with the objects that contain them. Both builds need the same compiler and options, no
debug information (-g0), and the same sources in each unit.

Exit status: 0 same code; 1 other code; 2 wrong arguments.
"""
import argparse
import collections
import hashlib
import pathlib
import struct
import sys


def sections(data):
    """Yields (name, bytes) of the executable sections of a 64-bit little-endian ELF object."""
    offset, = struct.unpack_from("<Q", data, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
    if count == 0:  # more sections than 16 bits count: the first header has the number
        count, = struct.unpack_from("<Q", data, offset + 0x20)
    if names_index == 0xFFFF:
        names_index, = struct.unpack_from("<I", data, offset + 0x28)
    headers = [struct.unpack_from("<IIQQQQ", data, offset + index * size) for index in range(count)]
    names = headers[names_index][4]
    for name, _, flags, _, start, length in headers:
        if flags & 4 and length:  # SHF_EXECINSTR
            end = data.index(b"\0", names + name)
            yield data[names + name:end].decode(), data[start:start + length]


def code_of(build):
    """Returns {digest of a section: [objects that contain it]}."""
    found = collections.defaultdict(list)
    for file in sorted(pathlib.Path(build).rglob("*.o")):
        data = file.read_bytes()
        if data[:5] == b"\x7fELF\x02":
            for _, code in sections(data):
                found[hashlib.sha256(code).hexdigest()].append(str(file.relative_to(build)))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    arguments = parser.parse_args()
    before, after = code_of(arguments.before), code_of(arguments.after)
    if not before or not after:
        print(f"tools/same_text.py: {arguments.before if not before else arguments.after} holds no object file", file=sys.stderr)
        return 2
    differ = False
    for title, some, others in (("before", before, after), ("after", after, before)):
        left = {digest: objects for digest, objects in some.items() if len(objects) != len(others.get(digest, []))}
        total = sum(len(objects) for objects in some.values())
        places = collections.Counter(place for objects in left.values() for place in objects)
        print(f"{title}: {total} sections, {len(left)} not equally often in the other build")
        for place, count in places.most_common(20):
            print(f"  {count} in {place}")
        differ |= bool(left)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
