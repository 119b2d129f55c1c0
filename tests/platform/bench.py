"""Common parts of the tests of the platform: a folder, files in it, and the runner as a program."""
import csv
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
PLATFORM = HERE.parent.parent / "python"
PROGRAM = [sys.executable, "-m", "muster_bench"]
os.environ["PYTHONPATH"] = str(PLATFORM)
os.environ.pop("PYTHONUNBUFFERED", None)   # as for a user
sys.path.insert(0, str(PLATFORM))
BUILD = pathlib.Path(os.environ.get("MUSTER_TEST_BUILD", "/nowhere"))   # the build that these tests belong to


def absent(*programs):
    """Returns the reason for a skip if the build lacks one of the programs, or "". A build with examples must have all."""
    missing = [program for program in programs if not (BUILD / program).is_file()]
    if missing and os.environ.get("MUSTER_TEST_EXAMPLES") == "ON":
        raise FileNotFoundError(f"{BUILD} has no {', '.join(missing)}, although examples are built")
    return f"SKIPPED: not built: {', '.join(missing)}" if missing else ""


class Case(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory(prefix="muster-platform-")
        self.addCleanup(held.cleanup)
        self.folder = pathlib.Path(held.name)

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def experiment(self, command, sweep="{n: [1, 2]}", template="", experiment="", top=""):
        """Writes a file with one template and one experiment."""
        return self.write("experiment.yaml", f"""
muster-bench: 1
name: of the test
{top}
templates:
  one:
    command: {json.dumps(command)}
    {template}
experiments:
  only:
    template: one
    sweep: {sweep}
    {experiment}
""")

    runner, name = PROGRAM, "muster-bench"

    def bench(self, *words, status=0, timeout=100, **variables):
        done = subprocess.run([*self.runner, *map(str, words)], capture_output=True, text=True, timeout=timeout,
                              cwd=self.folder, env={**os.environ, **variables}, errors="replace")
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def run_file(self, path, *words, **more):
        return self.bench("run", path, "--out", self.folder / "out", *words, **more)

    def refused(self, *words, says, status=2, **more):
        """Checks that a command fails with this status and one line that contains these texts."""
        done = self.bench(*words, status=status, **more)
        lines = [line for line in done.stderr.splitlines() if line.startswith(f"{self.name}: ") and "share" not in line]
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, lines[0])
        return done

    def postgres(self):
        """Starts a server for this test and returns (URL, stop, start)."""
        programs = next((path.parent for path in sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)), None)
        if programs is None or shutil.which("psql") is None:
            self.skipTest("SKIPPED: no PostgreSQL is installed")
        as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        data = pathlib.Path(tempfile.gettempdir(), f"muster-postgres-{os.getpid()}")
        self.addCleanup(shutil.rmtree, data, ignore_errors=True)

        def run(*words):
            return subprocess.run([*as_user, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", timeout=100).returncode

        def start():
            self.assertEqual(run(programs / "pg_ctl", "-D", data, "-w", "-t", "60", "-l", data / "log", "-o", f"-k {data} -h '' -F", "start"), 0)

        def stop():
            run(programs / "pg_ctl", "-D", data, "-m", "immediate", "stop")
        if run(programs / "initdb", "-D", data, "-A", "trust", "-N", "-U", "muster") != 0:
            self.skipTest("SKIPPED: no database can be made here")
        start()
        self.addCleanup(stop)
        return f"postgresql:///postgres?host={data}&user=muster", stop, start

    def results(self, name="results.csv", folder="out"):
        with open(self.folder / folder / name, newline="") as file:
            return list(csv.DictReader(file))
