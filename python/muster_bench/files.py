"""Files that are written completely or not at all, their contents, and the lock of a folder."""
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import stat
import time

from .errors import Busy, NoRoom, Refusal

FORMAT = 1     # version of the files in folders of results
PRIVATE = 0o600        # for files that may contain credentials: commands and their environments
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
TICK = 0.05    # seconds: a file system may record the same time for two changes within a clock tick
RANDOM = re.compile(r"-[0-9a-f]{16,32}(?=\.muster$)")   # of the name of a file that a record_set_writer has made
MOST_JSON = 64 << 20   # bytes of a file that is read as a whole


@contextlib.contextmanager
def writing(path):
    """Converts an error of writing a file to a refusal with a single line."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise NoRoom(f"no room to write '{path}' ({error.strerror}); make some and run the same command again, "
                         "finished runs are kept") from error
        raise NoRoom(f"cannot write '{path}' ({error.strerror}); choose a folder that this user may write to") from error


def write_whole(path, content, durable=True, mode=0o666):
    """Writes text or bytes so that at every moment, also after a kill, the old file or the new one exists; with
    `durable` also after the machine has failed."""
    path = pathlib.Path(path)
    data = content.encode() if isinstance(content, str) else content
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    with writing(path):
        try:
            with open(beside, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.replace(beside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise


def write_json(path, value, durable=True, mode=0o666):
    write_whole(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n", durable, mode)


def open_regular(path):
    """Opens the bytes of a file. A pipe or a device at the path, which would block its reader for ever, raises
    OSError."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return file


class NewLines:
    """The complete lines that were added to a file since the last call."""

    def __init__(self, path, read=0):
        self._path, self._read = path, read

    def __call__(self):
        try:
            with open_regular(self._path) as file:
                file.seek(self._read)
                new = file.read()
        except OSError:
            return ""
        whole = new[:new.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace")


def read_json(path):
    """Returns the value, or None without a file, or JSON of up to MOST_JSON bytes in it. Refuses a file of another format."""
    try:
        with open_regular(path) as file:
            found = json.loads(file.read(MOST_JSON))   # truncated JSON is invalid
    except (OSError, ValueError, RecursionError):
        return None
    if isinstance(found, dict) and found.get("format", FORMAT) != FORMAT:
        raise Refusal(f"'{path}' cannot be read (it is of format {found['format']}, and this version reads {FORMAT}); use the version that wrote it")
    return found


def make_folder(path):
    with writing(path):
        pathlib.Path(path).mkdir(parents=True, exist_ok=True)
    return pathlib.Path(path)


def remove_tree(path):
    shutil.rmtree(path, ignore_errors=True)


def digest_of(value):
    """Returns the digest of any JSON value. Equal values have equal digests."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def files_under(folder, own="", above=()):
    """Yields the path of every file in a folder, in the order of names, and follows links; a circle of links ends. The
    folder `own`, to which a runner writes, is left out."""
    real = os.path.realpath(folder)
    if real in above or real == own:
        return
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from files_under(entry.path, own, (*above, real))
        else:
            yield entry.path


def signature(path, own=""):
    """Returns a digest of sizes, times, inodes and devices, which changes whenever a file, or any file in a folder, is written. No user can set the
    time of a change back."""
    def of_file(file):
        try:
            at = os.stat(file)
        except OSError:
            if not os.path.islink(file):
                raise
            return [os.path.relpath(file, path), os.readlink(file)]
        return [os.path.relpath(file, path), at.st_size, at.st_mtime_ns, at.st_ctime_ns, at.st_ino, at.st_dev]
    return digest_of([of_file(file) for file in (files_under(path, own) if os.path.isdir(path) else [path])])


def newest(path, own=""):
    """Returns the time of the last change of a file, or of any file in a folder, in seconds since 1970."""
    return max((os.lstat(file).st_ctime for file in (files_under(path, own) if os.path.isdir(path) else [path])), default=0.0)


class Digests:
    """SHA-256 of files and folders. Each file is read once in the life of a runner, and again after it has changed."""
    of_process = {}

    def __init__(self, known=None, own=""):
        self.known = self.of_process if known is None else known   # path -> [signature, digest]
        self._own = os.path.realpath(own) if own else ""           # excluded from a folder around the results

    def of_path(self, path):
        path = pathlib.Path(path)
        try:
            sign = signature(path, self._own)
            if self.known.get(str(path), [None])[0] == sign:
                return self.known[str(path)][1]
            digest = self._of_folder(path) if path.is_dir() else self._of_file(path)
            if time.time() - newest(path, self._own) > TICK:
                self.known[str(path)] = [sign, digest]
            return digest
        except OSError as error:
            raise Refusal(f"cannot read '{path}' ({error.strerror}); the names of runs depend on its content") from error

    @staticmethod
    def _of_file(path):
        total = hashlib.sha256()
        with open(path, "rb") as file:
            while piece := file.read(1 << 20):
                total.update(piece)
        return total.hexdigest()

    def _of_folder(self, folder):
        files = sorted(file for file in map(pathlib.Path, files_under(folder, self._own)) if file.is_file() or file.is_symlink())
        return digest_of(sorted(self._in_folder(folder, file) for file in files))

    def _in_folder(self, folder, file):
        """Returns [name, digest] of a file in a folder. In a set of records a part of the names is random: the order and the content of the files
        count, which the MANIFEST has in its last columns."""
        name = file.relative_to(folder).as_posix()
        if not file.is_file():
            return [name, os.readlink(file)]
        if name.endswith(".muster") and (file.parent / "MANIFEST").is_file():
            return [RANDOM.sub("", name), self._of_file(file)]
        if file.name == "MANIFEST":
            return [name, digest_of([line.split(" ")[2:] or [line] for line in file.read_text(errors="replace").splitlines()])]
        return [name, self._of_file(file)]


def is_at(file, path):
    """Returns true if an open file is still located at that path."""
    try:
        there, here = os.stat(path), os.fstat(file.fileno())
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


class FolderLock:
    """A lock that lets one runner work in a folder. The system releases the lock when the process ends, for any
    reason."""

    def __init__(self, folder):
        self.path = pathlib.Path(folder) / "lock"
        try:
            while True:
                with writing(self.path):
                    self._file = open(self.path, "a+")
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if is_at(self._file, self.path):   # else it was removed in between
                    break
                self._file.close()
        except OSError:
            self._file.seek(0)
            holder = self._file.read().strip() or "an unknown process"
            self._file.close()
            raise Busy(f"another runner works in '{folder}' ({holder}); wait for it or choose another --out") from None
        with contextlib.suppress(OSError):   # on a full disk the lock still holds, so that gc can free space
            os.truncate(self._file.fileno(), 0)
            os.write(self._file.fileno(), f"process {os.getpid()} on {os.uname().nodename} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())

    def check(self):
        """Throws Busy if the folder was removed or made anew: results of two runners would mix."""
        if not is_at(self._file, self.path):
            raise Busy(f"'{self.path.parent}' was removed or made anew while this runner worked in it (another one may work there now); run the same "
                       "command again")

    def release(self):
        self._file.close()


def bytes_under(folder):
    """Returns the disk space of a folder's files. Files that are removed during the walk are left out."""
    total = 0
    for here, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(here, name)).st_blocks * 512
    return total


def free_bytes(folder):
    return shutil.disk_usage(folder).free
