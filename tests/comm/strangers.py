#!/usr/bin/env python3
"""Two ranks on one host, from the view of strangers on the network.

usage: strangers.py ports|idle PROGRAM
  ports  (test_survivors) the ranks of a job over tcp listen only on the loopback
  idle   (test_elastic_worker) silent connections are closed, at any port of the job, and the job continues
"""
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time

what, program = sys.argv[1:]
folder = tempfile.mkdtemp(prefix="muster-test-strangers-")
environment = dict(os.environ, TMPDIR=folder, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MUSTER_JOB="strangers",
                   MUSTER_TRANSPORT="tcp", MUSTER_MISSED_HEARTBEATS="100")
words = ["60"]
if what == "idle":
    words = ["--epochs", "1000000"]
    environment |= dict(MUSTER_ELASTIC="on")
ranks = [subprocess.Popen([program, *words], env=environment | dict(RANK=str(rank), LOCAL_RANK=str(rank)),
                          stdout=subprocess.PIPE, text=True) for rank in range(2)]


def listening():
    """Returns host and port of the ranks' sockets that others can connect to."""
    inodes = set()
    for rank in ranks:
        files = f"/proc/{rank.pid}/fd"
        inodes |= {re.sub(r"socket:\[(\d+)\]", r"\1", os.readlink(f"{files}/{name}")) for name in os.listdir(files)}
    found = []
    for table, family, form in (("tcp", socket.AF_INET, "=I"), ("tcp6", socket.AF_INET6, "=4I")):
        for line in open(f"/proc/net/{table}", encoding="ascii").readlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                number, port = fields[1].split(":")
                packed = struct.pack(form, *(int(number[i:i + 8], 16) for i in range(0, len(number), 8)))
                found.append((socket.inet_ntop(family, packed), int(port, 16)))
    return found


def is_open(connection):
    """Returns true if the other side has not closed the connection."""
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


failures = []
try:
    for rank in ranks:
        if not any(line.startswith("ready") for line in iter(rank.stdout.readline, "")):
            sys.exit("a rank ended before it was ready")
    ports = listening()
    print("the ranks listen at", *(f"{host} {port}" for host, port in ports))
    if what == "ports":
        failures += [f"a port is open at {host}" for host, _ in ports if host not in ("127.0.0.1", "::1")]
    else:
        loopback = {True: "::1", False: "127.0.0.1"}
        connections = []
        for host, port in ports:
            where = loopback[":" in host] if host in ("::", "0.0.0.0") else host
            for _ in range(200):
                try:
                    connections.append(socket.create_connection((where, port), timeout=10))
                    connections[-1].setblocking(False)
                except OSError:  # equivalent to closed
                    pass
        begun, until = len(connections), time.monotonic() + 40  # five seconds suffice on an idle machine
        while connections and time.monotonic() < until:
            time.sleep(0.2)
            connections = [one for one in connections if is_open(one)]
        print(f"{len(connections)} of {begun} idle connections are open after all that time")
        if connections:
            failures.append("nothing closes them")
        failures += [f"rank {number} ended" for number, rank in enumerate(ranks) if rank.poll() is not None]
finally:
    for rank in ranks:
        rank.kill()
        rank.wait()
    shutil.rmtree(folder)
sys.exit("\n".join(failures) or 0)
