"""How a program of this package begins and ends, with whatever it needs that may not be there."""
import contextlib
import importlib.util
import os
import sys

from .errors import FINISHED, INTERRUPTED, REFUSED, Refusal
from .text import without_secrets

IN_PIP = {"yaml": "pyyaml"}   # where its name is another one


def start(program, packages, call):
    """The exit status of `call`, or of what kept it from running: one line says what."""
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        print(f"{program}: {' and '.join(missing)} cannot be imported ({sys.executable} does not have it); apt-get install "
              f"{' '.join(f'python3-{name}' for name in packages)} and run it with Debian's python3, or pip install "
              f"{' '.join(IN_PIP.get(name, name) for name in packages)}", file=sys.stderr)
        return REFUSED
    try:
        return call()
    except Refusal as refusal:
        said = without_secrets(refusal).replace("\n", "\\n")   # a value of the file may have several lines
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()   # why it ended is the last line, where both go to one file too
        print(f"{program}: {said}", file=sys.stderr)
        return refusal.status
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINISHED
