#!/usr/bin/env python3
"""Tests the program serve as users run it, and the commands in docs/serving.md.

CTest runs one class at a time: program.py CLASS, with the folder of the programs in MUSTER_TEST_PROGRAMS and the page in
MUSTER_TEST_PAGE."""
import base64
import html
import http.client
import http.server
import io
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.parse
import zlib

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[up] / at) for up, at in ((3, "python/muster_bench/presets"), (1, ""), (2, "fuzz"))]
import digits  # noqa: E402
from seeds import JPEGS, crc32c  # noqa: E402
from ports import free_port  # noqa: E402

PROGRAMS = pathlib.Path(os.environ["MUSTER_TEST_PROGRAMS"])
PAGE = pathlib.Path(os.environ["MUSTER_TEST_PAGE"])
HANG = 120 * float(os.environ.get("MUSTER_TEST_SLOWDOWN", "1"))  # seconds


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def run_shell(self, line, **options):
        return subprocess.run(["bash", "-c", line], cwd=self.folder, env={**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=HANG, **options)

    def start(self, *arguments, **options):
        """Starts the server. Returns the process and its port once the server is ready."""
        server = subprocess.Popen([*options.pop("before", []), PROGRAMS / "serve", *arguments], cwd=self.folder, stdout=subprocess.PIPE, text=True, **options)
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        self.greeting = server.stdout.readline()
        port = int(re.search(r"on port (\d+)", self.greeting).group(1))
        end = time.monotonic() + HANG
        while self.ask(port, "GET", "/v2/health/ready")[0] != 200:
            self.assertLess(time.monotonic(), end, "it does not become ready")
            time.sleep(0.05)
        return server, port

    @staticmethod
    def ask(port, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG)
        connection.request(method, path, body)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, content

    def add_model(self, version=1):
        done = self.run_shell(f"logistic_regression --synthetic epsilon:200 --epochs 1 --save model.muster && mkdir -p models/line/{version}.new && "
                              f"mv model.muster models/line/{version}.new && mv models/line/{version}.new models/line/{version}")
        self.assertEqual(done.returncode, 0, done.stdout)


class Transcript(Case):
    """Tests that each command of the page prints the output on the page. "..." matches any text."""

    before = ""

    def part(self):
        return PAGE.read_text().partition("\n## Replicas")[0]

    def test_the_page(self):
        if not shutil.which("curl"):
            self.skipTest("curl is not there")
        text, before = self.part(), self.before
        for shown in re.findall(r"127\.0\.0\.1:(8\d\d\d)\b", text):
            port = str(free_port())
            text, before = (each.replace(f":{shown}", f":{port}") for each in (text, before))
        blocks = re.findall(r"^```console\n(.*?)^```", text, re.S | re.M)
        steps = [step for block in blocks for step in re.split(r"^\$ ", block, flags=re.M) if step]
        self.assertGreater(len(steps), 5)
        script, marks = "", []
        for number, step in enumerate(steps):
            head, _, expected = step.partition("\n")
            marks.append((head, expected))
            script += f"echo '<{number}>'\n{head}\n"
        script += "echo '<end>'\n"
        ran = self.run_shell("trap 'kill $(jobs -p) 2>/dev/null' EXIT\n" + before + script)
        for number, (command, expected) in enumerate(marks):
            following = f"<{number + 1}>" if number + 1 < len(marks) else "<end>"
            got = ran.stdout.partition(f"<{number}>\n")[2].partition(following + "\n")[0]
            pattern = re.escape(expected.strip()).replace(re.escape("..."), ".*?")
            self.assertRegex(got.strip(), re.compile(f"^{pattern}$", re.S), command)


class Combined(Case):
    """Tests versions with several models."""

    def setUp(self):
        super().setUp()
        self.rows = [[0.01 * k] * 2000 for k in (-3, 1, 2, 8)]
        for seed in (1, 2, 3):
            self.save(f"models/line{seed}/1/model.muster", seed)
            self.save(f"combined/all/1/{seed}.muster", seed)

    def save(self, path, seed):
        done = self.run_shell(f"mkdir -p {os.path.dirname(path)} && logistic_regression --synthetic epsilon:200 --seed {seed} --epochs 1 --save {path}")
        self.assertEqual(done.returncode, 0, done.stdout)

    def predict(self, port, model):
        status, reply = self.ask(port, "POST", f"/v1/models/{model}:predict", json.dumps({"instances": self.rows}))
        self.assertEqual(status, 200, reply)
        return json.loads(reply)["predictions"]

    def test_the_mean_and_the_union_of_what_the_models_say(self):
        _, alone = self.start("--models", "models", "--listen", "127.0.0.1:0")
        each = [self.predict(alone, f"line{seed}") for seed in (1, 2, 3)]
        self.assertEqual(len({tuple(said) for said in each}), 3)
        _, port = self.start("--models", "combined", "--combine", "union", "--listen", "127.0.0.1:0")
        self.assertEqual(self.predict(port, "all"), [list(said) for said in zip(*each)])
        _, port = self.start("--models", "combined", "--combine", "mean", "--listen", "127.0.0.1:0")

        def single(number):
            return struct.unpack("f", struct.pack("f", number))[0]
        means = [single(single(single(a + b) + c) / 3) for a, b, c in zip(*each)]
        self.assertEqual([single(said) for said in self.predict(port, "all")], means)
        self.assertEqual(json.loads(self.ask(port, "GET", "/v2/models/all")[1])["platform"], "muster, mean of 1 and 2 and 3")

    def test_says_why_models_are_not_served_as_one(self):
        shutil.copytree(self.folder / "models/line1", self.folder / "combined/whole")
        made = self.run_shell("mkdir -p combined/mixed/1 && cp models/line1/1/model.muster combined/mixed/1/a.muster && "
                              "cnn --data cifar-like:50 --epochs 1 --batch 50 --save combined/mixed/1/b.muster")
        self.assertEqual(made.returncode, 0, made.stdout)
        for words, model, why in (([], "all", "has 3 models (a version serves one model, or a combination); use --combine mean or union"),
                                  (["--combine", "mean"], "mixed", "cannot be combined (they have different inputs)")):
            with (self.folder / "errors").open("w") as errors:
                _, port = self.start("--models", "combined", *words, "--listen", "127.0.0.1:0", stderr=errors)
            self.assertNotEqual(self.ask(port, "GET", f"/v2/models/{model}/ready")[0], 200)
            self.assertEqual(self.ask(port, "GET", "/v2/models/whole/ready")[0], 200)
            self.assertIn(why, (self.folder / "errors").read_text())


def png(samples, kind, depth, palette=None, interlaced=0, height=None):
    """Returns a PNG whose rows have the five filters in turn. Its data are in two chunks."""
    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
    channels = len(samples[0][0])
    step, above, data = max(1, channels * depth // 8), None, b""
    for number, row in enumerate(samples):
        bits = "".join(f"{value:0{depth}b}" for one in row for value in one)
        line = bytes(int(bits[at:at + 8].ljust(8, "0"), 2) for at in range(0, len(bits), 8))
        above = above or bytes(len(line))

        def predicted(k):
            left, up, corner = line[k - step] if k >= step else 0, above[k], above[k - step] if k >= step else 0
            nearest = min((left, up, corner), key=lambda one: abs(left + up - corner - one))
            return (0, left, up, (left + up) // 2, nearest)[number % 5]
        data += bytes([number % 5]) + bytes((line[k] - predicted(k)) % 256 for k in range(len(line)))
        above = line
    packed = zlib.compress(data)
    header = struct.pack(">IIBBBBB", len(samples[0]), height or len(samples), depth, kind, 0, 0, interlaced)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + (chunk(b"PLTE", bytes(sum(palette, []))) if palette else b"") +
            chunk(b"IDAT", packed[:100]) + chunk(b"IDAT", packed[100:]) + chunk(b"IEND", b""))


class Pictures(Case):
    """Tests requests with JPEG files, and the names of classes in answers."""

    names = [f"digit-{number}" for number in range(10)]

    def setUp(self):
        super().setUp()
        for number, jpeg in enumerate(JPEGS):
            folder = self.folder / "files" / self.names[number]
            folder.mkdir(parents=True)
            (folder / "a.jpeg").write_bytes(jpeg)

    def run_all(self, *lines):
        for line in lines:
            done = self.run_shell(line)
            self.assertEqual(done.returncode, 0, f"{line}: {done.stdout}")

    def predict(self, port, model, instances):
        status, reply = self.ask(port, "POST", f"/v1/models/{model}:predict", json.dumps({"instances": instances}))
        self.assertEqual(status, 200, reply)
        return json.loads(reply)

    def infer(self, port, model, head, binary=b""):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG)
        head = json.dumps(head).encode()
        connection.request("POST", f"/v2/models/{model}/infer", head + binary, {"Inference-Header-Content-Length": str(len(head))})
        answer = connection.getresponse()
        content = json.loads(answer.read())
        connection.close()
        self.assertEqual(answer.status, 200, content)
        return content["outputs"][0]

    def test_a_picture_for_a_model_of_arrays_is_prepared_as_a_model_of_pictures_prepares_it(self):
        digits.draw(self.folder, 60)
        self.run_all(f"{PROGRAMS}/../src/programs/muster-data convert idx:train-images-idx3-ubyte,train-labels-idx1-ubyte digits --classes {','.join(self.names)}",
                     "mkdir -p models/{grey,grey-files,colours,colours-files}/1",
                     "cnn --data records:digits --test records:digits --epochs 1 --save models/grey/1/model.muster",
                     "cnn --data cifar-like:50 --epochs 1 --save models/colours/1/model.muster",
                     "predict --model models/grey/1/model.muster --data images:files --test images:files --preparation 'jpeg:28x28,resize=0|greyscale|normalise' "
                     "--save models/grey-files/1/model.muster",
                     "predict --model models/colours/1/model.muster --data images:files --test images:files --preparation 'jpeg:32x32,resize=0|normalise' "
                     "--save models/colours-files/1/model.muster")
        _, port = self.start("--models", "models", "--listen", "127.0.0.1:0")
        self.assertEqual(json.loads(self.ask(port, "GET", "/v2/models/grey")[1])["outputs"][0]["parameters"]["classes"], self.names)
        texts = [base64.b64encode(jpeg).decode() for jpeg in JPEGS]
        for model in ("grey", "colours"):
            expected = self.predict(port, f"{model}-files", [{"b64": text} for text in texts])["predictions"]
            self.assertEqual(len({tuple(row) for row in expected}), len(JPEGS))
            for made in (lambda text: {"b64": text}, lambda text: {"image_bytes": {"b64": text}}, lambda text: {"image": {"b64": text}}):
                for each in (model, f"{model}-files"):
                    self.assertEqual(self.predict(port, each, [made(text) for text in texts])["predictions"], expected)
            flat = [value for row in expected for value in row]
            head = {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [len(JPEGS)]}]}
            self.assertEqual(self.infer(port, model, {"inputs": [{**head["inputs"][0], "data": [{"b64": text} for text in texts]}]})["data"], flat)
            rows = b"".join(struct.pack("<I", len(jpeg)) + jpeg for jpeg in JPEGS)
            head["inputs"][0]["parameters"] = {"binary_data_size": len(rows)}
            self.assertEqual(self.infer(port, model, head, rows)["data"], flat)
        array = [[0] * 28 for _ in range(28)]
        named = self.predict(port, "grey", [array])
        self.assertEqual((named["classes"], len(named["predictions"][0])), (self.names, 10))
        for instances, problem in (([{"b64": base64.b64encode(b"GIF89a....").decode()}], "instances[0]: is not a JPEG (it is a GIF"),
                                   ([{"b64": texts[0]}, array], "instances[1].b64: is missing"), ([{"image_bytes": "a"}], "instances[0].image_bytes.b64: is missing"),
                                   ([array, {"b64": texts[0]}], "instances[1]: has too few dimensions")):
            status, reply = self.ask(port, "POST", "/v1/models/grey:predict", json.dumps({"instances": instances}))
            self.assertEqual(status, 400, reply)
            self.assertIn(problem, json.loads(reply)["error"])

    def test_a_png_is_the_array_of_its_pixels(self):
        """Checks PNGs of every type, depth and filter of rows against the arrays that they show, and damaged ones."""
        chance = random.Random(7)
        self.run_all("mkdir -p models/{grey,colours}/1", "cnn --data images:files --test images:files --grey --image-size 28 --epochs 1 --save trained.muster",
                     "cnn --data cifar-like:50 --epochs 1 --save models/colours/1/model.muster")
        head, _, rest = (self.folder / "trained.muster").read_bytes().partition(b"\n")   # as trained on arrays
        changed = json.dumps({**json.loads(head), "preparation": "normalise", "class_names": []}).encode() + b"\n" + rest[:-4]
        (self.folder / "models/grey/1/model.muster").write_bytes(changed + struct.pack("<I", crc32c(changed)))
        _, port = self.start("--models", "models", "--listen", "127.0.0.1:0")
        for kind, depth, side, model in ((0, 1, 28, "grey"), (0, 2, 28, "grey"), (0, 4, 28, "grey"), (0, 8, 28, "grey"), (0, 16, 28, "grey"), (4, 8, 28, "grey"), (4, 16, 28, "grey"),
                                         (2, 8, 32, "colours"), (2, 16, 32, "colours"), (6, 8, 32, "colours"), (6, 16, 32, "colours"),
                                         (3, 1, 32, "colours"), (3, 2, 32, "colours"), (3, 4, 32, "colours"), (3, 8, 32, "colours")):
            channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind]
            palette = [[chance.randrange(256) for _ in range(3)] for _ in range(1 << depth)] if kind == 3 else None
            samples = [[[chance.randrange(1 << depth) for _ in range(channels)] for _ in range(side)] for _ in range(side)]

            def shown(value):
                return value >> 8 if depth == 16 else value * 255 // ((1 << depth) - 1)
            pixels = [[palette[one[0]] if palette else [shown(value) for value in one] for one in row] for row in samples]
            array = [[one[0] for one in row] for row in pixels] if model == "grey" else [[[one[c] for one in row] for row in pixels] for c in range(3)]
            content = png(samples, kind, depth, palette)
            made = self.predict(port, model, [{"b64": base64.b64encode(content).decode()}])["predictions"]
            self.assertEqual(made, self.predict(port, model, [array])["predictions"], (kind, depth))
        for damaged, problem in ((content[:-20], "is not a complete PNG (it ends before its last chunk)"), (content[:-12], "it ends before its last chunk"), (content[:60] + bytes([content[60] ^ 1]) + content[61:], "CRC error"),
                                 (png(samples, 3, 8, palette, interlaced=1), "is not a complete PNG"), (png(samples[:20], 3, 8, palette, height=32), "Not enough image data"),
                                 (png(samples, 3, 8, palette, height=20), "Too much image data"), (png(samples, 3, 8, palette[:9]), "outside its palette")):
            status, reply = self.ask(port, "POST", "/v1/models/colours:predict", json.dumps({"instances": [{"b64": base64.b64encode(damaged).decode()}]}))
            self.assertEqual(status, 400, reply)
            self.assertIn(problem, json.loads(reply)["error"])

    def test_a_model_of_one_channel_learns_from_jpeg_files(self):
        self.run_all("mkdir -p models/grey/1", "cnn --data images:files --test images:files --grey --image-size 28 --augment on --epochs 1 --save models/grey/1/model.muster",
                     "predict --model models/grey/1/model.muster --data images:files --test images:files")
        head = json.loads((self.folder / "models/grey/1/model.muster").read_bytes().partition(b"\n")[0])
        self.assertEqual((head["input"], head["class_names"]), ([28, 28, 1], self.names[:3]))
        self.assertTrue(head["preparation"].startswith("jpeg:28x28,resize=32|greyscale|normalise,"), head["preparation"])
        _, port = self.start("--models", "models", "--listen", "127.0.0.1:0")
        named = self.predict(port, "grey", [{"image_bytes": {"b64": base64.b64encode(JPEGS[1]).decode()}}])
        self.assertEqual((named["classes"], len(named["predictions"][0])), (self.names[:3], 3))

    def test_bad_options_are_one_line(self):
        self.run_all("cnn --data cifar-like:50 --epochs 1 --save model.muster")
        both = "--data images:files --test images:files"
        for line, status, words in (("cnn --data cifar-like:50 --grey", 2, "--grey cannot be used with cifar-like:50"),
                                    (f"predict --model model.muster {both} --preparation 'jpeg:28x28|normalise'", 2, "the images do not fit the model"),
                                    (f"predict --model model.muster {both}", 2, "cannot read records of bytes"),
                                    (f"predict --model model.muster {both} --save x", 2, "--preparation"),
                                    (f"predict --model model.muster --model model.muster {both} --preparation 'jpeg:32x32|normalise' --save x", 2, "--save writes one model")):
            ran = self.run_shell(line)
            self.assertEqual((ran.returncode, ran.stdout.count("\n")), (status, 1), ran.stdout)
            self.assertIn(words, ran.stdout)


class Remote(Case):
    """Tests models on a server: a web server that lists folders, and S3's list of objects."""

    def setUp(self):
        super().setUp()
        self.away, case, self.asked = False, self, []
        self.uploads, changes = False, itertools.count()   # a file that is uploaded has another version at each request

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *words):
                super().__init__(*words, directory=case.folder / "remote")

            def send_head(self):
                case.asked.append(f"{self.command} {self.path}")
                if case.away:
                    self.close_connection = True
                    return None
                path = urllib.parse.urlsplit(self.path)
                prefix = urllib.parse.parse_qs(path.query).get("prefix")
                file = case.folder / "remote" / urllib.parse.unquote(path.path).lstrip("/").removeprefix("bucket/models/").removeprefix("caddy/")
                if prefix:
                    folder = case.folder / "remote" / prefix[0].removeprefix("models/")
                    text = "".join(f"<CommonPrefixes><Prefix>{prefix[0]}{html.escape(one.name)}/</Prefix></CommonPrefixes>" if one.is_dir() else f"<Contents><Key>{prefix[0]}{html.escape(one.name)}</Key></Contents>"
                                   for one in sorted(folder.iterdir()))
                    return self.reply(f"<ListBucketResult><IsTruncated>false</IsTruncated>{text}</ListBucketResult>".encode())
                if file.is_dir() and path.path.startswith("/caddy/"):
                    return self.reply("".join(f'<a href="./{html.escape(one.name)}{"/" if one.is_dir() else ""}">' for one in file.iterdir()).encode())
                if file.is_file() and not path.path.endswith("/"):
                    return self.reply(file.read_bytes(), f'"{next(changes) if case.uploads else hash(file.read_bytes())}"')
                return super().send_head()

            def reply(self, content, tag=None):
                wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                first, last = map(int, wanted.groups()) if wanted else (0, len(content) - 1)
                self.send_response(206 if wanted else 200)
                self.send_header("Content-Length", str(last + 1 - first))
                if wanted:
                    self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
                if tag:
                    self.send_header("ETag", tag)
                self.end_headers()
                return io.BytesIO(content[first:last + 1])

            def log_message(self, *_):
                pass
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.base = f"http://127.0.0.1:{server.server_address[1]}"

    def publish(self, version, seed):
        done = self.run_shell(f"logistic_regression --synthetic epsilon:200 --seed {seed} --epochs 1 --save m.muster && mkdir -p remote/line/{version} && mv m.muster remote/line/{version}/model.muster")
        self.assertEqual(done.returncode, 0, done.stdout)

    def wait_for(self, port, version):
        end = time.monotonic() + HANG
        while f'"versions":["{version}"]'.encode() not in self.ask(port, "GET", "/v2/models/line")[1]:
            self.assertLess(time.monotonic(), end, f"version {version} is not served")
            time.sleep(0.05)

    def predict(self, port):
        status, reply = self.ask(port, "POST", "/v1/models/line:predict", json.dumps({"instances": [[0.01] * 2000]}))
        self.assertEqual(status, 200, reply)
        return reply

    def test_versions_at_an_address_are_served_as_they_come_and_go(self):
        for address in (self.base, "s3://bucket/models"):
            shutil.rmtree(self.folder / "remote", ignore_errors=True)
            self.publish(1, 1)
            local = shutil.copytree(self.folder / "remote", self.folder / f"local-{len(address)}")
            environment = {**os.environ, "AWS_ENDPOINT_URL": self.base, "AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "x", "TMPDIR": str(self.folder)}
            server, port = self.start("--models", address, "--poll", "100ms", "--listen", "127.0.0.1:0", env=environment)
            _, beside = self.start("--models", local, "--listen", "127.0.0.1:0")
            self.wait_for(port, 1)
            first = self.predict(port)
            self.assertEqual(first, self.predict(beside))
            self.publish(2, 2)
            self.wait_for(port, 2)
            self.assertNotEqual(self.predict(port), first)
            self.away = True
            self.asked.clear()
            while len(self.asked) < 3:
                self.assertEqual(self.ask(port, "GET", "/v2/models/line/versions/2/ready")[0], 200)
            self.away = False
            shutil.rmtree(self.folder / "remote/line/2")   # withdrawn
            self.wait_for(port, 1)
            self.assertEqual(self.predict(port), first)
            server.send_signal(signal.SIGTERM)
            self.assertEqual(server.wait(HANG), 0)
            self.assertEqual(list(self.folder.glob("muster-models-*")), [])

    def start_remote(self, address, poll="100ms", **options):
        self.environment = {**os.environ, "AWS_ENDPOINT_URL": self.base, "AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "x", "TMPDIR": str(self.folder)}
        return self.start("--models", address, "--poll", poll, "--listen", "127.0.0.1:0", env=self.environment, **options)

    def wait_until(self, condition, what):
        end = time.monotonic() + HANG
        while not condition():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.05)

    def test_a_model_that_comes_again_unchanged_is_served_again(self):
        self.publish(1, 1)
        shutil.copytree(self.folder / "remote/line", self.folder / "remote/other")
        _, port = self.start_remote(self.base)
        self.wait_for(port, 1)
        (self.folder / "remote/line").rename(self.folder / "line")
        self.wait_until(lambda: self.ask(port, "GET", "/v2/models/line")[0] == 404, "the model remains")
        (self.folder / "line").rename(self.folder / "remote/line")
        self.wait_for(port, 1)

    def test_an_empty_list_is_reported_once_and_the_copies_stay(self):
        self.publish(1, 1)
        with open(self.folder / "log", "w+") as log:
            _, port = self.start_remote(self.base, stderr=log)
            self.wait_for(port, 1)
            (self.folder / "remote/line").rename(self.folder / "line")
            self.asked.clear()
            self.wait_until(lambda: len(self.asked) > 10, "it does not ask")
            self.assertEqual(self.ask(port, "GET", "/v2/models/line/versions/1/ready")[0], 200)
            log.seek(0)
            self.assertEqual(log.read().count("the list is empty"), 1)

    def test_entries_that_are_no_models_are_left_out(self):
        self.publish(1, 1)
        (self.folder / "remote/LICENSE").write_text("MIT")
        (self.folder / "remote/line/1/_SUCCESS").touch()
        _, port = self.start_remote(self.base)
        self.wait_for(port, 1)
        self.assertEqual([each.name for each in self.folder.glob("muster-models-*/line/1/*")], ["model.muster"])

    def test_options_of_the_address_are_those_of_sources(self):
        self.publish(1, 1)
        server, port = self.start_remote(f"{self.base}?sig=SECRET?cache={self.folder}/cache&disk=100000000")
        self.wait_for(port, 1)
        self.assertTrue(all(each.endswith("?sig=SECRET") for each in self.asked), self.asked)
        self.assertNotIn("SECRET", self.greeting)
        self.assertTrue(list(self.folder.glob("cache/*")))
        _, port = self.start_remote(self.base, "60s")   # without a folder for the cache no blocks remain
        self.wait_for(port, 1)
        self.assertEqual([*self.folder.glob("muster-cache-*"), *self.folder.glob("muster-models-*/.cache")], [])
        ran = self.run_shell(f"serve --models '{self.base}?cahce=x' --listen 127.0.0.1:0")
        self.assertEqual(ran.returncode, 2, ran.stdout)
        self.assertIn("cahce", ran.stdout)

    def test_sigterm_does_not_wait_for_a_server_that_is_away(self):
        self.publish(1, 1)
        server, port = self.start_remote(self.base)
        self.wait_for(port, 1)
        self.away = True
        self.asked.clear()
        self.wait_until(lambda: len(self.asked) > 1, "it does not ask")
        began = time.monotonic()
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(HANG), 0)
        self.assertLess(time.monotonic() - began, 30)   # the timeout of sources is 60 s

    def test_a_version_is_copied_when_its_upload_has_ended(self):
        self.publish(1, 1)
        _, port = self.start_remote(self.base)
        self.wait_for(port, 1)
        self.uploads = True
        self.publish(2, 2)
        file = "/line/2/model.muster"
        self.wait_until(lambda: self.asked.count(f"HEAD {file}") > 5, "it does not ask")
        self.assertNotIn(f"GET {file}", self.asked)
        self.uploads = False
        self.wait_for(port, 2)

    def test_names_in_lists_are_decoded(self):
        self.publish(1, 1)
        (self.folder / "remote/line/1/model.muster").rename(self.folder / "remote/line/1/a & b.muster")
        for address in (self.base, f"{self.base}/caddy", "s3://bucket/models"):
            _, port = self.start_remote(address)
            self.wait_for(port, 1)
            self.predict(port)

    def test_an_address_that_is_not_there_is_one_line(self):
        ran = subprocess.run([PROGRAMS / "serve", "--models", f"{self.base}/none", "--listen", "127.0.0.1:0"], capture_output=True, text=True, timeout=HANG)
        self.assertEqual((ran.returncode, ran.stderr.count("\n")), (3, 1), ran.stderr)
        self.assertIn("404", ran.stderr)


class Program(Case):
    def test_a_new_version_under_load_and_sigterm_fail_no_request(self):
        self.add_model()
        server, port = self.start("--models", "models", "--listen", "127.0.0.1:0")
        body = json.dumps({"instances": [[0.01] * 2000]})
        failed, versions, ends = [], set(), threading.Event()

        def work():
            while not ends.is_set():
                try:
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG)
                    connection.connect()
                except ConnectionRefusedError:
                    return  # the server has drained
                while not ends.is_set():
                    try:
                        connection.request("POST", "/v1/models/line:predict", body)
                        answer = connection.getresponse()
                        answer.read()
                        if answer.status != 200:
                            failed.append(answer.status)
                        if answer.will_close:
                            break
                    except (OSError, http.client.HTTPException) as error:
                        failed.append(repr(error))
                        return
                connection.close()

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        self.add_model(2)
        end = time.monotonic() + HANG
        while b'"versions":["2"]' not in self.ask(port, "GET", "/v2/models/line")[1]:
            self.assertLess(time.monotonic(), end, "the new version is not served")
            time.sleep(0.05)
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(HANG), 0)
        ends.set()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])
        self.assertEqual(server.stdout.read(), "drained\n")

    def test_a_supervisor_keeps_the_socket(self):
        self.add_model()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            passed = ["bash", "-c", f'exec 3<&{listening.fileno()}; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"', "-"]
            first, port = self.start("--models", "models", before=passed, pass_fds=[listening.fileno()])
            self.assertEqual(port, listening.getsockname()[1])
            first.send_signal(signal.SIGTERM)
            self.assertEqual(first.wait(HANG), 0)
            waits = socket.create_connection(("127.0.0.1", port))  # a connection that is older than the next one
            waits.sendall(b"GET /v2/health/live HTTP/1.1\r\nConnection: close\r\n\r\n")
            self.start("--models", "models", before=passed, pass_fds=[listening.fileno()])
            self.assertIn(b'{"live":true}', waits.makefile("rb").read())
            waits.close()

    def test_spans_of_requests_that_belong_to_a_trace(self):
        self.add_model()
        _, port = self.start("--models", "models", "--listen", "127.0.0.1:0", "--spans", "spans")
        body, trace, span = json.dumps({"instances": [[0.01] * 2000]}), "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
        began = time.time()
        for headers in ({"traceparent": f"00-{trace}-{span}-01"}, {"b3": f"{trace}-{span}-1"}, {}, {"traceparent": f"00-{trace}-{span}-00"}):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG)
            for path, status in (("line", 200), ("nothing", 404)):
                connection.request("POST", f"/v1/models/{path}:predict", body, headers)
                answer = connection.getresponse()
                answer.read()
                self.assertEqual(answer.status, status)
            connection.close()
        requests = [json.loads(line) for line in (self.folder / "spans").read_text().splitlines()]
        self.assertEqual(len(requests), 4)  # requests without a recorded trace have no spans
        for number, (whole, *parts) in enumerate(requests):
            self.assertEqual([each["name"] for each in parts], [] if number % 2 else ["receive", "queue", "predict"])
            self.assertEqual((whole["kind"], whole["parentId"]), ("SERVER", span))
            self.assertEqual(whole["tags"], {"http.status_code": "404", "model": ""} if number % 2 else {"http.status_code": "200", "model": "line"})
            self.assertTrue(began * 1e6 - 1e3 <= whole["timestamp"] <= time.time() * 1e6)
            for each, after in zip(parts, parts[1:]):
                self.assertLessEqual(abs(each["timestamp"] + each["duration"] - after["timestamp"]), 2)
            self.assertLessEqual(sum(each["duration"] for each in parts), whole["duration"] + 5)
            for each in parts:
                self.assertEqual((each["traceId"], each["parentId"]), (trace, whole["id"]))
        identities = [each["id"] for request in requests for each in request]
        self.assertEqual(len(set(identities)), len(identities))

    def test_bad_options_are_one_line(self):
        for arguments, words in ((["--models", "none"], "none"), (["--models", ".", "--listen", "here"], "it has no port"),
                                 (["--models", ".", "--max-delay", "5"], "--max-delay cannot be '5'"),
                                 (["--models", ".", "--spans", "none/spans"], "none/spans"),
                                 (["--models", ".", "--max-batch", "0"], "--max-batch cannot be '0'"), ([], "--models")):
            ran = subprocess.run([PROGRAMS / "serve", *arguments], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=HANG)
            self.assertEqual(ran.returncode, 2, ran.stderr)
            self.assertEqual(ran.stderr.count("\n"), 1, ran.stderr)
            self.assertIn(words, ran.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=2)
