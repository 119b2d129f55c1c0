"""Tests one report of many experiments: appended by many runners at once, in each kind of place, and with errors."""
import contextlib
import csv
import json
import sqlite3
import subprocess
import unittest

from bench import PROGRAM, Case

from muster_bench.reporter import rows_of

RUNNERS, RUNS = 6, 4


class Reports(Case):
    def file(self, name="sweep", top=""):
        path = self.experiment(["sh", "-c", "echo rate={n}5"], sweep=f"{{n: {{from: 1, to: {RUNS}}}}}", top=top,
                               template="read: [{log: {throughput: 'rate=(\\d+)'}}]")
        return path.rename(self.folder / f"{name}.yaml")

    def many_at_once(self, place, rows):
        """Appends from several runners at once; `rows` returns all rows. Each runner has its own folder, and appends
        its measurements."""
        path = self.file()
        runners = [subprocess.Popen([*PROGRAM, "run", path, "--out", self.folder / f"out{number}", "--report", place], stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT, text=True, cwd=self.folder) for number in range(RUNNERS)]
        for runner in runners:
            output = runner.communicate(timeout=200)[0]
            self.assertEqual(runner.returncode, 0, output)
        expected = sorted((str(self.folder / f"out{number}"), str(n), 10 * n + 5) for number in range(RUNNERS) for n in range(1, RUNS + 1))

        def found():
            return sorted((row["folder"], str(json.loads(row["parameters"])["n"]), json.loads(row["metrics"])["throughput"]) for row in rows())
        self.assertEqual(found(), expected)
        self.bench("run", path, "--out", "out0", "--report", place)     # nothing new
        self.bench("report", place, "out1", "out2")
        self.assertEqual(found(), expected)
        done = self.bench("report", place, "--html", "all.html")
        self.assertRegex(done.stdout, rf"of the test +open +only n=2 ranks=1 +{RUNNERS} +0 +25\b")
        self.assertIn("only n=4 ranks=1", (self.folder / "all.html").read_text())

    def test_a_folder(self):
        def rows():
            with open(self.folder / "all" / "report.csv", newline="") as file:
                return list(csv.DictReader(file))
        self.many_at_once("all", rows)
        with open(self.folder / "all" / "rows.jsonl", "a") as file:
            file.write('{"name": "of a runner that was kil')          # its line is no row, the next line is
        self.bench("run", self.file(), "--out", "later", "--report", "all")
        self.assertEqual(len(rows()), (RUNNERS + 1) * RUNS)

    def test_each_run_has_the_host_that_it_ran_on(self):
        found = {"environments": [{"host": "a"}, {"host": "b"}], "runs": [{"id": "1", "environment": 0}, {"id": "2", "environment": 1}]}
        self.assertEqual([row["host"] for row in rows_of(self.folder, found)], ["a", "b"])

    def test_sqlite(self):
        def rows():
            with contextlib.closing(sqlite3.connect(self.folder / "all.db")) as database:
                database.row_factory = sqlite3.Row
                return database.execute("SELECT * FROM muster_bench_results").fetchall()
        self.many_at_once("sqlite:all.db", rows)

    def test_postgresql(self):
        place, stop, _ = self.postgres()

        def rows():
            done = subprocess.run(["psql", "-X", "-d", place, "-c", "COPY muster_bench_results TO STDOUT WITH (FORMAT csv, HEADER)"],
                                  capture_output=True, text=True, check=True)
            return list(csv.DictReader(done.stdout.splitlines()))
        self.many_at_once(place, rows)
        stop()
        self.refused("run", self.file(), "--out", "none", "--report", place, says=["the report in", "cannot be used"], status=4)
        self.assertFalse((self.folder / "none").exists())

    def test_a_place_that_goes_away_costs_no_result(self):
        for place, gone in (("sqlite:all.db", "rm -rf {here}/all.db && mkdir -p {here}/all.db"),
                            ("all", "rm -rf {here}/all && touch {here}/all")):
            path = self.experiment(["sh", "-c", f"echo rate=7; {gone}"], template="read: [{log: {throughput: 'rate=(\\d+)'}}]")
            self.bench("run", path, "--out", f"out-{place[:3]}", "--report", place, status=4)
            done = self.bench("run", path, "--out", f"out-{place[:3]}", status=0)
            self.assertIn("2 runs, 2 of them finished before", done.stderr)
            self.assertEqual([row["throughput"] for row in self.results(folder=f"out-{place[:3]}")], ["7", "7"])
            self.bench("report", "later", f"out-{place[:3]}")
        with open(self.folder / "later" / "report.csv", newline="") as file:
            self.assertEqual(len(list(csv.DictReader(file))), 4)

    def test_refused(self):
        path = self.file()
        self.refused("run", path, "--out", "out", "--report", "mysql:x", says="is no place of a report")
        self.refused("run", path, "--out", "out", "--report", "/proc/nothing", says="cannot write", status=4)
        self.refused("report", "all", "nowhere", says="has no results")
        self.assertFalse((self.folder / "out").exists())


if __name__ == "__main__":
    unittest.main()
