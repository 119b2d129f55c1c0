"""A common report of many experiments, in a place of the user's: a folder, an SQLite file or a PostgreSQL database.
Rows are appended, by any number of runners at the same time. No row is changed, lost or duplicated."""
import contextlib
import csv
import fcntl
import io
import json
import os
import pathlib
import shutil
import sqlite3
import statistics
import subprocess
import urllib.parse

from .errors import NoRoom, Refusal
from .files import make_folder, write_whole, writing
from .text import value_text, without_secrets

TEXTS = ("name", "experiment", "template", "launcher", "division", "id", "row", "ranks", "repeat", "seed", "status", "why", "host",
         "folder", "began")
MAPPINGS = ("parameters", "settings", "metrics")   # as JSON
COLUMNS = (*TEXTS, *MAPPINGS)
KEY = ("host", "folder", "id", "row", "began")     # a run that was repeated began at another time
TABLE = "muster_bench_results"
PATIENCE = 60       # seconds to wait while other runners write
SHOWN = ("throughput", "seconds", "time_to_accuracy", "accuracy", "train_seconds", "val_loss", "cost")


def rows_of(folder, found):
    """Yields the rows of a folder of results (its results.json) for the report: each a mapping of texts."""
    environments = found.get("environments") or [{}]
    for run in found["runs"]:
        began_in = run.get("environment")   # each start of the runner has an environment
        where = environments[began_in] if isinstance(began_in, int) and began_in < len(environments) else environments[-1]
        fields = {"name": found.get("name", ""), "host": where.get("host", ""), "folder": str(pathlib.Path(folder).absolute())}
        for name in COLUMNS:
            value = fields.get(name, run.get(name))
            fields[name] = json.dumps(value or {}, sort_keys=True) if name in MAPPINGS else value_text(value)
        yield fields


def open_place(text):
    """Returns the place with that name: sqlite:FILE, postgresql://..., or a folder."""
    if text.startswith("sqlite:"):
        return _Sqlite(text, pathlib.Path(text[len("sqlite:"):]))
    if text.startswith(("postgresql://", "postgres://")):
        return _Postgres(text)
    if ":" in text.split("/")[0]:
        raise Refusal(f"'{without_secrets(text)}' is no place of a report (it is a folder, sqlite:FILE or postgresql://...); write one of these")
    return _Folder(text)


def lost(place, why):
    return NoRoom(f"the report in '{without_secrets(place)}' cannot be used ({why}); what was measured stays where it is, and muster-bench report PLACE DIR "
                  "appends it later")


class _Folder:
    """A folder with rows.jsonl, one line for each row, and report.csv with all rows."""

    def __init__(self, name):
        self.name, self._folder = name, pathlib.Path(name)

    @contextlib.contextmanager
    def _held(self):
        with writing(self._folder):
            make_folder(self._folder)
            with open(self._folder / "rows.jsonl", "a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield file

    def append(self, rows):
        with self._held() as file:
            file.seek(0)
            text = file.read()
            there = list(_lines(text))
            known = {tuple(row[name] for name in KEY) for row in there}
            new = [row for row in rows if tuple(row[name] for name in KEY) not in known]
            # after a line that a runner could not write completely
            ended = b"" if not text or text.endswith(b"\n") else b"\n"
            file.write(ended + b"".join(json.dumps(row, sort_keys=True).encode() + b"\n" for row in new))
            file.flush()
            write_whole(self._folder / "report.csv", _csv([*there, *new]))

    def rows(self):
        with self._held() as file:
            file.seek(0)
            return list(_lines(file.read()))


def _lines(text):
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and set(COLUMNS) <= set(row):
                yield row


def _csv(rows):
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


NAMES = ", ".join(f'"{name}"' for name in COLUMNS)
CREATE = (f"CREATE TABLE IF NOT EXISTS {TABLE} (" + ", ".join(f'"{name}" TEXT' for name in COLUMNS) +
          ", PRIMARY KEY (" + ", ".join(f'"{name}"' for name in KEY) + "))")
ORDER = 'ORDER BY "began", "id", "row"'


class _Sqlite:
    def __init__(self, name, path):
        self.name, self._path = name, path

    def _run(self, do):
        try:
            with contextlib.closing(sqlite3.connect(self._path, timeout=PATIENCE)) as database, database:
                database.execute("BEGIN IMMEDIATE")
                database.execute(CREATE)
                return do(database)
        except sqlite3.Error as error:
            raise lost(self.name, error) from error

    def append(self, rows):
        marks = ", ".join("?" * len(COLUMNS))
        self._run(lambda database: database.executemany(f"INSERT INTO {TABLE} ({NAMES}) VALUES ({marks}) ON CONFLICT DO NOTHING",
                                                        [[row[name] for name in COLUMNS] for row in rows]))

    def rows(self):
        return [dict(zip(COLUMNS, row)) for row in self._run(lambda database: database.execute(
            f"SELECT {NAMES} FROM {TABLE} {ORDER}").fetchall())]


def _apart(address):
    """Returns the address without its password, and the variable from which psql reads the password: other users can read a process's arguments."""
    before, _, options = address.partition("?")
    scheme, _, rest = before.partition("://")
    host, slash, path = rest.partition("/")
    user, at, host = host.rpartition("@")
    user, colon, password = user.partition(":")
    left = [option for option in options.split("&") if option and not option.startswith("password=")]
    password = next((option.partition("=")[2] for option in options.split("&") if option.startswith("password=")), password if colon else None)
    return (f"{scheme}://{user}{at}{host}{slash}{path}{'?' if left else ''}{'&'.join(left)}",
            {} if password is None else {"PGPASSWORD": urllib.parse.unquote(password)})


class _Postgres:
    """A PostgreSQL database, accessed by psql, which uses the passwords and services of the user."""

    def __init__(self, name):
        self.name = name
        self._place, self._password = _apart(name)
        if shutil.which("psql") is None:
            raise Refusal(f"'{without_secrets(name)}' cannot be reached (there is no psql here); apt-get install postgresql-client, or report to a folder or "
                          "sqlite:FILE")

    def _psql(self, script):
        try:
            done = subprocess.run(["psql", "-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-d", self._place], input=script, capture_output=True,
                                  text=True, timeout=PATIENCE, env={**os.environ, **self._password})
        except subprocess.TimeoutExpired:
            raise lost(self.name, f"no answer within {PATIENCE} s") from None
        if done.returncode != 0:
            raise lost(self.name, (done.stderr.strip().splitlines() or ["psql failed"])[0])
        return done.stdout

    # Two clients that create a table at the same time would cause an error in spite of IF NOT EXISTS.
    PREPARE = f"DO $$ BEGIN PERFORM pg_advisory_xact_lock(hashtext('{TABLE}')); END $$;\nSET client_min_messages = error;\n{CREATE};\n"

    def append(self, rows):
        text = _csv(rows)
        self._psql(f"{self.PREPARE}CREATE TEMP TABLE new_rows (LIKE {TABLE}) ON COMMIT DROP;\n"
                   f"COPY new_rows ({NAMES}) FROM STDIN WITH (FORMAT csv, HEADER, FORCE_NOT_NULL ({NAMES}));\n{text}\\.\n"
                   f"INSERT INTO {TABLE} ({NAMES}) SELECT {NAMES} FROM new_rows ON CONFLICT DO NOTHING;\n")

    def rows(self):
        text = self._psql(f"{self.PREPARE}COPY (SELECT {NAMES} FROM {TABLE} {ORDER}) TO STDOUT WITH (FORMAT csv, HEADER);\n")
        return list(csv.DictReader(io.StringIO(text)))


def summary(rows):
    """Returns a header and a line for each configuration: its number of runs, and the medians of the common
    measures."""
    groups = {}
    for row in rows:
        key = (row["name"], row["division"], row["experiment"], row["row"], row["parameters"])
        groups.setdefault(key, []).append(row)
    measured = {key: [json.loads(row["metrics"]) for row in found if row["status"] == "ok"] for key, found in groups.items()}
    shown = [name for name in SHOWN if any(name in metrics for found in measured.values() for metrics in found)]
    lines = []
    for key, found in groups.items():
        name, division, experiment, benchmark, parameters = key
        settings = " ".join(f"{one}={value_text(value)}" for one, value in json.loads(parameters).items())
        cells = [[metrics[measure] for metrics in measured[key] if metrics.get(measure) is not None] for measure in shown]
        lines.append([name, division, " ".join(filter(None, (experiment, benchmark, settings))), str(len(found)), str(len(found) - len(measured[key])),
                      *[f"{statistics.median(values):.4g}" if values else "" for values in cells]])
    return ["name", "division", "configuration", "runs", "not ok", *shown], lines
