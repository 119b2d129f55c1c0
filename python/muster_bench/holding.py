"""Limits a run on this machine to its resources: by cgroups (version 2 or 1), else by affinity and the limit of a
process's data."""
import math
import os
import pathlib

GROUPS = pathlib.Path("/sys/fs/cgroup")
PERIOD = 100_000    # microseconds in which a group has its quota


def hold(resources, ranks, name):
    """Returns (the argument HELD of owner.py, a description for the log) of a run; two empty texts for a run without
    limits."""
    if not resources.hold:
        return "", ""
    cpus, memory = resources.cpus_per_rank * ranks, resources.memory * ranks
    amount = f"{cpus:g} processors" + (f", {memory >> 20} MiB" if memory else "")
    for version, files in (("cgroup v2", _version_2(cpus, memory)), ("cgroup v1", _version_1(cpus, memory))):
        folders = _make(f"muster-bench-{os.getpid()}-{name[-20:]}", files)
        if folders:
            return ":".join(map(str, folders)), f"{amount} ({version})"
    whole = min(math.ceil(cpus), len(os.sched_getaffinity(0)))
    data = [f"data={resources.memory}"] if memory else []
    description = f"{whole} whole processors" + (f", {resources.memory >> 20} MiB of data a process" if memory else "")
    return ":".join([f"cpus={whole}", *data]), f"{description} (affinity and limits: no cgroup can be made here)"


def _version_2(cpus, memory):
    return {GROUPS: {"cpu.max": f"{cpus * PERIOD:.0f} {PERIOD}", **({"memory.max": memory, "memory.swap.max": 0} if memory else {})}}


def _version_1(cpus, memory):
    return {GROUPS / "cpu": {"cpu.cfs_period_us": PERIOD, "cpu.cfs_quota_us": f"{cpus * PERIOD:.0f}"},
            **({GROUPS / "memory": {"memory.limit_in_bytes": memory}} if memory else {})}


def _make(name, files):
    """Returns the folders of the groups, with these texts in their files; none if that fails."""
    folders = []
    try:
        for parent, texts in files.items():
            folder = parent / name
            folder.mkdir()
            folders.append(folder)
            for file, text in texts.items():
                if file != "memory.swap.max" or (folder / file).exists():
                    with open(folder / file, "r+", encoding="ascii") as to:   # fails on a file of another file system
                        to.write(str(text))
        return folders
    except OSError:
        for folder in folders:
            try:
                folder.rmdir()
            except OSError:
                pass
        return []
