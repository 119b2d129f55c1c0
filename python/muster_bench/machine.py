"""Describes the machine of the runs and measures its noise."""
import concurrent.futures
import contextlib
import hashlib
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import time

PROBES = 15


def record(beside, programs=()):
    """Returns all facts that may explain a time, read at every start of a runner. `beside` is a folder of the
    repository, `programs` are the paths of the programs."""
    return {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "host": platform.node(), "cpu": _cpu(),
            "cores": len(os.sched_getaffinity(0)), "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "system": _system(), "kernel": platform.release(), "architecture": platform.machine(),
            "python": platform.python_version(), "compiler": _first_line("c++", "--version"),
            "mpi": _first_line("mpirun", "--version"), "governor": _governor(), "load": [round(x, 2) for x in os.getloadavg()],
            "libraries": _libraries(programs), "git": _git(beside), "noise": noise()}


def noise(threads=1, probes=PROBES):
    """Runs a fixed amount of work several times on all threads at once. Returns its minimum, median and maximum in
    seconds, and the spread of the middle half over the median. On a quiet machine that spread is below 0.02."""
    block = bytes(1 << 20)

    def work(_):
        for _ in range(8):
            hashlib.sha256(block)  # releases the interpreter's lock
    times = []
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for _ in range(probes):
            begin = time.perf_counter()
            list(pool.map(work, range(threads)))
            times.append(time.perf_counter() - begin)
    low, middle, high = statistics.quantiles(times, n=4)
    return {"min": min(times), "median": middle, "max": max(times), "spread": (high - low) / middle}


def _cpu():
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
        if found:
            return found.group(1)
    return platform.processor() or "unknown"


def _system():
    with contextlib.suppress(OSError):
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    return "unknown"


def _governor():
    with contextlib.suppress(OSError):
        return pathlib.Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text().strip()
    return "unknown"


def _first_line(*words):
    if shutil.which(words[0]) is None:
        return "none"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        text = subprocess.run(words, capture_output=True, text=True, timeout=20).stdout
        return text.splitlines()[0] if text else "unknown"
    return "unknown"


def _libraries(programs):
    """Returns the shared libraries that programs load, by the names of their files: "libmpi.so.40.30.4"."""
    found = set()
    for program in programs:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            text = subprocess.run(["ldd", str(program)], capture_output=True, text=True, timeout=20).stdout
            found.update(os.path.basename(os.path.realpath(path)) for path in re.findall(r" => (/\S+)", text))
    return sorted(found)


def _git(folder):
    def ask(*words):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=20)
            if done.returncode == 0:
                return done.stdout.strip()
        return None
    revision = ask("rev-parse", "HEAD")
    if revision is None:
        return None
    return {"revision": revision, "changed": bool(ask("status", "--porcelain", "--untracked-files=no"))}
