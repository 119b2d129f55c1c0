#!/usr/bin/env python3
"""supervision.py MUSTER_LAUNCH MUSTER_STORE: checks that no process of a job outlives muster-launch, and the address of
muster-store."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

launcher, store = sys.argv[1:]
LIMIT = 60 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))
clean = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
# Processes that a rank's script may start: a program after it or before it, in a separate session, with an ended
# parent, without variables.
SCRIPTS = {"behind": "sleep 6543 & echo $! >> pids; wait",
           "before": "sh -c 'echo $$ >> pids; exec sleep 6543'; echo done",
           "session": "setsid sh -c 'echo $$ >> pids; exec sleep 6543' & wait; sleep 6543",
           "orphan": "(setsid sh -c 'echo $$ >> pids; exec sleep 6543' &) ; sleep 6543",
           "deaf": "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ >> pids; sleep 6543; sleep 6543'",
           "bare": "env -i sh -c 'echo $$ >> pids; exec sleep 6543'; echo done"}


def until(found, message):
    end = time.monotonic() + LIMIT
    while not (value := found()):
        assert time.monotonic() < end, message
        time.sleep(0.02)
    return value


def runs(pid):
    try:
        return not re.search(r"\) [ZX] ", pathlib.Path(f"/proc/{pid}/stat").read_text())
    except OSError:
        return False


def job(folder, script, *words):
    (folder / "pids").unlink(missing_ok=True)
    process = subprocess.Popen([launcher, "-n", "2", "--quiet", *words, "sh", "-c", script], cwd=folder, env=clean)

    def started():
        pids = (folder / "pids").read_text().split() if (folder / "pids").exists() else []
        return pids if len(pids) == 2 else None
    return process, until(started, script)


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    for kind, script in SCRIPTS.items():
        for how in (signal.SIGKILL, signal.SIGTERM):
            process, pids = job(folder, script, "--grace", "1")
            process.send_signal(how)
            process.wait(LIMIT)
            if how == signal.SIGTERM:   # before it ends itself
                assert not any(map(runs, pids)), (kind, pids)
            elif kind != "bare":        # a bare process is found by its parent, which is killed too
                until(lambda: not any(map(runs, pids)), (kind, how, pids))
            for pid in filter(runs, pids):
                os.kill(int(pid), signal.SIGKILL)
    # The program of a rank that died is ended before the rank restarts.
    process, pids = job(folder, "sh -c 'echo $$ >> pids; exec sleep 6543' & echo $$ >> ranks; wait", "--restart", "1", "--min", "1")
    ranks = until(lambda: (folder / "ranks").exists() and (found := (folder / "ranks").read_text().split())[1:] and found, "a rank does not start")
    os.kill(int(ranks[0]), signal.SIGKILL)
    until(lambda: len((folder / "pids").read_text().split()) == 3, "it does not start again")
    assert sum(map(runs, (folder / "pids").read_text().split())) == 2
    process.terminate()
    process.wait(LIMIT)
    assert not any(map(runs, (folder / "pids").read_text().split()))

for listen, token, wanted in ((":0", "", "127.0.0.1:"), (":0", "secret", "(0.0.0.0|\\[::\\]):"), ("0.0.0.0:0", "", "0.0.0.0:"), ("127.0.0.1:0", "", "127.0.0.1:")):
    process = subprocess.Popen([store, "--listen", listen, *(["--token", token] if token else [])], env=clean, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    assert b"secret" not in pathlib.Path(f"/proc/{process.pid}/cmdline").read_bytes(), "other users see the token"
    process.terminate()
    said = process.communicate(timeout=LIMIT)[1]
    assert re.match(f"muster-store listens at {wanted}", line), (listen, token, line)
    assert ("listens for this host alone" in said) == (listen == ":0" and not token), said

# The file with the address goes with the store, also when its terminal is closed.
with tempfile.TemporaryDirectory() as name:
    for how in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        file = pathlib.Path(name, "address")
        process = subprocess.Popen([store, "--listen", "127.0.0.1:0", "--file", file], env=clean, stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        assert file.exists(), "the address is not written"
        process.send_signal(how)
        assert process.wait(LIMIT) == 0 and not file.exists(), (how, process.returncode, file.exists())
print("nothing is left")
