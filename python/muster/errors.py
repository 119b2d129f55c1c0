"""The errors of muster, named as in C++. Every text has the form: problem (why) suggestion."""

__all__ = ["error", "configuration_error", "data_error", "source_error", "peer_failure", "timeout_error", "mismatch_error",
           "training_error", "departure"]


class error(RuntimeError):
    """The base of all errors that muster raises.

    ``exit_status`` is the exit status of a program that ends because of this error.
    """

    exit_status: int = 1


class configuration_error(error, ValueError):
    """An error in the user's input: a setting, a variable or an argument."""

    exit_status = 2


class data_error(error, ValueError):
    """A file or a record that cannot be read.

    ``file`` and ``record`` (the line, from 1; 0 without lines) are its place, ``offset`` a byte in files without lines,
    ``problem`` the text without the place. The cause is the exception of a function in Python, if it raised one.
    """

    exit_status = 3
    file: str = ""
    record: int = 0
    column: int = 0
    offset = None
    problem: str = ""


class source_error(error, ConnectionError):
    """A server of data that cannot be reached. The same call may succeed later.

    ``file`` and ``offset`` are the place in the data, ``problem`` is the text without the place.
    """

    exit_status = 8
    file: str = ""
    record: int = 0
    column: int = 0
    offset = None
    problem: str = ""


class peer_failure(error):
    """A failure at other ranks: they died, left, or reported an error. ``ranks`` lists the known failed ranks."""

    exit_status = 4
    ranks: list = []


class timeout_error(error, TimeoutError):
    """A blocking call reached its deadline.

    ``operation`` and ``sequence`` identify the collective; ``missing`` lists the ranks that did not arrive in it.
    """

    exit_status = 5
    operation: str = ""
    sequence: int = 0
    missing: list = []


class mismatch_error(error):
    """The ranks disagree about a collective: operation, count, type or root."""

    exit_status = 6


class training_error(error):
    """A training diverged: a reported value is not finite."""

    exit_status = 7


class departure(error):
    """The end of this process's part in an elastic job, which may continue without it.

    ``why`` is the name of the reason: "left", "fenced", "too_few", ... ``should_save`` is true at the one remaining
    member that saves the state.
    """

    why: str = ""
    should_save: bool = False
