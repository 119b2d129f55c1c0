"""The model and the data of the programs beside this file."""
import numpy
import torch


class Mlp(torch.nn.Sequential):
    def __init__(self, inputs, hidden, outputs):
        super().__init__(torch.nn.Linear(inputs, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, outputs))


def read_mnist(images, labels):
    pixels = numpy.fromfile(images, numpy.uint8, offset=16).reshape(-1, 784).astype(numpy.float32) / 255
    return torch.utils.data.TensorDataset(torch.from_numpy(pixels),
                                          torch.from_numpy(numpy.fromfile(labels, numpy.uint8, offset=8).astype(numpy.int64)))
