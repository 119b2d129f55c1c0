#!/usr/bin/env python3
"""Tests the functions of the stacked ensemble under muster-pool, as in examples/stacking/services.yaml: gRPC through HAProxy.

CTest runs one class at a time. MUSTER_TEST_PROGRAMS is the folder of the program, MUSTER_TEST_SOURCES the repository."""
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import threading
import unittest

try:
    import grpc
    import sklearn  # noqa: F401  (it makes the data)
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(0)

SOURCES = pathlib.Path(os.environ["MUSTER_TEST_SOURCES"])
sys.path.insert(0, str(SOURCES / "tests/examples/serve"))
from pool_case import ENVIRONMENT, PoolCase, service, slow  # noqa: E402  (beside the tests of muster-pool)
from program import HANG  # noqa: E402


# A service that answers each message of a stream at once.
ECHO = """
import concurrent.futures, grpc, os
class Handler(grpc.GenericRpcHandler):
    def service(self, call):
        return grpc.stream_stream_rpc_method_handler(lambda messages, _: messages) if call.method == "/one.Echo/All" else None
server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((Handler(),))
server.add_insecure_port("127.0.0.1:" + os.environ["PORT"])
server.start()
server.wait_for_termination()
"""


class Grpc(PoolCase):
    def setUp(self):
        super().setUp()
        subprocess.run([sys.executable, SOURCES / "examples/stacking/make_data.py", "stacking.npy"], cwd=self.folder, check=True, capture_output=True)
        self.text = (SOURCES / "examples/stacking/services.yaml").read_text().replace(":8080", f":{self.port}")

    def begin(self, **replicas):
        (self.folder / "services.yaml").write_text(self.text)
        self.start()
        for name in ("trainer", "reducer", "metatrainer", "driver"):
            self.until(lambda name=name: len(self.replicas(name)) == replicas.get(name, 1))

    def client(self):
        return subprocess.run(["stacking", "--function", "client", "-addr", f"127.0.0.1:{self.port}"], text=True, capture_output=True, timeout=2 * HANG,
                              check=False, env={**ENVIRONMENT, "GRPC_VERBOSITY": "NONE"})

    def score(self):
        done = self.client()
        self.assertEqual(done.returncode, 0, done.stderr + self.log.read_text())
        return re.fullmatch(r"Greeting: \S+ score (\S+)\n", done.stdout)[1]

    def test_a_trainer_that_is_killed_is_retried_and_started_again(self):
        self.text = self.text.replace("[{name: h2c}]\n", "[{name: h2c}]\n        env: [{name: CONCURRENT_TRAINING, value: 'true'}]\n")
        self.begin(trainer=4)
        whole = self.score()
        victim = self.replicas("trainer")[1]
        os.kill(victim, signal.SIGSTOP)   # it serves a quarter of the concurrent calls
        kill = threading.Timer(0.3, os.kill, [victim, signal.SIGKILL])
        kill.start()
        self.assertEqual(self.score(), whole)
        kill.join()
        self.until(lambda: len(self.replicas("trainer")) == 4 and victim not in self.replicas("trainer"))
        self.assertEqual(self.score(), whole)
        self.drain()

    def test_functions_that_are_not_there_are_started_by_their_first_call(self):
        self.text = self.text.replace("maxReplicas: 1\n", "maxReplicas: 1\n    minReplicas: 0\n")
        self.begin(trainer=4, reducer=0, metatrainer=0, driver=0)
        self.assertGreater(float(self.score()), 0.8)
        for name in ("reducer", "metatrainer", "driver"):
            self.assertEqual(len(self.replicas(name)), 1)

    def test_a_function_that_cannot_start_is_unavailable(self):
        before, name, after = self.text.partition("name: reducer")
        self.text = before + name + after.replace("--function, reducer", "--function, nothing").replace("maxReplicas: 1\n", "maxReplicas: 1\n    timeout: 1\n", 1)
        self.text = self.text.replace("[{name: h2c}]\n", "[{name: h2c}]\n        env: [{name: TRANSFER_TYPE, value: XDT}]\n")
        self.begin(trainer=4, reducer=0)
        done = self.client()
        self.assertEqual((done.returncode, done.stderr.count("\n")), (4, 1), done.stderr)
        self.assertIn(f"localhost:{self.port}: no replica", done.stderr)

    def test_a_stream_may_wait_for_an_answer(self):
        (self.folder / "echo.py").write_text(ECHO)
        container = {"command": [sys.executable, "echo.py"], "ports": [{"name": "h2c", "containerPort": 80}]}
        self.start(service("echo", {"maxReplicas": 1, "minReplicas": 0, "containers": [container]}), service("other", slow(more={"minReplicas": 0})))
        self.assertEqual(self.post("/v1/models/other:predict")[0], 200)   # a service with HTTP/1 beside it
        answers = queue.Queue()
        with grpc.insecure_channel(f"127.0.0.1:{self.port}", [("grpc.default_authority", "echo.default.example.com")]) as channel:
            for wanted in (1, 5):   # the whole first call is held
                answers.put(b"0")
                for number, got in enumerate(channel.stream_stream("/one.Echo/All")(iter(answers.get, None), timeout=HANG), 1):
                    self.assertEqual(got, b"%d" % (number - 1))
                    answers.put(b"%d" % number if number < wanted else None)


if __name__ == "__main__":
    unittest.main()
