"""Passwords and signatures of addresses are never printed, are not in tables, reports or arguments of processes, and only in files that other users cannot read."""
import json
import os
import pathlib
import stat
import subprocess
import sys
import unittest

from bench import PROGRAM
from flow import Case

from muster_bench.text import shown_values, without_secrets

SECRET = "s3cr3t"
ADDRESS = f"csv:https://me:{SECRET}@server/x.csv?X-Amz-Date=1&X-Amz-Signature={SECRET}%2B/&part=2?label=y"
SHOWN = "csv:https://...@server/x.csv?X-Amz-Date=1&X-Amz-Signature=...&part=2?label=y"


class Texts(unittest.TestCase):
    def test_each_form(self):
        """The same as in tests/core/error.cpp."""
        for text, shown in ((ADDRESS, SHOWN), ("https://token@server:80/x", "https://...@server:80/x"),
                            ("postgresql://me:p/a@s?s@db:5432/x", "postgresql://...@db:5432/x"),
                            ("https://server:8080/a@2x.png is there", "https://server:8080/a@2x.png is there"),
                            ("'https://a/x?SIG=ab/c=?label=y' cannot", "'https://a/x?SIG=...?label=y' cannot"),
                            ("https://a/x?sv=1&sig=ab%2B: line 3", "https://a/x?sv=1&sig=... line 3"),
                            ("https://a/x?token=a,b;c&key=user", "https://a/x?token=...&key=user"),
                            ("host=db password=secret dbname=x", "host=db password=... dbname=x"),
                            ("host=db password = 'se\\'cret x' dbname=x", "host=db password = ... dbname=x"),
                            ("two http://a:b@c and http://d:e@f", "two http://...@c and http://...@f"),
                            ("design=1&label=2=3=", "design=1&label=2=3="), ("= password=", "= password=..."),
                            ("--data=http://a/b?sig=x&y=1 --token=z", "--data=http://a/b?sig=...&y=1 --token=...")):
            self.assertEqual(without_secrets(text), shown)
            self.assertEqual(without_secrets(shown), shown)
        self.assertEqual(shown_values({"data": ADDRESS, "MUSTER_TOKEN": SECRET, "rate": 0.5, "n": None}),
                         {"data": SHOWN, "MUSTER_TOKEN": "...", "rate": 0.5, "n": None})


class Files(Case):
    def check_files(self, folder, at_least):
        """Checks that other users cannot read files with the secret. At least `at_least` files contain the secret."""
        found = [path for path in pathlib.Path(folder).rglob("*") if path.is_file() and not path.is_symlink() and SECRET.encode() in path.read_bytes()]
        open_to_others = [str(path) for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077 and path.name != "log.txt"]   # the program's own output
        self.assertEqual(open_to_others, [])
        self.assertGreaterEqual(len(found), at_least)

    def test_a_run_and_its_report(self):
        os.umask(0o022)
        self.runner, self.name = PROGRAM, "muster-bench"
        path = self.experiment(["sh", "-c", "echo rate=7; test {n} = 1 || {{ echo \"cannot read {data}\"; exit 3; }}"], sweep="{n: [1, 2]}",
                               template="read: [{log: {throughput: 'rate=(\\d+)'}}]\n    environment: {DATABASE: 'postgresql://me:s3cr3t@db/x', API_TOKEN: s3cr3t}",
                               experiment=f"parameters: {{data: {json.dumps(ADDRESS)}}}")
        planned = self.bench("run", path, "--dry-run")
        done = self.run_file(path, "--report", "all", status=1)
        report = self.bench("report", "all", "--html", "all.html")
        for ended in (planned, done, report):
            self.assertNotIn(SECRET, ended.stdout + ended.stderr)
        self.assertIn(SHOWN, done.stderr)   # reason of the second failure
        self.assertIn(SHOWN, (self.folder / "out/results.csv").read_text())
        for name in ("results.csv", "summary.csv", "results.json", "report.html"):
            self.assertNotIn(SECRET, (self.folder / "out" / name).read_text(), name)
        for name in ("all/rows.jsonl", "all/report.csv", "all.html"):
            self.assertNotIn(SECRET, (self.folder / name).read_text(), name)
        self.check_files(self.folder / "out", 5)
        self.assertIn("2 runs, 2 of them finished before", self.run_file(path, status=1).stderr)   # hidden values do not change the key

    def test_a_database_is_reached_without_its_password_among_the_arguments(self):
        self.runner, self.name = PROGRAM, "muster-bench"
        fake = self.write("bin/psql", f"#!{sys.executable}\nimport os, sys\n"
                          f"open({str(self.folder / 'seen')!r}, 'a').write(repr((sys.argv[1:], os.environ.get('PGPASSWORD'))) + chr(10))\nsys.exit('no such database')\n")
        fake.chmod(0o755)
        path = self.experiment(["true"], sweep="{n: [1]}")
        for place, left in ((f"postgresql://me:{SECRET}%40%2B@db:5432/x?connect_timeout=1", "postgresql://me@db:5432/x?connect_timeout=1"),
                            (f"postgresql:///x?host=/tmp&password={SECRET}%40%2B&user=me", "postgresql:///x?host=/tmp&user=me"),
                            ("postgresql://db/x", "postgresql://db/x")):
            (self.folder / "seen").unlink(missing_ok=True)
            done = self.refused("run", path, "--out", "out", "--report", place, says="cannot be used", status=4, PATH=f"{fake.parent}:{os.environ['PATH']}")
            self.assertNotIn(SECRET, done.stdout + done.stderr)
            words, password = eval((self.folder / "seen").read_text().splitlines()[0])
            self.assertEqual(words[-1], left)
            self.assertEqual(password, f"{SECRET}@+" if SECRET in place else None)
        self.refused("run", path, "--out", "out", "--report", f"mysql://me:{SECRET}@db/x", says="mysql://...@db/x")

    def test_a_workflow(self):
        os.umask(0o022)
        steps = f"  one:\n    command: ['sh', '-c', 'echo made > {{made}}', 'data', {json.dumps(ADDRESS.replace('?label', '&n={n}?label'))}]\n" \
                "    parameters: {n: N}\n    outputs: {made: made.txt}\n    environment: {DATABASE: 'postgresql://me:s3cr3tN@db/x'}"
        done = self.bench("run", self.workflow(steps.replace("N}", "1}").replace("s3cr3tN", "s3cr3t1")), "--out", self.folder / "out")
        self.assertNotIn(SECRET, done.stdout + done.stderr)
        self.check_files(self.folder / "out", 3)
        fails = self.workflow("  one:\n    command: ['sh', '-c', 'echo cannot read $DATABASE; exit 3']\n    outputs: {made: made.txt}\n"
                              "    environment: {DATABASE: 'postgresql://me:s3cr3t@db/x'}")
        done = self.bench("run", fails, "--out", self.folder / "fails", status=1)
        self.assertIn("cannot read postgresql://...@db/x", done.stdout + done.stderr)
        self.assertNotIn(SECRET, done.stdout + done.stderr)
        for words in (("explain", self.workflow(steps.replace("s3cr3tN", "s3cr3t2").replace("N}", "2}")), "one", "--out", self.folder / "out"),
                      ("status", self.workflow(steps.replace("s3cr3tN", "s3cr3t2").replace("N}", "2}")), "--out", self.folder / "out")):
            done = self.bench(*words)
            self.assertIn("changed", done.stdout)
            self.assertNotIn(SECRET, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
