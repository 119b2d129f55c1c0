#!/usr/bin/python3
"""Converts a model that a program of the examples has saved to ONNX, for other servers.

    examples/serve/to_onnx.py model.muster model.onnx

The graph has the inputs and outputs of serve: an "image" of uint8 and "probabilities", or "features" and a "probability".
The graph includes the normalisation. Earlier steps of the model's preparation (decoding a JPEG, resizing) are not included.
Needs python3-onnx."""
import argparse
import json
import pathlib
import re
import sys

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper


FORMAT = "muster-model-2"


class Problem(Exception):
    pass


def crc32c(data):
    """Computes CRC-32C like examples/model_file.cpp. The checksum is linear, so many pieces of the data are processed at once."""
    def through(operator, sums):
        result = numpy.zeros_like(sums)
        for bit in range(32):
            result ^= numpy.where(sums >> numpy.uint32(bit) & numpy.uint32(1), operator[bit], numpy.uint32(0))
        return result
    table = numpy.arange(256, dtype="uint32")
    for _ in range(8):
        table = numpy.where(table & 1, table >> 1 ^ 0x82F63B78, table >> 1).astype("uint32")
    pieces = 1 << 14
    columns = numpy.zeros((-(-len(data) // pieces), pieces + 32), "uint8")   # the last 32 columns have zeros, for the step past a piece
    padded = numpy.zeros(len(columns) * pieces, "uint8")                     # zeros in front of the data do not change the checksum
    padded[-len(data):] = numpy.frombuffer(data, "uint8")
    padded[-len(data):][:4] ^= 0xFF                                          # the checksum starts with all ones
    columns[:, :pieces] = padded.reshape(pieces, -1).T
    sums = numpy.concatenate([numpy.zeros(pieces, "uint32"), numpy.uint32(1) << numpy.arange(32, dtype="uint32")])
    for column in columns:
        sums = table[(sums & 0xFF).astype("uint8") ^ column] ^ sums >> numpy.uint32(8)
    sums, past = sums[:pieces], sums[pieces:]
    while len(sums) > 1:
        sums, past = through(past, sums[::2]) ^ sums[1::2], through(past, past)
    return int(sums[0]) ^ 0xFFFFFFFF


def read_model(path):
    """Returns the description in the first line, and all numbers."""
    try:
        content = pathlib.Path(path).read_bytes()
        head, end, rest = content.partition(b"\n")
        head = json.loads(head)
        if head["format"] != FORMAT:
            raise Problem(f"{path} is of format {head['format']} (this program reads {FORMAT}); use the version that saved it")
        if not end or len(rest) != 4 * (head["parameters"] + head["statistics"] + 1):
            raise ValueError
        if crc32c(content[:-4]) != int.from_bytes(content[-4:], sys.byteorder):
            raise Problem(f"{path} is not a model (its checksum does not match: it is damaged); name a file that --save has written")
        return head, numpy.frombuffer(rest[:-4], "float32")
    except OSError as failed:
        raise Problem(f"{path} cannot be read ({failed.strerror}); check the path") from None
    except (ValueError, KeyError, TypeError):
        raise Problem(f"{path} is not a model (its first line does not describe what follows); name a file that --save has written") from None


class Graph:
    """The nodes of a graph, in the order of examples/nn/models.cpp, which is also the order of the numbers in the file. The
    values between nodes are tuples (name, height, width, channels)."""

    def __init__(self, head, numbers):
        self.nodes, self.weights, self.made = [], [], 0
        self.parameters, self.statistics = numbers[:head["parameters"]], numbers[head["parameters"]:]

    def take(self, *shape):
        size = int(numpy.prod(shape))
        if size > len(self.parameters):
            raise Problem(f"the model has fewer than the {size} numbers that its next layer takes (it is another network); export it with the version that saved it")
        taken, self.parameters = self.parameters[:size], self.parameters[size:]
        return taken.reshape(shape)

    def constant(self, values):
        self.weights.append(numpy_helper.from_array(numpy.ascontiguousarray(values), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def node(self, kind, inputs, output=None, **attributes):
        self.made += 1
        output = output or f"x{self.made}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def convolve(self, x, channels, kernel=3, stride=1, padding=0, bias=False):
        name, height, width, before = x
        weights = [self.constant(self.take(kernel, kernel, before, channels).transpose(3, 2, 0, 1))]
        if bias:
            weights.append(self.constant(self.take(channels)))
        out = self.node("Conv", [name, *weights], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[padding] * 4)
        return out, *((side + 2 * padding - kernel) // stride + 1 for side in (height, width)), channels

    def normalise(self, x):
        scale, shift = self.take(x[3]), self.take(x[3])
        mean, variance, self.statistics = self.statistics[:x[3]], self.statistics[x[3]:2 * x[3]], self.statistics[2 * x[3]:]
        return self.node("BatchNormalization", [x[0], *map(self.constant, (scale, shift, mean, variance))], epsilon=1e-5), *x[1:]

    def relu(self, x):
        return self.node("Relu", [x[0]]), *x[1:]

    def max(self, x, kernel=2, stride=2, padding=0):
        out = self.node("MaxPool", [x[0]], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[padding] * 4)
        return out, *((side + 2 * padding - kernel) // stride + 1 for side in x[1:3]), x[3]

    def average(self, x):
        return self.node("GlobalAveragePool", [x[0]]), 1, 1, x[3]

    def dense(self, x, size):
        name, height, width, channels = x
        weights = self.take(height, width, channels, size).transpose(2, 0, 1, 3).reshape(-1, size)
        inputs = [self.node("Flatten", [name]), self.constant(weights), self.constant(self.take(size))]
        return self.node("Gemm", inputs), 1, 1, size

    def shortcut(self, x, channels, stride, option):
        if x[3] == channels and stride == 1:
            return x
        if option == "B":
            return self.normalise(self.convolve(x, channels, 1, stride))
        bounds = [self.constant(numpy.array(each)) for each in ([0, 0], [x[1], x[2]], [2, 3], [stride, stride])]
        before = (channels - x[3]) // 2
        pads = self.constant(numpy.array([0, before, 0, 0, 0, channels - x[3] - before, 0, 0]))
        out = self.node("Pad", [self.node("Slice", [x[0], *bounds]), pads])
        return out, *(-(-side // stride) for side in x[1:3]), channels

    def add(self, a, b):
        return self.node("Add", [a[0], b[0]]), *a[1:]


def residual(g, x, depth, version, option):
    x = g.convolve(x, 16, padding=1)
    if version == "1":
        x = g.relu(g.normalise(x))
    for stage, channels in enumerate((16, 32, 64)):
        for block in range((depth - 2) // 6):
            stride = 2 if stage > 0 and block == 0 else 1
            ready = x if version == "1" else g.relu(g.normalise(x))
            y = g.relu(g.normalise(g.convolve(ready, channels, stride=stride, padding=1)))
            y = g.convolve(y, channels, padding=1)
            if version == "1":
                y = g.normalise(y)
                x = g.relu(g.add(y, g.shortcut(x, channels, stride, option)))
            elif option == "B" and stride == 2:
                x = g.add(y, g.convolve(ready, channels, 1, stride, bias=True))
            else:
                x = g.add(y, g.shortcut(x, channels, stride, option))
    return x if version == "1" else g.relu(g.normalise(x))


def resnet50(g, x):
    x = g.max(g.relu(g.normalise(g.convolve(x, 64, 7, 2, 3))), 3, 2, 1)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            channels, stride = 64 << stage, 2 if stage > 0 and block == 0 else 1
            y = g.relu(g.normalise(g.convolve(x, channels, 1)))
            y = g.relu(g.normalise(g.convolve(y, channels, 3, stride, 1)))
            y = g.normalise(g.convolve(y, 4 * channels, 1))
            x = g.relu(g.add(y, g.shortcut(x, 4 * channels, stride, "B")))
    return x


def vgg16(g, x):
    for count, channels in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(count):
            x = g.relu(g.normalise(g.convolve(x, channels, padding=1, bias=True)))
        x = g.max(x)
    return g.relu(g.dense(g.relu(g.dense(x, 512)), 512))


def cnn(g, x, variant):
    for channels in (32, 64):
        x = g.relu(g.convolve(x, channels, bias=True))
        if variant == "batch-norm":
            x = g.normalise(x)
            x = g.node("Sigmoid", [x[0]]), *x[1:]
        x = g.max(x)
    return g.relu(g.dense(g.relu(g.convolve(x, 64, bias=True)), 64))


def network_of(name):
    """Adds the nodes that compute the input features of the network's last layer."""
    if name == "resnet50":
        return lambda g, x: g.average(resnet50(g, x))
    if known := re.fullmatch(r"resnet(\d+)-v([12])-([AB])", name):
        return lambda g, x: g.average(residual(g, x, int(known[1]), known[2], known[3]))
    if name == "vgg16":
        return vgg16
    if name in ("cnn", "cnn-dropout", "cnn-batch-norm"):
        return lambda g, x: cnn(g, x, name[4:])
    raise Problem(f"the model '{name}' is unknown (it is neither a model of the image programs nor of logistic_regression); export it with the version that saved it")


def normalised(g, head):
    """Returns the input of the graph and the input of the network."""
    height, width, channels = head["input"]
    steps = head["preparation"].split("|")
    words = dict(word.split("=") for word in steps[-1].split(",")[1:] if "=" in word)
    if not steps[-1].startswith("normalise,") or not {"mean", "deviation"} <= words.keys():
        raise Problem(f"the model cannot be written as ONNX (its preparation '{head['preparation']}' does not end with normalise); serve it with serve")
    mean, deviation = (numpy.array([float(each) for each in words[key].split("/")]).reshape(-1, 1, 1)[:channels] for key in ("mean", "deviation"))
    x = g.node("Cast", ["image"], to=TensorProto.FLOAT)
    shape = [channels, height, width]
    if steps[0].startswith("jpeg:") and channels > 1:
        shape = [height, width, channels]
        x = g.node("Transpose", [x], perm=[0, 3, 1, 2])
    elif channels == 1:
        shape = [height, width]
        x = g.node("Unsqueeze", [x, g.constant(numpy.array([1]))])
    x = g.node("Mul", [x, g.constant((1 / (255 * deviation)).astype("float32"))])
    x = g.node("Sub", [x, g.constant((mean / deviation).astype("float32"))])
    return helper.make_tensor_value_info("image", TensorProto.UINT8, ["rows", *shape]), (x, height, width, channels)


def to_onnx(head, numbers):
    g, name = Graph(head, numbers), head["model"]
    if name == "logistic_regression":
        features = len(numbers) - 1
        taken = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", features])
        given = helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["rows"])
        margin = g.node("Gemm", ["features", g.constant(g.take(features, 1)), g.constant(g.take(1))])
        g.node("Sigmoid", [g.node("Squeeze", [margin, g.constant(numpy.array([1]))])], "probability")
    else:
        network = network_of(name)
        taken, x = normalised(g, head)
        x = network(g, x)
        given = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["rows", head["classes"]])
        g.node("Softmax", [g.dense(x, head["classes"])[0]], "probabilities", axis=1)
    if len(g.parameters) or len(g.statistics):
        raise Problem("the model has more numbers than its network takes (it is another network); export it with the version that saved it")
    graph = helper.make_graph(g.nodes, name, [taken], [given], g.weights)
    written = helper.make_model(graph, producer_name="muster", ir_version=8, opset_imports=[helper.make_opsetid("", 13)])
    onnx.checker.check_model(written, full_check=True)
    return written


def main():
    parser = argparse.ArgumentParser(prog="to_onnx.py", description="Writes a saved model as ONNX.")
    parser.add_argument("model", help="model file that --save has written")
    parser.add_argument("output", help="ONNX file to write")
    arguments = parser.parse_args()
    try:
        onnx.save(to_onnx(*read_model(arguments.model)), arguments.output)
    except (Problem, OSError) as wrong:
        print(f"to_onnx.py: {wrong}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
