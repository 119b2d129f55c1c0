"""A job of several ranks that sleeps until it is told what to measure (bench/turns.hpp is its side of it)."""
import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading

START_TIMEOUT = 60  # seconds; mpirun on a busy machine takes some


class JobFailed(Exception):
    """Says why, on one line."""


class Job:
    libraries = set()  # what all jobs so far were made of

    def __init__(self, name, row_of, command, folder, ranks, timeout):
        self.name = name
        self._timeout = timeout
        folder = folder / name
        folder.mkdir()
        self._pipes = []
        for rank in range(ranks):
            os.mkfifo(folder / str(rank))
            # For reading too: then opening does not wait for the rank, and a rank that dies does not kill us.
            self._pipes.append(os.open(folder / str(rank), os.O_RDWR))
        environment = dict(os.environ)
        if os.geteuid() == 0:
            environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        self._errors = tempfile.TemporaryFile("w+")
        try:
            self._process = subprocess.Popen([*command, f"--turns={folder}"], stdin=subprocess.DEVNULL,
                                             stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment,
                                             start_new_session=True)
        except OSError as failure:
            raise JobFailed(f"{failure.filename}: {failure.strerror}") from None
        self._lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            ready = self._next_line(START_TIMEOUT)
        except JobFailed:
            self.end()
            raise
        self._rows = {contender: row_of(contender) for contender in ready["ready"] if row_of(contender)}
        if ready["library"]:
            Job.libraries.add(ready["library"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def take_turn(self, op, size):
        """Yields (contender, median seconds) for each contender of the job, one after the other."""
        for contender, row in self._rows.items():
            only_allreduce = contender in ("memory_limit", "loopback_limit", "muster_shm_bare")
            if only_allreduce and op != "allreduce" or contender.startswith("gloo") and op in ("broadcast", "reduce"):
                continue
            if contender == "switch_limit" and op == "written":  # it has no data
                continue
            if size > {"muster_shm_bare": 4, "switch_limit": 1024}.get(contender, size):
                continue
            for pipe in self._pipes:
                os.write(pipe, f"{op} {contender} {size}\n".encode())
            answer = self._next_line(self._timeout)
            yield row, answer["median_seconds"]

    def end(self):
        """Its ranks come to the end of their pipes and leave; those that do not are ended."""
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

    def _read(self):
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

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
        told = [line for line in lines if "error" in line.lower()]
        return (told or lines or ["it said nothing"])[0]
