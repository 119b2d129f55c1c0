"""The closed and the open division, as in MLBench: runs of the closed division use the published settings."""
import os
import pathlib

from .errors import Refusal
from .files import digest_of, read_json

PRESETS = pathlib.Path(__file__).with_name("presets")


def locked():
    """Returns {name of a closed preset: digest of the content}."""
    return read_json(PRESETS / "closed.json") or {}


# Variables that a closed run keeps from the environment, besides its template's variables: paths, the user, and the
# variables that a launcher sets for its ranks. Settings of muster, of MPI and the number of threads of libraries are
# left out.
KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "TERM", "LD_LIBRARY_PATH", "XDG_RUNTIME_DIR", "KUBECONFIG")
KEPT_GROUPS = ("LC_", "SLURM_", "PMI_", "PMIX_")


def environment_of(division):
    """Returns the initial environment of a command, before its template's variables are added."""
    if division == "open":
        return dict(os.environ)
    return {name: value for name, value in os.environ.items() if name in KEPT or name.startswith(KEPT_GROUPS)}


def digest(content):
    """Returns the digest of a file's content without comments, places and prices."""
    return digest_of({key: value for key, value in content.items() if key not in ("places", "prices")})


def division_of(file, changes, asked):
    """Returns the division in which the file's runs count. Refuses a changed run that claims to be closed. `changes`
    are flags that change runs."""
    if asked == "open" or file.division == "open":
        if asked == "closed":
            raise Refusal(f"'{file.path.name}' is of the open division (it does not claim to be a published task); "
                          "leave --division out")
        return "open"
    if changes:
        raise Refusal(f"{changes[0]} would change the closed preset '{file.name}' (its results are only "
                      "comparable as it is); add --division open")
    if locked().get(file.name) != digest(file.content):
        raise Refusal(f"'{file.path.name}' claims to be the closed preset '{file.name}' but differs from the published file "
                      f"(its digest differs); write division: open, or take the file from {PRESETS}")
    return "closed"
