#!/usr/bin/env python3
"""A store on one host and its clients on others, whose network is cut: checks the observations of each process, and their times.

partition.py WORKER     WORKER is test_store_worker
"""
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "python"))
from muster_bench import hosts  # noqa: E402

if why := hosts.missing():
    print(f"SKIPPED: {why}")
    sys.exit(hosts.SKIP)

worker = sys.argv[1]
failures = []

with hosts.Network(3) as network:
    server, holder, watcher = network.hosts
    at = ["tcp", f"{server.address}:29600", "a secret", "--"]

    def start(host, *words):
        return subprocess.Popen(host.inside(worker, *at, *words), stderr=subprocess.PIPE, text=True)

    def ends(what, one, status, says, within):
        """Checks that a worker ends with `status` and prints `says`; `within` is generous, because the worker must only end at all."""
        begun = time.monotonic()
        try:
            err = one.communicate(timeout=within)[1]
        except subprocess.TimeoutExpired:
            one.kill()
            failures.append(f"{what}: nothing was seen for {within} s")
            return
        print(f"{what}: seen after {time.monotonic() - begun:.1f} s")
        if one.returncode != status or says not in err:
            failures.append(f"{what}: ended with {one.returncode} and said {err}")

    serving = start(server, "serve")
    # The key ends with its writer, which is disconnected by a network that notifies neither side.
    holding = start(holder, "hold", "member")
    ends("it is there", start(watcher, "await", "member"), 0, "", 30)
    watching = start(watcher, "gone", "member")
    time.sleep(1)  # it watches
    holder.cut()
    ends("the end of a key whose writer is cut off", watching, 0, "", 30)
    ends("the loss of the store, by who is cut off", holding, 1, "is lost", 60)
    # The server's host runs, but its network is down.
    watching = start(watcher, "await", "never")
    time.sleep(1)  # it watches
    server.cut()
    ends("the loss of the store, by who waits", watching, 1, "is lost", 60)
    serving.kill()
    serving.communicate()

print("\n".join(failures) if failures else "all of it was seen")
sys.exit(1 if failures else 0)
