#!/usr/bin/env python3
"""Tests an elastic job of muster-launch with --mode ps: a server without replicas that dies, the death of all workers, a
process with another configuration that joins. A job resumes from the tables that servers saved without workers.

With `full` the disk is full after the first save.
With `late` a server among three is stopped while the job ends around it.
With `smaller` the job is resized to a rank less.
With `odd` a rank among three starts with another option.
With `concluded` the first worker dies after all is trained, during the final work.

usage: elastic_servers.py lost|late|smaller|concluded|full|deserted|unsaved|stranger|odd --launcher PATH --program PATH (test_leased) [--transport tcp|shm]
  [--seed S]
"""
import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

LIMIT = 120 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))
parser = argparse.ArgumentParser()
parser.add_argument("scenario", choices=["lost", "late", "smaller", "concluded", "full", "deserted", "unsaved", "stranger", "odd"])
parser.add_argument("--launcher", required=True)
parser.add_argument("--program", required=True)
parser.add_argument("--transport", choices=["tcp", "shm"], default="tcp")
parser.add_argument("--seed", type=int, default=int(time.time()))
options = parser.parse_args()
draw = random.Random(options.seed)
SAVED_EVERY = 40  # steps, by test_leased
# A job's ranks may take half this time to start; servers without workers wait as long as this.
QUORUM = "2" if options.scenario in ("deserted", "unsaved") else "8"
WORDS = ["--mode", "ps", "--servers", "1", "--replicas", "0", "--timeout", "10", "--quorum-timeout", QUORUM,
         "--transport", options.transport]


def children(launcher):
    """Returns the processes in the order of their start: the server is the third."""
    with open(f"/proc/{launcher.pid}/task/{launcher.pid}/children") as file:
        return sorted(int(pid) for pid in file.read().split())


class Job:
    def __init__(self, folder, ranks=3, words=(), launch=()):
        saves = ["--tables", folder + "/saved"] if folder else []
        self.process = subprocess.Popen([options.launcher, "-n", str(ranks), "--max", "6", *launch, options.program, *WORDS,
                                         *words, *saves, "--step-time", "8"],
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines, self.changed = [], threading.Condition()
        self.listener = threading.Thread(target=self.listen)
        self.listener.start()

    def listen(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.strip())
                self.changed.notify_all()

    def wait_for(self, word, times=1):
        with self.changed:
            if not self.changed.wait_for(lambda: sum(word in line for line in self.lines) >= times, LIMIT):
                self.fail(f"it does not say '{word}'")

    def end(self):
        try:
            status = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.fail("it hangs")
        self.listener.join()
        return status

    def fail(self, why):
        self.process.kill()
        sys.exit("\n".join(self.lines[-60:]) + f"\n{options.scenario}, seed {options.seed}: {why}")

    def require(self, condition, why):
        if not condition:
            self.fail(why)


def steps_of(folder):
    """Returns the steps of the saved tables, their format, and True if leases are unfinished."""
    with open(folder + "/saved/tables.json") as file:
        manifest = json.load(file)
    return (int.from_bytes(bytes(manifest["position"][:8]), sys.byteorder), manifest["format"],
            bool(manifest.get("left")))


def desert(job):
    """Kills all workers in the middle of an epoch."""
    job.wait_for("step 50")
    time.sleep(draw.uniform(0, 0.6))
    for worker in children(job.process)[:2]:
        os.kill(worker, signal.SIGKILL)


def desert_and_resume(folder, replicas, consistency, hidden):
    """Kills all workers and resumes. The tables are sparse, or with `hidden` dense."""
    words = ["--servers", "2", "--replicas", str(replicas), "--consistency", consistency, "--hidden", str(hidden)]
    job = Job(folder, 4, words)
    job.wait_for("step 50")
    if replicas:
        os.kill(children(job.process)[2 + draw.randrange(2)], signal.SIGKILL)
    desert(job)
    before = steps_of(folder)[0]
    job.require(job.end() == 11, f"the servers should end with 11, not {job.process.returncode}")
    reports = [line for line in job.lines if "all workers have died" in line]
    job.require(len(reports) == 2 - replicas and all("the tables are saved in" in line for line in reports),
                f"each server should say that the tables are saved, not {reports}")
    steps, form, has_leases = steps_of(folder)
    # Workers that die just before or after their own save leave nothing unfinished beyond that save's step.
    job.require(form == 3 and steps >= before and (has_leases or steps % SAVED_EVERY == 0),
                f"{steps} steps are saved (format {form}, leases: {has_leases}), after {before}")
    files = set(os.listdir(folder + "/saved"))
    if hidden == 0:  # a small dense table has as many ranges at any number of servers
        other = Job(folder, 3, ["--consistency", consistency])
        other.require(other.end() != 0 and any("as many servers" in line for line in other.lines),
                      "another number of servers takes it")
        other.require(set(os.listdir(folder + "/saved")) == files, "the files are others")
    again = Job(folder, 4, words)
    again.require(again.end() == 0, "it does not end with 0")
    again.require("each sample was used once an epoch" in again.lines, "samples were lost or used twice")
    return steps - before


def problem_without_save(folder):
    """Tests a job without a folder, and a folder that cannot be written, where the earlier tables must remain."""
    job = Job("")
    desert(job)
    job.require(job.end() == 11, f"the server should end with 11, not {job.process.returncode}")
    job.require(sum("what they trained is lost" in line for line in job.lines) == 1, "it does not say what is lost")
    job = Job(folder)
    desert(job)
    os.rename(folder + "/saved", folder + "/kept")
    with open(folder + "/saved", "w"):
        pass
    job.require(job.end() == 11, f"the server should end with 11, not {job.process.returncode}")
    job.require(sum("the tables are not saved" in line for line in job.lines) == 1, "it does not say that it failed")
    os.remove(folder + "/saved")
    os.rename(folder + "/kept", folder + "/saved")
    again = Job(folder)
    again.require(again.end() == 0, "it does not end with 0")
    again.require("each sample was used once an epoch" in again.lines, "samples were lost or used twice")


def problem_when_full(folder):
    """Tests a disk with room for one save: the save remains, training continues, and each further save reports a failure."""
    job = Job(folder)
    status = job.end()
    failed = [line for line in job.lines if "the tables were not saved" in line and "No space left on device" in line]
    job.require("each sample was used once an epoch" in job.lines and len(failed) > 2, f"it should go on, not say {failed}")
    job.require(status == 2, f"it should end with 2 as the last save failed, not {status}")
    job.require(steps_of(folder)[0] == SAVED_EVERY, "the first save does not stay")
    subprocess.run(["mount", "-o", "remount,size=1m", folder], check=True)
    again = Job(folder)
    again.require(again.end() == 0 and not any("not saved" in line for line in again.lines), "it does not go on")
    again.require("each sample was used once an epoch" in again.lines, "samples were lost or used twice")


with tempfile.TemporaryDirectory(prefix="muster-elastic-ps-") as folder:
    if options.scenario == "deserted":
        for turn, (replicas, consistency) in enumerate([(0, "async"), (1, "bounded:2"), (0, "bulk")]):
            hidden = [0, 16][(turn + options.seed) % 2]
            ahead = desert_and_resume(f"{folder}/{turn}", replicas, consistency, hidden)
            print(f"{consistency}, {replicas} replicas, hidden {hidden}: {ahead} steps beyond the last save by a worker", flush=True)
        sys.exit(0)
    if options.scenario == "unsaved":
        problem_without_save(folder)
        sys.exit(0)
    if options.scenario == "full":
        if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24k", "none", folder], check=False).returncode != 0:
            print("mounting a small file system takes root")
            sys.exit(77)
        try:
            problem_when_full(folder)
        finally:
            subprocess.run(["umount", folder], check=True)
        sys.exit(0)
    if options.scenario == "late":
        os.environ["MUSTER_MISSED_HEARTBEATS"] = "100"  # the servers must not fence the stopped rank
        job = Job("", 5, ["--servers", "3", "--replicas", "1"])
        job.wait_for("step 50")
        late = children(job.process)[2 + draw.randrange(3)]  # while all ranks run: workers end soon after this line
        job.wait_for("each sample was used once an epoch")
        os.kill(late, signal.SIGSTOP)
        time.sleep(draw.uniform(0.6, 0.9))  # the others end 0.5 s after the workers
        try:
            os.kill(late, signal.SIGCONT)
        except ProcessLookupError:
            job.fail("the server that stands still is gone")
        job.require(job.end() == 0, "it does not end with 0")
        job.require(not any("lost" in line for line in job.lines), "a server takes the end of the job for a loss")
        print(f"late over {options.transport}, seed {options.seed}: as it should be")
        sys.exit(0)
    if options.scenario == "odd":
        for flag, value in {"--batch": 10, "--consistency": "bulk", "--hidden": 4}.items():
            odd = draw.randrange(3)  # one of two workers, or the server
            job = Job("", launch=["--restart", "3", "sh", "-c", f'test "$RANK" = {odd} && set -- "$@" {flag} {value}; exec "$0" "$@"'])
            status = job.end()
            said = [line for line in job.lines if ": the ranks cannot train together (" in line]
            job.require(status == 6 and len(said) == 3 and len({line.split(": ", 1)[1] for line in said}) == 1 and
                        all(f" at rank {odd}" in line for line in said) and not any("begins" in line for line in job.lines),
                        f"rank {odd} has another {flag}, and the job ends with {status}")
        print(f"odd over {options.transport}, seed {options.seed}: as it should be")
        sys.exit(0)
    if options.scenario == "concluded":
        job = Job("", words=["--die-at-end", folder + "/died"])
        job.require(job.end() == 0, "it does not end with 0")
        job.require(os.path.exists(folder + "/died"), "no worker died")
        job.require("each sample was used once an epoch" in job.lines, "no other worker did what was left to do")
        print(f"concluded over {options.transport}, seed {options.seed}: as it should be")
        sys.exit(0)
    if options.scenario == "smaller":
        job = Job(folder, launch=["--min", "1", "--control", folder + "/control"])
        job.wait_for("step 50")
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(LIMIT)
            control.connect(folder + "/control")
            control.sendall(b"size 2\n")
            job.require('"size": 2' in control.makefile().readline(), "it is not to have two ranks")
        job.require(job.end() == 0, "it does not end with 0")
        job.require(not any("lost" in line for line in job.lines), "a server had to leave")
        job.require("each sample was used once an epoch" in job.lines, "samples were lost or used twice")
        print(f"smaller over {options.transport}, seed {options.seed}: as it should be")
        sys.exit(0)
    job = Job(folder)
    job.wait_for("step 50")
    if options.scenario == "lost":
        for turn in range(1, 3):
            time.sleep(draw.uniform(0, 0.5))
            os.kill(children(job.process)[2], signal.SIGKILL)
            job.wait_for("the job has lost tables; it is restarted", turn)
            job.wait_for("ready", 3 * (turn + 1))
        job.require(job.end() == 0, "it does not end with 0")
        job.require("each sample was used once an epoch" in job.lines, "samples were lost or used twice")
    else:
        with open(f"/proc/{children(job.process)[0]}/environ") as file:
            environment = dict(variable.split("=", 1) for variable in file.read().split("\0") if "=" in variable)
        for words, difference in [(["--consistency", "bulk"], "the consistency is async at rank "),
                                  (["--replicas", "1"], "the number of replicas is 0 at rank "), (["--batch", "10"], "the global batch of the data is 20 at rank ")]:
            ran = subprocess.run([options.program, *WORDS, *words], env=environment, capture_output=True, text=True,
                                 timeout=LIMIT)
            job.require(ran.returncode == 6 and "cannot join the job" in ran.stderr and difference in ran.stderr,
                        f"a stranger ends with {ran.returncode}: {ran.stderr}")
        job.require(job.end() == 0, "it does not end with 0")
        job.require("each sample was used once an epoch" in job.lines, "samples were lost or used twice")
print(f"{options.scenario} over {options.transport}, seed {options.seed}: as it should be")
