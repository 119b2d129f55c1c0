#!/usr/bin/python3
"""Reads a PostgreSQL table into floats, and compares with psycopg's binary COPY into numpy: the same server and rows, in turns; prints rows
a second, as the median over the rounds.

    bench/peers/data_postgres.py [--build build/release] [--mib 400] [--rounds 3] [--threads 2]

psycopg runs once as in its documentation (rows of a binary COPY, each put into an array), and once at its best (the raw
bytes, which numpy reads as records with a fixed size). muster runs `muster-data verify` over ranges of the key, on --threads
connections, and with one COPY of the whole query. Needs psycopg and numpy (pip install), and Debian's postgresql-15.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy
import psycopg

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from memory import COLUMNS, postgres  # noqa: E402

COPY = "COPY (SELECT * FROM rows ORDER BY id) TO STDOUT (FORMAT binary)"


def by_rows(connection, count):
    table = numpy.empty((count, COLUMNS + 2), numpy.float32)
    with psycopg.connect(connection) as session, session.cursor().copy(COPY) as copy:
        copy.set_types(["int8"] + ["float4"] * (COLUMNS + 1))
        for k, row in enumerate(copy.rows()):
            table[k] = row
    return table


def by_bytes(connection, count):
    fields = [("count", ">i2"), ("id_size", ">i4"), ("id", ">i8")]
    for i in range(COLUMNS + 1):
        fields += [(f"size{i}", ">i4"), (f"x{i}", ">f4")]
    record = numpy.dtype(fields)
    with psycopg.connect(connection) as session, session.cursor().copy(COPY) as copy:
        data = b"".join(copy)
    rows = numpy.frombuffer(data, record, count, offset=19)
    table = numpy.empty((count, COLUMNS + 1), numpy.float32)
    for i in range(COLUMNS + 1):
        table[:, i] = rows[f"x{i}"]
    return table


def muster(program, connection, more, threads):
    subprocess.run(["taskset", "-c", f"0-{threads - 1}", program, "verify", f"postgres:{connection}?query=SELECT * FROM rows{more}"],
                   check=True, stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parent.parent / "build/release")
    parser.add_argument("--mib", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    program = options.build / "src/programs/muster-data"
    with tempfile.TemporaryDirectory() as place:
        pathlib.Path(place).chmod(0o755)
        (pathlib.Path(place) / "server").mkdir()
        server = postgres(pathlib.Path(place) / "server", options.mib << 20)
        try:
            count = int(server.sql("SELECT count(*) FROM rows"))
            ways = {"muster, ranges of the key": lambda: muster(program, server.connection, "&label=y&key=id", options.threads),
                    "muster, one COPY": lambda: muster(program, server.connection, " ORDER BY id&label=y&ignore=id", options.threads),
                    "psycopg, rows into numpy": lambda: by_rows(server.connection, count),
                    "psycopg, bytes into numpy": lambda: by_bytes(server.connection, count)}
            seconds = {name: [] for name in ways}
            for _ in range(options.rounds):
                for name, run in ways.items():
                    began = time.perf_counter()
                    run()
                    seconds[name].append(time.perf_counter() - began)
            print(f"{count} rows of {COLUMNS} floats, psycopg {psycopg.__version__}, the medians of {options.rounds}:")
            for name, all_of in seconds.items():
                print(f"{name}: {count / statistics.median(all_of):.0f} rows/s")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
