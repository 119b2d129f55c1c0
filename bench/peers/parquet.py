#!/usr/bin/env python3
"""Reads Parquet files into batches of rows, and compares with libparquet's column readers and with pyarrow, in turns, on one
thread; prints MB/s of float32 rows, as the median over the rounds, and the ratios.

    bench/peers/parquet.py [--build build/release] [--rounds 5] [--rows 2000000]

Run this script with the Python whose pyarrow muster::parquet uses. The files have 20 columns: floats, doubles, and whole numbers with
few values. "columns" is libparquet alone: all values of all columns into memory that is used again, without rows. "pyarrow" makes
batches of 4,096 rows of float32."""
import argparse
import pathlib
import statistics
import subprocess
import tempfile
import time

import numpy
import pyarrow as pa
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).resolve().parent
ROWS_OF_BATCH = 4096


def write(path, rows, codec):
    draw = numpy.random.default_rng(7)
    types = [numpy.float32] * 10 + [numpy.float64] * 5 + [numpy.int64] * 5
    with pq.ParquetWriter(path, pa.schema([(f"c{k}", pa.from_numpy_dtype(each)) for k, each in enumerate(types)]), compression=codec) as out:
        for first in range(0, rows, 1 << 17):
            count = min(1 << 17, rows - first)
            out.write_table(pa.table({f"c{k}": draw.integers(0, 1000, count) if each is numpy.int64 else (draw.normal(size=count) * 1000).round(1).astype(each)
                                      for k, each in enumerate(types)}, schema=out.schema))
    return len(types)


def read_pyarrow(path, columns):
    start, total = time.perf_counter(), 0.0
    rows = numpy.empty((ROWS_OF_BATCH, columns), numpy.float32)
    for batch in pq.ParquetFile(path, memory_map=True).iter_batches(ROWS_OF_BATCH, use_threads=False):
        for k, column in enumerate(batch.columns):
            rows[:len(batch), k] = column.to_numpy(zero_copy_only=False)
        total += float(rows[0, 0])
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=HERE.parent.parent / "build" / "release")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=2_000_000)
    options = parser.parse_args()
    program = next(pathlib.Path(options.build).rglob("peer_parquet"))
    pa.set_cpu_count(1)
    for codec in ("none", "snappy", "zstd"):
        with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
            columns = write(file.name, options.rows, codec)
            taken = {}
            for _ in range(options.rounds):
                for mode in ("bare", "order", "shuffled"):
                    ran = subprocess.run([program, mode, file.name], capture_output=True, text=True, check=True).stdout.split()
                    taken.setdefault(mode, []).append(float(ran[1]))
                    taken.setdefault(f"{mode}, opening", []).append(float(ran[0]))
                taken.setdefault("pyarrow", []).append(read_pyarrow(file.name, columns))
            median = {name: statistics.median(each) for name, each in taken.items()}
            size = options.rows * columns * 4 / 1e6
            print(f"{codec}: columns {size / median['bare']:.0f} MB/s, in order {size / median['order']:.0f} ({median['bare'] / median['order']:.2f} of columns, "
                  f"{median['pyarrow'] / median['order']:.2f} of pyarrow's {size / median['pyarrow']:.0f}), shuffled {size / median['shuffled']:.0f} "
                  f"({median['order'] / median['shuffled']:.2f} of in order); opening {1e3 * median['order, opening']:.0f} ms")


main()
