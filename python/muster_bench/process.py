"""One command: started under its owner (owner.py), watched, and ended with all that it has started."""
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
LOOK = 0.05                 # seconds between two looks at a process
MEASURE = 1.0               # and between two looks at its folder
PATIENCE = 10.0             # with an owner that was told to end; it needs five at most
ENDINGS = ("timeout", "disk", "full", "interrupted")
LEAST_FREE = 64 << 20       # of the disk: below, nothing more is started and what runs is ended


@dataclasses.dataclass
class Outcome:
    """How a command ended. status: ok, crash, timeout, missing, disk, full (the disk, not the command), enough (`look` said so) or
    interrupted."""
    status: str
    why: str = ""
    exit: int = None
    seconds: float = 0.0


def run(words, environment, folder, log, limits, timeout, stop, look=None, held=""):
    """Runs until it ends, or is ended: past its time, its room, or when `stop` is set. `environment` is all that there is;
    `folder` is where it works, what it prints goes to `log`, cut at the limit. `look()`, called now and then, gives why it is to
    end, or nothing; `held` is that of holding.hold."""
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
        made = Outcome("ok", exit=0)
    elif ended is None:
        made = _crash(process.returncode)
    elif ended not in ENDINGS:
        made = Outcome("enough", ended)
    else:
        made = Outcome(ended, {"timeout": f"it did not end within {timeout:g} s", "disk":
                               f"it wrote more than {(limits.disk or 0) >> 20} MiB", "full": "the disk is full",
                               "interrupted": "the runner was told to stop"}[ended])
    keeper.join(5.0)
    if ended is None and look is not None:
        look()   # at the lines since the last time: other trials are held against them
    made.seconds = time.monotonic() - begin
    return made


def _end_marked(mark):
    """Kills what has this variable: it is inherited, whatever becomes of parents and sessions."""
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
    """Of what was not begun; owner.py does it otherwise."""
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
    """None when it ended by itself, else why it was ended."""
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
    """What ends a log of which more came than is kept."""
    return f"\n[cut: the runner keeps {most} bytes]\n"


def _keep(pipe, log, most):
    """Writes what comes up to the limit, and reads on, so that the command does not stand still."""
    room = most   # below 0: more came
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
