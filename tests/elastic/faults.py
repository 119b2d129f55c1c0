#!/usr/bin/env python3
"""Starts tests/elastic/worker on some ranks, causes faults, and checks how the job continues. The state of every worker
has a checksum over the samples that committed steps used: each sample must have been used exactly once.

usage: faults.py WHAT --program PATH --rounds N [--hosts one|each|two] [--seed S] [--first I]
  kill       SIGKILL of one or two ranks, at once or the second during the recovery from the first: the others end with 0
  first      the same for rank 0, which writes the next generation
  join       a process joins: it ends with 0, like the others
  replace    a rank is killed and another process joins at nearly the same time
  pause      SIGSTOP of a rank for 200 ms: the membership does not change
  freeze     SIGSTOP of every rank for 1 to --longest seconds, as when a virtual machine is suspended: the membership does not change
  stop       SIGSTOP of a rank for good: the others end with 0 without it; after SIGCONT it detects that it is fenced, or on the
             same host it has been killed
  split      a rank out of four is stopped, the others are killed and restarted, and after 12 s the stopped rank continues: at
             most one training remains, and ranks without a part in it end with a status of their own
  anew       rank 0 is killed, then the store that it has started, and rank 0 is restarted: it starts a new store and a new job, and
             the others, which the new store does not know, end with 10 (with --store file)
  leave      SIGTERM of a rank: it ends with 143, the others with 0
  store      the store ends and restarts, and a rank is killed in the meantime: the others end with 0 (with --store etcd or
             muster-store)
  restarts   the store ends and restarts ten times, while ranks are killed and join: the others end with 0 (with the same)
  lost       the store ends for good: training continues, reports that once, and ends with 12 when a rank is killed
  churn      processes join and leave again, two generations each: they leave no memory and no files behind
  few        fewer ranks than --min-ranks are left: all end with 11
  save       ranks are killed while the state is saved: the saved state is complete, and another job continues from it
  ahead      each rank has loaded another state: all begin with the furthest
  disk       saving and reading the state take twice as long as --timeout: no rank dies
  storm      kills and joins, one after the other, as long as the job lasts
--store file is a store that rank 0 starts, a muster-store of PATH, which the others find through a file in a folder.
--store etcd starts an etcd for each round, with a folder that outlives the process; the status is 77 without an etcd. --store
muster-store starts a muster-store (--store-program) likewise; --store launch uses the store of a muster-launch (the same flag),
which starts no rank.
--hosts selects the ranks that count as on one host (MUSTER_HOST): they then use shm, tcp, or both.
A failure names its round: --first I --rounds 1 with the same seed repeats it.
"""
import argparse
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "comm"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python/muster_bench/presets"))
from ports import free_port  # noqa: E402
from ranks import DEADLINE, Failure, Process  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("what", choices=["kill", "first", "join", "replace", "pause", "freeze", "stop", "split", "anew", "leave", "store", "restarts", "lost", "churn", "few", "save", "disk", "ahead", "storm"])
parser.add_argument("--program", required=True)
parser.add_argument("--rounds", type=int, default=10)
parser.add_argument("--first", type=int, default=0)
parser.add_argument("--seed", type=int, default=int(os.environ.get("MUSTER_TEST_SEED", "20261121")))
parser.add_argument("--longest", type=float, default=3)
parser.add_argument("--hosts", choices=["one", "each", "two"], default="one")
parser.add_argument("--store", choices=["file", "etcd", "muster-store", "launch"], default="file")
parser.add_argument("--store-program")
parser.add_argument("--steps", type=int, default=60, help="steps of the job, 10 ms each; also the duration of a storm")
parser.add_argument("--values", type=int, default=200000)
options = parser.parse_args()


class Etcd:
    """An etcd with one member, which can be ended and restarted with its contents."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="muster-etcd-")
        self.address, peer = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self.words = ["etcd", "--data-dir", self.folder, "--log-level", "error", "--listen-client-urls",
                      f"http://{self.address}", "--advertise-client-urls", f"http://{self.address}", "--listen-peer-urls",
                      f"http://{peer}", "--initial-advertise-peer-urls", f"http://{peer}", "--initial-cluster",
                      f"default=http://{peer}"]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)


class Store:
    """A muster-store, which can be ended and restarted with its contents."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="muster-store-")
        self.address = f"127.0.0.1:{free_port()}"
        self.start()

    def start(self):
        words = [options.store_program, "--listen", self.address, "--data", self.folder]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE)
        self.process.stdout.readline()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def close(self):
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)


class Launch:
    """A muster-launch whose store the ranks of the test use, instead of a store of their own."""

    def __init__(self):
        words = [options.store_program, "-n", "1", "sh", "-c", 'echo "$MUSTER_RENDEZVOUS $MUSTER_TOKEN"; cat']
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.place, os.environ["MUSTER_TOKEN"] = self.process.stdout.readline().split()
        self.address = self.place.removeprefix("tcp://")

    def close(self):
        self.process.communicate("")


class Job:
    def __init__(self, draw, number, ranks, flags=()):
        self.draw = draw
        self.ranks = ranks
        self.folder = tempfile.mkdtemp(prefix="muster-faults-")
        self.name = f"faults-{os.getpid()}-{number}"
        self.flags = list(flags)
        self.crew = []
        self.joined = 0
        for rank in range(ranks):
            self.start(rank)

    def start(self, rank, *more):
        host = {"one": "auto", "each": f"host-{len(self.crew)}", "two": f"host-{rank % 2}"}[options.hosts]
        environment = dict(RANK=str(rank), WORLD_SIZE=str(self.ranks), LOCAL_RANK="0", MUSTER_ELASTIC="on",
                           MUSTER_JOB=self.name, MUSTER_HOST=host,
                           MUSTER_RENDEZVOUS=self.store())
        words = ["--samples", "500", "--batch", "50", "--epochs", str(options.steps // 10), "--values",
                 str(options.values), "--steps", *self.flags, *more]
        if options.what == "ahead" and rank > 0:
            words += ["--ahead", str(rank)]  # the last of three ranks has trained two epochs of ten steps
        words = [word.replace("FOLDER", self.folder) for word in words]
        self.crew.append(Process(rank, [options.program, *words], environment))
        return self.crew[-1]

    def store(self):
        if options.store == "file":
            return f"file:{self.folder}"
        return f"{'etcd' if options.store == 'etcd' else 'tcp'}://{STORE.address}"

    def join(self, *more):
        self.joined += 1
        return self.start(self.ranks - 1, *more)

    def await_start(self):
        for rank in self.crew:
            rank.expect("ready")

    def train_all(self, but=()):
        """Waits until all ranks except `but` have trained, however long they take to join; the job may then end (--until)."""
        living, until = [rank for rank in self.crew if rank not in but], time.monotonic() + DEADLINE
        while not all([has_trained(rank) for rank in living]):
            if time.monotonic() > until or not all(rank.open for rank in living):
                raise Failure(f"not all come to train: {[rank.lines[-2:] for rank in living]}")
            time.sleep(0.01)
        open(f"{self.folder}/enough", "w").close()

    def nap(self, most):
        time.sleep(most * self.draw.random())

    def end_well(self, but=()):
        """Checks that all ranks except `but` end with 0 and the same checksum; returns their last generations."""
        seen = set()
        for rank in self.crew:
            if rank in but:
                continue
            status = rank.end()
            wrong = [line for line in rank.lines if line.startswith("wrong")]
            if status != 0 or wrong:
                raise Failure(f"rank {rank.rank} (process {rank.pid}) ends with {status}: {wrong} {rank.lines[-3:]} "
                              f"{rank.errors}")
            seen.add(tuple(rank.expect("done").split(" ")[1:3]))
        if len(seen) != 1:
            raise Failure(f"not all end with the same state: {seen}")
        self.check_steps()
        return {int(rank.expect("done").split(" ")[3]) for rank in self.crew if rank not in but}

    def check_steps(self):
        """Checks that no rank commits a step twice, or in an older generation than the previous step."""
        for rank in self.crew:
            before, generation = -1, 0
            for line in rank.lines:
                if not line.startswith("step "):
                    continue
                step, of = (int(word) for word in line.split(" ")[1:3])
                if of < generation or (step <= before and of == generation) or step < before:
                    raise Failure(f"rank {rank.rank} did step {step} of generation {of} after step {before} of {generation}")
                before, generation = step, of

    def close(self):
        for rank in self.crew:
            rank.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def kill(job, victims):
    job.await_start()
    job.nap(0.3)
    for victim in victims:
        os.kill(victim.pid, signal.SIGKILL)
        job.nap(job.draw.choice([0, 0.005, 0.03]))
    job.end_well(but=victims)


def most_at_once():
    """Returns how many of three ranks may die at once: on separate hosts a death is a suspicion, which needs a majority."""
    return 2 if options.hosts == "one" else 1


def act_kill(job):
    kill(job, job.draw.sample(job.crew, job.draw.randint(1, most_at_once())))


def act_first(job):
    kill(job, job.crew[:job.draw.randint(1, most_at_once())])


def act_join(job):
    job.await_start()
    job.nap(0.1)
    for _ in range(job.draw.randint(1, 2)):
        job.join()
    job.train_all()
    job.end_well()


def act_replace(job):
    job.await_start()
    victim = job.draw.choice(job.crew)
    job.join()
    job.nap(0.05)
    os.kill(victim.pid, signal.SIGKILL)
    job.train_all(but=[victim])
    job.end_well(but=[victim])


def act_pause(job):
    job.await_start()
    job.nap(0.1)
    victim = job.draw.choice(job.crew)
    os.kill(victim.pid, signal.SIGSTOP)
    time.sleep(0.2)
    os.kill(victim.pid, signal.SIGCONT)
    generations = job.end_well()
    if generations != {1}:
        raise Failure(f"a pause made generations {generations}")


def act_freeze(job):
    job.await_start()
    job.nap(0.1)
    order = job.draw.sample(job.crew, len(job.crew))
    for rank in order:
        os.kill(rank.pid, signal.SIGSTOP)
    time.sleep(job.draw.uniform(1, options.longest))
    for rank in job.draw.sample(order, len(order)):
        os.kill(rank.pid, signal.SIGCONT)
    generations = job.end_well()
    if generations != {1}:
        raise Failure(f"a pause of the whole job made generations {generations}")


def act_stop(job):
    job.await_start()
    job.nap(0.2)
    victim = job.draw.choice(job.crew)
    os.kill(victim.pid, signal.SIGSTOP)
    job.end_well(but=[victim])
    os.kill(victim.pid, signal.SIGCONT)
    status = victim.end()
    wanted = (-signal.SIGKILL,) if options.hosts == "one" else (10, 13, -signal.SIGKILL)
    if status not in wanted:
        raise Failure(f"the rank that was stopped ends with {status}: {victim.lines[-2:]} {victim.errors}")


def act_split(job):
    """The only remaining rank of the generation is stopped; restarted ranks find the generation only through the store."""
    job.await_start()
    job.nap(0.2)
    stopped = job.draw.choice(job.crew)
    os.kill(stopped.pid, signal.SIGSTOP)
    time.sleep(0.05)
    killed = [rank for rank in job.crew if rank is not stopped]
    for rank in killed:
        os.kill(rank.pid, signal.SIGKILL)
    # Restarts at once, or after the leases of the ranks at the store have ended.
    late = job.draw.choice([0, 11])
    time.sleep(late)
    for rank in killed:
        job.start(rank.rank)
    time.sleep(12 - late)
    os.kill(stopped.pid, signal.SIGCONT)
    done = []
    for rank in job.crew:
        status = rank.end()
        if rank in killed:
            continue
        # 0: the rank was in the training; 10, 12, 13: it was not, or could not know; SIGKILL: another rank on the host killed it.
        if status not in (0, 10, 12, 13) and not (rank is stopped and status == -signal.SIGKILL):
            raise Failure(f"rank {rank.rank} (process {rank.pid}) ends with {status}: {rank.lines[-3:]} {rank.errors}")
        if any(line.startswith("wrong") for line in rank.lines):
            raise Failure(f"rank {rank.rank}: {rank.lines[-3:]}")
        if status == 0:
            done.append([line.split(" ")[1:4] for line in rank.lines if line.startswith("rebuilt")][-1])
    groups = {(generation, size) for generation, _, size in done}
    if len(groups) > 1 or len({place for _, place, _ in done}) < len(done):
        raise Failure(f"several trainings came to their end: of generation, rank and size {done}")


def store_of(job):
    """Returns the process that serves the store that rank 0 has started."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as words:
                line = words.read().split(b"\0")
        except OSError:
            continue  # the process has ended
        if line[0].endswith(b"muster-store") and f"{job.folder}/muster-{os.geteuid()}-{job.name}".encode() in line:
            return int(name)
    raise Failure("there is no muster-store of this job")


def act_anew(job):
    job.await_start()
    first, *others = job.crew
    os.kill(first.pid, signal.SIGKILL)
    until = time.monotonic() + 30
    while not all(any(line.startswith("rebuilt 2 ") for line in rank.lines) for rank in others):
        for rank in others:
            rank.read(until)
    os.kill(store_of(job), signal.SIGKILL)
    job.nap(0.5)
    job.start(0)
    statuses = [rank.end() for rank in job.crew]
    if statuses != [-signal.SIGKILL, *(10 for _ in others), 0]:
        raise Failure(f"the ranks end with {statuses}: {[(rank.lines[-1:], rank.errors) for rank in job.crew]}")


def act_leave(job):
    job.await_start()
    job.nap(0.2)
    victim = job.draw.choice(job.crew)
    os.kill(victim.pid, signal.SIGTERM)
    job.end_well(but=[victim])
    status = victim.end()
    if status not in (0, 143):
        raise Failure(f"the rank that left ends with {status}: {victim.lines[-2:]} {victim.errors}")


def act_store(job):
    job.await_start()
    job.nap(0.1)
    STORE.end()
    job.nap(0.1)
    victim = job.draw.choice(job.crew)
    os.kill(victim.pid, signal.SIGKILL)
    job.nap(0.5)
    STORE.start()
    job.end_well(but=[victim])


def act_lost(job):
    job.await_start()
    STORE.end()
    time.sleep(1)
    before = [len(rank.lines) for rank in job.crew]
    for rank in job.crew:
        rank.read(time.monotonic() + 30)  # its next step
    assert all(len(rank.lines) > lines for rank, lines in zip(job.crew, before))
    victim = job.draw.choice(job.crew)
    os.kill(victim.pid, signal.SIGKILL)
    for rank in job.crew:
        status = rank.end()
        if rank is not victim and (status != 12 or rank.errors.count("failures are handled when the store answers") > 1):
            raise Failure(f"rank {rank.rank} ends with {status}: {rank.errors}")


def act_restarts(job):
    job.await_start()
    gone = []
    for _ in range(10):
        STORE.end()
        job.nap(0.2)
        living = [rank for rank in job.crew if rank not in gone]
        trained = [rank for rank in living if has_trained(rank)]
        if len(living) > 2 and len(trained) > 1 and job.draw.random() < 0.6:
            victim = job.draw.choice(living)
            os.kill(victim.pid, signal.SIGKILL)
            gone.append(victim)
        elif len(living) < 5:
            job.join()
        job.nap(0.3)
        STORE.start()
        job.nap(0.5)
    job.train_all(but=gone)
    job.end_well(but=gone)


def held_by(rank):
    """Returns the resident megabytes and the number of open files of a process."""
    with open(f"/proc/{rank.pid}/status", encoding="ascii") as status:
        kilobytes = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    return kilobytes / 1024, len(os.listdir(f"/proc/{rank.pid}/fd"))


def act_churn(job):
    job.await_start()
    for cycle in range(20):
        if cycle == 8:
            memory, files = held_by(job.crew[0])
        guest = job.join()
        guest.expect("ready")
        os.kill(guest.pid, signal.SIGTERM)
        guest.end()
    more, later = held_by(job.crew[0])
    if more > memory + 10 or later > files + 24:
        raise Failure(f"rank 0 has {more:.0f} MB and {later} files after 40 generations, {memory:.0f} and {files} after 16")
    for rank in job.crew[:job.ranks]:
        os.kill(rank.pid, signal.SIGTERM)
    for rank in job.crew[:job.ranks]:
        if rank.end() not in (0, 143):
            raise Failure(f"rank {rank.rank} ends with {rank.end()}: {rank.errors}")


def act_few(job):
    job.await_start()
    victim = job.draw.choice(job.crew)
    os.kill(victim.pid, signal.SIGKILL)
    for rank in job.crew:
        status = rank.end()
        if rank is not victim and status != 11:
            raise Failure(f"rank {rank.rank} ends with {status}: {rank.lines[-2:]} {rank.errors}")


def act_ahead(job):
    """Checks that all ranks begin with the state of the rank that loaded the furthest one, whichever rank it is."""
    job.end_well()
    for rank in job.crew:
        first = next(line for line in rank.lines if line.startswith("step "))
        if int(first.split(" ")[1]) != 20:
            raise Failure(f"rank {rank.rank} begins with {first}, though a rank had the state of step 20")


def act_save(job):
    """Kills the rank that writes or other ranks, at any moment of the write."""
    job.await_start()
    wanted = job.draw.randint(1, 3)
    while sum(line.startswith("saves") for line in job.crew[0].lines) < wanted:
        job.crew[0].read(time.monotonic() + 30)
    job.nap(0.04)
    victims = job.draw.sample(job.crew, job.draw.randint(1, 2))
    for victim in victims:
        os.kill(victim.pid, signal.SIGKILL)
        job.nap(job.draw.choice([0, 0.01]))
    job.end_well(but=victims)
    go_on_after(job, options.steps, options.steps // 10 + 2)


def go_on_after(job, steps, epochs):
    """Checks that another job continues from the saved state."""
    after = Job(job.draw, "after", 2, [*(flag.replace("FOLDER", job.folder) for flag in job.flags), "--epochs", str(epochs)])
    try:
        after.end_well()
        for rank in after.crew:
            if int(rank.expect("goes").split(" ")[3]) != steps:
                raise Failure(f"the job after goes on after {rank.lines}")
    finally:
        after.close()


def act_disk(job):
    job.end_well()
    go_on_after(job, 20, 3)


def has_trained(rank):
    while select.select([rank.process.stdout], [], [], 0)[0] and rank.open:
        rank.read(time.monotonic())
    return "ready" in " ".join(rank.lines)


def act_storm(job):
    job.await_start()
    gone = []
    until = time.monotonic() + 0.01 * options.steps
    while time.monotonic() < until:
        living = [rank for rank in job.crew if rank not in gone]
        # Only ranks that have trained have the state: if these all died at once, the state would be lost.
        trained = [rank for rank in living if has_trained(rank)]
        if len(living) > 2 and len(trained) > 1 and job.draw.random() < 0.6:
            victim = job.draw.choice(living)
            os.kill(victim.pid, signal.SIGKILL)
            gone.append(victim)
        elif len(living) < 5:
            job.join()
        job.nap(0.1)
    job.train_all(but=gone)
    job.end_well(but=gone)


if options.store == "etcd" and shutil.which("etcd") is None:
    print("SKIPPED: there is no etcd")
    sys.exit(77)
STORE = None
print(f"seed {options.seed}, rounds {options.first} to {options.first + options.rounds - 1}")
begin = time.monotonic()
for number in range(options.first, options.first + options.rounds):
    draw = random.Random(f"{options.seed}.{number}")
    flags = {"few": ["--min-ranks", "3", "--quorum-timeout", "4"],
             "save": ["--checkpoint", "FOLDER/checkpoints", "--values", "2000000", "--quorum-timeout", "10"],
             "disk": ["--checkpoint", "FOLDER/checkpoints", "--ballast", "150", "--disk", "40", "--timeout", "2", "--epochs", "2"],
             "churn": ["--epochs", "100000", "--work", "2"],
             "split": ["--epochs", "40", "--quorum-timeout", "20"],
             "anew": ["--epochs", "60", "--quorum-timeout", "4", "--min-ranks", "1"],
             "lost": ["--epochs", "100000", "--quorum-timeout", "3"],
             "restarts": ["--quorum-timeout", "20"],
             "freeze": ["--quorum-timeout", "10", "--missed-heartbeats", "5"],
             "stop": ["--quorum-timeout", "10", "--missed-heartbeats", "10"]}.get(options.what, ["--quorum-timeout", "10"])
    if options.what in ("join", "replace", "restarts", "storm"):
        flags += ["--epochs", "3000", "--until", "FOLDER/enough"]
    STORE = {"etcd": Etcd, "muster-store": Store, "launch": Launch}.get(options.store, lambda: None)()
    job = Job(draw, number, 4 if options.what == "split" else 3, flags)
    try:
        globals()["act_" + options.what](job)
    except Failure as failure:
        for rank in job.crew:
            print(f"process {rank.pid} (rank {rank.rank}):", [line for line in rank.lines if not line.startswith("step ")])
        sys.exit(f"round {number}: {failure}\nagain: faults.py {options.what} --hosts {options.hosts} --program "
                 f"{options.program} --seed {options.seed} --first {number} --rounds 1")
    finally:
        job.close()
        if STORE:
            STORE.close()
print(f"{options.rounds} rounds in {time.monotonic() - begin:.1f} s")
