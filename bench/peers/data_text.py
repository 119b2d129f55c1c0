#!/usr/bin/python3
"""Reads text into memory, and compares with xgboost, scikit-learn, polars, pyarrow, pandas and numpy: the same files, in turns; prints
MB/s, as the median over the rounds. All use one thread except muster with --threads 2.

    bench/peers/data_text.py [--build build/release] [--rounds 3] [--threads 1]

(Newest versions: pip install xgboost scikit-learn polars pyarrow pandas, and run this script with that Python.)

Dense LIBSVM text with 2,000 features, sparse LIBSVM text, and a CSV table with 100 columns of floats. Missing packages are
reported and left out. dmlc-core's figures come from another run: 231, 144 and 270 MB/s, measured once on this kind of
machine (2 cores) with its own parsers.
"""
import argparse
import importlib
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time
import warnings

os.environ.update(OMP_NUM_THREADS="1", POLARS_MAX_THREADS="1")  # before they are imported
HERE = pathlib.Path(__file__).resolve().parent
DMLC = {"dense.svm": 231, "sparse.svm": 144, "table.csv": 270}
MUSTER = {"dense.svm": "libsvm_dense", "sparse.svm": "libsvm_sparse", "table.csv": "csv"}


def muster(program, threads):
    ran = subprocess.run([program, f"--benchmark_filter=^(libsvm_dense|libsvm_sparse|csv)/threads/{threads}/",
                          "--benchmark_min_time=0.5", "--benchmark_format=json"],
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    rows = json.loads(ran.stdout)["benchmarks"]
    return {file: next(row["bytes_per_second"] for row in rows if row["name"].startswith(name + "/")) / 1e6
            for file, name in MUSTER.items()}


def columns(table):
    with open(table) as text:
        return text.readline().strip().split(",")


def peers():
    """Returns name -> (file, reader). Prints a line for each missing package."""
    found = {}

    def add(name, file, package, make):
        try:
            read = make(importlib.import_module(package))
        except ImportError:
            print(f"{name} is left out (there is no {package})")
            return
        found[f"{name} ({importlib.import_module(package.split('.')[0]).__version__}) {file}"] = (file, read)

    for file in ("dense.svm", "sparse.svm"):
        add("xgboost.DMatrix", file, "xgboost", lambda m: lambda path: m.DMatrix(f"{path}?format=libsvm", nthread=1))
        add("sklearn.load_svmlight_file", file, "sklearn.datasets", lambda m: m.load_svmlight_file)
    # Reads float32, in the form for a training: a table in one piece.
    add("polars.read_csv", "table.csv", "polars", lambda m: lambda path: m.read_csv(
        path, schema_overrides=dict.fromkeys(columns(path), m.Float32)).rechunk())
    add("pyarrow.csv.read_csv", "table.csv", "pyarrow.csv", lambda m: lambda path: m.read_csv(
        path, m.ReadOptions(use_threads=False),
        convert_options=m.ConvertOptions(column_types=dict.fromkeys(columns(path), "float32"))))
    add("numpy.loadtxt", "table.csv", "numpy",
        lambda m: lambda path: m.loadtxt(path, dtype=m.float32, delimiter=",", skiprows=1))
    add("numpy.genfromtxt", "table.csv", "numpy",
        lambda m: lambda path: m.genfromtxt(path, dtype=m.float32, delimiter=",", skip_header=1))
    add("pandas.read_csv", "table.csv", "pandas", lambda m: lambda path: m.read_csv(path, dtype="float32"))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=HERE.parent.parent / "build" / "release")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, choices=(1, 2), help="of muster")
    options = parser.parse_args()

    warnings.simplefilter("ignore")  # xgboost's warning that it will drop text formats
    program = f"{options.build}/bench/data"
    others = peers()
    speeds = {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, f"write={folder}"], check=True)
        for _ in range(options.rounds):
            for file, speed in muster(program, options.threads).items():
                speeds.setdefault(("muster", file), []).append(speed)
            for name, (file, read) in others.items():
                path = pathlib.Path(folder) / file
                start = time.perf_counter()
                read(str(path))
                speeds.setdefault((name, file), []).append(path.stat().st_size / (time.perf_counter() - start) / 1e6)

    print(f"{'file':<12}{'reader':<40}{'MB/s':>8}  muster over it")
    for file, known in DMLC.items():
        ours = statistics.median(speeds["muster", file])
        print(f"{file:<12}{'muster, ' + str(options.threads) + ' thread(s)':<40}{ours:8.0f}")
        for (name, read), rounds in speeds.items():
            if read == file and name != "muster":
                theirs = statistics.median(rounds)
                print(f"{'':<12}{name:<40}{theirs:8.1f}{ours / theirs:8.1f}")
        print(f"{'':<12}{'dmlc-core (not of this run)':<40}{known:8.0f}{ours / known:8.1f}")


if __name__ == "__main__":
    main()
