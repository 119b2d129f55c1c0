#!/usr/bin/env python3
"""Tables of pyarrow, Polars and DuckDB are sources of muster, and sources are tables: package_arrow.py EXCHANGE_LIBRARY

Draws tables, passes them through the Arrow C stream interface in both directions, and compares the values and the addresses."""
import ctypes
import decimal
import pathlib
import random
import sys
import tempfile

try:
    import numpy
    import pyarrow as pa
except ImportError as missing:
    print(f"SKIPPED: {missing} (pip install pyarrow numpy)")
    sys.exit(0)

SEED = 15
OUT = pathlib.Path(tempfile.mkdtemp()) / "out"
LIBRARY = ctypes.CDLL(sys.argv[1])
LIBRARY.exchange_problem.restype = LIBRARY.exchange_schema.restype = ctypes.c_char_p
LIBRARY.exchange_size.restype = LIBRARY.exchange_digest.restype = ctypes.c_uint64
LIBRARY.exchange_view.restype = ctypes.c_void_p
LIBRARY.exchange_view.argtypes = [ctypes.c_uint64]
LIBRARY.exchange_export.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
LIBRARY.exchange_open.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int]
ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
ctypes.pythonapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
NUMBERS = {"bool": "bool", "uint8": "uint8", "int8": "int8", "uint16": "uint16", "int16": "int16", "uint32": "uint32", "int32": "int32", "uint64": "uint64",
           "int64": "int64", "halffloat": "float16", "float": "float32", "double": "float64"}


def open_table(table, columns="", label="", classes="", missing=0):
    """Opens any object with __arrow_c_stream__ as a source. Returns 0 or the exit status of the error."""
    capsule = table.__arrow_c_stream__()
    stream = ctypes.pythonapi.PyCapsule_GetPointer(capsule, b"arrow_array_stream")
    return LIBRARY.exchange_open(stream, columns.encode(), label.encode(), classes.encode(), missing)


def records(ids=None, labels=0):
    """Returns (bytes, labels, whether bad) of the source's records."""
    ids = list(range(LIBRARY.exchange_size())) if ids is None else ids
    status = LIBRARY.exchange_dump(str(OUT).encode(), (ctypes.c_uint64 * len(ids))(*ids), ctypes.c_uint64(len(ids)))
    assert status == 0, LIBRARY.exchange_problem()
    content, found = OUT.read_bytes(), []
    while content:
        size = int.from_bytes(content[:8], "little")
        after = 8 + size + 4 * labels
        found.append((content[8:8 + size], numpy.frombuffer(content[8 + size:after], "float32").tolist(), content[after] == 1))
        content = content[after + 1:]
    return found


def exported(rows):
    """Returns the source as a table of pyarrow."""
    stream = (ctypes.c_void_p * 5)()
    assert LIBRARY.exchange_export(ctypes.addressof(stream), rows) == 0, LIBRARY.exchange_problem()
    return pa.RecordBatchReader._import_from_c(ctypes.addressof(stream)).read_all()


def draw_numbers(draw, kind, shape):
    count = int(numpy.prod(shape))
    if kind == "bool":
        return numpy.array([draw.random() < 0.5 for _ in range(count)]).reshape(shape)
    if "float" in NUMBERS[kind]:
        return numpy.array([draw.uniform(-100, 100) for _ in range(count)], NUMBERS[kind]).reshape(shape)
    limits = numpy.iinfo(NUMBERS[kind])
    return numpy.array([draw.randrange(limits.min, limits.max + 1) for _ in range(count)], NUMBERS[kind]).reshape(shape)


def draw_column(draw, count):
    """Returns an array, the expected bytes of each row (None: null), and whether it is a field."""
    form, kind, nulls = draw.choice(["number"] * 5 + ["dictionary", "struct", "decimal", "bytes", "list", "fixed", "lists"]), draw.choice(list(NUMBERS)), draw.choice([0, 0.3])
    absent = [draw.random() < nulls for _ in range(count)]
    absent[0] = False
    mask = numpy.array(absent)
    if form in ("number", "dictionary", "struct"):
        values = draw_numbers(draw, kind, [count])
        array = pa.array(values, mask=mask)
        if form == "dictionary" and kind not in ("bool", "halffloat"):
            array = array.dictionary_encode()
        if form == "struct":
            array = pa.StructArray.from_arrays([array], ["in"])
        return array, [None if gone else numpy.float32(each).tobytes() for gone, each in zip(absent, values)], False
    if form == "decimal":
        known = [None if gone else decimal.Decimal(draw.randrange(-10**9, 10**9)).scaleb(-3) for gone in absent]
        return pa.array(known, pa.decimal128(12, 3)), [None if each is None else numpy.float32(str(each)).tobytes() for each in known], False
    if form == "bytes":
        known = [None if gone else draw.randbytes(5) for gone in absent]
        return pa.array(known, pa.binary(5)), known, True
    shape = [draw.randrange(1, 4) for _ in range(2 if form == "lists" else 1)]
    values = draw_numbers(draw, kind, [count, *shape])
    array = pa.array(values.reshape(-1))
    for extent in reversed(shape):
        if form == "fixed" or draw.random() < 0.3:
            array = pa.FixedSizeListArray.from_arrays(array, extent)
        else:
            large = draw.random() < 0.5
            offsets = pa.array(range(0, len(array) + 1, extent), pa.int64() if large else pa.int32())
            array = (pa.LargeListArray if large else pa.ListArray).from_arrays(offsets, array)
    chosen = pa.array([None if gone else k for k, gone in enumerate(absent)], pa.int64())
    return array.take(chosen) if nulls else array, [None if gone else values[k].tobytes() for k, gone in enumerate(absent)], True


def check_drawn(draw):
    for case in range(150):
        count = draw.choice([1, 5, 900])
        columns = [draw_column(draw, count) for _ in range(draw.randrange(1, 5))]
        y = numpy.array([draw.randrange(-5, 5) for _ in range(count)])
        table = pa.table([each[0] for each in columns] + [pa.array(y)], [f"c{k}" for k in range(len(columns))] + ["y"])
        if draw.random() < 0.6:  # other batches, with offsets
            cut = draw.randrange(count + 1)
            table = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
        for missing in (0, 1):
            first = draw.randrange(count)  # the rows from here on
            part = table.slice(first)
            shapeless = any(is_field and all(each is None for each in rows[first:]) for _, rows, is_field in columns)
            status = open_table(part, label="y", missing=missing)
            if shapeless and status == 3:
                continue
            assert status == 0, (table.schema, LIBRARY.exchange_problem())
            ids = list(range(count - first))
            if draw.random() < 0.5:
                draw.shuffle(ids)
            ordered = [each for each in columns if not each[2]] + [each for each in columns if each[2]]
            for row, (record, labels, is_bad) in zip(ids, records(ids, 1)):
                parts = [rows[first + row] for _, rows, _ in ordered]
                sizes = [len(next(each for each in rows if each is not None)) for _, rows, _ in ordered]
                expected_bad = missing == 0 and None in parts
                expected = b"".join(bytes(size) if each is None or expected_bad else each for each, size in zip(parts, sizes))
                assert record == expected and is_bad == expected_bad, (case, row, table.schema, record, expected, is_bad)
                assert labels == [0.0 if expected_bad else float(y[first + row])]
            if missing == 1:
                digest, back = LIBRARY.exchange_digest(), exported(draw.choice([1, 7, 5000]))
                assert len(back) == count - first
                assert open_table(back, label="y") == 0, LIBRARY.exchange_problem()
                assert LIBRARY.exchange_digest() == digest, (table.schema, back.schema)  # the same records


def check_addresses():
    """A column of lists with a fixed size, and a column of float32, are records in place."""
    values = numpy.arange(3000, dtype="float32")
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values), 3)
    table = pa.table({"x": lists, "y": pa.array(numpy.arange(1000))})
    assert open_table(table, label="y") == 0 and LIBRARY.exchange_mapped() == 1
    start = table["x"].chunk(0).values.buffers()[1].address
    assert [LIBRARY.exchange_view(k) for k in (0, 1, 999)] == [start, start + 12, start + 999 * 12]
    column = pa.array(values)
    assert open_table(pa.table({"x": column}).slice(10)) == 0 and LIBRARY.exchange_mapped() == 1
    assert LIBRARY.exchange_view(5) == column.buffers()[1].address + 4 * 15
    # The rows of a batch whose own offset is not 0: NaN before them is no value of theirs, NaN among them is a bad record.
    for nan, mapped in ((1, 1), (4, 0)):
        numbers = numpy.arange(6, dtype="float32")
        numbers[nan] = float("nan")
        batch = pa.chunked_array([pa.StructArray.from_arrays([pa.array(numbers)], ["x"]).slice(2, 3)])
        assert open_table(batch) == 0 and LIBRARY.exchange_mapped() == mapped, (nan, mapped)
        assert [bad for _, _, bad in records()] == [k == nan for k in (2, 3, 4)], nan
    for other in (pa.array([1.0, None], pa.float32()), pa.array([1.0, float("nan")], pa.float32()), pa.array([1, 2]), pa.array([[1.0], [2.0]])):
        assert open_table(pa.table({"x": other})) == 0 and LIBRARY.exchange_mapped() == 0


def check_refused():
    nested = pa.table({"t": pa.array([0], pa.timestamp("s")), "s": pa.array(["a"]), "m": pa.array([[(1, 2)]], pa.map_(pa.int8(), pa.int8())), "x": pa.array([1.0]),
                       "l": pa.array([["a"]]), "b": pa.array([b"abc"]), "d": pa.array([decimal.Decimal(1)], pa.decimal256(50, 0)), "big": pa.array([1e300])})
    for columns, label, words in (("t", "", ["'t'", "times"]), ("s", "", ["'s'", "texts"]), ("m", "", ["'m'"]), ("l", "", ["'l'", "lists"]), ("b,x", "", ["whole record"]),
                                  ("d", "", ["decimal128"]), ("x", "s", ["classes"]), ("q", "", ["'q'"]), ("x", "q", ["'q'"])):
        assert open_table(nested, columns, label) in (2, 3), (columns, label)
        assert all(word in LIBRARY.exchange_problem().decode() for word in words), LIBRARY.exchange_problem()
    assert open_table(nested, "big") == 0 and [each[2] for each in records()] == [True]
    assert open_table(nested, "b") == 0 and records() == [(b"abc", [], False)]
    kinds = pa.table({"x": pa.array([1.0, 2.0, 3.0]), "k": pa.array(["a", "b", "c"]).dictionary_encode(), "n": pa.array([1, 16777217, None])})
    assert open_table(kinds, "x", "k", "c,a") == 0
    assert [(each[1], each[2]) for each in records(labels=1)] == [([1.0], False), ([0.0], True), ([0.0], False)]
    assert open_table(kinds, "x", "n") == 0 and [each[2] for each in records(labels=1)] == [False, True, True]
    assert open_table(pa.table({"x": pa.array([], pa.float32())})) == 3
    assert open_table(pa.table({"l": pa.array([[1, 2], [], [3, 4], [5]])}), missing=1) == 0 and [each[2] for each in records()] == [False, True, False, True]


def check_others(draw):
    x, y = [draw.uniform(-1, 1) for _ in range(1000)], [draw.randrange(3) for _ in range(1000)]
    expected = [(numpy.float32(each).tobytes(), [float(label)], False) for each, label in zip(x, y)]
    for package, make in (("polars", lambda polars: polars.DataFrame({"x": x, "y": y})), ("duckdb", lambda duckdb: duckdb.from_arrow(pa.table({"x": x, "y": y})).filter("y >= 0").arrow())):
        try:
            module = __import__(package)
        except ImportError as missing:
            print(f"{package} is left out: {missing}")
            continue
        assert open_table(make(module), label="y") == 0, (package, LIBRARY.exchange_problem())
        assert records(labels=1) == expected, package
        print(f"{package} {module.__version__}: {LIBRARY.exchange_size()} rows")


def main():
    print(f"seed {SEED}")
    draw = random.Random(SEED)
    check_addresses()
    check_refused()
    check_drawn(draw)
    check_others(draw)
    LIBRARY.exchange_close()


main()
