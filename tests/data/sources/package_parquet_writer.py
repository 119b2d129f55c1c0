#!/usr/bin/env python3
"""Parquet files of muster are read by pyarrow: package_parquet_writer.py MUSTER_DATA DUMP_PROGRAM [CASES]

Draws arrays, tables and bytes, converts them to Parquet, and compares types and values as pyarrow reads them, and the
records as muster reads them again. A conversion that is killed or refused leaves no file."""
import csv
import json
import pathlib
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time

try:
    import numpy
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as missing:
    print(f"SKIPPED: {missing} (pip install pyarrow numpy)")
    sys.exit(0)

SEED = 21
SCRATCH = tempfile.TemporaryDirectory()
FOLDER = pathlib.Path(SCRATCH.name)
TYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"]


def convert(source, target, *options, status=0):
    done = subprocess.run([sys.argv[1], "convert", source, target, "--json", *map(str, options)], capture_output=True, text=True)
    assert done.returncode == status, (source, options, done.returncode, done.stderr)
    if status == 0:
        return json.loads(done.stdout)
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def records_of(source):
    """Returns the records of a source, as one text, and the printed labels."""
    done = subprocess.run([sys.argv[2], source, FOLDER / "out"], capture_output=True, text=True)
    assert done.returncode == 0, (source, done.stderr)
    return (FOLDER / "out").read_bytes(), done.stdout


def draw_options(draw):
    return draw.choice([[], ["--block-bytes", draw.choice([1, 1000, 100000]), "--level", draw.choice([1, 9])], ["--threads", 3]])


def flat(column, count):
    """Returns the values of a column of lists with a fixed size, or of numbers, as an array of numpy."""
    array, shape = column.combine_chunks(), [count]
    while pa.types.is_fixed_size_list(array.type):
        shape.append(array.type.list_size)
        array = array.flatten()
    assert array.null_count == 0
    values = array.to_numpy(zero_copy_only=False)
    return values.reshape(shape)


def check_arrays(draw, cases):
    random_values = numpy.random.default_rng(SEED)
    for case in range(cases):
        count, kind = draw.choice([1, 7, 300, 4000]), draw.choice(TYPES)
        shape = [count] + [draw.randrange(1, 5) for _ in range(draw.randrange(0, 4))]
        raw = random_values.integers(0, 256, int(numpy.prod(shape)) * numpy.dtype(kind).itemsize, "uint8")
        values = (raw % 2 == 1 if kind == "bool" else raw.view(kind)).reshape(shape)
        classes = draw.choice([None, 3])
        labels = random_values.integers(0, 3, count).astype("int32") if classes else random_values.integers(-2**20, 2**20, count).astype("float32")
        named = ["--classes", "cat,d%2Fg,\u00e9"] if classes else []
        numpy.save(FOLDER / "x.npy", values)
        numpy.save(FOLDER / "y.npy", labels)
        source, target = f"npy:{FOLDER}/x.npy,{FOLDER}/y.npy", FOLDER / "x.parquet"
        made = convert(source, target, *named, *draw_options(draw))
        assert made["records"] == count and made["files"] == 1 and made["bytes"] == target.stat().st_size, made
        table = pq.read_table(target, page_checksum_verification=True)
        assert table.column_names == ["values", "label"] and table.num_rows == count, (case, table.schema)
        assert str(table["label"].type) == "float" and (table["label"].to_numpy() == labels).all()
        found = flat(table["values"], count)
        assert found.dtype == values.dtype and found.shape == values.shape, (case, kind, shape, table.schema)
        assert found.tobytes() == values.tobytes(), (case, kind, shape)
        metadata = table.schema.metadata or {}
        assert (json.loads(metadata[b"muster.classes"]) if classes else b"muster.classes" not in metadata) == (named[1].split(",") if classes else True), metadata
        if len(shape) > 1:
            assert records_of(f"parquet:{target}?label=label") == records_of(source), (case, kind, shape)
            seen = json.loads(subprocess.run([sys.argv[1], "inspect", f"parquet:{target}?label=label", "--json"], capture_output=True, text=True, check=True).stdout)
            assert seen.get("classes", []) == (named[1].split(",") if classes else []), seen


def check_tables(draw):
    """A table of text has the same columns, and bad rows are left out."""
    with (FOLDER / "t.csv").open("w") as file:
        rows = [[draw.uniform(-9, 9), draw.randrange(99), draw.randrange(3)] for _ in range(5000)]
        rows[17][1] = rows[4999][0] = "wrong"
        csv.writer(file).writerows([["a", "b c", "y"], *rows])
    good = [row for row in rows if "wrong" not in row]
    source, target = f"csv:{FOLDER}/t.csv?label=y&bad=keep", FOLDER / "t.parquet"
    assert "'wrong'" in convert(source, target, status=3) and not target.exists()
    made = convert(source, target, "--bad", "skip")
    assert (made["records"], made["left_out"]) == (4998, 2), made
    table = pq.read_table(target)
    assert table.column_names == ["a", "b c", "y"] and [str(each) for each in table.schema.types] == ["float"] * 3
    for name, column in zip(table.column_names, zip(*good)):
        assert (table[name].to_numpy() == numpy.array(column, "float64").astype("float32")).all(), name
    assert records_of(f"parquet:{target}?label=y")[0] == b"".join(struct.pack("<Q2f", 8, *row[:2]) for row in good)
    convert(f"parquet:{target}?label=y", FOLDER / "again.parquet")
    assert pq.read_table(FOLDER / "again.parquet").equals(table)


def check_bytes(draw):
    folder, images = FOLDER / "images", []
    for kind in ("ant", "bee"):
        (folder / kind).mkdir(parents=True)
        for k in range(50):
            images.append((kind, draw.randbytes(draw.choice([0, 1, 3000]))))
            (folder / kind / f"{k:02}.jpg").write_bytes(images[-1][1])
    target = FOLDER / "images.parquet"
    convert(f"images:{folder}", target, *draw_options(draw))
    table = pq.read_table(target)
    assert [str(each) for each in table.schema.types] == ["large_binary", "float"]
    assert table["bytes"].to_pylist() == [each[1] for each in images]
    assert table["label"].to_pylist() == [float(each[0] == "bee") for each in images]
    assert records_of(f"parquet:{target}?columns=bytes&label=label") == records_of(f"images:{folder}")


def check_groups():
    """Row groups are of bounded size, and so is the memory."""
    with (FOLDER / "large.raw").open("wb") as file:
        for k in range(100):
            file.write(random.Random(k).randbytes(1 << 20))
    peak = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    source, target = f"raw:{FOLDER}/large.raw?shape=65536", FOLDER / "large.parquet"
    used = int(subprocess.run([sys.executable, "-c", peak, sys.argv[1], "convert", source, target], capture_output=True, text=True, check=True).stdout)
    groups = pq.ParquetFile(target).metadata
    size = target.stat().st_size
    print(f"a conversion of 100 MiB used {used >> 10} MiB, and wrote {groups.num_row_groups} row groups, {size >> 20} MiB")
    mapped = 100 << 10  # the input, in KiB
    assert groups.num_row_groups == 7 and used - mapped < 256 << 10 and size < 105 << 20, (groups, used, size)
    whole = target.read_bytes()
    target.unlink()
    for delay in (0.05, 0.1, 0.15, 0.2, 0.3):
        begun = subprocess.Popen([sys.argv[1], "convert", source, target], stdout=subprocess.DEVNULL)
        time.sleep(delay)
        begun.send_signal(signal.SIGKILL)
        begun.wait()
        assert not target.exists() or target.read_bytes() == whole, "a part of a file has the name"
        assert not list(FOLDER.glob("large.parquet.*"))


def check_refused():
    def refused(source, *options, words, status=2):
        target = FOLDER / "refused.parquet"
        text = convert(source, target, *options, status=status)
        assert all(word in text for word in words) and not target.exists(), (source, text)

    numpy.save(FOLDER / "x.npy", numpy.zeros((3, 2), "float32"))
    (FOLDER / "twice.csv").write_text("a,a,y\n1,2,0\n")
    (FOLDER / "s.svm").write_text("1 3:1 9:2\n")
    header = json.dumps({"w": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}).encode()
    (FOLDER / "b.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(12))
    plain = f"npy:{FOLDER}/x.npy"
    refused(f"safetensors:{FOLDER}/b.safetensors", words=["'w'", "bfloat16"])
    refused(f"libsvm:{FOLDER}/s.svm?layout=sparse", words=["sparse", "dense"])
    refused(plain, "--append", words=["one file", ".parquet"])
    refused(plain, "--files", 2, words=["one file", ".parquet"])
    refused(plain, "--alignment", 64, words=["no alignment"])
    assert "cannot write" in convert(plain, FOLDER / "nowhere" / "x.parquet", status=2)
    (FOLDER / "kept.parquet").write_bytes(b"before")
    convert(f"csv:{FOLDER}/nothing.csv", FOLDER / "kept.parquet", status=3)
    assert (FOLDER / "kept.parquet").read_bytes() == b"before"


def check_classes():
    """Classes in the metadata are of all labels and files."""
    table = pa.table({"x": pa.array([1.0, 2.0]), "y": pa.array([0, 2])})
    folder = FOLDER / "classes"
    folder.mkdir()
    for name, classes in (("a", '["cat", "dog"]'), ("b", '["cat"]'), ("c", "cat,dog")):
        pq.write_table(table.replace_schema_metadata({"muster.classes": classes}), folder / f"{name}.parquet")
    _, labels = records_of(f"parquet:{folder}/a.parquet?label=y")
    assert labels.split("\n")[:2] == ["0 ", "0 bad"], labels
    for path, word in ((folder / "c.parquet", "no list of names"), (folder, "other classes")):
        done = subprocess.run([sys.argv[2], f"parquet:{path}?label=y", FOLDER / "out"], capture_output=True, text=True)
        assert done.returncode == 3 and word in done.stderr, done


def main():
    print(f"seed {SEED}")
    draw = random.Random(SEED)
    check_refused()
    check_classes()
    check_tables(draw)
    check_bytes(draw)
    check_groups()
    check_arrays(draw, int(sys.argv[3]) if len(sys.argv) > 3 else 60)


main()
