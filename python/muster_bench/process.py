"""Runs one command under its owner (owner.py), watches it, and ends it with all processes that it has started."""
import contextlib
import dataclasses
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time

from . import files

OWNER = pathlib.Path(__file__).with_name("owner.py")
LOOK = 0.05                 # seconds between two checks of a process
MEASURE = 1.0               # seconds between two checks of the command's folder
PATIENCE = 10.0             # seconds for an owner to end after a signal; it needs five at most
ENDINGS = ("timeout", "disk", "full", "interrupted")
LEAST_FREE = 64 << 20       # free bytes of the disk: below this limit nothing starts, and active commands are ended


@dataclasses.dataclass
class Outcome:
    """The end of a command. status: ok, crash, timeout, missing, disk, full (the disk, not the command), enough (`look`
    ended it) or interrupted."""
    status: str
    why: str = ""
    exit: int = None
    seconds: float = 0.0


def run(words, environment, folder, log, limits, timeout, stop, look=None, held=""):
    """Runs a command until it ends, exceeds its time or disk space, or `stop` is set. `environment` is its complete
    environment, `folder` its working directory. Its output is written to `log`, cut at the limit. `look()`, called
    periodically, returns the reason to end the command, or nothing. `held` is the value of holding.hold."""
    if shutil.which(words[0], path=environment.get("PATH")) is None:
        _let_go(held)
        return Outcome("missing", f"there is no program '{words[0]}'")
    words = [sys.executable, "-I", "-S", str(OWNER), str(os.getpid()), held, *words]
    begin, mark = time.monotonic(), f"BENCH_OWNED={secrets.token_hex(8)}"
    environment = {**environment, **dict([mark.split("=")])}
    try:
        process = subprocess.Popen(words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, start_new_session=True)
    except OSError as error:
        _let_go(held)
        return Outcome("missing", f"it could not be started ({error.strerror})")
    keeper = threading.Thread(target=_keep, args=(process.stdout, log, limits.log), daemon=True)
    keeper.start()
    ended = _watch(process, folder, limits, begin + timeout, stop, look)
    if process.returncode == -signal.SIGKILL:
        _end_marked(mark)   # its owner was killed, and has ended nothing
    if ended is None and process.returncode == 0:
        outcome = Outcome("ok", exit=0)
    elif ended is None:
        outcome = _crash(process.returncode)
    elif ended not in ENDINGS:
        outcome = Outcome("enough", ended)
    else:
        outcome = Outcome(ended, {"timeout": f"it did not end within {timeout:g} s", "disk":
                                  f"it wrote more than {(limits.disk or 0) >> 20} MiB", "full": "the disk is full",
                                  "interrupted": "the runner was asked to stop"}[ended])
    keeper.join(5.0)
    if ended is None and look is not None:
        look()   # reads the last lines: other trials are compared with them
    outcome.seconds = time.monotonic() - begin
    return outcome


def _end_marked(mark):
    """Kills all processes with this variable: children inherit it, even if parents end or sessions change."""
    until = time.monotonic() + PATIENCE
    found = True
    while found and time.monotonic() < until:
        found = False
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if mark.encode() in pathlib.Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    os.kill(int(name), signal.SIGKILL)
                    found = True
        time.sleep(LOOK)


def _let_go(held):
    """Removes the groups of a command that was not started; for a started command owner.py removes them."""
    for part in held.split(":"):
        if part.startswith("/"):
            with contextlib.suppress(OSError):
                os.rmdir(part)


def _crash(status):
    if status < 0:
        with contextlib.suppress(ValueError):
            return Outcome("crash", f"it was killed by {signal.Signals(-status).name}", status)
    return Outcome("crash", f"it ended with status {status}", status)


def _watch(process, folder, limits, until, stop, look):
    """Returns None if the process ended by itself, else why it was ended."""
    try:
        return _reason(process, folder, limits, until, stop, look)
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _reason(process, folder, limits, until, stop, look):
    measured = time.monotonic()
    while True:
        try:
            process.wait(LOOK)
            return None
        except subprocess.TimeoutExpired:
            pass
        now = time.monotonic()
        if stop.is_set():
            return "interrupted"
        if look is not None and (why := look()):
            return why
        if now >= until:
            return "timeout"
        if now - measured >= MEASURE:
            measured = now
            if limits.disk is not None and files.free_bytes(folder) < LEAST_FREE:
                return "full"
            if limits.disk and files.bytes_under(pathlib.Path(folder).parent.parent) > limits.disk:
                return "disk"


def cut(most):
    """Returns the last line of a log that was cut."""
    return f"\n[cut: the runner keeps {most} bytes]\n"


def _keep(pipe, log, most):
    """Writes the output up to the limit, and continues reading, so that the command does not block."""
    room = most   # below 0: there was more output
    try:
        with open(log, "ab", buffering=0) as file:
            while piece := os.read(pipe.fileno(), 1 << 16):
                if room >= 0:
                    file.write(piece[:room])
                    room -= len(piece)
                    if room < 0:
                        file.write(cut(most).encode())
    except OSError:
        with contextlib.suppress(OSError):
            while os.read(pipe.fileno(), 1 << 16):
                pass
    finally:
        pipe.close()
