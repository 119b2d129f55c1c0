"""The programs that a wheel brings along."""
import os
import sys

from .errors import configuration_error

__all__ = ["launch", "store"]


def _run(name):
    program = os.path.join(os.path.dirname(__file__), "bin", name)
    if not os.path.exists(program):
        raise SystemExit(str(configuration_error(f"{name} is not in this package (muster was built without its programs); "
                                                 "install muster's programs and start them by their own name")))
    os.environ["PATH"] = os.path.dirname(program) + os.pathsep + os.environ.get("PATH", "")
    os.execv(program, [program, *sys.argv[1:]])


def launch():
    """Starts ranks on this host, as elastic members: muster-launch."""
    _run("muster-launch")


def store():
    """Serves the store of a job: muster-store."""
    _run("muster-store")
