#!/usr/bin/python3
"""Writes resnet20_step.json: the results of a training step with ResNet-20 in PyTorch, for the comparison in
tests/examples/nn/step.cpp. Both sides calculate weights and data by the same formula.

    /usr/bin/python3 tests/examples/nn/resnet20_step.py > tests/examples/nn/resnet20_step.json
"""
import json
import pathlib
import sys

import numpy
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "bench" / "peers"))
import step_torch  # noqa: E402

BATCH, RATE, MOMENTUM, DECAY, PROBES = 8, 0.1, 0.9, 1e-4, 4


def numbers(which, count, scale=1.0, offset=0.0):
    """Returns the numbers of numbers.hpp."""
    h = (numpy.arange(count, dtype=numpy.uint64) + numpy.uint64(1 + which * 7919)).astype(numpy.uint32)
    h ^= h >> numpy.uint32(16)
    h *= numpy.uint32(0x7FEB352D)
    h ^= h >> numpy.uint32(15)
    h *= numpy.uint32(0x846CA68B)
    h ^= h >> numpy.uint32(16)
    return (offset + scale * (h.astype(numpy.float64) / 4294967296.0 - 0.5)).astype(numpy.float32)


def to_torch(values, shape):
    """Converts from muster's order (taps, inputs, outputs) to PyTorch's."""
    if len(shape) == 4:
        out, inner, height, width = shape
        return torch.from_numpy(values.reshape(height, width, inner, out).transpose(3, 2, 0, 1).copy())
    if len(shape) == 2:
        return torch.from_numpy(values.reshape(shape[1], shape[0]).T.copy())
    return torch.from_numpy(values.reshape(tuple(shape)))


def to_muster(tensor):
    if tensor.dim() == 4:
        return tensor.permute(2, 3, 1, 0).reshape(-1)
    return (tensor.T if tensor.dim() == 2 else tensor).reshape(-1)


def main():
    torch.set_num_threads(1)
    model, shape = step_torch.resnet(20)
    parameters = list(model.named_parameters())
    with torch.no_grad():
        for index, (name, parameter) in enumerate(parameters):
            scale, offset = 0.2, 0.0
            if parameter.dim() == 4:
                scale = (24.0 / (parameter.shape[0] * parameter.shape[2] * parameter.shape[3])) ** 0.5
            elif parameter.dim() == 1 and name.endswith("weight"):
                offset = 1.0
            parameter.copy_(to_torch(numbers(index, parameter.numel(), scale, offset), parameter.shape))
    pixels = numbers(1000, BATCH * 32 * 32 * 3, 3.0).reshape(BATCH, 32, 32, 3).transpose(0, 3, 1, 2).copy()
    labels = torch.arange(BATCH) * 3 % 10
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, nesterov=True, weight_decay=DECAY)
    # In double precision, so that the reference adds no rounding.
    model = model.double()
    loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(pixels).double()), labels)
    loss.backward()
    results = {"loss": loss.item(), "parameters": []}
    gradients = [to_muster(parameter.grad).clone() for _, parameter in parameters]
    optimizer.step()
    for (name, parameter), gradient in zip(parameters, gradients):
        count = gradient.numel()
        at = [k * (count - 1) // (PROBES - 1) for k in range(PROBES)]
        values = to_muster(parameter.detach())
        results["parameters"].append({
            "name": name, "size": count, "norm": float(f"{gradient.norm().item():.8g}"), "at": at,
            "gradient": [float(f"{gradient[k].item():.8g}") for k in at],
            "after": [float(f"{values[k].item():.9g}") for k in at]})
    results["running_mean"] = [float(f"{v:.8g}") for v in model[1].running_mean.tolist()]
    results["running_var"] = [float(f"{v:.8g}") for v in model[1].running_var.tolist()]
    rows = results.pop("parameters")
    print(json.dumps(results)[:-1] + ',\n "parameters": [\n' + ",\n".join(map(json.dumps, rows)) + "]}")


if __name__ == "__main__":
    main()
