#!/usr/bin/python3
"""Measures predictions of a network: muster and ONNX Runtime in process, and serve and Python servers that use ONNX Runtime.

    bench/peers/serve.py --peers PYTHON [--build build/release] [--rounds 3] [--seconds 3] [--only process,swap,burst,mosec,litserve,bentoml,ray,pytriton]

PYTHON is an interpreter that has onnxruntime, mosec, litserve, bentoml, ray[serve] and nvidia-pytriton; /usr/bin/python3 has Debian's python3-onnx. The CNN
has images of 32 x 32 pixels and 3 colours and is trained for an epoch; its ONNX is to_onnx's. In process, each uses one thread. A
server has one thread or process for the model and batches of at most 32, and does not wait for more requests. The client is wrk on the same machine.
Contenders take turns; medians are printed. Requests are the 3,072 bytes of an image: v2's binary tensor (muster and pytriton), the
body (mosec and ray), and base64 in JSON for the others. `burst` is muster-pool with all cores: two clients on
idle cores, and the same clients beside an elastic training that has all cores at their start.
"""
import argparse
import base64
import contextlib
import json
import math
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BYTES = 3072
SESSION = """
import numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])
def run(images):
    return session.run(None, {"image": numpy.frombuffer(b"".join(images), "uint8").reshape(-1, 3, 32, 32)})[0]
"""
PROGRAMS = {
    "process": """
import sys, time
images = open(sys.argv[1], "rb").read()
for line in sys.stdin:
    rows, times = map(int, line.split())
    batch = numpy.frombuffer(images[:rows * 3072], "uint8").reshape(-1, 3, 32, 32)
    begin = time.perf_counter()
    for _ in range(times):
        made = session.run(None, {"image": batch})[0]
    spent = (time.perf_counter() - begin) / times
    made.tofile(sys.argv[2])
    print(spent, flush=True)
""",
    "mosec": """
import json, mosec
class Model(mosec.Worker):
    def deserialize(self, data): return data
    def forward(self, data): return run(data)
    def serialize(self, data): return json.dumps(data.tolist()).encode()
server = mosec.Server()
server.append_worker(Model, max_batch_size=BATCH, max_wait_time=1)
server.run()
""",
    "litserve": """
import base64, litserve
class Model(litserve.LitAPI):
    def setup(self, device): pass
    def decode_request(self, request): return base64.b64decode(request["image"])
    def batch(self, inputs): return inputs
    def predict(self, x): return run(x) if isinstance(x, list) else run([x])[0]
    def unbatch(self, output): return list(output)
    def encode_response(self, output): return {"probabilities": output.tolist()}
if __name__ == "__main__":
    litserve.LitServer(Model(max_batch_size=BATCH, batch_timeout=0), accelerator="cpu").run(port=PORT, generate_client_file=False, log_level="warning")
""",
    "bentoml": """
import base64, bentoml
@bentoml.service(workers=1, traffic={"timeout": 30})
class Model:
    @bentoml.api(batchable=True, max_batch_size=BATCH, max_latency_ms=1000)
    def predict(self, images: list[str]) -> list[list[float]]:
        return run([base64.b64decode(each) for each in images]).tolist()
""",
    "ray": """
import ray.serve
@ray.serve.deployment(max_ongoing_requests=1000)
class Model:
    @ray.serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=0)
    async def predict(self, images): return run(images).tolist()
    async def __call__(self, request): return await self.predict(await request.body())
def main():
    ray.init(include_dashboard=False)
    ray.serve.start(http_options={"port": PORT})
    ray.serve.run(Model.bind(), blocking=True)
""",
    "pytriton": """
import pytriton.decorators, pytriton.model_config as model_config, pytriton.triton as triton
@pytriton.decorators.batch
def infer(image): return [session.run(None, {"image": image})[0]]
with triton.Triton(config=triton.TritonConfig(http_port=PORT, grpc_port=PORT + 2, metrics_port=PORT + 3)) as server:
    server.bind(model_name="cnn", infer_func=infer, inputs=[model_config.Tensor(name="image", dtype=numpy.uint8, shape=(3, 32, 32))],
                outputs=[model_config.Tensor(name="probabilities", dtype=numpy.float32, shape=(10,))],
                config=model_config.ModelConfig(max_batch_size=BATCH, batcher=model_config.DynamicBatcher(max_queue_delay_microseconds=0)))
    server.serve()
""",
}


def family(ancestor):
    """Returns a process with its descendants: {process: CPU seconds, including children that have ended}."""
    found = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = stat.read_text().rpartition(")")[2].split()
            found[int(stat.parent.name)] = int(words[1]), sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")

    def descends(process):
        while process in found and process != ancestor:
            process = found[process][0]
        return process == ancestor
    return {each: found[each][1] for each in found if descends(each)}


class Bench:
    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder
        self.build = pathlib.Path(arguments.build).resolve()
        (folder / "models/cnn/1").mkdir(parents=True)
        subprocess.run([self.build / "examples/cnn", "--data", "cifar-like:2000", "--epochs", "1", "--save", folder / "models/cnn/1/model.muster"],
                       check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["/usr/bin/python3", ROOT / "examples/serve/to_onnx.py", folder / "models/cnn/1/model.muster", folder / "cnn.onnx"], check=True)
        self.images = os.urandom(32 * BYTES)
        (folder / "images").write_bytes(self.images)

    def in_process(self):
        """Returns microseconds a batch, and the largest difference of the probabilities."""
        (self.folder / "process.py").write_text(f"MODEL = {str(self.folder / 'cnn.onnx')!r}\n{SESSION}{PROGRAMS['process']}")
        commands = {"muster": [self.build / "bench/peers/serve_predict", self.folder / "models/cnn/1", self.folder / "images", self.folder / "muster.out"],
                    "onnxruntime": [self.arguments.peers, self.folder / "process.py", self.folder / "images", self.folder / "onnxruntime.out"]}
        running = {name: subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for name, words in commands.items()}

        def ask(name, rows, times):
            print(rows, times, file=running[name].stdin, flush=True)
            return float(running[name].stdout.readline())

        for rows in (1, 32):
            times = {name: max(1, int(0.3 / ask(name, rows, 20))) for name in running}
            found = {name: [] for name in running}
            for _ in range(4 * self.arguments.rounds):
                for name in running:
                    found[name].append(ask(name, rows, times[name]) * 1e6)
            middle = {name: statistics.median(each) for name, each in found.items()}
            import numpy  # Debian's, which python3-onnx needs
            outputs = [numpy.fromfile(self.folder / f"{name}.out", "float32") for name in running]
            print(f"batch {rows}: " + ", ".join(f"{name} {middle[name]:.1f} us ({min(found[name]):.1f} to {max(found[name]):.1f})" for name in running) +
                  f"; {middle['onnxruntime'] / middle['muster']:.2f}x onnxruntime; probabilities differ by {abs(outputs[0] - outputs[1]).max():.1e} at most", flush=True)
        for each in running.values():
            each.stdin.close()
            each.wait()

    def server(self, name, batch, port):
        """Returns the command of a server, and its clients' requests."""
        image = self.images[:BYTES]
        path, headers, body = "/predict", {"Content-Type": "application/json"}, json.dumps({"image": base64.b64encode(image).decode()}).encode()
        head = json.dumps({"inputs": [{"name": "image", "datatype": "UINT8", "shape": [1, 3, 32, 32], "parameters": {"binary_data_size": BYTES}}]}).encode()
        infer = "/v2/models/cnn/infer", {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}, head + image
        if name.startswith("muster"):
            words = [self.build / "examples/serve", "--models", self.folder / "models", "--listen", f"127.0.0.1:{port}", "--max-batch", batch]
            if name == "muster-pool":
                words = [*words[:4], "127.0.0.1:$(PORT)"]
                documents = ({"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
                              "metadata": {"name": "cnn", "annotations": {"autoscaling.knative.dev/window": "6s"}},
                              "spec": {"predictor": {"minReplicas": 0, "maxReplicas": 1, "containers": [{"command": list(map(str, words))}]}}},
                             {"apiVersion": "pool.muster/v1", "kind": "Training", "metadata": {"name": "night"}, "spec": {"control": "night.sock"}})
                (self.folder / "services.yaml").write_text("\n---\n".join(map(json.dumps, documents)))
                words = ["/usr/bin/python3", "-m", "muster_pool", "services.yaml", "--listen", f"127.0.0.1:{port}", "--metrics", f"127.0.0.1:{port + 1}"]
            if name == "muster behind haproxy":
                words[4] = f"127.0.0.1:{port + 1}"
                (self.folder / "haproxy.cfg").write_text(f"defaults\n mode http\n timeout connect 1s\n timeout client 60s\n timeout server 60s\n retries 3\n option redispatch\n"
                                                         f"frontend f\n bind 127.0.0.1:{port}\n default_backend b\nbackend b\n balance leastconn\n http-reuse safe\n"
                                                         f" option httpchk GET /v2/health/ready\n server a 127.0.0.1:{port + 1} check inter 500ms\n")
                words = ["sh", "-c", '"$@" & exec haproxy -q -f haproxy.cfg', "-", *words]
            return (words, *infer)
        program = self.folder / f"{name}_{batch}.py"
        program.write_text(f"MODEL, BATCH, PORT = {str(self.folder / 'cnn.onnx')!r}, {batch}, {port}\n{SESSION}{PROGRAMS[name]}")
        words = [self.arguments.peers, program]
        if name == "mosec":
            words, path, headers, body = [*words, "--port", port, "--log-level", "warning"], "/inference", {}, image
        if name == "ray":
            # an imported class avoids pickling the session
            words = [self.arguments.peers, "-c", f"import {program.stem}; {program.stem}.main()"]
            path, headers, body = "/", {}, image
        if name == "pytriton":
            path, headers, body = infer
        if name == "bentoml":
            words = [pathlib.Path(self.arguments.peers).parent / "bentoml", "serve", f"{program.stem}:Model", "--port", port, "--host", "127.0.0.1"]
            path, body = "/predict", json.dumps({"images": [base64.b64encode(image).decode()]}).encode()
        return words, path, headers, body

    @contextlib.contextmanager
    def serving(self, name, batch=32, port=18123):
        """Runs a server; yields a function that loads the server for some seconds."""
        words, path, headers, body = self.server(name, batch, port)
        log = open(self.folder / f"{name}.log", "w")
        running = subprocess.Popen(list(map(str, words)), cwd=self.folder, stdout=log, stderr=log, start_new_session=True, env={**os.environ, "BENTOML_DO_NOT_TRACK": "1", "PYTHONPATH": str(ROOT / "python")})
        url = f"http://127.0.0.1:{port}{path}"
        try:
            end = time.monotonic() + 40
            while True:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=5).read()
                    break
                if time.monotonic() > end or running.poll() is not None:
                    raise SystemExit(f"{name} does not answer: {(self.folder / f'{name}.log').read_text()[-2000:]}")
                time.sleep(0.2)
            script = self.folder / "post.lua"
            (self.folder / "body").write_bytes(body)
            script.write_text("wrk.method = 'POST'\nlocal f = io.open('" + str(self.folder / "body") + "', 'rb')\nwrk.body = f:read('*a')\n" +
                              "".join(f"wrk.headers['{key}'] = '{value}'\n" for key, value in headers.items()) +
                              "done = function(s, l, r) io.write(string.format('found %d %d %d %d %d %d\\n', s.requests, s.duration, l:percentile(50), l:percentile(99), "
                              "s.errors.status, s.errors.connect + s.errors.read + s.errors.write + s.errors.timeout)) end\n")

            def load(clients, seconds):
                before = sum(family(running.pid).values())
                output = subprocess.run(["wrk", "-t1", f"-c{clients}", f"-d{seconds}", "-s", script, url], stdout=subprocess.PIPE, text=True, check=True).stdout
                count, spent, p50, p99, refused, failed = map(int, re.search("found (.*)", output).group(1).split())
                return {"rate": count / spent * 1e6, "p50": p50 / 1e3, "p99": p99 / 1e3, "cpu": (sum(family(running.pid).values()) - before) / count * 1e3, "failed": refused + failed}

            load(5, 1)
            yield load
        finally:
            for each in family(running.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            running.wait()
            log.close()

    def compare(self, contenders):
        found = {}
        for _ in range(self.arguments.rounds):
            for name, batch in contenders:
                with self.serving(name, batch) as load:
                    for clients in (1, 5, 64):
                        found.setdefault((clients, name, batch), []).append(load(clients, self.arguments.seconds))
        for (clients, name, batch), all_rounds in sorted(found.items()):
            middle = {key: statistics.median(each[key] for each in all_rounds) for key in all_rounds[0]}
            print(f"{clients} clients, {name}, batches of {batch} at most: {middle['rate']:.0f} requests/s, p50 {middle['p50']:.2f} ms, p99 {middle['p99']:.2f} ms, "
                  f"{middle['cpu']:.2f} CPU s per 1,000, {sum(each['failed'] for each in all_rounds):.0f} failed", flush=True)

    def swap(self):
        """Publishes a new version each second, and compares with no new version. Versions are made before, and
        published by rename, so that copying is not measured."""
        found = {"none": [], "swaps": []}
        number = 1
        with self.serving("muster") as load:
            for _ in range(self.arguments.rounds):
                found["none"].append(load(5, self.arguments.seconds))
                versions = [shutil.copytree(self.folder / "models/cnn/1", self.folder / f"made/{number + k + 1}") for k in range(self.arguments.seconds)]
                over = threading.Event()

                def add():
                    for version in versions:
                        version.rename(self.folder / "models/cnn" / version.name)
                        over.wait(1)
                adding = threading.Thread(target=add)
                adding.start()
                found["swaps"].append(load(5, self.arguments.seconds))
                over.set()
                adding.join()
                number += len(versions)
        for name, each in found.items():
            print(f"{name}: p50 {statistics.median(e['p50'] for e in each):.2f} ms, p99 {statistics.median(e['p99'] for e in each):.2f} ms, {sum(e['failed'] for e in each)} failed", flush=True)

    @contextlib.contextmanager
    def training(self):
        """Runs an elastic training with one rank for each core until the end of the block; yields functions that return
        its ranks and its epochs."""
        with open(self.folder / "night.log", "w") as log:
            job = subprocess.Popen([self.build / "src/programs/muster-launch", "-n", str(len(os.sched_getaffinity(0))), "--control", "night.sock", self.build / "examples/cnn",
                                    "--data", "cifar-like:600", "--batch", "50", "--epochs", "100000"], cwd=self.folder, stdout=log, stderr=log)

        def ranks():
            if job.poll() is not None:
                raise SystemExit(f"the training ended: {(self.folder / 'night.log').read_text()[-2000:]}")
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as to:
                to.settimeout(5)
                to.connect(str(self.folder / "night.sock"))
                to.sendall(b"status\n")
                return json.loads(to.makefile().readline())["ranks"]
            return 0

        def epochs():
            return len(re.findall(r"^\W*\d+ +\d", (self.folder / "night.log").read_text(), re.M))
        try:
            yield ranks, epochs
        finally:
            job.kill()
            job.wait()

    def burst(self):
        found, cores = {}, len(os.sched_getaffinity(0))
        for _ in range(self.arguments.rounds):
            for beside in ("idle cores", "a training"):
                with contextlib.ExitStack() as held:
                    ranks, epochs = held.enter_context(self.training()) if beside == "a training" else (lambda: cores, lambda: 0)
                    load = held.enter_context(self.serving("muster-pool"))
                    while json.loads((self.folder / "services.pool/state.json").read_text())["services"]["cnn"]["replicas"] or ranks() != cores:
                        time.sleep(0.2)
                    at, left = epochs(), {}
                    time.sleep(self.arguments.seconds)
                    quiet, begin = (epochs() - at) / self.arguments.seconds, time.monotonic()

                    def watch():
                        while "s" not in left and time.monotonic() < begin + 10:
                            if ranks() < cores:
                                left["s"] = time.monotonic() - begin
                            time.sleep(0.02)
                    watching = threading.Thread(target=watch)
                    watching.start()
                    at = epochs()
                    row = load(2, 5 * self.arguments.seconds)
                    row["later"] = load(2, 5 * self.arguments.seconds)["p99"]
                    row.update(quiet=quiet, epochs=(epochs() - at) / (time.monotonic() - begin), left=left.get("s", math.nan))
                    watching.join()
                    found.setdefault(beside, []).append(row)
        for beside, rows in found.items():
            middle = {key: statistics.median(each[key] for each in rows) for key in rows[0]}
            print(f"a burst beside {beside}: {middle['rate']:.0f} requests/s, p50 {middle['p50']:.2f} ms, p99 {middle['p99']:.2f} ms "
                  f"({', '.join(format(each['p99'], '.2f') for each in rows)}), of as many later {middle['later']:.2f} ms "
                  f"({', '.join(format(each['later'], '.2f') for each in rows)}), {sum(each['failed'] for each in rows):.0f} failed" +
                  ("" if beside == "idle cores" else f"; a rank had left after {middle['left']:.2f} s; {middle['quiet']:.2f} epochs/s before, {middle['epochs']:.2f} in it"), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=sys.executable)
    parser.add_argument("--build", default=ROOT / "build/release")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--only", default="process,swap,burst,mosec,litserve,bentoml,ray,pytriton")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    with tempfile.TemporaryDirectory(prefix="muster-serve-") as folder:
        bench = Bench(arguments, pathlib.Path(folder))
        if "process" in chosen:
            bench.in_process()
        if "burst" in chosen:
            bench.burst()
        if "swap" in chosen:
            bench.swap()
        peers = [name for name in ("mosec", "litserve", "bentoml", "ray", "pytriton") if name in chosen]
        if peers or "muster" in chosen:
            bench.compare([("muster", 32), ("muster", 1), ("muster behind haproxy", 32), *((name, 32) for name in peers)])


if __name__ == "__main__":
    main()
