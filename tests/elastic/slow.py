#!/usr/bin/env python3
"""Checks that slow ranks and connections are reported, and nothing else, with tests/elastic/worker as the ranks.

usage: slow.py WHAT --program PATH [--hosts one|each] [--store-program PATH] [--steps N] [--ranks N] [--seed S]
  rank      a rank gets so small a part of a processor (a cgroup's quota) that its steps take ten times as long as the others':
            it is reported within 20 steps
  link      the outgoing bandwidth of a host out of three (network namespaces) is less than a tenth of the others': its connection
            is reported within 20 steps, and a rank at either end leaves
  replaced  a rank takes ten times as long as the others and has to leave, while no rank can be spared and another process waits:
            it is reported within 20 steps and ends with 15, the other process replaces it, each sample is used once
  noisy     --steps steps of equal ranks, beside processes that occupy a processor now and then: nothing is reported
--hosts selects the ranks that count as on one host (MUSTER_HOST): over shm or tcp. No time is measured: steps are counted.
Ends with 77 and prints the reason if such hosts or quotas cannot be created.
"""
import argparse
import contextlib
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(TESTS, "comm"), os.path.join(TESTS, "..", "python")]
from muster_bench import holding, hosts  # noqa: E402
from ranks import DEADLINE, Failure, Process  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("what", choices=["rank", "link", "replaced", "noisy"])
parser.add_argument("--program", required=True)
parser.add_argument("--store-program")
parser.add_argument("--hosts", choices=["one", "each"], default="one")
parser.add_argument("--ranks", type=int, default=3)
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--seed", type=int, default=int(os.environ.get("MUSTER_TEST_SEED", "20261121")))
options = parser.parse_args()
WITHIN = 20    # steps
SKIP = 77


@contextlib.contextmanager
def job():
    """Starts ranks, on one host or each on a separate host, with a store that rank 0 starts."""
    with tempfile.TemporaryDirectory(prefix="muster-slow-") as folder:
        crew = []

        def start(rank, *words, ranks=options.ranks):
            environment = dict(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK="0", MUSTER_ELASTIC="on", MUSTER_JOB=f"slow-{os.getpid()}",
                               MUSTER_HOST="auto" if options.hosts == "one" else f"host-{len(crew)}", MUSTER_RENDEZVOUS=f"file:{folder}")
            crew.append(Process(rank, [options.program, "--samples", "500", "--batch", "50", "--quorum-timeout", "10", *words], environment))
            return crew[-1]
        try:
            yield crew, start
        finally:
            for rank in crew:
                rank.close()


def read_all(crew):
    """Reads the ranks' available output."""
    for rank in crew:
        while rank.open and select.select([rank.process.stdout], [], [], 0)[0]:
            rank.read(time.monotonic())


def steps_of(rank, first=0):
    return sum(line.startswith("step ") for line in rank.lines[first:])


def await_steps(crew, count):
    for rank in crew:
        while steps_of(rank) < count:
            if not rank.open:
                raise Failure(f"rank {rank.rank} ended ({rank.end()}): {rank.errors}")
            rank.read(time.monotonic() + DEADLINE)


def refuse_names(crew):
    said = [line for rank in crew for line in rank.lines if line.startswith("named")]
    if said:
        raise Failure(f"nothing is slow yet, and {said}")


def await_name(crew, first, word):
    """Waits for the first report, in any rank's lines from `first` on, and checks the rank's number of steps until then."""
    until = time.monotonic() + DEADLINE
    while True:
        took = {}
        for rank, begin in zip(crew, first):
            named = [at for at, line in enumerate(rank.lines) if at >= begin and line.startswith("named ")]
            if named:
                text = rank.lines[named[0]]
                if word not in text:
                    raise Failure(f"{text}: that is not slow ({word})")
                took[sum(line.startswith("step ") for line in rank.lines[begin:named[0]])] = text
        if took:
            count = min(took)
            print(f"after {count} steps: {took[count]}")
            if count > WITHIN:
                raise Failure(f"it is named after {count} steps")
            return
        if any(steps_of(rank, begin) > 10 * WITHIN for rank, begin in zip(crew, first)):
            raise Failure(f"it is not named in {10 * WITHIN} steps: {[rank.lines[-3:] for rank in crew]}")
        ready = select.select([rank.process.stdout for rank in crew if rank.open], [], [], until - time.monotonic())[0]
        if not ready:
            raise Failure("no rank ends or says anything more")
        read_all(crew)


def end_all(crew):
    for rank in crew:
        os.kill(rank.pid, signal.SIGTERM)
    statuses = [rank.end() for rank in crew]
    if statuses != [143] * len(crew):
        raise Failure(f"the others end with {statuses}: {[rank.errors for rank in crew]}")


def quota():
    """Creates a cgroup with a twentieth of a processor, in short periods, which acts like a slower processor without long pauses."""
    holding.PERIOD = 20_000
    for files in (holding._version_2(0.05, 0), holding._version_1(0.05, 0)):
        made = holding._make(f"muster-slow-{os.getpid()}", files)
        if made:
            return made
    print("skipped: no cgroup with a quota can be made here")
    sys.exit(SKIP)


def run_rank():
    groups = quota()
    try:
        with job() as (crew, start):
            for rank in range(options.ranks):
                start(rank, "--epochs", "1000000", "--values", "1000", "--work", "0", "--burn", "3", "--steps")
            await_steps(crew, 100)
            read_all(crew)
            refuse_names(crew)
            victim = random.Random(options.seed).choice(crew)
            first = [len(rank.lines) for rank in crew]
            for group in groups:
                with open(group / "cgroup.procs", "r+", encoding="ascii") as members:
                    members.write(str(victim.pid))
            await_name(crew, first, f"rank {victim.rank} is slow")
    finally:
        for group in groups:
            for _ in range(100):    # its last process may not have ended yet
                with contextlib.suppress(OSError):
                    group.rmdir()
                    break
                time.sleep(0.05)


def run_link():
    reason = hosts.missing()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(SKIP)
    with hosts.Network(4) as network, contextlib.ExitStack() as ends:
        *ranked, apart = network.hosts
        for host in ranked:
            host.limit(400_000_000)
        serving, store = hosts.serve_store(options.store_program, apart)
        ends.callback(lambda: (serving.kill(), serving.wait()))
        crew = []
        for rank, host in enumerate(ranked):
            environment = dict(RANK=str(rank), WORLD_SIZE="3", MUSTER_ELASTIC="on", MUSTER_JOB=network.name, MUSTER_RENDEZVOUS=store)
            crew.append(Process(rank, host.inside(options.program, "--samples", "500", "--batch", "50", "--epochs", "1000000", "--values", "100000",
                                                  "--burn", "3", "--steps", "--quorum-timeout", "5", "--slow-ranks", "remove"), environment))
            ends.callback(crew[-1].close)
        await_steps(crew, 100)
        read_all(crew)
        refuse_names(crew)
        for rank in crew:
            if not rank.open:
                raise Failure(f"nothing is slow yet, and rank {rank.rank} ended ({rank.end()}): {rank.errors}")
        victim = random.Random(options.seed).choice(crew)
        first = [len(rank.lines) for rank in crew]
        ranked[victim.rank].limit(20_000_000, "16kb")
        await_name(crew, first, f"rank {victim.rank} ")     # its incoming traffic is slow as well, by late acknowledgements
        until = time.monotonic() + DEADLINE
        while all(rank.open for rank in crew):  # a rank at either end: with three ranks the cause cannot be identified
            if time.monotonic() > until:
                raise Failure("no rank leaves")
            select.select([rank.process.stdout for rank in crew], [], [], DEADLINE)
            read_all(crew)
        left = next(rank for rank in crew if not rank.open)
        if left.end() != 15:
            raise Failure(f"rank {left.rank} ends with {left.end()}: {left.errors}")
        end_all([rank for rank in crew if rank is not left])


def run_replaced():
    with job() as (crew, start):
        slow = random.Random(options.seed).randrange(options.ranks)
        for rank in range(options.ranks + 1):   # the last process finds no room
            if rank == options.ranks:
                for one in crew:
                    one.expect("ready")
            start(rank % options.ranks, "--epochs", "12", "--steps", "--work", "100" if rank == slow else "10", "--slow-ranks", "remove",
                  "--min-ranks", str(options.ranks), "--max-ranks", str(options.ranks))
        victim = crew[slow]
        await_name(crew, [0] * len(crew), f"rank {slow} is slow")
        if victim.end() != 15:
            raise Failure(f"the slow rank ends with {victim.end()}: {victim.errors}")
        rest = [rank for rank in crew if rank is not victim]
        if any(rank.end() != 0 for rank in rest):
            raise Failure(f"the others end with {[rank.end() for rank in rest]}: {[rank.errors for rank in rest]}")
        sizes = {line.split(" ")[3] for rank in crew for line in rank.lines if line.startswith("rebuilt ")}
        ends = {rank.expect("done") for rank in rest}
        if sizes != {str(options.ranks)} or len(ends) != 1 or not ends.pop().endswith(" 2"):
            raise Failure(f"groups of {sizes} ranks, which end with {[rank.expect('done') for rank in rest]}")


NOISE = """import random, time, sys
draw = random.Random(int(sys.argv[1]))
while True:
    until = time.monotonic() + draw.expovariate(1 / 0.1)
    while time.monotonic() < until: pass
    time.sleep(draw.expovariate(1 / 0.1))
"""


def run_noisy():
    noise = [subprocess.Popen([sys.executable, "-c", NOISE, str(options.seed + core)],
                              preexec_fn=lambda core=core: os.sched_setaffinity(0, [core])) for core in list(os.sched_getaffinity(0))[:2]]
    try:
        with job() as (crew, start):
            for rank in range(options.ranks):
                start(rank, "--epochs", str(options.steps // 10), "--values", "50000", "--work", "0", "--burn", "0.2")
            said = [rank.process.communicate(timeout=1 + options.steps * DEADLINE / 1000) for rank in crew]
            reports = [line for _, errors in said for line in errors.decode().splitlines()]
            steps = {line.split(b" ")[2] for out, _ in said for line in out.splitlines() if line.startswith(b"done ")}
            print(f"{steps} steps of {options.ranks} ranks, {len(reports)} reports: {reports[:5]}")
            if steps != {str(options.steps).encode()} or reports:
                raise Failure("something is named, or the job did not end well")
    finally:
        for one in noise:
            one.kill()
            one.wait()


if options.what != "link" and shutil.which("muster-store") is None:
    sys.exit("muster-store is not in PATH")
try:
    {"rank": run_rank, "link": run_link, "replaced": run_replaced, "noisy": run_noisy}[options.what]()
except Failure as failure:
    sys.exit(f"{failure}\nagain: slow.py {options.what} --hosts {options.hosts} --program {options.program} --seed {options.seed}")
