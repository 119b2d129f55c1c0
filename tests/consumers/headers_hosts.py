#!/usr/bin/env python3
"""The program that needs -I alone, on two hosts (network namespaces): a fixed job over tcp, an elastic job of which a rank
is killed, and a parameter server of which a worker is killed.

usage: headers_hosts.py PROGRAM
"""
import contextlib
import os
import signal
import subprocess
import sys
import tempfile

PROGRAM, HOSTS = sys.argv[1], ("10.83.1.1", "10.83.1.2")
NAMES = [f"mh{os.getpid() % 100000}{side}" for side in "ab"]


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def two_hosts():
    """Makes two network namespaces with a link between them."""
    if os.geteuid() != 0 or subprocess.run(["ip", "netns", "add", NAMES[0]], capture_output=True, check=False).returncode:
        sys.exit("SKIPPED: network namespaces need root and the program ip")
    try:
        ip("netns", "add", NAMES[1])
        ip("link", "add", NAMES[0], "netns", NAMES[0], "type", "veth", "peer", "name", NAMES[1], "netns", NAMES[1])
        for name, address in zip(NAMES, HOSTS):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", name)
            ip("-n", name, "link", "set", name, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def start(side, words, rank, size, **variables):
    """Starts a rank on a host."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MUSTER_")}
    environment |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": "0", "MUSTER_HOST": NAMES[side], **variables}
    return subprocess.Popen(["ip", "netns", "exec", NAMES[side], PROGRAM, *map(str, words)], env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def run(title, port, flags, epochs, killed=None, store=False, size=3):
    """Runs a job of ranks on both hosts, kills one as soon as it trains, and checks that the others learn the line."""
    place = f"{HOSTS[0]}:{port}"
    server = start(0, ["store", place], 0, 1) if store else None
    with tempfile.TemporaryDirectory(prefix="muster-hosts-") as folder:
        with open(f"{folder}/line.csv", "w", encoding="ascii") as points:
            points.writelines(f"{k / 500 - 1:g},{2 * (k / 500 - 1) - 1:g}\n" for k in range(1000))
        words = [*flags, "--rendezvous", f"tcp://{place}", "--transport", "tcp", f"csv:{folder}/line.csv?label=1", "", epochs]
        ranks = [start(rank % 2, words, rank, size, MUSTER_JOB=f"{title}-{os.getpid()}") for rank in range(size)]
        try:
            if killed is not None:
                line = ranks[killed].stdout.readline()
                while line and "begun" not in line:
                    line = ranks[killed].stdout.readline()
                ranks[killed].send_signal(signal.SIGKILL)
            texts = [rank.communicate(timeout=100)[0] for rank in ranks]
        finally:
            for process in [*ranks, *([server] if server else [])]:
                process.kill()
    statuses = [rank.returncode for rank in ranks]
    print(f"{title}: statuses {statuses}", *(line for text in texts for line in text.splitlines() if "begun" not in line), sep="\n  ",
          flush=True)
    if any(status != (-signal.SIGKILL if rank == killed else 0) for rank, status in enumerate(statuses)):
        sys.exit(f"{title}: a rank has failed")
    if "learnt the line" not in "".join(texts):
        sys.exit(f"{title}: no rank has learnt the line")


with two_hosts():
    run("fixed", 29511, [], 10)
    run("elastic", 29512, ["--elastic", "on"], 60, killed=1, store=True)
    run("servers", 29513, ["--elastic", "on", "--mode", "ps"], 60, killed=1, store=True)
