"""Removal of results that no step uses: by their age, and the oldest ones by their size. docs/workflow.md describes the rule."""
import contextlib
import fcntl
import os
import pathlib
import subprocess
import tempfile
import time

from muster_bench.files import bytes_under, make_folder, read_json, writing


def collect(store, unused, size=None):
    """Removes the results that no step of the workflow uses and that were unused for so many seconds, and then the oldest others until the results have
    at most `size` bytes. Returns (their number, the folders with removed files). A disk may need minutes to delete many files: a background process
    deletes them, or the next call if that process was ended."""
    home, used = make_folder(store.folder / "store"), set(_used(store))
    entries = [(_last_used(entry), entry) for entry in os.scandir(home) if entry.name[0] != "."]
    free = sorted(((at, entry) for at, entry in entries if entry.name not in used), key=lambda pair: pair[0])
    old = [entry for at, entry in free if at < time.time() - unused]
    if size is not None:
        held = sum(bytes_under(entry.path) for _, entry in entries if entry not in old)
        # an interrupted result has the checkpoint from which its step continues
        for _, entry in ((at, entry) for at, entry in free if entry not in old and os.path.exists(f"{entry.path}/record.json")):
            if held <= size:
                break
            held -= bytes_under(entry.path)
            old.append(entry)
    with writing(home):
        if old:
            behind = tempfile.mkdtemp(prefix=".removed-", dir=home)
        for entry in old:
            os.rename(entry.path, os.path.join(behind, entry.name))
    _remove_links(store)
    behind = [str(path) for path in home.glob(".removed-*")]
    if behind:
        subprocess.Popen(["rm", "-rf", "--", *behind], start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return len(old), behind


def _used(store):
    """Yields the results that are in use: of the steps of the workflow, and of processes that work on one, such as services of a watch."""
    for link in os.scandir(make_folder(store.folder / "steps")):
        if link.name in store.flow.steps:
            yield os.path.basename(os.path.realpath(link))
    for path in (store.folder / "run").glob(".*.lock"):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                yield file.read().strip()


def _last_used(entry):
    """Returns the time of the last use; for an incomplete result the time when a runner last worked on it."""
    used = [entry.stat().st_mtime]
    if not os.path.exists(f"{entry.path}/record.json"):
        used += [file.lstat().st_mtime for part in ("output", "checkpoint") for file in pathlib.Path(entry.path, part).glob("*")]
    return max(used)


def _remove_links(store):
    """Removes the links to removed results, of steps that the workflow no longer has."""
    gone = [link for link in os.scandir(store.folder / "steps") if link.name not in store.flow.steps and not os.path.exists(link)]
    for link in gone:
        os.unlink(link)
    if not gone:
        return
    for here, folders, names in os.walk(store.folder):
        if pathlib.Path(here) == store.folder:
            folders[:] = [name for name in folders if name not in ("store", "steps", "run", "watch", ".snakemake")]
        for path in (os.path.join(here, name) for name in (*folders, *names)):
            with contextlib.suppress(OSError):
                if os.path.islink(path) and not os.path.exists(path) and "steps" in pathlib.PurePath(os.readlink(path)).parts:
                    os.unlink(path)
