"""A process of a job and its output, for tests that disturb ranks and check the others."""
import os
import select
import subprocess
import time

SLOWDOWN = float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))  # above 1: built with a sanitizer
DEADLINE = 60.0 * SLOWDOWN  # for operations that take milliseconds: the machine may be busy


class Failure(Exception):
    pass


class Process:
    def __init__(self, rank, command, environment):
        self.rank = rank
        # A healthy rank on a busy machine may be silent for half a second: tests of silence set this variable
        # themselves.
        environment = {"MUSTER_MISSED_HEARTBEATS": "20", **os.environ, **environment}
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        self.pid = self.process.pid
        self.text = b""
        self.lines = []
        self.open = True

    def read(self, until):
        """Reads the available output; waits for output at most until then."""
        ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            raise Failure(f"rank {self.rank} neither ends nor says anything more (so far: {self.lines})")
        data = os.read(self.process.stdout.fileno(), 65536)
        self.open = bool(data)
        self.text += data
        *whole, self.text = self.text.split(b"\n")
        self.lines += [line.decode() for line in whole]

    def expect(self, word):
        """Returns the first line that begins with this word."""
        until = time.monotonic() + DEADLINE
        while True:
            for line in self.lines:
                if line.split(" ")[0] == word:
                    return line
            if not self.open:
                raise Failure(f"rank {self.rank} ended without '{word}' ({self.lines}, {self.end()}, {self.errors})")
            self.read(until)

    def end(self):
        """Reads the remaining output and returns the exit status."""
        until = time.monotonic() + DEADLINE
        while self.open:
            self.read(until)
        try:
            status = self.process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Failure(f"rank {self.rank} does not end") from None
        self.errors = self.process.stderr.read().decode()
        return status

    def close(self):
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()
