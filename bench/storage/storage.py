#!/usr/bin/env python3
"""Feeds emulated accelerators from Parquet files with the layouts of MLPerf Storage v3, by muster and by pyarrow's dataset, in turns;
prints the accelerators' utilisation.

    bench/storage/storage.py flux --folder /dev/shm/flux --files 4 --accelerators 8
    bench/storage/storage.py dlrm --folder /dev/shm/dlrm --files 1 --samples 500000

Run this script with the Python whose pyarrow muster::parquet uses. Columns, sizes, batches and sleep times are those of flux_b200.yaml
and dlrm_b200.yaml in mlcommons/storage. Each file also has a column with the number of the sample, which shows that every sample is
read once. An accelerator sleeps for the time of a batch, in proportion to its samples. Utilisation is the time of all sleeps divided by
accelerators and elapsed time, from the first request to the end, without warm-up. Values are decoded: muster makes rows of a batch,
pyarrow's columns become arrays of numpy. muster shuffles all samples in blocks; pyarrow shuffles row groups. This is no result of MLPerf."""
import argparse
import json
import multiprocessing
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import time

import numpy
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).resolve().parent
# Columns of dlrm_b200.yaml: b int8, h float16, f float32, d float64; a capital letter is read, the others are not.
DLRM = ("hhddfhfbhbfFdfbhfFFhDdddhFfhhfdFdfhhdbbbhFhFdbdddFfbbFffbfHFdhdbfhbFHfhFhfFDhbfdbbffhbhbFbFFHFDdFHbh"
        "hdhfdhhfdfddbhhbBDfbhhbbbhbbfbhfdhhdhFddhFbbdfdFddbbbdDFfbFhFhFhdhdhfBdhbdbbbbhhBdddhdBbhFdbdfdFfddh")
TYPES = {"b": "int8", "h": "float16", "f": "float32", "d": "float64"}
FLUX = {"t5_encodings": 524328, "clip_encodings": 409, "mean": 8232, "logvar": 8232, "timestamp": 7}
# Samples of a batch, seconds of its computing, samples of a row group and of a file, wanted utilisation.
RULES = {"flux": (48, 1.35, 48, 288, 0.9), "dlrm": (16384, 0.000375, 6144, 4718592, 0.7)}
MOST_SAMPLES = 1 << 24  # labels are float32


def columns_of(layout, shrink):
    """Returns name, type, number of values, and whether it is read, of each column."""
    if layout == "flux":
        return [(name, "float32", max(1, size // shrink), True) for name, size in FLUX.items()]
    return [(f"feature_{k:03}", TYPES[letter.lower()], 1, letter.isupper()) for k, letter in enumerate(DLRM)]


def write_file(path, columns, first, count, group):
    draw = numpy.random.default_rng(first)
    types = [pa.from_numpy_dtype(kind) if size == 1 else pa.list_(pa.from_numpy_dtype(kind), size) for _, kind, size, _ in columns]
    fields = [pa.field(each[0], kind if each[2] == 1 else pa.list_(pa.field("element", kind.value_type, False), each[2]), False) for each, kind in zip(columns, types)]
    schema = pa.schema([*fields, pa.field("sample", pa.int64(), False)])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as out:
        for at in range(0, count, group):
            rows, arrays = min(group, count - at), []
            for field, (_, kind, size, _) in zip(fields, columns):
                values = draw.integers(-128, 128, rows * size, "int8") if kind == "int8" else draw.random(rows * size, "float32").astype(kind)
                arrays.append(pa.array(values) if size == 1 else pa.FixedSizeListArray.from_arrays(pa.array(values), type=field.type))
            arrays.append(pa.array(range(first + at, first + at + rows)))
            out.write_table(pa.table(arrays, schema=schema), row_group_size=group)


def prepare(options, columns):
    """Writes the files that the folder lacks."""
    folder = pathlib.Path(options.folder)
    description = json.dumps([options.layout, options.files, options.samples, columns])
    note = folder / "_LAYOUT"
    if note.exists() and note.read_text() == description:
        return
    if folder.exists() and any(folder.iterdir()) and not note.exists():
        sys.exit(f"storage.py: {folder} has other files (nothing is overwritten); name another folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in range(options.files):
        write_file(folder / f"train_{file:04}.parquet", columns, file * options.samples, options.samples, RULES[options.layout][2])
    note.write_text(description)


def run_pyarrow(rank, options, columns, batch, seconds, start, results):
    """Reads the row groups of an accelerator. The processes start together."""
    pa.set_cpu_count(options.threads)
    wanted = [name for name, _, _, is_read in columns if is_read] + ["sample"]
    dataset = ds.dataset(options.folder, format="parquet", exclude_invalid_files=True)
    groups = [group for fragment in dataset.get_fragments() for group in fragment.split_by_row_group()]
    random.Random(1).shuffle(groups)
    start.wait()
    begin, computing, size, samples = time.monotonic(), 0.0, 0, []
    mine = ds.FileSystemDataset(groups[rank::options.accelerators], dataset.schema, ds.ParquetFileFormat(), dataset.filesystem)
    for rows in mine.to_batches(columns=wanted, batch_size=batch, use_threads=options.threads > 1):
        for column in rows.columns[:-1]:
            values = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
            array = values.to_numpy(zero_copy_only=False).astype("float32")  # a copy, as into the memory of a batch
            size += array.nbytes
        samples.extend(rows["sample"].to_pylist())
        time.sleep(seconds * len(rows) / batch)
        computing += seconds * len(rows) / batch
    results.put((begin, time.monotonic(), computing, size, samples))


def read_pyarrow(options, columns, batch, seconds):
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(options.accelerators), context.Queue()
    processes = [context.Process(target=run_pyarrow, args=(rank, options, columns, batch, seconds, start, results)) for rank in range(options.accelerators)]
    for process in processes:
        process.start()
    parts = [results.get() for _ in processes]
    for process in processes:
        process.join()
    elapsed = max(part[1] for part in parts) - min(part[0] for part in parts)
    samples = sorted(sample for part in parts for sample in part[4])
    return {"samples": len(samples), "each_once": samples == list(range(options.files * options.samples)), "bytes": sum(part[3] for part in parts),
            "seconds": elapsed, "utilisation": sum(part[2] for part in parts) / elapsed / options.accelerators}


def read_muster(options, columns, batch, seconds):
    program = next(pathlib.Path(options.build).rglob("storage/storage"))
    wanted = ",".join([name for name, _, _, is_read in columns if is_read] + ["sample"])
    done = subprocess.run([program, f"parquet:{options.folder}?label=sample&columns={wanted}", *map(str, (options.accelerators, batch, seconds, options.threads))],
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"storage.py: muster failed ({done.stderr.strip()}); build the target bench_storage")
    return json.loads(done.stdout)


READERS = {"muster": read_muster, "pyarrow": read_pyarrow}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layout", choices=RULES)
    parser.add_argument("--folder", required=True, help="the data, which are written if they are missing")
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--samples", type=int, help="samples of a file; default: as published")
    parser.add_argument("--accelerators", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2, help="threads that read")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--readers", default=",".join(READERS), help="readers, in turns")
    parser.add_argument("--seconds", type=float, help="seconds of a batch's computing; default: as published")
    parser.add_argument("--shrink", type=int, default=1, help="divides the sizes of lists, for trials")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--build", default=HERE.parent.parent / "build" / "release")
    options = parser.parse_args()
    batch, seconds, _, samples, wanted = RULES[options.layout]
    options.samples = options.samples or samples
    seconds = seconds if options.seconds is None else options.seconds
    if options.files * options.samples > MOST_SAMPLES:
        sys.exit(f"storage.py: {options.files * options.samples} samples have no exact numbers (at most {MOST_SAMPLES}); choose fewer files or samples")
    columns = columns_of(options.layout, options.shrink)
    prepare(options, columns)
    found = {name: [] for name in options.readers.split(",")}
    for _ in range(options.rounds):
        for name, rounds in found.items():
            rounds.append(READERS[name](options, columns, batch, seconds))
    if options.json:
        print(json.dumps({"layout": options.layout, "batch": batch, "computation_seconds": seconds, "readers": found}))
    for name, rounds in {} if options.json else found.items():
        median = {key: statistics.median(each[key] for each in rounds) for key in ("utilisation", "seconds", "bytes")}
        once = all(each["each_once"] for each in rounds)
        print(f"{options.layout}, {options.accelerators} accelerators, {name}: utilisation {100 * median['utilisation']:.1f} % (rule: {100 * wanted:.0f} %), "
              f"{median['bytes'] / median['seconds'] / 1e6:.0f} MB/s, {rounds[0]['samples']} samples, {'each once' if once else 'NOT each once'}")
    if not all(each["each_once"] for rounds in found.values() for each in rounds):
        sys.exit("storage.py: a reader left samples out, or repeated some (see above); report this")


if __name__ == "__main__":
    main()
