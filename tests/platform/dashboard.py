"""What the tests of the dashboard share: the real server as a process, asking it, and folders of runs."""
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
EXAMPLES = pathlib.Path(os.environ.get("MUSTER_TEST_BENCH", "none/none/none/none")).parents[2] / "examples"

# Trains nothing, but says so as a training does: EPOCHS of so many SECONDS. The last one waits for a file, if it is named.
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
        """What still writes there."""
        for folder in self.runs.glob("*"):
            for how in (0, signal.SIGTERM):
                with contextlib.suppress(AssertionError):
                    if runner := holder(folder):
                        os.kill(runner["process"], how)
                        self.until(lambda: not holder(folder), seconds=10 if how == 0 else 60)

    def serve(self, *words, **how):
        """The process; its address is in self.url, the token that it has drawn in self.token."""
        process = subprocess.Popen([*PROGRAM, "serve", str(self.runs), "--listen", "127.0.0.1:0", *words], stderr=subprocess.PIPE, text=True, cwd=self.folder, **how)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        line = process.stderr.readline()
        self.assertRegex(line, r"^muster-bench: http://127.0.0.1:\d+/")
        self.url, self.token = re.search(r"(http://[\d.:]+)/(?:\?token=(\S+))?", line).groups(default="")
        return process

    def open(self, path, body=None, method=None, **headers):
        """(status, bytes, headers)"""
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
        """One line of JSON, and nothing else."""
        got, text, kept = self.open(path, body, method, **headers)
        self.assertEqual(got, status, text)
        self.assertEqual(kept["Content-Type"], "application/json; charset=utf-8")
        self.assertEqual(text.count(b"\n"), 1, text)
        self.assertIn(says, json.loads(text)["error"])
        self.assertNotIn("Traceback", json.loads(text)["error"])

    def start(self, epochs=3, seconds=0.05, until="", **more):
        """The folder of a training that has been started."""
        return self.ask("/api/runs", {"command": f"{sys.executable} {self.training} {epochs} {seconds} tracker.json {until}", **more}, 201)["folder"]

    def until(self, found, what="it never came", seconds=100):
        """The first answer that is something; a run that is ended by another test's load only takes longer."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with contextlib.suppress(IndexError, StopIteration):
                if value := found():
                    return value
            time.sleep(0.05)
        self.fail(what)

    def row(self, folder, *statuses):
        """The line of the first run in a folder, when its status is one of these."""
        return self.until(lambda: next(row for row in self.ask("/api/runs")["runs"] if row["folder"] == folder and row["status"] in (statuses or (row["status"],))),
                          f"{folder} never was {statuses}: {self.ask('/api/runs')}")

    def made(self, folder, name, metrics=None, status="ok", why="", epochs=(), began=1e9, **parameters):
        """A run that has ended, without running it."""
        home = self.runs / folder
        for part in ("config", "output/1", "result"):
            (home / "experiments" / name / part).mkdir(parents=True, exist_ok=True)
        (home / "muster-bench.json").write_text(json.dumps({"format": 1, "name": folder, "division": "open", "content": {"name": folder}}))
        (home / "experiments" / name / "config" / "run.json").write_text(json.dumps({"experiment": "made", "parameters": {"ranks": 1, **parameters}, "repeat": 1, "words": ["true"]}))
        (home / "experiments" / name / "result" / "result.json").write_text(json.dumps(
            {"format": 1, "status": status, "why": why, "began": began, "wall_seconds": 1.0, "machine_seconds": 0.01, "attempts": [], "metrics": metrics or {}, "series": list(epochs),
             "rows": [], "settings": {}, "annotations": {}}))
        return home / "experiments" / name
