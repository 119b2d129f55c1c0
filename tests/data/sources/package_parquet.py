#!/usr/bin/env python3
"""Parquet files of pyarrow are read by muster: package_parquet.py DUMP_PROGRAM

Draws schemas, values and options of the writer, writes files and folders with pyarrow, lets the program write the records, and
compares them with the values. Damaged files are refused with their name, and never read as other values."""
import decimal
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

try:
    import numpy
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as missing:
    print(f"SKIPPED: {missing} (pip install pyarrow numpy)")
    sys.exit(0)

SEED = 14
SCRATCH = tempfile.TemporaryDirectory()
FOLDER = pathlib.Path(SCRATCH.name)
NUMBERS = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "halffloat", "float", "double"]
NUMPY = {"halffloat": "float16", "float": "float32", "double": "float64"}


def dump(source):
    return subprocess.run([sys.argv[1], source, FOLDER / "out"], capture_output=True, text=True)


def records_of(source):
    """Returns the records and the labels of a source."""
    done = dump(source)
    assert done.returncode == 0, (source, done.stderr)
    content, records = (FOLDER / "out").read_bytes(), []
    while content:
        size = int.from_bytes(content[:8], "little")
        records.append(content[8:8 + size])
        content = content[8 + size:]
    return records, [line.split() for line in done.stdout.splitlines()]


def draw_numbers(draw, kind, count):
    """Returns values of a type, whole numbers or fractions, that a float32 can hold."""
    if kind == "bool":
        return [draw.random() < 0.5 for _ in range(count)]
    if kind in ("float", "double", "halffloat"):
        return [float(numpy.dtype(NUMPY[kind]).type(draw.uniform(-100, 100))) for _ in range(count)]
    limits = numpy.iinfo(kind)
    few = [draw.randrange(limits.min, limits.max + 1) for _ in range(3)]
    return [draw.choice(few) if draw.random() < 0.5 else draw.randrange(limits.min, limits.max + 1) for _ in range(count)]


def draw_column(draw, count):
    """Returns an array, and for each row the bytes of a float32 feature, or those of a field, or None for null."""
    form = draw.choice(["number"] * 6 + ["dictionary", "decimal", "struct", "list", "lists", "fixed list", "fixed bytes"])
    kind = draw.choice(NUMBERS)
    nulls = draw.choice([0, 0, 0.3])
    absent = [draw.random() < nulls for _ in range(count)]
    if form in ("number", "dictionary", "struct"):
        values = draw_numbers(draw, kind, count)
        known = [None if gone else value for gone, value in zip(absent, values)]
        array = pa.array(known, pa.type_for_alias(kind))
        if form == "dictionary" and kind not in ("bool", "halffloat"):
            array = array.dictionary_encode()
        if form == "struct":
            array = pa.StructArray.from_arrays([array], ["inner"])
        return array, [None if each is None else numpy.float32(each).tobytes() for each in known], False
    if form == "decimal":
        scale = draw.randrange(0, 6)
        known = [None if gone else decimal.Decimal(draw.randrange(-10**9, 10**9)).scaleb(-scale) for gone in absent]
        array = pa.array(known, draw.choice([pa.decimal128(12, scale), pa.decimal256(50, scale)]))
        return array, [None if each is None else numpy.float32(str(each)).tobytes() for each in known], False
    if form == "fixed bytes":
        size = draw.randrange(1, 20)
        known = [None if gone else draw.randbytes(size) for gone in absent]
        return pa.array(known, pa.binary(size)), known, True
    shape = [draw.randrange(1, 5) for _ in range(2 if form == "lists" else 1)]
    absent[0] = False  # the shape is known
    values = numpy.array(draw_numbers(draw, kind, count * int(numpy.prod(shape))), NUMPY.get(kind, kind)).reshape([count, *shape])
    known = [None if gone else values[k].tolist() for k, gone in enumerate(absent)]
    if kind == "halffloat":
        known = [None if gone else values[k] if form != "lists" else list(values[k]) for k, gone in enumerate(absent)]
    inner = pa.type_for_alias(kind)
    outer = pa.list_(inner, shape[-1]) if form == "fixed list" else draw.choice([pa.list_, pa.large_list])(inner)
    outer = pa.list_(outer) if form == "lists" else outer
    return pa.array(known, outer), [None if gone else values[k].tobytes() for k, gone in enumerate(absent)], True


def draw_options(draw, count):
    return {"row_group_size": draw.randrange(1, count + 5), "compression": draw.choice(["none", "snappy", "zstd", "gzip", "lz4", "brotli"]),
            "use_dictionary": draw.random() < 0.5, "data_page_version": draw.choice(["1.0", "2.0"]), "data_page_size": draw.choice([50, 1000, 2**20]),
            "version": draw.choice(["2.4", "2.6"]), "write_page_index": draw.random() < 0.5, "write_page_checksum": draw.random() < 0.5,
            "write_statistics": draw.random() < 0.5, "store_schema": draw.random() < 0.5}


def check_drawn(draw, cases):
    for case in range(cases):
        count, files = draw.choice([1, 7, 300, 5000]), draw.randrange(1, 4)
        columns = {f"c{k}": draw_column(draw, count) for k in range(draw.randrange(1, 6))}
        labels = [draw.randrange(-9, 10) for _ in range(count)]
        table = pa.table({**{name: each[0] for name, each in columns.items()}, "y": pa.array(labels, draw.choice([pa.int64(), pa.float32()])),
                          "note": ["text"] * count, "when": pa.array([0] * count, pa.timestamp("us"))})
        folder = FOLDER / f"{case}"
        folder.mkdir()
        cuts = sorted(draw.randrange(count + 1) for _ in range(files - 1))
        for k, (first, last) in enumerate(zip([0, *cuts], [*cuts, count])):
            part, path = table.slice(first, last - first), folder / f"{k}.parquet"
            while True:
                pq.write_table(part, path, **draw_options(draw, count))
                try:
                    pq.read_table(path)
                    break
                except pa.ArrowInvalid as wrong:  # pyarrow 26 loses booleans of lists, with some options
                    print(f"pyarrow cannot read its file: {wrong}")
        names = list(columns)
        wanted = draw.sample(names, draw.randrange(1, len(names) + 1))
        chosen = f"columns={','.join(name + ('.inner' if table[name].type.num_fields and pa.types.is_struct(table[name].type) else '') for name in wanted)}"
        order = [name for name in names if name in wanted]
        order = [name for name in order if not columns[name][2]] + [name for name in order if columns[name][2]]
        for rule in ("fail", "zero"):
            records, printed = records_of(f"parquet:{folder}?label=y&{chosen}&missing={rule}")
            assert len(records) == count, (len(records), count)
            for row in range(count):
                parts = [columns[name][1][row] for name in order]
                sizes = [len(next(each for each in columns[name][1] if each is not None)) if any(columns[name][1]) else
                         table[name].type.byte_width if pa.types.is_fixed_size_binary(table[name].type) else 4 for name in order]
                is_bad = rule == "fail" and None in parts
                expected = b"".join(bytes(size) if part is None or is_bad else part for part, size in zip(parts, sizes))
                assert records[row] == expected, (case, row, table.schema, chosen, rule, records[row], expected)
                assert printed[row] == (["0", "bad"] if is_bad else [str(labels[row])]), (case, row, printed[row])


def check_partitions():
    for year, kind in ((2024, "a b"), (2025, "c"), (2026, "__HIVE_DEFAULT_PARTITION__")):
        folder = FOLDER / "hive" / f"year={year}" / f"kind={kind.replace(' ', '%20')}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"x": pa.array([float(year)] * 2)}), folder / "part.parquet")
    (FOLDER / "hive" / "_SUCCESS").touch()
    records, labels = records_of(f"parquet:{FOLDER}/hive?label=kind&classes=c,a%20b")
    assert [struct.unpack("<2f", each) for each in records] == [(2024.0, 2024.0)] * 2 + [(2025.0, 2025.0)] * 2 + [(0.0, 0.0)] * 2, records
    assert labels == [["1"]] * 2 + [["0"]] * 2 + [["0", "bad"]] * 2, labels


def check_bytes(draw):
    images = [draw.randbytes(draw.randrange(3000)) for _ in range(500)]
    bytes_of = pa.StructArray.from_arrays([pa.array(images), pa.array(["path"] * 500)], ["bytes", "path"])
    pq.write_table(pa.table({"image": bytes_of, "label": pa.array(range(500))}), FOLDER / "images.parquet", row_group_size=77)
    records, labels = records_of(f"parquet:{FOLDER}/images.parquet?columns=image.bytes&label=label")
    assert records == images and labels == [[str(k)] for k in range(500)]


def check_pages(draw):
    """Lists that end at the ends of short pages, whose memory the reader uses again."""
    halves = numpy.array([draw.uniform(-100, 100) for _ in range(60000)], "float16")
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(halves), 3)})
    for codec in ("none", "snappy", "zstd"):
        for version in ("1.0", "2.0"):
            pq.write_table(table, FOLDER / "pages.parquet", use_dictionary=False, compression=codec, data_page_size=4096, data_page_version=version)
            records, _ = records_of(f"parquet:{FOLDER}/pages.parquet")
            assert b"".join(records) == halves.tobytes(), (codec, version)


def check_refused():
    def write(name, **columns):
        (FOLDER / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), FOLDER / name)
        return FOLDER / name

    write("mixed/a.parquet", x=pa.array([1.0]))
    write("mixed/b.parquet", x=pa.array([1]))
    write("lacking/a.parquet", x=pa.array([1.0]), z=pa.array([1.0]))
    write("lacking/b.parquet", x=pa.array([1.0]))
    write("more/a.parquet", x=pa.array([1.0]))
    write("more/b.parquet", x=pa.array([1.0]), z=pa.array([1.0]))
    (FOLDER / "empty").mkdir()
    (FOLDER / "magic.parquet").write_bytes(b"not a Parquet file at all")
    many = write("many.parquet", t=pa.array([0], pa.timestamp("s")), d=pa.array([0], pa.date32()), s=pa.array(["1"]), m=pa.array([[(1, 2)]], pa.map_(pa.int8(), pa.int8())),
                 ls=pa.array([[{"a": 1}]]), b=pa.array([b"x"]), x=pa.array([1.0]), lt=pa.array([["a"]]))
    for source, status, words in (
            (f"{FOLDER}/mixed", 3, ["b.parquet", "'x'", "INT64", "DOUBLE"]), (f"{FOLDER}/lacking", 3, ["b.parquet", "'z'"]),
            (f"{FOLDER}/more", 3, ["b.parquet", "'z'"]), (f"{FOLDER}/empty", 3, ["no Parquet files"]), (f"{FOLDER}/magic.parquet", 3, ["magic.parquet"]),
            (f"{FOLDER}/absent.parquet", 3, ["absent.parquet"]), (f"{many}?columns=t", 3, ["'t'", "seconds"]), (f"{many}?columns=d", 3, ["'d'", "times"]),
            (f"{many}?columns=s", 3, ["'s'", "texts"]), (f"{many}?columns=m", 3, ["'m'", "maps"]), (f"{many}?columns=ls", 3, ["'ls'", "structs"]),
            (f"{many}?columns=lt", 3, ["'lt'", "lists"]), (f"{many}?columns=b,x", 3, ["'b'", "whole record"]), (f"{many}?columns=z", 2, ["'z'"]),
            (f"{many}?columns=x&label=s", 3, ["'s'", "classes="]), (f"{many}?columns=x&label=b", 3, ["'b'"]), (f"{many}?colums=x", 2, ["did you mean 'columns'"])):
        done = dump(f"parquet:{source}")
        assert done.returncode == status and all(word in done.stderr for word in words), (source, done.returncode, done.stderr)


def check_bad_rows():
    """A row that cannot be a record is bad, and no other row."""
    big = decimal.Decimal(10) ** 60
    cases = {"x": (pa.array([1.0, 1e300, 3.0]), ""), "n": (pa.array([1.0, float("nan"), 3.0]), ""), "d": (pa.array([decimal.Decimal(1), big, decimal.Decimal(3)], pa.decimal256(76, 0)), ""),
             "z": (pa.array([1, None, 3]), ""), "l": (pa.array([[1, 2], [1], [3, 4]]), ""), "e": (pa.array([[1, 2], [], [3, 4]]), "&missing=zero"), "h": (pa.array([[1, 2], [1, None], [3, 4]]), "&missing=nan")}
    for name, (array, options) in cases.items():
        pq.write_table(pa.table({name: array, "y": pa.array([0, 1, 2])}), FOLDER / "rows.parquet", row_group_size=2)
        _, labels = records_of(f"parquet:{FOLDER}/rows.parquet?label=y{options}")
        assert labels == [["0"], ["0", "bad"], ["2"]], (name, labels)
    labels = {"a": pa.array([1, 16777217, 3]), "b": pa.array([1.0, float("inf"), 3.0]), "c": pa.array([1, None, 3]), "d": pa.array([1.0, float("nan"), 3.0]),
              "e": pa.array([decimal.Decimal("1"), decimal.Decimal("16777217"), decimal.Decimal("3")]), "f": pa.array(["1", "x", "3"])}
    for name, array in labels.items():
        pq.write_table(pa.table({"x": pa.array([1.0, 2.0, 3.0]), name: array}), FOLDER / "rows.parquet")
        records, found = records_of(f"parquet:{FOLDER}/rows.parquet?label={name}&missing=zero" + ("&classes=3,1" if name == "f" else ""))
        assert found == [["1"], ["0", "bad"], ["0" if name == "f" else "3"]], (name, found)
        assert struct.unpack("<f", records[1]) == (0.0,)


def check_ipc(draw):
    """A file of Arrow's IPC format has the records of the Parquet file with the same table, or is refused."""
    refused = 0
    for case in range(120):
        count = draw.choice([1, 500])
        columns = {f"c{k}": draw_column(draw, count)[0] for k in range(3)}
        table = pa.table({**columns, "y": pa.array(range(count))})
        names = ",".join(f"{name}.inner" if pa.types.is_struct(each.type) else name for name, each in columns.items() if "decimal256" not in str(each.type))
        if not names:
            continue
        path, options = FOLDER / "ipc", pa.ipc.IpcWriteOptions(compression=draw.choice([None, "lz4", "zstd"]), emit_dictionary_deltas=True)
        with draw.choice([pa.ipc.new_file, pa.ipc.new_stream])(str(path), table.schema, options=options) as out:
            out.write_table(table, max_chunksize=draw.choice([100, 10000]))
        pq.write_table(table, FOLDER / "ipc.parquet")
        source = f"?columns={names}&label=y&missing=zero"
        assert records_of(f"arrow:{path}{source}") == records_of(f"parquet:{FOLDER}/ipc.parquet{source}"), table.schema
        whole = bytearray(path.read_bytes())
        if draw.random() < 0.3:
            whole = whole[:draw.randrange(1, len(whole))]
        else:
            whole[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(whole)
        done = dump(f"arrow:{path}{source}")
        assert done.returncode in (0, 2, 3), (done.returncode, done.stderr)
        assert done.returncode == 0 or str(path) in done.stderr, done.stderr
        refused += done.returncode != 0
    print(f"{refused} changed IPC files are refused")
    assert refused > 10


def check_damaged(draw):
    """A changed file is refused, or bad, or has values that pyarrow reads from it too."""
    count = 400
    table = pa.table({"x": pa.array(draw_numbers(draw, "float", count), pa.float32()), "i": pa.array(draw_numbers(draw, "int16", count), pa.int16()),
                      "l": pa.array([[k, k + 1] for k in range(count)], pa.list_(pa.int32()))})
    refused = accepted = 0
    path = FOLDER / "damaged.parquet"
    for _ in range(300):
        pq.write_table(table, path, row_group_size=150, compression=draw.choice(["none", "snappy"]), write_page_checksum=True, use_dictionary=draw.random() < 0.5)
        whole = bytearray(path.read_bytes())
        if draw.random() < 0.2:
            whole = whole[:draw.randrange(len(whole))]
        else:
            footer = int.from_bytes(whole[-8:-4], "little") + 8
            for _ in range(draw.randrange(1, 4)):
                at = draw.randrange(len(whole)) if draw.random() < 0.3 else len(whole) - 1 - draw.randrange(footer)
                whole[at] ^= 1 << draw.randrange(8)
        path.write_bytes(whole)
        done = dump(f"parquet:{path}?columns=x,i,l")
        assert done.returncode in (0, 2, 3), (done.returncode, done.stderr)  # and no signal
        if done.returncode != 0:
            assert str(path) in done.stderr, done.stderr
            refused += 1
            continue
        try:
            again = pq.read_table(path, columns=["x", "i", "l"], page_checksum_verification=True)
        except Exception:  # pyarrow refuses more, such as its own metadata
            accepted += 1
            continue
        records, bad = records_of(f"parquet:{path}?columns=x,i,l")
        for row, (record, mark) in enumerate(zip(records, bad)):
            if mark or again["l"].type != table["l"].type or str(again["x"].type) != "float" or str(again["i"].type) != "int16":
                continue
            assert struct.unpack("<2f2i", record) == (again["x"][row].as_py(), again["i"][row].as_py(), *again["l"][row].as_py()), row
        accepted += 1
    print(f"{refused} changed files are refused, {accepted} are read")
    assert refused > 100


def main():
    print(f"seed {SEED}")
    draw = random.Random(SEED)
    check_partitions()
    check_bytes(draw)
    check_refused()
    check_bad_rows()
    check_drawn(draw, int(sys.argv[2]) if len(sys.argv) > 2 else 60)
    check_damaged(draw)
    check_ipc(draw)
    check_pages(draw)


main()
