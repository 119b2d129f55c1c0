#!/usr/bin/env python3
"""chosen.py --mpirun 'WORDS' --transport NAME PROGRAM: every rank of a world follows rank 0's variables, regardless of its own.

Each case starts a rank with each given environment (as app contexts of a single mpirun) and checks the
choices of the ranks, the log, and how the ranks end.
"""
import argparse
import os
import re
import shlex
import subprocess
import tempfile

parser = argparse.ArgumentParser()
parser.add_argument("--mpirun", required=True)
parser.add_argument("--transport", choices=["mpi", "shm"], required=True)
parser.add_argument("program")
options = parser.parse_args()
folder = tempfile.TemporaryDirectory()


def file(name, text):
    path = os.path.join(folder.name, name)
    with open(path, "w") as out:
        out.write(text)
    return path


def run(*environments):
    # Uses a single script that knows the ranks, because several programs (mpirun A : B) crash Debian's Open MPI 5.0.7.
    cases = [f"{rank}) export {shlex.join(f'{name}={value}' for name, value in variables.items())};;"
             for rank, variables in enumerate(environments) if variables]
    script = file("rank.sh", f"case ${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} in {' '.join(cases)} esac\n"
                             f"{shlex.quote(options.program)}\necho \"status=$?\"\n")
    command = [*shlex.split(options.mpirun), "-n", str(len(environments)), "sh", script]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, env=clean)
    print(done.stdout + done.stderr)
    return done


def statuses(done):
    return [int(found) for found in re.findall(r"status=(\d+)", done.stdout)]


def agree(expected, *environments):
    """Checks that all ranks chose `expected`, and that the collectives count from 0."""
    done = run(*({"MUSTER_TRANSPORT": options.transport, **variables} for variables in environments))
    lines = sorted(re.findall(r"^rank \d+: .*$", done.stdout, re.M))
    assert lines == [f"rank {r}: first collective 0, {expected}" for r in range(len(environments))], lines
    assert statuses(done) == [0] * len(environments), done
    return done.stderr


def end(says, *environments):
    """Checks that all ranks end as with a wrong setting, with one line that names the setting, and without waiting for
    a deadline."""
    done = run(*({"MUSTER_TIMEOUT": "1000", **variables} for variables in environments))
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    assert statuses(done) == [2] * len(environments), done
    assert len(errors) == 1 and says in errors[0], errors


other = {"mpi": "tree", "shm": "native"}[options.transport]  # the default of a broadcast, which has no ring
rules = "allreduce:0-1k:tree,allreduce:1k-inf:ring,broadcast:chain"
agree(f"allreduce ring and ring, broadcast {other}", {"MUSTER_ALGORITHM": "ring"}, {"MUSTER_ALGORITHM": "tree"})
agree("allreduce tree and tree, broadcast tree", {"MUSTER_ALGORITHM": "tree"}, {"MUSTER_ALGORITHM": "ring"}, {})
log = agree("allreduce tree and ring, broadcast chain", {"MUSTER_ALGORITHM": rules}, {},
            {"MUSTER_ALGORITHM": "tree", "MUSTER_LOG_LEVEL": "info", "MUSTER_LOG_RANKS": "all"})
assert log.count("is ignored") == 1 and f"MUSTER_ALGORITHM 'tree' is ignored (rank 0 has '{rules}'" in log, log

# Rules longer than any transport sends at once.
steps = ",".join(f"allreduce:{n}-{n + 4}:tree" for n in range(0, 2000, 4))
agree("allreduce tree and halving_doubling, broadcast chain",
      {"MUSTER_ALGORITHM": f"allreduce:halving_doubling,broadcast:chain,{steps}"}, {"MUSTER_ALGORITHM": "tree"})

# An invalid setting at any rank ends all ranks in the same way.
end("algorithm 'rimg' is not one of", {"MUSTER_ALGORITHM": "rimg"}, {}, {})
end("algorithm 'rimg' is not one of", {}, {"MUSTER_ALGORITHM": "rimg"}, {})
end("algorithm 'rimg' is not one of", *[{"MUSTER_ALGORITHM": "rimg"}] * 2)
print("all as expected")
