"""Tests what programs show on a terminal while they work, and that they show nothing when they are silenced or short.
usage: progress.py MUSTER_DATA [LOGISTIC_REGRESSION]"""
import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile
import threading

data = sys.argv[1]
train = sys.argv[2] if len(sys.argv) > 2 else ""


def on_terminal(*words):
    """Runs a program whose standard error is a terminal; returns (standard output, text of the terminal)."""
    ours, theirs = pty.openpty()
    parts = []

    def read():
        while True:
            try:
                parts.append(os.read(ours, 65536).decode())
            except OSError:   # all writers have ended
                return
    keeper = threading.Thread(target=read)
    keeper.start()
    try:
        done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=theirs, stdin=subprocess.DEVNULL, text=True, timeout=250)
    finally:
        os.close(theirs)
        keeper.join()
        os.close(ours)
    assert done.returncode == 0, (words, done, "".join(parts))
    return done.stdout, "".join(parts)


def check(shown, pattern):
    """Checks that a line was rewritten with this text, and is cleared at the end."""
    assert re.search(r"\r" + pattern + r"\x1b\[K", shown), (pattern, shown)
    assert shown.endswith("\r\x1b[K") and "\n" not in shown, (pattern, shown)


REMAINING = r"(\d+ s|\d+ min|\d+ h \d+ min) to go"

with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    rows = 200_000
    (folder / "rows.csv").write_text("label,a,b\n" + "".join(f"{i % 2},{i},{i * 0.5}\n" for i in range(rows)))
    source = f"csv:{folder / 'rows.csv'}?header=1&label=label"
    _, shown = on_terminal(data, "convert", source, folder / "records")
    check(shown, rf"written \d+ of {rows} records, \d+\.\d MB/s, {REMAINING}")
    _, shown = on_terminal(data, "verify", folder / "records")
    check(shown, rf"checked \d+ of {rows} records, \d+\.\d MB/s, {REMAINING}")

if train:
    words = [train, "--ranks", "2", "--synthetic", "epsilon:4000", "--epochs", "2"]
    printed, shown = on_terminal(*words)
    check(shown, rf"epoch 1, step \d+ of \d+, \d+ samples/s, (loss \d+\.\d+, )?{REMAINING}")
    assert "\r" not in printed, printed
    for quiet in ("error", "off"):
        assert on_terminal(*words, "--log-level", quiet)[1] == "", quiet
    piped = subprocess.run(words, capture_output=True, text=True, timeout=250)
    assert piped.returncode == 0 and "\r" not in piped.stdout + piped.stderr, piped
