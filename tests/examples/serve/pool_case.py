"""The common part of the tests of muster-pool: services, load generators, and the pool as a program."""
import collections
import http.client
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

from program import HANG, PROGRAMS, Case, free_port

PLATFORM = pathlib.Path(__file__).resolve().parents[3] / "python"
ENVIRONMENT = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "PYTHONPATH": str(PLATFORM), "PYTHONDONTWRITEBYTECODE": "1"}

# A replica that is slow to start and slow to reply. It reports its largest number of concurrent requests.
SLOW = """
import http.server, json, os, threading, time
lock, at_once, most = threading.Lock(), 0, 0
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *words): pass
    def do_GET(self): self.answer(200, {})
    def do_POST(self):
        global at_once, most
        got = len(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            at_once += 1
            most = max(most, at_once)
        while os.path.exists("hold"): time.sleep(0.01)
        time.sleep(float(os.environ.get("DELAY", "0")))
        with lock: at_once -= 1
        self.answer(int(os.environ.get("STATUS", "200")), {"most": most, "got": got, "revision": os.environ.get("REVISION", "")})
    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
time.sleep(float(os.environ.get("START", "0")))
http.server.ThreadingHTTPServer.request_queue_size = 100
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""


def service(name, predictor, **annotations):
    """Returns the document of a service. `predictor` is a mapping."""
    return {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
            "metadata": {"name": name, "annotations": {key.replace("__", "/"): value for key, value in annotations.items()}},
            "spec": {"predictor": predictor}}


def model(**more):
    return {"model": {"modelFormat": {"name": "muster"}, "storageUri": "file://models", "args": ["--threads", "1"]}, **more}


def slow(delay=0.0, more=None, **variables):
    given = {"DELAY": str(delay), **variables}
    return {"containers": [{"name": "kserve-container", "image": "slow:1", "command": [sys.executable, "slow.py"],
                            "env": [{"name": name, "value": value} for name, value in given.items()]}], **(more or {})}


WINDOW = {"autoscaling.knative.dev__window": "6s"}


class Load:
    """Clients that repeat a request over persistent connections, and count the results."""

    def __init__(self, port, clients, path="/v1/models/line:predict", body=None):
        self.port, self.path, self.body = port, path, body or json.dumps({"instances": [[0.01] * 2000]})
        self.counts, self.failed, self.longest, self.bodies = collections.Counter(), [], 0.0, []
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._work) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _work(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG)
        while not self._ends.is_set():
            begin = time.monotonic()
            try:
                connection.request("POST", self.path, self.body)
                answer = connection.getresponse()
                self.bodies.append(answer.read())
                self.counts[answer.status] += 1
                if answer.status != 200:
                    self.failed.append(answer.status)
            except (OSError, http.client.HTTPException) as error:
                self.failed.append(repr(error))
                connection.close()
            self.longest = max(self.longest, time.monotonic() - begin)
        connection.close()

    def clients(self):
        return sum(thread.is_alive() for thread in self._threads)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._ends.set()
        for thread in self._threads:
            thread.join()


def skip_without_what_it_needs(case):
    if not shutil.which("haproxy"):
        case.skipTest("haproxy is not there")
    if importlib.util.find_spec("yaml") is None:
        case.skipTest("python3-yaml is not there")


def state_of(folder):
    try:
        return json.loads((folder / "state.json").read_text())
    except FileNotFoundError:
        return {"haproxy": [], "services": {}}


def end_all(folder):
    """Returns the processes that have outlived a pool, according to the pool's files."""
    state = state_of(folder)
    for pid, _ in [*state["haproxy"], *(each[3] for service_state in state["services"].values() for each in service_state["replicas"])]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


class PoolCase(Case):
    def setUp(self):
        super().setUp()
        skip_without_what_it_needs(self)
        (self.folder / "slow.py").write_text(SLOW)
        self.pool = None
        self.addCleanup(self.end)
        self.log = self.folder / "log"
        self.log.touch()
        self.port, self.metrics = free_port(), free_port()

    def end(self):
        if self.pool is not None and self.pool.poll() is None:
            self.pool.kill()
            self.pool.wait()
        end_all(self.folder / "services.pool")

    def state(self):
        return state_of(self.folder / "services.pool")

    def replicas(self, name="line", numbered=False):
        """Returns the serving processes, with each server's number."""
        found = [(each[0], each[3][0]) for each in self.state()["services"].get(name, {"replicas": []})["replicas"] if each[4] == "serving"]
        return found if numbered else [pid for _, pid in found]

    def describe(self, *services):
        (self.folder / "services.yaml").write_text("\n---\n".join(map(json.dumps, services)))

    def words(self):
        return [sys.executable, "-m", "muster_pool", "services.yaml", "--listen", f"127.0.0.1:{self.port}", "--metrics", f"127.0.0.1:{self.metrics}",
                "--cores", "5"]

    def start(self, *services, more=()):
        if services:
            self.describe(*services)
        self.log = self.folder / f"log{time.monotonic()}"
        with open(self.log, "w") as log:
            self.pool = subprocess.Popen([*self.words(), *more], cwd=self.folder, env=ENVIRONMENT, stdout=log, stderr=log)
        self.until(lambda: "metrics on" in self.log.read_text())

    def until(self, done, lives=True):
        end = time.monotonic() + HANG
        while not done():
            self.assertLess(time.monotonic(), end, "it did not come to that:\n" + self.log.read_text())
            self.assertTrue(not lives or self.pool.poll() is None, self.log.read_text())
            time.sleep(0.05)

    def says(self, text):
        self.until(lambda: text in self.log.read_text())

    def drain(self):
        self.pool.send_signal(signal.SIGTERM)
        self.assertEqual(self.pool.wait(HANG), 0, self.log.read_text())
        self.assertTrue(self.log.read_text().endswith(" drained\n"), self.log.read_text())
        state = self.state()
        self.assertEqual((state["haproxy"], self.replicas()), ([], []))

    def post(self, path, body="{}", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG)
        try:
            connection.request("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.headers, json.loads(answer.read())
        finally:
            connection.close()

    def metric(self, text):
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics, timeout=HANG)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        return [line for line in lines if text in line and not line.startswith("#")]
