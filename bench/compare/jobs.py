"""A job of several ranks that sleeps until it receives a measurement to run (bench/turns.hpp is the rank's side)."""
import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading

START_TIMEOUT = 60  # seconds; mpirun on a busy machine is slow


class JobFailed(Exception):
    """The error of a job, on one line."""


class Job:
    libraries = {}  # the libraries of the rows so far, in its contender's own words

    def __init__(self, name, row_of, command, folder, ranks, timeout):
        self.name = name
        self._row_of, self._command, self._ranks, self._timeout = row_of, command, ranks, timeout
        self._folder = folder / name
        self._dropped = set()
        self._start()

    def _start(self):
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        self._pipes = []
        for rank in range(self._ranks):
            os.mkfifo(self._folder / str(rank))
            # Also for reading: then opening does not wait for the rank, and a rank that dies does not kill this
            # process.
            self._pipes.append(os.open(self._folder / str(rank), os.O_RDWR))
        environment = dict(os.environ)
        if os.geteuid() == 0:
            environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        self._errors = tempfile.TemporaryFile("w+")
        try:
            self._process = subprocess.Popen([*self._command, f"--turns={self._folder}"], stdin=subprocess.DEVNULL,
                                             stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment,
                                             start_new_session=True)
        except OSError as failure:
            raise JobFailed(f"{failure.filename}: {failure.strerror}") from None
        self._lines = queue.Queue()
        threading.Thread(target=self._read, args=(self._process.stdout, self._lines), daemon=True).start()
        try:
            ready = self._next_line(START_TIMEOUT)
        except JobFailed:
            self.end()
            raise
        self.rows = {contender: self._row_of(contender) for contender in ready["ready"]
                     if self._row_of(contender) and contender not in self._dropped}
        if ready["library"]:
            Job.libraries.update(dict.fromkeys(self.rows.values(), " ".join(ready["library"].split())))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def drop(self, contender):
        """Removes a contender that failed and restarts the job without it."""
        self.end()
        self._dropped.add(contender)
        del self.rows[contender]
        if self.rows:
            self._start()

    def takes(self, contender, op, size):
        """Returns true if the contender can run this measurement."""
        only_allreduce = contender in ("memory_limit", "loopback_limit", "muster_shm_bare")
        if only_allreduce and op != "allreduce" or contender.startswith("gloo") and op in ("broadcast", "reduce"):
            return False
        if contender == "switch_limit" and op == "written":  # it has no data
            return False
        return size <= {"muster_shm_bare": 4, "switch_limit": 1024}.get(contender, size)

    def take_turn(self, contender, op, size):
        """Runs one measurement and returns the median seconds."""
        for pipe in self._pipes:
            os.write(pipe, f"{op} {contender} {size}\n".encode())
        return self._next_line(self._timeout)["median_seconds"]

    def end(self):
        """Closes the pipes, so that the ranks end; kills ranks that do not."""
        for pipe in self._pipes:
            os.close(pipe)
        self._pipes = []
        for ask in (lambda: None, lambda: self._process.send_signal(signal.SIGTERM),
                    lambda: os.killpg(self._process.pid, signal.SIGKILL)):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                ask()
                self._process.wait(10)
                break
        self._errors.close()

    @staticmethod
    def _read(output, lines):
        for line in output:
            lines.put(line)
        lines.put(None)

    def _next_line(self, timeout):
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise JobFailed(f"no answer within {timeout:g} s") from None
        if line is None:
            raise JobFailed(f"it ended with status {self._process.wait()}: {self._last_error()}")
        try:
            return json.loads(line)
        except json.JSONDecodeError:
            raise JobFailed(f"it said {line.strip()!r}") from None

    def _last_error(self):
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip(" -\n")]
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines or ["it said nothing"])[0]
