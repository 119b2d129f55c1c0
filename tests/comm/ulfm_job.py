"""Jobs under Open MPI's mpirun --with-ft ulfm whose ranks are killed while others join: for tests, line by line."""
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
# Ranks that mpirun and prun start do not share memory, whatever their host: they reach each other by tcp.
HERE = {"OMPI_MCA_btl_tcp_if_include": "lo", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def there_is_ulfm():
    return shutil.which("ompi_info") is not None and "FT MPI support: yes" in subprocess.run(
        ["ompi_info"], capture_output=True, text=True, check=False).stdout


def arguments_of(text, rounds):
    """A parser of what such tests have in common."""
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


def mpirun_words(ranks, uri=None):
    """`uri`: a file that will say how prun gets at this job's daemon."""
    where = ["--report-uri", uri] if uri else []
    return ["mpirun", *where, "--with-ft", "ulfm", "--map-by", ":OVERSUBSCRIBE", "-n", str(ranks)]


def prun_words(uri, variables):
    """One process that joins: in the world of that mpirun, which knows no --with-ft for those that come later."""
    given = {"OMPI_MCA_mpi_ft_enable": "1", "OMPI_MCA_btl_tcp_if_include": "lo"} | variables
    return ["prun", "--dvm-uri", f"file:{uri}", "--enable-recovery", "--map-by", ":OVERSUBSCRIBE",
            *(word for name, value in given.items() for word in ("-x", f"{name}={value}")), "-n", "1"]


class Job:
    """`words` are run by every rank; `variables` are set for it. Lines come from all of them, those that join too."""

    def __init__(self, ranks, words, variables, limit):
        self.ranks = ranks
        self.words = words
        self.folder = tempfile.mkdtemp(prefix="muster-ulfm-")
        self.variables = {name: value.replace("FOLDER", self.folder) for name, value in variables.items()}
        self.crew = []
        self.joined = 0
        self.said = queue.Queue()
        self.lines = []
        self.until = time.monotonic() + limit
        names = [word for name in self.variables for word in ("-x", name)]
        self.start(lambda who: who.isdigit(), [*mpirun_words(ranks, self.uri), *names, TELL, *words])

    @property
    def uri(self):
        return os.path.join(self.folder, "uri")

    def start(self, is_its, words):
        process = subprocess.Popen(words, env=os.environ | HERE | self.variables, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)

        def listen():
            for line in process.stdout:
                found = re.match(r"\W*(\w+): (\S+) ?(.*)", line)  # PRRTE puts zeros before some
                if found and is_its(found[1]):  # mpirun repeats what those say that have joined
                    self.said.put(found.groups())
            process.wait()
            self.said.put(None)

        self.crew.append(process)
        threading.Thread(target=listen, daemon=True).start()

    def join(self):
        """The name by which it will be known."""
        name = f"joiner{self.joined}"
        self.joined += 1
        variables = self.variables | {"MUSTER_TEST_NAME": name, "RANK": str(self.ranks - 1), "WORLD_SIZE": str(self.ranks)}
        self.start(lambda who: who == name, [*prun_words(self.uri, variables), TELL, *self.words])
        return name

    def events(self):
        """(who, word, rest) for every line, until all have ended; a RuntimeError when that takes too long."""
        ended = 0
        while ended < len(self.crew):
            try:
                said = self.said.get(timeout=max(0.01, self.until - time.monotonic()))
            except queue.Empty:
                raise RuntimeError(f"it does not end:\n{self.tail()}") from None
            if said is None:
                ended += 1
                continue
            self.lines.append(said)
            yield said

    def tail(self):
        return "\n".join([f"{who}: {word} {rest}" for who, word, rest in self.lines if word not in ("step", "NBC_Progress:")][-60:])

    def close(self):
        for process in self.crew:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        shutil.rmtree(self.folder, ignore_errors=True)


def run_rounds(options, one_round):
    """The results of `one_round(number)`; a failure names its round, --first I --rounds 1 with the seed repeats that one."""
    results = []
    for number in range(options.first, options.first + options.rounds):
        try:
            results.append(one_round(number))
        except RuntimeError as failure:
            sys.exit(f"seed {options.seed}, round {number}: {failure}")
    return results
