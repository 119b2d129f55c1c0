"""Start and end of a program in this package, with an error if a package is missing."""
import contextlib
import errno
import importlib.util
import os
import sys

from .errors import FINISHED, INTERRUPTED, REFUSED, Refusal
from .text import without_secrets

IN_PIP = {"yaml": "pyyaml"}   # packages with another name in pip


def start(program, packages, call):
    """Returns the exit status of `call`. If the program cannot start or is refused, prints the reason in one line."""
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        print(f"{program}: {' and '.join(missing)} cannot be imported ({sys.executable} does not have it); apt-get install "
              f"{' '.join(f'python3-{name}' for name in packages)} and run it with Debian's python3, or pip install "
              f"{' '.join(IN_PIP.get(name, name) for name in packages)}", file=sys.stderr)
        return REFUSED
    try:
        try:
            return call()
        finally:
            sys.stdout.flush()
    except Refusal as refusal:
        message = without_secrets(refusal).replace("\n", "\\n")   # a value of the file may have several lines
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()   # keeps the reason the last line, also if both streams are the same file
        print(f"{program}: {message}", file=sys.stderr)
        return refusal.status
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINISHED
    except OSError as failed:
        if failed.filename is not None or failed.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())   # Python writes the rest of the output at its end
        print(f"{program}: standard output or a file cannot be written ({failed.strerror}); free space, or choose another place", file=sys.stderr)
        return REFUSED
