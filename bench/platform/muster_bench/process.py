"""One command: started in a group of its own, watched, and ended with all that it has started."""
import contextlib
import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time

from . import files

MARK = "BENCH_RUN"          # in the environment of all that a run starts, so that what is left of it is found
LOOK = 0.05                 # seconds between two looks at a process
MEASURE = 1.0               # and between two looks at its folder
GRACE = 2.0                 # from SIGTERM to SIGKILL
LEAST_FREE = 64 << 20       # of the disk: below, nothing more is started and what runs is ended


@dataclasses.dataclass
class Outcome:
    """How a command ended. status: ok, crash, timeout, missing, disk, full (the disk, not the command) or interrupted."""
    status: str
    why: str = ""
    exit: int = None
    seconds: float = 0.0


def run(words, variables, folder, log, limits, timeout, mark, stop):
    """Runs until it ends, or is ended: past its time, its room, or when `stop` is set. `folder` is where it works, what
    it prints goes to `log`, cut at the limit."""
    environment = {**os.environ, **variables, MARK: mark}
    if shutil.which(words[0], path=environment.get("PATH")) is None:
        return Outcome("missing", f"there is no program '{words[0]}'")
    if shutil.which("setpriv"):  # the command does not outlive a runner that is killed
        words = ["setpriv", "--pdeathsig", "KILL", "--", *words]
    begin = time.monotonic()
    try:
        process = subprocess.Popen(words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, start_new_session=True)
    except OSError as error:
        return Outcome("missing", f"it could not be started ({error.strerror})")
    keeper = threading.Thread(target=_keep, args=(process.stdout, log, limits.log), daemon=True)
    keeper.start()
    ended = _watch(process, folder, limits, begin + timeout, stop)
    if ended is None and process.returncode == 0:
        # What it has left in its group is not waited for, and does not keep the log open.
        keeper.join(1.0)
        made = Outcome("ok", exit=0)
    elif ended is None:
        made = _crash(process.returncode)
    else:
        made = Outcome(ended, {"timeout": f"it did not end within {timeout:g} s", "disk":
                               f"it wrote more than {limits.disk >> 20} MiB", "full": "the disk is full",
                               "interrupted": "the runner was told to stop"}[ended])
    end_all(process.pid, mark)
    keeper.join(5.0)
    made.seconds = time.monotonic() - begin
    return made


def _crash(status):
    if status < 0:
        with contextlib.suppress(ValueError):
            return Outcome("crash", f"it was killed by {signal.Signals(-status).name}", status)
    return Outcome("crash", f"it ended with status {status}", status)


def _watch(process, folder, limits, until, stop):
    """None when it ended by itself, else why it has to be ended."""
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
        if now >= until:
            return "timeout"
        if now - measured >= MEASURE:
            measured = now
            if files.free_bytes(folder) < LEAST_FREE:
                return "full"
            if files.bytes_under(pathlib.Path(folder).parent.parent) > limits.disk:
                return "disk"


def _keep(pipe, log, most):
    """Writes what comes up to the limit, and reads on, so that the command does not stand still."""
    kept, cut = 0, False
    try:
        with open(log, "ab", buffering=0) as file:
            while piece := os.read(pipe.fileno(), 1 << 16):
                if kept < most:
                    file.write(piece[:most - kept])
                    kept += len(piece)
                elif not cut:
                    cut = True
                    file.write(f"\n[cut: the runner keeps {most} bytes]\n".encode())
    except OSError:
        with contextlib.suppress(OSError):
            while os.read(pipe.fileno(), 1 << 16):
                pass
    finally:
        pipe.close()


def end_all(leader, mark):
    """Ends a process group politely, then surely, and whatever else carries the mark, wherever it has gone."""
    _signal_group(leader, signal.SIGTERM)
    until = time.monotonic() + GRACE
    while marked(mark) and time.monotonic() < until:
        time.sleep(LOOK)
    _signal_group(leader, signal.SIGKILL)
    kill_marked(mark)


def _signal_group(leader, which):
    with contextlib.suppress(OSError):
        os.killpg(leader, which)


def marked(mark):
    """Processes that carry the mark."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0") and not _is_zombie(entry):
                found.append(int(entry.name))
    return found


def _is_zombie(entry):
    return (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"


def kill_marked(mark):
    """SIGKILL to all that carry the mark, and waits until they are gone."""
    until = time.monotonic() + 5
    while (found := marked(mark)) and time.monotonic() < until:
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return found
