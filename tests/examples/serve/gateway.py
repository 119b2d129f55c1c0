#!/usr/bin/env python3
"""Tests serve --gateway as users run it, with real replicas. CTest runs one class at a time: gateway.py CLASS."""
import array
import base64
import http.client
import json
import pathlib
import random
import signal
import socket
import struct
import subprocess
import sys
import time
import unittest

from program import HANG, PROGRAMS, Case

FEATURES = 2000  # number of features of the model "line"
ROW = 4 * FEATURES
INFER = "/v2/models/line/infer"


def head_of(rows, size, name="features", datatype="FP32", shape=(FEATURES,), **more):
    return json.dumps({"parameters": {"binary_data_output": True}, "id": "a",
                       "inputs": [{"name": name, "datatype": datatype, "shape": [rows, *shape], "parameters": {"binary_data_size": size}}], **more}).encode()


def peak(process):
    """Returns the peak memory of a process, in bytes."""
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def some_rows(count, seed=1):
    draw = random.Random(seed)
    return array.array("f", (draw.uniform(-1, 1) for _ in range(count * FEATURES))).tobytes()


class GatewayCase(Case):
    def start_gateway(self, replicas, *arguments):
        return self.start("--gateway", ",".join(f"127.0.0.1:{port}" for _, port in replicas), "--split", "rows", "--listen", "127.0.0.1:0", *arguments)

    def start_replicas(self, count=3):
        self.add_model()
        return [self.start("--models", "models", "--listen", "127.0.0.1:0") for _ in range(count)]

    def send(self, port, head, pieces, size, path=INFER, **headers):
        """Sends a request whose binary data arrive in pieces. Returns the status, headers and body of the reply."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG)
        self.addCleanup(connection.close)
        connection.putrequest("POST", path)
        connection.putheader("Content-Length", str(len(head) + size))
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.putheader("Inference-Header-Content-Length", str(len(head)))
        connection.endheaders(head)
        for piece in pieces:
            connection.send(piece)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()

    def infer(self, port, data, rows=None):
        rows = len(data) // ROW if rows is None else rows
        return self.send(port, head_of(rows, len(data)), [data], len(data))


class Answers(GatewayCase):
    def test_an_answer_is_bitwise_that_of_one_server(self):
        replicas = self.start_replicas()
        _, port = self.start_gateway(replicas)
        _, whole = self.start("--models", "models", "--listen", "127.0.0.1:0", "--max-batch", "4096")
        data = some_rows(1001)
        for rows in (1, 32, 33, 1001):
            sharded, direct = (self.infer(at, data[:rows * ROW]) for at in (port, whole))
            self.assertEqual(direct[0], 200, direct[2][:300])
            self.assertEqual(sharded[0], 200, sharded[2][:300])
            self.assertEqual(sharded[1]["Inference-Header-Content-Length"], direct[1]["Inference-Header-Content-Length"])
            self.assertEqual(sharded[2], direct[2])
        for _, each in replicas:  # all replicas have predicted
            self.assertIn(b'muster_serve_requests_total{model="line",status="200"}', self.ask(each, "GET", "/metrics")[1])
        self.assertEqual(self.ask(port, "GET", "/v2/models/line"), self.ask(whole, "GET", "/v2/models/line"))

    def test_an_answer_about_images_is_bitwise_that_of_one_server(self):
        done = self.run_shell("cnn --data cifar-like:200 --epochs 1 --save model.muster && mkdir -p models/cnn/1 && mv model.muster models/cnn/1")
        self.assertEqual(done.returncode, 0, done.stdout)
        replicas = [self.start("--models", "models", "--listen", "127.0.0.1:0") for _ in range(2)]
        _, port = self.start_gateway(replicas)
        _, whole = self.start("--models", "models", "--listen", "127.0.0.1:0", "--max-batch", "4096")
        data = random.Random(1).randbytes(200 * 3072)
        head = head_of(200, len(data), "image", "UINT8", (3, 32, 32))
        sharded, direct = (self.send(at, head, [data], len(data), "/v2/models/cnn/infer") for at in (port, whole))
        self.assertEqual(sharded[0], 200, sharded[2][:300])
        self.assertEqual(sharded[2], direct[2])

    def test_the_spans_of_replicas_belong_to_the_trace_of_the_caller(self):
        self.add_model()
        replicas = [self.start("--models", "models", "--listen", "127.0.0.1:0", "--spans", f"spans{k}") for k in range(2)]
        _, port = self.start_gateway(replicas)
        trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
        data = some_rows(200)
        self.assertEqual(self.send(port, head_of(200, len(data)), [data], len(data), traceparent=f"00-{trace}-{span}-01")[0], 200)
        for k in range(2):
            lines = [json.loads(line) for line in (self.folder / f"spans{k}").read_text().splitlines()]
            self.assertTrue(lines)
            self.assertEqual({(spans[0]["traceId"], spans[0]["parentId"]) for spans in lines}, {(trace, span)})

    def test_what_is_wrong_is_named_by_its_field(self):
        _, port = self.start_gateway(self.start_replicas(1))
        data = some_rows(2)
        deep = head_of(2, len(data))[:-1] + b', "more": ' + b"[" * 500_000 + b"]" * 500_000 + b"}"
        for head, words in ((head_of(0, 0), "inputs[0].shape: has no rows"), (b"[1", "body: is not a JSON object"),
                            (head_of(3, len(data)), "inputs[0].parameters.binary_data_size: is 16000"),
                            (head_of(2, len(data), inputs=[]), "inputs: does not have exactly one element"),
                            (head_of(2, len(data), parameters={}), "parameters.binary_data_output: is not true"),
                            (head_of(2, len(data), parameters=[1]), "parameters.binary_data_output: is not true"),
                            (head_of(2, len(data), parameters={}, outputs=[{"parameters": [1]}]), "parameters.binary_data_output: is not true"),
                            (deep, "body: is nested deeper than 64 levels"),
                            (head_of(2, len(data), "feature"), "inputs[0].name: is not an input of the model"),
                            (head_of(2, len(data), datatype="FP64"), "inputs[0].datatype: is not FP32"),
                            (head_of(2, len(data), shape=(1999,)), "inputs[0].shape: is not [rows,2000]"),
                            (head_of(1, ROW), "inputs[0].parameters.binary_data_size: is less than the number of bytes after")):
            status, _, body = self.send(port, head, [data], len(data))
            self.assertEqual(status, 400, body)
            self.assertIn(words, json.loads(body)["error"])
        self.assertEqual(self.infer(port, data)[0], 200)
        self.assertEqual(self.send(port, head_of(2, len(data)), [data], len(data), "/v2/models/none/infer")[0], 404)
        self.assertEqual(self.ask(port, "POST", "/v1/models/line:predict", "{}")[0], 404)
        self.assertEqual(self.ask(port, "DELETE", "/v2")[0], 405)
        self.assertEqual(self.ask(port, "POST", INFER, "{}")[0], 400)

    def test_a_body_whose_end_is_not_clear_ends_the_connection(self):
        _, port = self.start_gateway(self.start_replicas(1))
        for coding, body, words in (("xchunked", b"GET /v2 HTTP/1.1\r\n\r\n", b"Transfer-Encoding: is not chunked"),
                                    ("chunked, identity", b"", b"Transfer-Encoding: is not chunked"),
                                    ("chunked", b"1;" + b"a" * (4 << 20), b"body: has a chunk without an end of its line")):
            with socket.create_connection(("127.0.0.1", port), timeout=HANG) as client:
                client.sendall(f"POST {INFER} HTTP/1.1\r\nInference-Header-Content-Length: 9\r\nTransfer-Encoding: {coding}\r\n\r\n".encode() + body)
                answer = client.makefile("rb").read()
            self.assertTrue(answer.startswith(b"HTTP/1.1 400 "), answer)
            self.assertEqual(answer.count(b"HTTP/1.1 "), 1, answer)
            self.assertIn(b"Connection: close", answer)
            self.assertIn(words, answer)

    def test_bad_options_are_one_line(self):
        for arguments, words in (([], "exactly one of --models and --gateway is required"), (["--gateway", "a:1", "--models", "."], "of --models and --gateway"),
                                 (["--gateway", "here"], "--gateway cannot have 'here' (it has no port)"), (["--gateway", "127.0.0.1:1", "--listen", "x"], "--listen cannot have 'x'"),
                                 (["--gateway", "127.0.0.1:1", "--split", "columns"], "columns"), (["--gateway", "127.0.0.1:1", "--queue", "3"], "--gateway excludes --queue"),
                                 (["--models", ".", "--replica-timeout", "3s"], "--replica-timeout requires --gateway"),
                                 (["--gateway", "127.0.0.1:1", "--replica-timeout", "3"], "--replica-timeout cannot be '3'")):
            ran = subprocess.run([PROGRAMS / "serve", *arguments], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=HANG)
            self.assertEqual(ran.returncode, 2, ran.stderr)
            self.assertEqual(ran.stderr.count("\n"), 1, ran.stderr)
            self.assertIn(words, ran.stderr)


class Rows(GatewayCase):
    """Tests rows of any length. Replicas refuse some rows: files that are not JPEG."""

    JPEG = base64.b64decode("/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6jq62rZ4C8ybqmx5moq6T/wAALCAAQ"
                            "ABABAREA/8QAFQABAQAAAAAAAAAAAAAAAAAABAX/xAAmEAAAAgYLAAAAAAAAAAAAAAAAEQIEEiJDYgMFBhMUMkFScaHh/9oACAEBAAA/AGUCxmd7BbMqrOJf26ciIivMQzOYJSrK+gkU3g//2Q==")

    def test_the_first_invalid_row_is_named_by_its_index_in_the_request(self):
        for kind in ("train", "test"):
            for label in "ab":
                (self.folder / kind / label).mkdir(parents=True)
                for k in range(8):
                    (self.folder / kind / label / f"{k}.jpg").write_bytes(self.JPEG)
        done = self.run_shell("cnn --data images:train --test images:test --image-size 32 --augment off --batch 8 --epochs 1 --save model.muster && "
                              "mkdir -p models/cnn/1 && mv model.muster models/cnn/1")
        if "JPEG" in done.stdout and done.returncode == 2:
            self.skipTest("libjpeg is not there")
        self.assertEqual(done.returncode, 0, done.stdout)
        replicas = [self.start("--models", "models", "--listen", "127.0.0.1:0") for _ in range(3)]
        _, port = self.start_gateway(replicas)
        _, whole = self.start("--models", "models", "--listen", "127.0.0.1:0", "--max-batch", "4096")
        rows = [self.JPEG] * 300
        for bad in ((), (299,), (0,), (77, 40, 250)):
            for k in bad:
                rows[k] = self.JPEG[:100]
            data = b"".join(struct.pack("<I", len(row)) + row for row in rows)
            head = head_of(300, len(data), "image", "BYTES", ())
            sharded, direct = (self.send(at, head, [data], len(data), "/v2/models/cnn/infer") for at in (port, whole))
            self.assertEqual(sharded[0], 400 if bad else 200, sharded[2][:300])
            self.assertEqual(sharded[2], direct[2])
            if bad:
                self.assertIn(f"inputs[0], row {min(bad)}: is not a complete JPEG", json.loads(sharded[2])["error"])
            rows = [self.JPEG] * 300
        cut = b"".join(struct.pack("<I", len(row)) + row for row in rows)[:-9]
        status, _, body = self.send(port, head_of(300, len(cut), "image", "BYTES", ()), [cut], len(cut), "/v2/models/cnn/infer")
        self.assertEqual((status, json.loads(body)["error"]), (400, "inputs[0]: its binary data end before the end of row 299"))


class Faults(GatewayCase):
    def during(self, port, data, fault):
        """Sends a request, calls a function in the middle, and returns the reply."""
        def pieces():
            cut = len(data) // 2
            yield data[:cut]
            fault()
            yield data[cut:]
        return self.send(port, head_of(len(data) // ROW, len(data)), pieces(), len(data))

    def test_dead_and_stopped_replicas_are_replaced_by_the_others(self):
        replicas = self.start_replicas()
        gateway, port = self.start_gateway(replicas, "--replica-timeout", "2s")
        data = some_rows(500) * 4
        expected = self.infer(port, data)
        self.assertEqual(expected[0], 200, expected[2][:300])
        killed, stopped, last = (process for process, _ in replicas)
        self.assertEqual(self.during(port, data, lambda: (killed.kill(), killed.wait())), expected)
        self.assertEqual(self.during(port, data, lambda: stopped.send_signal(signal.SIGSTOP)), expected)
        status, _, body = self.during(port, data, lambda: (last.kill(), last.wait()))
        self.assertEqual(status, 503, body[:300])
        self.assertRegex(json.loads(body)["error"], r"replicas: no replica has answered rows \d+ to \d+ \(127.0.0.1:")
        stopped.send_signal(signal.SIGCONT)
        self.assertEqual(self.infer(port, data), expected)  # a replica that is down gets requests again if all replicas are down
        gateway.send_signal(signal.SIGTERM)
        self.assertEqual(gateway.wait(HANG), 0)
        self.assertEqual(gateway.stdout.read(), "drained\n")

    def test_a_client_that_leaves_is_forgotten_and_sigterm_waits_for_what_has_come(self):
        gateway, port = self.start_gateway(self.start_replicas(1))
        data = some_rows(100)
        with socket.create_connection(("127.0.0.1", port)) as leaves:
            head = head_of(100, len(data))
            leaves.sendall(f"POST {INFER} HTTP/1.1\r\nContent-Length: {len(head) + len(data)}\r\nInference-Header-Content-Length: {len(head)}\r\n\r\n".encode() +
                           head + data[:50 * ROW])
        answer = self.during(port, data, lambda: (gateway.send_signal(signal.SIGTERM), time.sleep(0.3)))
        self.assertEqual(answer[0], 200, answer[2][:300])
        self.assertEqual(gateway.wait(HANG), 0)


    def test_idle_connections_make_room(self):
        _, port = self.start_gateway(self.start_replicas(1))
        idle = [socket.create_connection(("127.0.0.1", port), timeout=HANG) for _ in range(64)]
        for one in idle:
            self.addCleanup(one.close)
            one.sendall(b"GET /v2 HTTP/1.1\r\n")   # an incomplete request
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        self.addCleanup(connection.close)
        connection.request("GET", "/v2/health/live")
        self.assertEqual(connection.getresponse().status, 200)


class Memory(GatewayCase):
    def test_a_request_of_2_gb_needs_less_than_256_mb_anywhere(self):
        replicas = self.start_replicas()
        gateway, port = self.start_gateway(replicas)
        piece = some_rows(1000)
        count = 2 * 10**9 // len(piece)
        one = self.infer(port, piece)
        self.assertEqual(one[0], 200, one[2][:300])
        values = one[2][int(one[1]["Inference-Header-Content-Length"]):]
        status, headers, body = self.send(port, head_of(count * 1000, count * len(piece)), (piece for _ in range(count)), count * len(piece))
        self.assertEqual(status, 200, body[:300])
        self.assertTrue(body[int(headers["Inference-Header-Content-Length"]):] == values * count, "the answer is another one")
        peaks = [peak(gateway)] + [peak(process) for process, _ in replicas]
        print(f"{count * len(piece)} bytes; peak of the gateway {peaks[0] >> 20} MiB, of replicas {[each >> 20 for each in peaks[1:]]} MiB", flush=True)
        for each in peaks:
            self.assertLess(each, 256 << 20)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=2)
