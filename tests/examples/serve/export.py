#!/usr/bin/env python3
"""Tests that the output of examples/serve/to_onnx.py computes the same predictions as serve.

The test evaluates the nodes according to ONNX's specification, because Debian's python3-onnx 1.12 has no evaluator.
bench/peers/serve.py compares with onnxruntime. CTest runs the test like program.py, with to_onnx.py in MUSTER_TEST_TO_ONNX."""
import json
import os
import pathlib
import struct
import subprocess
import sys
import unittest

from program import HANG, Case

try:
    import numpy
    import onnx
    from onnx import numpy_helper
    from numpy.lib.stride_tricks import sliding_window_view
except ImportError:
    onnx = None

TO_ONNX = pathlib.Path(os.environ["MUSTER_TEST_TO_ONNX"])


def windows(x, attributes, around):
    """Returns the windows of images: rows, channels, height, width, kernel, kernel."""
    pads, (stride, _) = attributes["pads"], attributes["strides"]
    x = numpy.pad(x, [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])], constant_values=around)
    return sliding_window_view(x, attributes["kernel_shape"], (2, 3))[:, :, ::stride, ::stride]


def normalise(x, scale, shift, mean, variance, epsilon):
    scale, shift, mean, variance = (each.reshape(-1, 1, 1) for each in (scale, shift, mean, variance))
    return (x - mean) / numpy.sqrt(variance + epsilon) * scale + shift


def softmax(x):
    powers = numpy.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


COMPUTE = {
    "Add": lambda x, y, a: x + y,
    "BatchNormalization": lambda *x: normalise(*x[:-1], x[-1]["epsilon"]),
    "Cast": lambda x, a: x.astype("float64"),
    "Conv": lambda x, w, *b: numpy.tensordot(windows(x, b[-1], 0), w, ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2) + (b[0].reshape(-1, 1, 1) if len(b) > 1 else 0),
    "Flatten": lambda x, a: x.reshape(len(x), -1),
    "Gemm": lambda x, w, b, a: x @ w + b,
    "GlobalAveragePool": lambda x, a: x.mean((2, 3), keepdims=True),
    "MaxPool": lambda x, a: windows(x, a, -numpy.inf).max((4, 5)),
    "Mul": lambda x, y, a: x * y,
    "Pad": lambda x, p, a: numpy.pad(x, list(zip(p[:4], p[4:]))),
    "Relu": lambda x, a: numpy.maximum(x, 0),
    "Sigmoid": lambda x, a: 1 / (1 + numpy.exp(-x)),
    "Slice": lambda x, first, last, axes, steps, a: x[tuple(slice(None) if axis not in axes else slice(*(each[list(axes).index(axis)] for each in (first, last, steps))) for axis in range(4))],
    "Softmax": lambda x, a: softmax(x),
    "Squeeze": lambda x, axes, a: x.squeeze(tuple(axes)),
    "Sub": lambda x, y, a: x - y,
    "Transpose": lambda x, a: x.transpose(a["perm"]),
    "Unsqueeze": lambda x, axes, a: numpy.expand_dims(x, tuple(axes)),
}


def evaluate(path, rows):
    graph = onnx.load(path).graph
    values = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    values[graph.input[0].name] = rows
    for node in graph.node:
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        values[node.output[0]] = COMPUTE[node.op_type](*(values[name] for name in node.input), attributes)
    return values[graph.output[0].name]


def crc32c(data):
    """Computes the checksum bit by bit."""
    checksum = 0xFFFFFFFF
    for byte in data:
        checksum ^= byte
        for _ in range(8):
            checksum = checksum >> 1 ^ (0x82F63B78 if checksum & 1 else 0)
    return checksum ^ 0xFFFFFFFF


class Export(Case):
    def setUp(self):
        if onnx is None:
            self.skipTest("python3-onnx is not there")
        super().setUp()

    def export(self, model, output):
        return subprocess.run([sys.executable, TO_ONNX, model, output], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=HANG)

    def check(self, *commands):
        """Trains the models by commands. All parameters differ from their initial values."""
        for number, command in enumerate(commands):
            done = self.run_shell(f"mkdir -p models/m{number}/1 && {command} --save models/m{number}/1/model.muster")
            self.assertEqual(done.returncode, 0, done.stdout)
        _, port = self.start("--models", "models", "--listen", "127.0.0.1:0")
        random = numpy.random.default_rng(1)
        for number, command in enumerate(commands):
            with self.subTest(command):
                done = self.export(f"models/m{number}/1/model.muster", f"{number}.onnx")
                self.assertEqual((done.returncode, done.stdout), (0, ""))
                tensor = json.loads(self.ask(port, "GET", f"/v2/models/m{number}")[1])["inputs"][0]
                shape = [3, *tensor["shape"][1:]]
                rows = random.integers(0, 256, shape, "uint8") if tensor["datatype"] == "UINT8" else random.normal(size=shape).astype("float32")
                tensor = {**tensor, "shape": shape, "data": rows.reshape(-1).tolist()}
                status, answer = self.ask(port, "POST", f"/v2/models/m{number}/infer", json.dumps({"inputs": [tensor]}))
                self.assertEqual(status, 200, answer)
                output = json.loads(answer)["outputs"][0]
                served = numpy.array(output["data"]).reshape(output["shape"])
                self.assertTrue(((served > 0.001) & (served < 0.999)).any(), "the model has no doubts: a wrong graph would do as well")
                computed = evaluate(self.folder / f"{number}.onnx", rows)
                self.assertEqual(computed.shape, served.shape)
                numpy.testing.assert_allclose(computed, served, rtol=0, atol=1e-5)

    def test_small_networks_and_logistic_regression(self):
        data = "--data cifar-like:192 --epochs 1"
        self.check(*(f"cnn {data} --variant {variant}" for variant in ("plain", "dropout", "batch-norm")),
                   "logistic_regression --synthetic epsilon:200 --epochs 1 --schedule inverse-sqrt:2")

    def test_residual_networks(self):
        data = "--data cifar-like:96 --epochs 1 --batch 32"
        self.check(*(f"resnet --depth 14 --variant {variant} --shortcut {option} {data}" for variant in ("v1", "v2") for option in "AB"))

    def test_large_networks(self):
        self.check("vgg16 --data cifar-like:32 --epochs 1 --batch 16", "resnet --depth 50 --data cifar-like:96 --epochs 2 --batch 4 --schedule step:0.001,epochs=1,factor=0.1")

    def test_grey_images(self):
        random = numpy.random.default_rng(2)
        for name, shape in (("images", (64, 28, 28)), ("labels", (64,))):
            head = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)
            (self.folder / name).write_bytes(head + random.integers(0, 10, shape, "uint8").tobytes())
        self.check("cnn --data idx:images,labels --epochs 1")

    def test_what_cannot_be_exported_is_one_line(self):
        self.add_model()
        model = (self.folder / "models/line/1/model.muster").read_bytes()
        files = {"short": model[:-8], "text": b"no model\n", "unknown": model.replace(b"logistic_regression", b"logistic_regressiom"),
                 "steps": model.replace(b'"model"', b'"preparation":"","input":[8,8,3],"model"')}
        files["steps"] = files["steps"].replace(b"logistic_regression", b"vgg16")
        for name in ("unknown", "steps"):
            files[name] = files[name][:-4] + struct.pack("=I", crc32c(files[name][:-4]))
        at = len(model) // 2
        files["damaged"] = model[:at] + bytes([model[at] ^ 1]) + model[at + 1:]
        for name, content in files.items():
            (self.folder / name).write_bytes(content)
        for name, words in (("none", "none cannot be read"), ("short", "is not a model"), ("damaged", "its checksum does not match: it is damaged"), ("text", "is not a model"),
                            ("unknown", "unknown"), ("steps", "does not end with normalise")):
            done = self.export(name, "out.onnx")
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertEqual(done.stdout.count("\n"), 1, done.stdout)
            self.assertIn(words, done.stdout)
        self.assertFalse((self.folder / "out.onnx").exists())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]], verbosity=2)
