#!/usr/bin/env python3
"""Files of numpy and webdataset are read by muster: package_records.py npz|webdataset DUMP_PROGRAM

Draws arrays or samples, writes them with the package, lets the program write their records, and compares."""
import itertools
import pathlib
import random
import subprocess
import sys
import tempfile

SEED = 12
FOLDER = pathlib.Path(tempfile.mkdtemp())


def dump(source):
    """Returns the records and the labels of a source."""
    out = FOLDER / "out"
    done = subprocess.run([sys.argv[2], source, out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    content, records = out.read_bytes(), []
    while content:
        size = int.from_bytes(content[:8], "little")
        records.append(content[8:8 + size])
        content = content[8 + size:]
    return records, [line.split() for line in done.stdout.splitlines()]


def check_npz(numpy, draw):
    for case in range(40):
        count = draw.randrange(1, 6)
        shape = [count] + [draw.randrange(1, 5) for _ in range(draw.randrange(3))]
        kind = draw.choice(["uint8", "int16", "float32", "float64", "int64", "bool", "float16"])
        values = numpy.frombuffer(draw.randbytes(int(numpy.prod(shape))), "uint8").astype("uint8" if kind == "bool" else kind)
        values = (values % 2).astype("bool") if kind == "bool" else values
        values, labels = values.reshape(shape), numpy.arange(count, dtype=draw.choice(["int64", "float32", "uint8"]))
        path = FOLDER / f"{case}.npz"
        (numpy.savez if case % 2 else numpy.savez_compressed)(path, data=values, y=labels, other=numpy.zeros(100))
        records, found = dump(f"npz:{path}?array=data&label=y")
        assert records == [each.tobytes() for each in values], (case, kind, shape)
        assert found == [[str(k)] for k in range(count)]


def check_webdataset(webdataset, draw):
    for case in range(20):
        samples, pattern = [], str(FOLDER / f"{case}-%06d.tar")
        with webdataset.ShardWriter(pattern, maxcount=draw.randrange(3, 9), verbose=0) as writer:
            for k in range(draw.randrange(1, 30)):
                sample = {"__key__": f"{'long' * draw.choice([1, 40])}/{k:05d}", "jpg.bin": draw.randbytes(draw.randrange(2000)),
                          "cls": draw.randrange(1000), "json": {"x": draw.choice([0.5, 7, True]), "text": ["a", {}]}}
                writer.write(sample)
                samples.append(sample)
            shards = writer.shard
        source = f"tar:{FOLDER}/{case}-{{000000..{shards - 1:06d}}}.tar?data=jpg.bin&label=cls,json.x"
        records, found = dump(source)
        assert records == [sample["jpg.bin"] for sample in samples]
        assert [list(map(float, each)) for each in found] == [[sample["cls"], float(sample["json"]["x"])] for sample in samples]
        theirs = itertools.islice(webdataset.WebDataset(sorted(map(str, FOLDER.glob(f"{case}-*.tar"))), shardshuffle=False), len(samples) + 1)
        assert [each["jpg.bin"] for each in theirs] == records


def main():
    print(f"seed {SEED}")
    package = {"npz": "numpy", "webdataset": "webdataset"}[sys.argv[1]]
    try:
        module = __import__(package)
    except ImportError as missing:
        print(f"SKIPPED: {missing} (pip install {package})")
        return
    globals()[f"check_{sys.argv[1]}"](module, random.Random(SEED))


main()
