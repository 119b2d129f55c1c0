#!/usr/bin/env python3
"""Trains an example program twice: undisturbed, and as an elastic job whose ranks are killed while others join. In a job
over MPI no rank joins. Both trainings must have equally good results.

usage: disturbed.py --by mpirun|ulfm|muster-launch --program PATH [--launcher PATH] [--ranks 4] [--every SECONDS] [--kills N] [--calm-ranks 1]
                   [--stops] [--exact] [--loss SHARE] [--accuracy POINTS] [--seed S] [--needs FILE] -- ARGUMENTS...

Each --every seconds a rank drawn from the seed dies by SIGKILL, and another process replaces it: muster-launch starts
the process itself, beside mpirun --enable-recovery this script starts it, and a job over MPI (ulfm: Open MPI 5) has no replacement.
After --kills kills the training continues undisturbed. With --stops every second kill is a SIGSTOP instead: the others
expel a silent rank, and on the same host kill it.
--loss is the allowed difference of the last validation loss, as a share, --accuracy the allowed decrease of the last accuracy.
With --exact the saved models must have the same bits. Ends with 77 without Open MPI's mpirun, or without the file of --needs.
"""
import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "comm"))
from ulfm_job import HERE, mpirun_words, there_is_ulfm  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--by", choices=["mpirun", "ulfm", "muster-launch"], required=True)
parser.add_argument("--program", required=True)
parser.add_argument("--launcher", default="muster-launch", help="where muster-launch is")
parser.add_argument("--ranks", type=int, default=4)
parser.add_argument("--calm-ranks", type=int, default=1, help="of the undisturbed run: threads of one process")
parser.add_argument("--every", type=float, default=2.0)
parser.add_argument("--kills", type=int, default=1000)
parser.add_argument("--stops", action="store_true")
parser.add_argument("--loss", type=float, default=1e-3)
parser.add_argument("--accuracy", type=float, default=0.01)
parser.add_argument("--seed", type=int, default=int(os.environ.get("MUSTER_TEST_SEED", "20261122")))
parser.add_argument("--exact", action="store_true", help="the program has --save FILE and was told of virtual shards")
parser.add_argument("--needs", help="a file of data")
parser.add_argument("arguments", nargs="+")
options = parser.parse_args()
draw = random.Random(options.seed)
PROGRAM = os.path.realpath(options.program)
FOLDER = tempfile.mkdtemp(prefix="muster-examples-")


def read_report(name):
    with open(os.path.join(FOLDER, name), encoding="ascii") as file:
        return json.load(file)


def outputs(name):
    return ["--json", f"{FOLDER}/{name}"] + (["--save", f"{FOLDER}/{name}.model"] if options.exact else [])


def model_of(name):
    with open(f"{FOLDER}/{name}.model", "rb") as file:
        return file.read()


def living():
    """Returns the job's processes: processes of the program whose arguments contain the job's folder."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.path.realpath(os.readlink(f"/proc/{name}/exe")) == PROGRAM:
                with open(f"/proc/{name}/cmdline", encoding="utf-8", errors="replace") as words:
                    if FOLDER in words.read():
                        found.append(int(name))
        except OSError:
            pass  # it has ended
    return found


def undisturbed():
    words = [PROGRAM, *options.arguments, "--ranks", str(options.calm_ranks), *outputs("calm")]
    began = time.monotonic()
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        sys.exit(f"the undisturbed run ends with {ran.returncode}: {ran.stderr}")
    return read_report("calm"), time.monotonic() - began


def start(words, **variables):
    return subprocess.Popen(words, env=os.environ | HERE | {"MUSTER_ELASTIC": "on"} | variables, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, start_new_session=True)


def disturbed():
    """Returns the output of the job, the number of killed ranks, and the seconds that it took."""
    words = [PROGRAM, *options.arguments, *outputs("storm"), "--job", os.path.basename(FOLDER), "--rendezvous",
             f"file:{FOLDER}"]
    if options.by == "ulfm":
        words += ["--transport", "mpi"]
    lines, guests = [], []

    def listen(to):
        for line in to.stdout:
            lines.append(line)

    if options.by == "mpirun":
        job = start(["mpirun", *RECOVERY, "-n", str(options.ranks), *words])
    elif options.by == "ulfm":
        job = start([*mpirun_words(options.ranks), "-x", "MUSTER_ELASTIC", *words])
    else:
        job = start([options.launcher, "-n", str(options.ranks), "--restart", "1000", *words])
    listeners = [threading.Thread(target=listen, args=(job,))]
    listeners[0].start()
    began = time.monotonic()
    kills = 0

    def has_begun():
        """Returns true after the first epoch: no rank misses a rank that dies before the first group, and over MPI its
        death blocks all in MPI_Init."""
        return re.search(r"^\W*1 +\d", "".join(lines), re.M)

    def trains():
        return any(process.poll() is None for process in [job, *guests])

    def may_kill():
        """Returns true if the next kill is safe: if all ranks with the state died before another copied it, no rank
        could continue."""
        changes = len(set(re.findall(rf"generation (\d+): .*{'died' if options.by == 'ulfm' else 'joined'}", "".join(lines))))
        return time.monotonic() > until and (changes >= kills or time.monotonic() > until + 20)

    try:
        while not has_begun() and job.poll() is None:
            time.sleep(0.05)
        until = time.monotonic() + options.every
        while trains():
            time.sleep(0.05)
            ranks = living()
            if not may_kill() or kills == options.kills or len(ranks) < 3 or os.path.exists(f"{FOLDER}/storm"):
                continue
            until = time.monotonic() + options.every
            os.kill(draw.choice(ranks), signal.SIGSTOP if options.stops and kills % 2 == 1 else signal.SIGKILL)
            kills += 1
            if options.by == "mpirun":
                place = {"RANK": str(options.ranks - 1), "WORLD_SIZE": str(options.ranks), "LOCAL_RANK": "0"}
                guests.append(start(words, **place))
                listeners.append(threading.Thread(target=listen, args=(guests[-1],)))
                listeners[-1].start()
        took = time.monotonic() - began
    finally:
        for process in [job, *guests]:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for listener in listeners:
            listener.join()
    if job.returncode != 0 or not os.path.exists(f"{FOLDER}/storm"):
        sys.exit(f"the disturbed run ends with {job.returncode} after {kills} kills (seed {options.seed}):\n"
                 f"{''.join(lines[-40:])}")
    return "".join(lines), kills, took


try:
    if options.by != "muster-launch" and (shutil.which("mpirun") is None or "Open MPI" not in subprocess.run(
            ["mpirun", "--version"], capture_output=True, text=True, check=False).stdout):
        print("SKIPPED: there is no mpirun of Open MPI")
        sys.exit(77)
    with_ulfm = options.by != "muster-launch" and there_is_ulfm()
    if options.by == "ulfm" and not with_ulfm:
        print("SKIPPED: there is no Open MPI with ULFM")
        sys.exit(77)
    RECOVERY = (["--with-ft", "ulfm", "--map-by", ":OVERSUBSCRIBE"] if with_ulfm else
                ["--enable-recovery", "--oversubscribe"])
    if options.needs is not None and not os.path.exists(options.needs):
        print(f"SKIPPED: {options.needs} is not there")
        sys.exit(77)
    calm, calm_seconds = undisturbed()
    text, killed, seconds = disturbed()
    storm = read_report("storm")
    deaths = set(re.findall(r"generation (\d+): .*died", text))
    joins = set(re.findall(r"generation (\d+): .*joined", text))
    one, other = calm["epochs"][-1], storm["epochs"][-1]
    print(f"{options.by}: {killed} kills{' and stops' * options.stops}, {len(deaths)} generations without one that died, {len(joins)} with one that "
          f"joined; {len(storm['epochs'])} epochs in {seconds:.1f} s (undisturbed: {calm_seconds:.1f} s)\n"
          f"  validation loss {other['val_loss']:.6f} ({one['val_loss']:.6f}), accuracy {other['val_accuracy']:.4f} "
          f"({one['val_accuracy']:.4f})")
    problems = []
    if len(storm["epochs"]) != len(calm["epochs"]) or storm["samples"] > calm["samples"]:
        problems.append(f"{len(storm['epochs'])} epochs and {storm['samples']} samples, not {len(calm['epochs'])} and at "
                        f"most {calm['samples']}")
    if killed == 0 or not deaths or bool(joins) == (options.by == "ulfm"):
        problems.append("the job ended before anything happened to it")
    if options.exact and model_of("calm") != model_of("storm"):
        problems.append("the model has other bits")
    if abs(other["val_loss"] / one["val_loss"] - 1) > options.loss:
        problems.append("the loss is another")
    if other["val_accuracy"] < one["val_accuracy"] - options.accuracy:
        problems.append("the accuracy is worse")
    if problems:
        sys.exit(f"seed {options.seed}: {'; '.join(problems)}\n{text[-2000:]}")
finally:
    shutil.rmtree(FOLDER, ignore_errors=True)
