"""The errors with which the runner ends; each has the exit status of docs/platform.md."""
import difflib

FINISHED, FAILED_RUNS, REFUSED, BUSY, NO_ROOM, SLOWER, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130


class Refusal(Exception):
    """The request cannot be done. The text is one line: problem (why); suggestion."""
    status = REFUSED


class Busy(Refusal):
    """Another runner has the lock of the folder."""
    status = BUSY


class NoRoom(Refusal):
    """The disk is full, or the folder cannot be written to."""
    status = NO_ROOM


class Interrupted(Refusal):
    """The user has pressed Ctrl-C."""
    status = INTERRUPTED


def closest(word, known, otherwise):
    """Returns a suggestion for a name that is not known."""
    found = difflib.get_close_matches(str(word), [str(name) for name in known], 1, 0.6)
    return f"did you mean '{found[0]}'?" if found else otherwise


def listed(names):
    return ", ".join(str(name) for name in names) or "none"
