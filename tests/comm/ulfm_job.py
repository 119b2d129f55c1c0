"""Jobs under Open MPI's mpirun --with-ft ulfm whose ranks are killed, read line by line by tests."""
import argparse
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

TELL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tell.sh")
HERE = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def there_is_ulfm():
    return shutil.which("ompi_info") is not None and "FT MPI support: yes" in subprocess.run(
        ["ompi_info"], capture_output=True, text=True, check=False).stdout


def arguments_of(text, rounds):
    """Returns a parser with the common options of such tests."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("MUSTER_TEST_SEED", "20261122")))
    return parser


def skip_without_ulfm():
    if not there_is_ulfm():
        print("SKIPPED: there is no Open MPI with ULFM")
        sys.exit(77)


def mpirun_words(ranks):
    return ["mpirun", "--with-ft", "ulfm", "--map-by", ":OVERSUBSCRIBE", "-n", str(ranks)]


class Job:
    """A job whose ranks all run `words` with `variables` set. Its lines include the lines of processes started by
    `add`."""

    def __init__(self, ranks, words, variables, limit):
        self.words = words
        self.folder = tempfile.mkdtemp(prefix="muster-ulfm-")
        self.variables = {name: value.replace("FOLDER", self.folder) for name, value in variables.items()}
        self.crew = []
        self.said = queue.Queue()
        self.lines = []
        self.until = time.monotonic() + limit
        self.start(ranks, self.variables)

    def start(self, ranks, variables):
        names = [word for name in variables for word in ("-x", name)]
        process = subprocess.Popen([*mpirun_words(ranks), *names, TELL, *self.words], env=os.environ | HERE | variables,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                   start_new_session=True)

        def listen():
            for line in process.stdout:
                found = re.match(r"\W*(\w+): (\S+) ?(.*)", line)  # PRRTE puts zeros before some lines
                if found:
                    self.said.put(found.groups())
            process.wait()
            self.said.put(None)

        self.crew.append(process)
        threading.Thread(target=listen, daemon=True).start()

    def add(self, name):
        """Starts one more process of the same job with another mpirun, under that name."""
        self.start(1, self.variables | {"MUSTER_TEST_NAME": name})

    def events(self):
        """Yields (source, word, rest) for every line, until all have ended. Throws RuntimeError on a timeout."""
        ended = 0
        while ended < len(self.crew):
            try:
                entry = self.said.get(timeout=max(0.01, self.until - time.monotonic()))
            except queue.Empty:
                raise RuntimeError(f"it does not end:\n{self.tail()}") from None
            if entry is None:
                ended += 1
                continue
            self.lines.append(entry)
            yield entry

    def tail(self):
        return "\n".join([f"{source}: {word} {rest}" for source, word, rest in self.lines if word not in ("step", "NBC_Progress:")][-60:])

    def close(self):
        for process in self.crew:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        shutil.rmtree(self.folder, ignore_errors=True)


def run_rounds(options, one_round):
    """Returns the results of `one_round(number)`. A failure names its round: --first I --rounds 1 with the seed repeats
    that round."""
    results = []
    for number in range(options.first, options.first + options.rounds):
        try:
            results.append(one_round(number))
        except RuntimeError as failure:
            sys.exit(f"seed {options.seed}, round {number}: {failure}")
    return results
