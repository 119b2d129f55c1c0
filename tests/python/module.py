"""Common parts of the tests of the Python module: its ranks as processes, by each launcher, and files with data."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIMIT = 500   # seconds for any program of a test: a hang is a failure
sys.path.insert(0, str(HERE))

try:
    import muster
    ABSENT = ""
except ImportError as missing:
    ABSENT = f"SKIPPED: the module is not built for this Python ({missing}); tests/python/prepare.py builds it"


def data(name):
    """Returns the path of public data, or skips."""
    for folder in (os.environ.get("MUSTER_TEST_DATA"), ROOT.parent / "shared/data"):
        if folder and (path := pathlib.Path(folder) / name).exists():
            return path
    raise unittest.SkipTest(f"SKIPPED: {name} is neither in MUSTER_TEST_DATA nor in ../shared/data")


@unittest.skipIf(ABSENT, ABSENT)
class Case(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory(prefix="muster-python-")
        self.addCleanup(held.cleanup)
        self.folder = pathlib.Path(held.name)

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def csv(self, lines=1000):
        """Writes points of the line y = 2x - 1 and returns the specification of the source."""
        path = self.write("line.csv", "".join(f"{k / 500 - 1:g},{2 * (k / 500 - 1) - 1:g}\n" for k in range(lines)))
        return f"csv:{path}?label=1&header=0"

    def start(self, program, ranks=2, arguments=(), **variables):
        """Starts a program of Python as ranks without a launcher; returns the processes."""
        path = self.write(f"program-{time.monotonic_ns()}.py", program)
        job = f"test-{os.getpid()}-{time.monotonic_ns()}"
        return [subprocess.Popen(
            [sys.executable, path, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder,
            env=os.environ | {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
                              "MUSTER_JOB": job, "MUSTER_RENDEZVOUS": f"file:{self.folder}"} | variables)
            for rank in range(ranks)]

    def end(self, processes):
        """Waits for processes; returns their statuses, outputs and errors. A process that hangs fails the test."""
        ended = []
        try:
            for process in processes:
                out, err = process.communicate(timeout=LIMIT)
                ended.append((process.returncode, out, err))
        except subprocess.TimeoutExpired:
            self.fail(f"a rank still runs after {LIMIT} s")
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        return ended

    def run_ranks(self, program, ranks=2, arguments=(), **variables):
        """Runs ranks that all have to end well, and returns their outputs."""
        ended = self.end(self.start(program, ranks, arguments, **variables))
        for status, out, err in ended:
            self.assertEqual(status, 0, out + err)
        return [out for _, out, _ in ended]

    def launch(self, words, program, **variables):
        """Runs a program of Python by a launcher, and returns its output."""
        path = self.write("launched.py", program)
        done = subprocess.run([*map(str, words), sys.executable, path], capture_output=True, text=True, timeout=LIMIT, cwd=self.folder,
                              env=os.environ | variables)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def program(self, name):
        """Returns the path of a program, or skips."""
        found = shutil.which(name, path=f"{os.environ.get('MUSTER_TEST_PROGRAMS', '')}:{os.environ['PATH']}")
        if not found:
            self.skipTest(f"SKIPPED: there is no {name}")
        return found

    def interrupt(self, process):
        process.send_signal(signal.SIGINT)
