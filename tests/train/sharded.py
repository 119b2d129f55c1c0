#!/usr/bin/env python3
"""Ranks with separate folders of shards train on all shards: each record is used once an epoch, by a rank that has it,
with the same gradients as a single rank with all shards. A rank is killed during the training: copies provide its shards,
or the job ends with the status of unreadable data and names the shard. A rank joins during the training, with its own
shards. Rank 0 cuts and sends shards. Records join an epoch while ranks are killed, if all ranks read one folder.

usage: sharded.py --launcher PATH --program PATH --data PATH [--rounds N] [--seed S]
"""
import argparse
import collections
import hashlib
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--launcher", required=True)
parser.add_argument("--program", required=True)
parser.add_argument("--data", required=True, help="muster-data")
parser.add_argument("--rounds", type=int, default=2)
parser.add_argument("--seed", type=int, default=int(os.environ.get("MUSTER_TEST_SEED", "20261126")))
options = parser.parse_args()
RECORDS, EPOCHS, SHARDS = 500, 4, 5


def hosts(folder, whole, copies):
    """Creates a folder for each of three ranks: the manifest, and each shard in as many folders as there are copies."""
    folder.mkdir()
    for host in range(3):
        (folder / f"host-{host}").mkdir()
        shutil.copy(whole / "MANIFEST", folder / f"host-{host}")
    for number, file in enumerate(sorted(whole.glob("*.muster"))):
        for copy in range(copies):
            shutil.copy(file, folder / f"host-{(number + copy) % 3}")
    return folder


def start(folder, ranks, pause, flags=("--min", "1"), more=()):
    words = [options.launcher, "-n", str(ranks), *flags, options.program, folder, EPOCHS, pause, *more]
    return subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def steps(folder):
    """Returns each step's ids by rank, from the step's last attempt; earlier attempts did not commit."""
    attempts = collections.defaultdict(lambda: collections.defaultdict(list))
    for file in folder.glob("used-*"):
        for line in file.read_text().splitlines():
            where, ids = line.split(":")
            epoch, step, generation = map(int, where.split())
            attempts[epoch, step][generation].append([int(word) for word in ids.split()])
    return {key: ids_by_rank[max(ids_by_rank)] for key, ids_by_rank in attempts.items()}


def ids_by_epoch(folder):
    epochs = collections.defaultdict(list)
    for (epoch, _), of_ranks in sorted(steps(folder).items()):
        epochs[epoch] += sum(of_ranks, [])
    return epochs


def check_each_once(folder):
    epochs = ids_by_epoch(folder)
    digests = {hashlib.sha256(str(sorted(ids)).encode()).hexdigest()[:16] for ids in epochs.values()}
    whole = hashlib.sha256(str(list(range(RECORDS))).encode()).hexdigest()[:16]
    if len(epochs) != EPOCHS or digests != {whole}:
        sys.exit(f"seed {options.seed}: {len(epochs)} epochs with the ids {digests}, not {whole}")
    return whole


def end(job, status=0):
    output, _ = job.communicate(timeout=120)
    if job.returncode != status:
        sys.exit(f"seed {options.seed}: the job ends with {job.returncode}, not {status}:\n{output[-4000:]}")
    return output


def parameters(output):
    return {float(value) for value in re.findall(r"^parameter (.*)$", output, re.M)}


def kill_one(job, folder, draw, after=5):
    """Kills a rank during the training."""
    while len(list(folder.glob("used-*"))) < 3 or len(steps(folder)) < after + draw.randrange(30):
        assert job.poll() is None, job.communicate()[0]
        time.sleep(0.01)
    children = pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    os.kill(int(draw.choice(children)), signal.SIGKILL)


def join_one(job, folder):
    """Adds a rank while the other ranks train, with the launcher's environment; returns the rank's parameters."""
    while len(list(folder.glob("used-*"))) < 3:
        assert job.poll() is None, job.communicate()[0]
        time.sleep(0.01)
    child = pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()[0]
    variables = pathlib.Path(f"/proc/{child}/environ").read_bytes().decode().split("\0")
    environment = dict(variable.split("=", 1) for variable in variables if variable)
    guest = subprocess.run([options.program, str(folder), str(EPOCHS), "60"], env=environment, capture_output=True, text=True, timeout=120,
                           check=False)
    assert guest.returncode == 0 and "parameter" in guest.stdout, guest
    return parameters(guest.stdout)


def grow(folder, draw):
    """Runs four ranks on a folder that grows and kills two ranks; each epoch must have the ids of a single version."""
    folder.mkdir()

    def append(count, *words):
        (folder / "more.csv").write_text("value\n" + "".join(f"{k}\n" for k in range(count)))
        done = subprocess.run([options.data, "convert", f"csv:{folder}/more.csv", folder / "set", *words], capture_output=True, text=True,
                              check=False)
        assert done.returncode == 0, done.stderr
        return count

    versions = [append(RECORDS)]
    job = start(folder, 4, 50, more=[f"records:{folder}/set?every=3"])
    for after in (5, 25):
        versions.append(versions[-1] + append(1 + draw.randrange(60), "--append"))
        kill_one(job, folder, draw, after)
    versions.append(versions[-1] + append(1 + draw.randrange(60), "--append"))
    end(job)
    epochs = ids_by_epoch(folder)
    sizes = [len(epochs[epoch]) for epoch in range(EPOCHS)]
    for epoch, size in enumerate(sizes):
        if sorted(epochs[epoch]) != list(range(size)):
            sys.exit(f"seed {options.seed}: epoch {epoch} has {size} ids, and not each once: {epochs[epoch]}")
    assert sizes == sorted(sizes) and set(sizes) <= set(versions) and sizes[-1] > RECORDS, (sizes, versions)
    return sizes


with tempfile.TemporaryDirectory() as name:
    top = pathlib.Path(name)
    table = top / "table.csv"
    table.write_text("value\n" + "".join(f"{(k * 37) % 101}\n" for k in range(RECORDS)))
    result = subprocess.run([options.data, "shard", f"csv:{table}", "--out", top / "set", "--by", "weights:4,1,1,2,2"],
                          capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    files = sorted(file.name for file in (top / "set").glob("*.muster"))
    assert len(files) == SHARDS, files

    alone = top / "alone"
    alone.mkdir()
    shutil.copytree(top / "set", alone / "host-0")
    expected = parameters(end(start(alone, 1, 0)))
    assert len(expected) == 1, expected
    check_each_once(alone)

    apart = hosts(top / "apart", top / "set", 1)
    found = parameters(end(start(apart, 3, 0)))
    print(f"3 ranks with a folder each: ids {check_each_once(apart)}, parameter {found}, of one rank {expected}")
    assert all(abs(value - min(expected)) < 1e-3 for value in found), (found, expected)
    sizes = [[len(ids) for ids in of_ranks] for of_ranks in steps(apart).values()]
    assert all(min(counts) > 0 for counts in sizes if sum(counts) == 24), sizes  # each rank has its part of every step

    placed = top / "placed"
    placed.mkdir()
    found = parameters(end(start(placed, 3, 0, ("--elastic", "off"), [f"csv:{table}"])))
    print(f"rank 0 of 3 cuts and sends: ids {check_each_once(placed)}, parameter {found}")
    assert len(found) == 1, found  # other shards, and therefore another order than with a single rank
    held = [[file.name for file in (placed / f"host-{rank}").glob("*.muster")] for rank in range(3)]
    assert len(set(sum(held, []))) == 3 and all(len(own) == 1 for own in held), held

    for number in range(options.rounds):
        joined = hosts(top / f"joined-{number}", top / "set", 1)
        (joined / "host-3").mkdir()
        for file in ["MANIFEST", *files[:3]]:
            shutil.copy(top / "set" / file, joined / "host-3")
        job = start(joined, 3, 60, ("--min", "1", "--max", "4"))
        found = join_one(job, joined) | parameters(end(job))
        mine = sum(len(line.split(":")[1].split()) for line in (joined / "used-3").read_text().splitlines())
        print(f"round {number}, a rank joins: ids {check_each_once(joined)}, {mine} samples at it, {len(found)} parameter", flush=True)
        assert mine > 0 and all(abs(value - min(expected)) < 1e-3 for value in found), (mine, found, expected)

        draw = random.Random(f"{options.seed}.{number}")
        folder = hosts(top / f"copies-{number}", top / "set", 2)
        job = start(folder, 3, 20)
        kill_one(job, folder, draw)
        found = parameters(end(job))
        assert all(abs(value - min(expected)) < 1e-3 for value in found), (found, expected)
        print(f"round {number}, with copies: ids {check_each_once(folder)}, {len(found)} parameter", flush=True)

        folder = hosts(top / f"lost-{number}", top / "set", 1)
        job = start(folder, 3, 20)
        kill_one(job, folder, draw)
        output = end(job, 3)
        named = re.search(r"shard (shard-\d+-\w+\.muster)( and \d+ others)? is at none of the 2 ranks", output)
        assert named and named[1] in files, output
        print(f"round {number}, without: {named[0]}", flush=True)

        print(f"round {number}, records join epochs, 2 of 4 ranks are killed: ids of each once, {grow(top / f'grown-{number}', draw)}", flush=True)
