#!/usr/bin/env python3
"""Files of the package safetensors are read by muster, and files of muster by the package: package_tensors.py COPY_PROGRAM

Draws tensors, saves them with the package, lets the program copy them, and compares the copy. Both refuse files whose header
was changed in the same way."""
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import numpy
    from safetensors import SafetensorError, safe_open
    from safetensors.numpy import load_file, save_file
except ImportError as missing:
    print(f"SKIPPED: {missing} (pip install safetensors numpy)")
    sys.exit(0)

SEED, TYPES = 11, ["bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


def main():
    print(f"seed {SEED}")
    draw, folder = random.Random(SEED), pathlib.Path(tempfile.mkdtemp())
    ours, theirs = folder / "ours", folder / "theirs"

    def copy():
        return subprocess.run([sys.argv[1], theirs, ours], capture_output=True, text=True)

    for _ in range(60):
        tensors = {}
        for k in range(draw.randrange(6)):
            shape = [draw.randrange(5) for _ in range(draw.randrange(4))]
            values = numpy.frombuffer(draw.randbytes(8 * int(numpy.prod(shape))), "uint8")
            kind = numpy.dtype(draw.choice(TYPES))
            values = values[:int(numpy.prod(shape)) * kind.itemsize]
            tensors[f"layer.{k} ä\""] = (values % 2 if kind == "bool" else values).view(kind).reshape(shape)
        metadata = draw.choice([None, {"format": "np", "a": "\""}])
        save_file(tensors, theirs, metadata)
        done = copy()
        assert done.returncode == 0, done.stderr
        back = load_file(ours)
        assert back.keys() == tensors.keys()
        for name, values in tensors.items():
            assert back[name].dtype == values.dtype and back[name].shape == values.shape, name
            assert back[name].tobytes() == values.tobytes(), name
        with safe_open(ours, "np") as opened:
            assert opened.metadata() == metadata, opened.metadata()

    save_file({"a": numpy.arange(6, dtype="float32").reshape(2, 3), "b": numpy.arange(3, dtype="int64")}, theirs, {"k": "v"})
    whole = theirs.read_bytes()
    header_end = 8 + int.from_bytes(whole[:8], "little")
    refused = accepted = 0
    for _ in range(1500):
        changed = bytearray(whole)
        for _ in range(draw.randrange(1, 3)):
            changed[draw.randrange(header_end)] = draw.choice(b'0123456789[]{}",:IFU ab\xff')
        theirs.write_bytes(changed)
        done = copy()
        try:
            expected = load_file(theirs)
        except (SafetensorError, KeyError, TypeError) as error:  # the latter two: types that numpy lacks
            if isinstance(error, SafetensorError):
                assert done.returncode == 3 and str(theirs) in done.stderr, (bytes(changed[:header_end]), error, done.stderr)
            refused += 1
            continue
        accepted += 1
        if done.returncode == 0:
            back = load_file(ours)
            assert back.keys() == expected.keys() and all(back[k].tobytes() == expected[k].tobytes() for k in back)
        else:  # stricter than the package: repeated and unknown keys
            assert any(word in done.stderr for word in ("twice", "unknown key")), (bytes(changed[:header_end]), done.stderr)
    print(f"{refused} changed files are refused, {accepted} are accepted")
    assert refused > 100 and accepted > 20


main()
