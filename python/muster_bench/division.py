"""Closed and open, as MLBench means them: what is compared in the closed division was run as it was published."""
import os
import pathlib

from .errors import Refusal
from .files import digest_of, read_json

PRESETS = pathlib.Path(__file__).with_name("presets")


def locked():
    """Name of each closed preset -> digest of what it says."""
    return read_json(PRESETS / "closed.json") or {}


# What a closed run has of the environment beside what its template says: where things are, the user, and what a launcher
# tells its ranks. No setting of muster's, of MPI's or of a library's number of threads.
KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "TERM", "LD_LIBRARY_PATH", "XDG_RUNTIME_DIR", "KUBECONFIG")
KEPT_GROUPS = ("LC_", "SLURM_", "PMI_", "PMIX_")


def environment_of(division):
    """The variables that a command is started with, before those of its template."""
    if division == "open":
        return dict(os.environ)
    return {name: value for name, value in os.environ.items() if name in KEPT or name.startswith(KEPT_GROUPS)}


def digest(content):
    """Of the meaning of a file: comments, and where things lie and what they cost here, are no part of it."""
    return digest_of({key: value for key, value in content.items() if key not in ("places", "prices")})


def division_of(file, changes, asked):
    """In which division a run of this file counts; refuses what would pass for closed and is not. `changes` are flags that change runs."""
    if asked == "open" or file.division == "open":
        if asked == "closed":
            raise Refusal(f"'{file.path.name}' is of the open division (it does not claim to be a published task); "
                          "leave --division out")
        return "open"
    if changes:
        raise Refusal(f"{changes[0]} would change the closed preset '{file.name}' (its results are only "
                      "comparable as it is); add --division open")
    if locked().get(file.name) != digest(file.content):
        raise Refusal(f"'{file.path.name}' says that it is the closed preset '{file.name}' but is not what was published "
                      f"(its digest differs); write division: open, or take the file from {PRESETS}")
    return "closed"
