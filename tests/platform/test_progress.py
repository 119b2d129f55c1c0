"""Tests the lines about active runs and steps: on a terminal, and piped."""
import io
import os
import pty
import shutil
import subprocess
import sys
import threading
import time
import unittest

from bench import PROGRAM, Case

from muster_bench.progress import AT_MOST, Line, run_visibly, shown_active


class Terminal:
    """A pseudo terminal for programs, or for a stream of this process. A thread reads it."""

    def __init__(self):
        self._reader, self.descriptor = pty.openpty()
        self.text, self._keeper = "", threading.Thread(target=self._read, daemon=True)
        self._keeper.start()

    def _read(self):
        while True:
            try:
                data = os.read(self._reader, 65536)
            except OSError:   # the last writer has closed it
                return
            self.text += data.decode(errors="replace")

    def close(self):
        """Returns the text after the last writer has ended."""
        os.close(self.descriptor)
        self._keeper.join(60)
        os.close(self._reader)
        return self.text


class Lines(unittest.TestCase):
    def test_on_a_terminal_one_line_is_rewritten_and_cleared(self):
        terminal, times = Terminal(), []
        with os.fdopen(os.dup(terminal.descriptor), "w") as stream:
            line = Line(stream)
            while len(times) < 3:
                line.update(lambda: times.append(time.monotonic()) or f"report {len(times)} " + 300 * "x")
            line.say("a line of its own")
            line.clear()
        text = terminal.close()
        self.assertTrue(all(later - earlier >= 0.9 * AT_MOST for earlier, later in zip(times, times[1:])), times)
        reports = text.split("\r")[1:4]
        self.assertEqual([report[:9] for report in reports], ["report 1 ", "report 2 ", "report 3 "])
        self.assertTrue(all(len(report) <= 79 + len("\x1b[K") for report in reports), reports)
        self.assertTrue(text.endswith("\r\x1b[Ka line of its own\r\n"), text[-200:])

    def test_piped_are_whole_lines_at_growing_intervals(self):
        stream, times, first = io.StringIO(), [], 0.004
        line = Line(stream, first=first)
        line.update(lambda: self.fail("too early"))
        while len(times) < 6:
            line.update(lambda: times.append(time.monotonic()) or "report")
        self.assertEqual(stream.getvalue(), 6 * "report\n")
        waits = [later - earlier for earlier, later in zip(times, times[1:])]
        self.assertTrue(all(wait >= 0.9 * first * 2 ** (k + 1) for k, wait in enumerate(waits)), waits)

    def test_addresses_have_no_passwords(self):
        stream = io.StringIO()
        line = Line(stream, first=0)
        line.update(lambda: "reads postgresql://user:s3cr3t@host/data")
        self.assertIn("reads ", stream.getvalue())
        self.assertNotIn("s3cr3t", stream.getvalue())

    def test_the_longest_work_is_first_and_few_are_named(self):
        now = time.monotonic()
        text = shown_active({"b": now - 5, "a": now - 100, "c": now - 4, "d": now - 3, "e": now})
        self.assertRegex(text, r"^a \(1 min 4\d s\), b \(\d\.\d s\), c \(\d\.\d s\) and 2 more$")

    def test_a_command_ends_as_by_subprocess(self):
        done = run_visibly("works", [sys.executable, "-c", "import sys; print(1); print(2, file=sys.stderr); sys.exit(3)"],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (3, "1\n", "2\n"))


class Programs(Case):
    def on_terminal(self, *words):
        terminal = Terminal()
        process = subprocess.Popen([*map(str, words)], stdout=terminal.descriptor, stderr=terminal.descriptor, stdin=subprocess.DEVNULL,
                                   cwd=self.folder)
        status = process.wait(300)
        return status, terminal.close()

    def test_muster_bench_shows_the_active_run(self):
        path = self.experiment(["sh", "-c", "sleep 0.5; echo 'accuracy: 0.5'"])
        status, text = self.on_terminal(*PROGRAM, "run", path, "--out", self.folder / "out")
        self.assertEqual(status, 0, text)
        self.assertRegex(text, r"\r\[0/2\] only-n=1\S*: run \(\d+\.\d s\)")
        self.assertRegex(text, r"\r\[1/2\] only-n=2\S*: run \(\d+\.\d s\); about \d+\.\d s left")
        self.assertRegex(text, r"\r\x1b\[K\[2/2\] only-n=2\S*: ok in \d+\.\d s\r\n")
        piped = self.bench("run", self.experiment(["sh", "-c", "echo 'accuracy: 0.25'"]), "--out", self.folder / "piped")
        self.assertNotIn("\r", piped.stderr)

    @unittest.skipIf(shutil.which("snakemake") is None, "SKIPPED: there is no snakemake")
    def test_muster_flow_shows_the_active_step_and_the_remaining_time(self):
        self.write("number", "")
        path = self.write("workflow.yaml", """muster-flow: 1
name: of the test
steps:
  one: {command: ["sh", "-c", "sleep 1; cat $1 > $2", x, "{number}", "{a}"], inputs: {number: number}, outputs: {a: a}}
  two: {command: ["sh", "-c", "sleep 0.5; cat $1 > $2", x, "{a}", "{b}"], inputs: {a: "{one.a}"}, outputs: {b: b}}
""")
        command = [sys.executable, "-m", "muster_flow", "run", path, "--out", self.folder / "out"]
        for number, expected in enumerate((r"\r\[0/2\] one \(\d+\.\d s\)", r"\r\[0/2\] one \(\d+\.\d s\); about \d+\.\d s left")):
            self.write("number", str(number))
            status, text = self.on_terminal(*command)
            self.assertEqual(status, 0, text)
            self.assertRegex(text, expected)
            self.assertRegex(text, r"\r\[1/2\] two")


if __name__ == "__main__":
    unittest.main()
