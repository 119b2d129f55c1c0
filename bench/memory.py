#!/usr/bin/python3
"""Measures the memory for tables larger than the memory: CSV, LIBSVM and PostgreSQL, each converted and trained on.

    bench/memory.py [--build build/release] [--gib 4] [--folder /tmp] [--only csv,libsvm,postgres]

Makes the tables (with 100 columns of floats and a label), runs `muster-data convert` and bench/peers/train_table over each table once
and prints the peak resident memory of the process, in MiB. The goal is 256, for any size. PostgreSQL runs
as a server that this script starts, if Debian's postgresql-15 is installed.
"""
import argparse
import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = 100


def peak_of(*words):
    """Returns MiB and seconds of a program."""
    began = time.monotonic()
    process = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    output = process.stdout.read() + process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"{words} has ended with {status}: {output}")
    return used.ru_maxrss / 1024, time.monotonic() - began


def write_text(path, row, size):
    """Writes a file of so many bytes by repeating 2,000 rows."""
    chosen = random.Random(1)
    rows = "".join(row([f"{chosen.uniform(-1, 1):.6f}" for _ in range(COLUMNS)], chosen.randrange(2)) for _ in range(2000)).encode()
    with path.open("wb") as file:
        if path.suffix == ".csv":
            file.write((",".join(["y"] + [f"x{i}" for i in range(COLUMNS)]) + "\n").encode())
        while file.tell() < size:
            file.write(rows)


class postgres:
    """A server with a table of so many bytes and the key id."""

    def __init__(self, folder, size):
        self.programs = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))[-1]
        self.folder = folder
        shutil.chown(folder, "postgres") if os.getuid() == 0 else None
        self.run("initdb", "-D", folder / "data", "-A", "trust", "-N", "-U", "muster")
        self.run("pg_ctl", "-D", folder / "data", "-w", "-l", folder / "log", "-o", f"-k {folder} -h '' -F -c max_wal_size=1GB", "start")
        self.connection = f"host={folder} user=muster dbname=postgres"
        columns = ", ".join(f"x{i} real" for i in range(COLUMNS))
        values = ", ".join("random()" for _ in range(COLUMNS))
        self.sql(f"CREATE UNLOGGED TABLE rows (id bigint, y real, {columns})")
        rows = size // (4 * COLUMNS + 40)  # 8 a page, with their headers
        self.sql(f"INSERT INTO rows SELECT i, i % 2, {values} FROM generate_series(1, {rows // 16}) i")
        names = ", ".join(f"x{i}" for i in range(COLUMNS))
        self.sql(f"INSERT INTO rows SELECT id + k * {rows // 16}, y, {names} FROM rows, generate_series(1, 15) k")
        self.sql("CREATE UNIQUE INDEX ON rows (id)")
        self.sql("ANALYZE rows")
        self.bytes = int(self.sql("SELECT pg_table_size('rows')"))

    def run(self, program, *words):
        user = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
        return subprocess.run([*user, self.programs / program, *map(str, words)], check=True, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, cwd="/")

    def sql(self, command):
        return subprocess.run(["psql", "-h", self.folder, "-U", "muster", "-d", "postgres", "-qtAc", command], check=True,
                              stdout=subprocess.PIPE, text=True).stdout

    def stop(self):
        self.run("pg_ctl", "-D", self.folder / "data", "-m", "immediate", "stop")


def measure(name, source, build, folder, size):
    print(f"{name} of {size / 2**30:.1f} GiB: ", end="", flush=True)
    mib, seconds = peak_of(build / "src/programs/muster-data", "convert", source, folder / "converted")
    shutil.rmtree(folder / "converted")
    print(f"converted within {mib:.0f} MiB in {seconds:.0f} s, ", end="", flush=True)
    mib, seconds = peak_of(build / "bench/peers/train_table", source)
    print(f"trained on within {mib:.0f} MiB in {seconds:.0f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--only", default="csv,libsvm,postgres")
    options = parser.parse_args()
    size = int(options.gib * 2**30)
    only = options.only.split(",")
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        folder = pathlib.Path(place)
        folder.chmod(0o755)
        for name, row, options_text in (("csv", lambda x, y: f"{y},{','.join(x)}\n", "label=y"),
                                        ("libsvm", lambda x, y: f"{y} " + " ".join(f"{i + 1}:{v}" for i, v in enumerate(x)) + "\n", "layout=dense")):
            if name not in only:
                continue
            table = folder / f"table.{name}"
            write_text(table, row, size)
            measure(name, f"{name}:{table}?{options_text}", options.build, folder, table.stat().st_size)
            table.unlink()
        if "postgres" not in only or not list(pathlib.Path("/usr/lib/postgresql").glob("*/bin")):
            return
        (folder / "server").mkdir()
        server = postgres(folder / "server", size)
        try:
            measure("postgres", f"postgres:{server.connection}?query=SELECT * FROM rows&label=y&key=id", options.build, folder, server.bytes)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
