"""Common parts of the tests of the dashboard: the real server as a process, its requests, and folders of runs."""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

from bench import PROGRAM, Case
from muster_bench.dashboard.runs import holder

HAS = subprocess.run([sys.executable, "-c", "import aiohttp, prometheus_client"], capture_output=True).returncode == 0

# Trains nothing, but prints the lines of a training: EPOCHS, each taking SECONDS. The last epoch waits for a file, if
# it is named.
TRAINING = r'''
import os, sys, time
from muster_bench.tracker import Tracker
tracker = Tracker(lines=True)
for epoch in range(int(sys.argv[1])):
    while epoch == int(sys.argv[1]) - 1 and len(sys.argv) > 4 and not os.path.exists(sys.argv[4]): time.sleep(0.05)
    with tracker.batches():
        with tracker.phase("forward"): time.sleep(float(sys.argv[2]))
        with tracker.communication(bytes=8): pass
        tracker.add_samples(100)
    tracker.end_epoch(train_loss=2 / (epoch + 1), val_loss=2.2 / (epoch + 1), val_accuracy=1 - 0.6 / (epoch + 1))
tracker.annotate("program", "training")
tracker.write("tracker.json")
'''


@unittest.skipUnless(HAS, "SKIPPED: no aiohttp and prometheus_client (Debian: python3-aiohttp python3-prometheus-client)")
class Served(Case):
    def setUp(self):
        super().setUp()
        self.runs = self.folder / "runs"
        self.training = self.write("training.py", TRAINING)
        self.token = ""
        self.addCleanup(self._end_runners)

    def _end_runners(self):
        """Ends the runners that still write into the folder."""
        for folder in self.runs.glob("*"):
            for signal_number in (0, signal.SIGTERM):
                with contextlib.suppress(AssertionError):
                    if runner := holder(folder):
                        os.kill(runner["process"], signal_number)
                        self.until(lambda: not holder(folder), seconds=10 if signal_number == 0 else 60)

    def serve(self, *words, **options):
        """Starts the server and returns its process; its address is in self.url, its token in self.token."""
        process = subprocess.Popen([*PROGRAM, "serve", str(self.runs), "--listen", "127.0.0.1:0", *words], stderr=subprocess.PIPE, text=True, cwd=self.folder, **options)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        line = process.stderr.readline()
        self.assertRegex(line, r"^muster-bench: http://127.0.0.1:\d+/")
        self.url, self.token = re.search(r"(http://[\d.:]+)/(?:\?token=(\S+))?", line).groups(default="")
        return process

    def open(self, path, body=None, method=None, **headers):
        """Returns (status, bytes, headers)."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        headers = {**({"Content-Type": "application/json"} if data is not None else {}), **({"Authorization": f"Bearer {self.token}"} if self.token else {}), **headers}
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers, method=method), timeout=60) as answer:
                return answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(), error.headers

    def ask(self, path, body=None, status=None, **headers):
        got, text, _ = self.open(path, body, **headers)
        self.assertEqual(got, status or (got if got < 300 else 200), text)
        return json.loads(text) if text else None

    def refuses(self, path, body=None, status=400, says="", method=None, **headers):
        """Checks that the reply is one line of JSON."""
        got, text, kept = self.open(path, body, method, **headers)
        self.assertEqual(got, status, text)
        self.assertEqual(kept["Content-Type"], "application/json; charset=utf-8")
        self.assertEqual(text.count(b"\n"), 1, text)
        self.assertIn(says, json.loads(text)["error"])
        self.assertNotIn("Traceback", json.loads(text)["error"])

    def start(self, epochs=3, seconds=0.05, until="", **more):
        """Starts a training and returns its folder."""
        return self.ask("/api/runs", {"command": f"{sys.executable} {self.training} {epochs} {seconds} tracker.json {until}", **more}, 201)["folder"]

    def until(self, found, what="it never came", seconds=100):
        """Waits for a result and returns it. The timeout is long because other tests may slow a run."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.suppress(IndexError, StopIteration):
                if value := found():
                    return value
            time.sleep(0.05)
        self.fail(what)

    def row(self, folder, *statuses):
        """Waits until the first run in a folder has a status in `statuses`, and returns its line."""
        return self.until(lambda: next(row for row in self.ask("/api/runs")["runs"] if row["folder"] == folder and row["status"] in (statuses or (row["status"],))),
                          f"{folder} never was {statuses}: {self.ask('/api/runs')}")

    def made(self, folder, name, metrics=None, status="ok", why="", epochs=(), began=1e9, **parameters):
        """Writes a finished run without running it."""
        home = self.runs / folder
        for part in ("config", "output/1", "result"):
            (home / "experiments" / name / part).mkdir(parents=True, exist_ok=True)
        (home / "experiments" / name / "output" / "1" / "log.txt").write_text("done\n")  # without a log the page's request for it is a 404
        (home / "muster-bench.json").write_text(json.dumps({"format": 1, "name": folder, "division": "open", "content": {"name": folder}}))
        (home / "experiments" / name / "config" / "run.json").write_text(json.dumps({"experiment": "made", "parameters": {"ranks": 1, **parameters}, "repeat": 1, "words": ["true"]}))
        (home / "experiments" / name / "result" / "result.json").write_text(json.dumps(
            {"format": 1, "status": status, "why": why, "began": began, "wall_seconds": 1.0, "machine_seconds": 0.01, "attempts": [], "metrics": metrics or {}, "series": list(epochs),
             "rows": [], "settings": {}, "annotations": {}}))
        return home / "experiments" / name
