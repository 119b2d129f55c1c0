#!/usr/bin/env python3
"""The functions of the stacked ensemble (docs/stacking.md) as processes on this machine, with the store that they use, and an
experiment with them.

    stacking_services.py PROGRAM DATA TRANSFER TRAINERS sequential|parallel INVOCATIONS

prints the median latency in milliseconds, the bytes that were put and got, and the share of the time that each span had. PROGRAM
may be `python`: scikit-learn does the same in this process, without functions (TRANSFER none). TRANSFER `away` alternates INLINE
without tracing and with it, where no collector receives the spans."""
import collections
import contextlib
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from ports import free_port  # noqa: E402  (beside this file)
from swift_server import swift, wait_for  # noqa: E402

BUCKET = "vhive-stacking"


class Collector:
    """A collector that receives spans as Zipkin does."""

    def __init__(self):
        self.spans = []
        outside = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                outside.spans += json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(202)
                self.end_headers()

            def log_message(self, *_):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/api/v2/spans"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Redis:
    def __init__(self, folder):
        self.port = free_port()
        self.process = subprocess.Popen(["redis-server", "--port", str(self.port), "--save", "", "--dir", folder], stdout=subprocess.DEVNULL)
        wait_for(self.port)

    def stop(self):
        self.process.kill()
        self.process.wait()


class S3:
    def __init__(self, folder):
        self.server = swift(pathlib.Path(folder))
        self.server.put(f"/{BUCKET}")

    def stop(self):
        for kind in list(self.server.processes):
            self.server.kill(kind)


def missing(transfer):
    """Returns the server of Debian that a transfer needs and that is not installed here; "" otherwise."""
    needed = {"S3": "swift-proxy-server", "REDIS": "redis-server"}.get(transfer)
    return needed if needed and shutil.which(needed) is None else ""


class Ensemble:
    """A driver, trainers, a reducer and a meta-trainer."""

    def __init__(self, program, data, transfer="INLINE", trainers=4, parallel=False, models=(), zipkin="", folder=None, instances=None,
                 one_address=False, **environment):
        self.program, self.stack = str(program), contextlib.ExitStack()
        self.folder = folder or self.stack.enter_context(tempfile.TemporaryDirectory())
        self.store = S3(self.folder) if transfer == "S3" else Redis(self.folder) if transfer == "REDIS" else None
        self.environment = {**os.environ, "TRANSFER_TYPE": transfer, "TrainersNum": str(trainers), "CONCURRENT_TRAINING": str(parallel).lower(),
                            "BUCKET_NAME": BUCKET, "ENABLE_TRACING": str(bool(zipkin)).lower()}
        if transfer == "REDIS":
            self.environment["BUCKET_NAME"] = f"127.0.0.1:{self.store.port}"
        if transfer == "S3":
            server = self.store.server
            self.environment |= {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.ports['proxy']}", "AWS_ACCESS_KEY": server.user,
                                 "AWS_SECRET_KEY": server.key, "AWS_REGION": "us-east-1"}
        self.environment |= environment
        self.zipkin = ["-zipkin", zipkin] if zipkin else []
        self.processes, self.ports = {}, {}
        self.trainers = [f"trainer-{k}" for k in range(instances or trainers)]
        for name in [*self.trainers, "reducer", "metatrainer"]:
            self.start(name)
        addresses = [f"127.0.0.1:{self.ports[name]}" for name in self.trainers]
        self.start("driver", "-tAddr", addresses[0] if one_address else ",".join(addresses), "-rAddr", f"127.0.0.1:{self.ports['reducer']}", "-mAddr",
                   f"127.0.0.1:{self.ports['metatrainer']}", "--data", data, *(["--models", ",".join(models)] if models else []))

    def start(self, name, *words, port=0):
        """Starts one function, whose log is in the folder."""
        log = pathlib.Path(self.folder) / f"{name}.log"
        with log.open("a") as to:
            self.processes[name] = subprocess.Popen([self.program, "--function", name.split("-")[0], "-sp", str(port), *self.zipkin, *map(str, words)],
                                                    stdout=to, stderr=to, env=self.environment, start_new_session=True)
        for _ in range(600):
            if found := re.findall(r"listens to port (\d+)", log.read_text()):
                self.ports[name] = int(found[-1])
                return
            if self.processes[name].poll() is not None:
                output = log.read_text().strip()
                self.stop()
                raise RuntimeError(output)
            time.sleep(0.05)
        raise RuntimeError(f"{name} does not listen")

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait()

    def client(self, *words, timeout=120):
        return subprocess.run([self.program, "--function", "client", "-addr", f"127.0.0.1:{self.ports['driver']}", *map(str, words)], text=True,
                              capture_output=True, timeout=timeout, check=False, env={**os.environ, "ENABLE_TRACING": "false"})

    def stop(self):
        """Ends the functions and returns their last output; must be called once."""
        last_lines = {}
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for name, process in self.processes.items():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            last_lines[name] = (pathlib.Path(self.folder) / f"{name}.log").read_text()
        if self.processes and self.store:
            self.store.stop()
        self.processes = {}
        self.stack.close()
        return last_lines


def learner(model):
    """Returns a learner with the parameters of the driver."""
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.linear_model import Lasso
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.svm import LinearSVR
    return {"LinearSVR": lambda: LinearSVR(C=1.0, tol=1e-6, random_state=42), "Lasso": lambda: Lasso(alpha=0.1),
            "RandomForestRegressor": lambda: RandomForestRegressor(n_estimators=2, max_depth=2, min_samples_split=2, min_samples_leaf=2, random_state=42),
            "KNeighborsRegressor": lambda: KNeighborsRegressor(n_neighbors=20)}[model]()


MODELS = ["LinearSVR", "Lasso", "RandomForestRegressor", "KNeighborsRegressor"]


def train_in_python(data, model):
    from sklearn.model_selection import cross_val_predict
    fitted = learner(model)
    return cross_val_predict(fitted, data[:, :-1], data[:, -1], cv=5), fitted.fit(data[:, :-1], data[:, -1])


def invoke_in_python(data, trainers, pool):
    """Returns the score of an ensemble in this process."""
    import numpy
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import cross_val_predict
    models = [MODELS[k % len(MODELS)] for k in range(trainers)]
    learned = list((pool.map if pool else map)(train_in_python, [data] * trainers, models))
    features, meta = numpy.transpose([predictions for predictions, _ in learned]), LogisticRegression()
    classes = cross_val_predict(meta, features, data[:, -1], cv=5)
    meta.fit(features, data[:, -1])
    return roc_auc_score(classes, data[:, -1])


def run_python(data, trainers, parallel, invocations):
    import concurrent.futures
    import numpy
    data = numpy.load(data)
    with concurrent.futures.ProcessPoolExecutor(min(trainers, os.cpu_count())) if parallel else contextlib.nullcontext() as pool:
        score, times = invoke_in_python(data, trainers, pool), []
        for _ in range(invocations):
            begin = time.monotonic()
            invoke_in_python(data, trainers, pool)
            times.append((time.monotonic() - begin) * 1e3)
    print(f"latency_ms {statistics.median(times):.2f}\nscore {score}")


GROUPS = (("transfer", r"(Put|Get) (?!the )"), ("training", r"Training a model"), ("meta", r"Train the meta model"), ("trainers", r"Invoke all trainers"),
          ("reducer", r"/stacking.Reducer/"), ("metatrainer", r"/stacking.Metatrainer/"))


def run_services(program, data, transfer, trainers, parallel, invocations):
    collector = Collector()
    ensemble = Ensemble(program, data, transfer, trainers, parallel, zipkin=collector.url)
    try:
        first = ensemble.client()   # connects
        if first.returncode:
            sys.exit(first.stderr.strip())
        latencies = pathlib.Path(ensemble.folder) / "lat.csv"
        done = ensemble.client("--invocations", invocations, "-latf", latencies, timeout=60 + 20 * invocations)
        if done.returncode:
            sys.exit(done.stderr.strip())
        file, = pathlib.Path(ensemble.folder).glob("rps*_lat.csv")
        times = [int(line) / 1e3 for line in file.read_text().split()]
    finally:
        ensemble.stop()
    sums, moved, traces = collections.Counter(), 0, set()
    for span in collector.spans:
        traces.add(span["traceId"])
        moved += int(span.get("tags", {}).get("bytes", 0))
        for name, pattern in GROUPS:
            if re.match(pattern, span["name"]):
                sums[name] += span["duration"]
        if span["name"] == "/helloworld.Greeter/SayHello":
            sums["whole"] += span["duration"]
    print(f"latency_ms {statistics.median(times):.2f}\nmoved_mb {moved / len(traces) / 1e6:.3f}\nscore {first.stdout.split()[-1]}")
    for name, _ in GROUPS:
        print(f"share_{name} {sums[name] / sums['whole']:.4f}")


def run_away(program, data, trainers, parallel, invocations):
    """Returns the medians, the ratio of the second to the first, and the spans of the driver."""
    ensembles = [Ensemble(program, data, "INLINE", trainers, parallel, zipkin=zipkin) for zipkin in ("", "http://127.0.0.1:1/api/v2/spans")]
    times = [[], []]
    try:
        for each in ensembles:
            each.client()   # connects
        for number in range(invocations):
            for which in (0, 1) if number % 2 else (1, 0):
                folder = pathlib.Path(ensembles[which].folder)
                ensembles[which].client("--invocations", 2, "-latf", folder / "lat.csv")
                file, = folder.glob("rps*_lat.csv")
                times[which] += [int(line) / 1e3 for line in file.read_text().split()]
                file.unlink()
    finally:
        last_lines = [each.stop() for each in ensembles]
    off, away = map(statistics.median, times)
    print(f"latency_ms {away:.2f}\nwithout tracing {off:.2f}\nratio {away / off:.4f}\n{re.search('spans: .*', last_lines[1]['driver'])[0]}")


def main():
    if len(sys.argv) != 7:
        sys.exit(__doc__)
    program, data, transfer, trainers, order, invocations = sys.argv[1:]
    if transfer == "needs":
        sys.exit(f"{missing(trainers.upper())} is not installed" if missing(trainers.upper()) else 0)
    words = data, int(trainers), order == "parallel", int(invocations)
    if program == "python":
        run_python(*words)
    elif transfer == "away":
        run_away(program, *words)
    else:
        run_services(program, data, transfer.upper(), *words[1:])


if __name__ == "__main__":
    main()
