"""The data of frameworks.yaml, as arrays of numpy: the same files as muster's, and the same constants of the
algorithms."""
import argparse
import os
import pathlib

import numpy

CHANNELS = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", required=True, choices=("logistic", "resnet20", "vgg16"))
    parser.add_argument("--data", required=True, help="a folder: CIFAR-10's files, or the files of make()")
    parser.add_argument("--json", required=True)
    parser.add_argument("--alpha", type=float, default=200.0, help="logistic: alpha / sqrt(t)")
    for name, value in (("epochs", 1), ("batch", 100), ("seed", 1), ("steps", 0), ("ranks", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def load(task, folder):
    """Returns (training samples, labels, test samples, labels): rows of floats and labels -1 / +1, or images uint8 [n,
    3, 32, 32] and classes."""
    folder = pathlib.Path(folder)
    if task == "logistic":
        return tuple(numpy.load(folder / f"{name}.npy") for name in ("train", "train-labels", "test", "test-labels"))
    parts = []
    for names in ([f"data_batch_{n}.bin" for n in range(1, 6)], ["test_batch.bin"]):
        records = numpy.concatenate([numpy.fromfile(folder / name, dtype=numpy.uint8).reshape(-1, 3073) for name in names])
        parts += [records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(numpy.int64)]
    return tuple(parts)


def images(raw, draw=None):
    """Returns normalised floats; with `draw` images are moved by up to 4 pixels and flipped at random."""
    if draw is not None:
        padded = numpy.pad(raw, ((0, 0), (0, 0), (4, 4), (4, 4)))
        downs, acrosses, flips = draw.integers(0, 9, len(raw)), draw.integers(0, 9, len(raw)), draw.integers(0, 2, len(raw))
        raw = numpy.stack([image[:, down:down + 32, across:across + 32][:, :, ::-1 if flip else 1]
                           for image, down, across, flip in zip(padded, downs, acrosses, flips)])
    mean, deviation = (numpy.array(each, numpy.float32).reshape(1, 3, 1, 1) for each in CHANNELS)
    return (raw.astype(numpy.float32) / 255 - mean) / deviation


def rate(chosen, ranks, step, steps_an_epoch):
    """Returns the learning rate of step 0, 1, ... of the published task."""
    if chosen.task == "logistic":
        return chosen.alpha / (step + 1) ** 0.5
    if chosen.task == "vgg16":
        return 0.0125
    epoch, full = step / steps_an_epoch, 0.0125 * ranks * chosen.batch / 32
    warm = 0.0125 * chosen.batch / 32 + (full - 0.0125 * chosen.batch / 32) * min(1.0, epoch / 5)
    return warm * 0.1 ** ((epoch >= 82) + (epoch >= 109))


def make(folder, rows=20000, features=2000, seed=1):
    """Writes rows of norm 1 that a plane splits under noise: a small version of epsilon. Writes all files or none."""
    folder = pathlib.Path(folder)
    if (folder / "test-labels.npy").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    draw = numpy.random.default_rng(seed)
    plane = draw.standard_normal(features, numpy.float32)
    for name, count in (("train", rows), ("test", rows // 4)):
        samples = draw.standard_normal((count, features), numpy.float32)
        samples /= numpy.linalg.norm(samples, axis=1, keepdims=True)
        labels = numpy.where(samples @ plane + 0.4 * draw.standard_normal(count) > 0, 1, -1).astype(numpy.float32)
        for of, values in ((name, samples), (f"{name}-labels", labels)):
            numpy.save(folder / f".{of}.{os.getpid()}.npy", values)
            os.replace(folder / f".{of}.{os.getpid()}.npy", folder / f"{of}.npy")


if __name__ == "__main__":
    import sys
    make(sys.argv[1], int(sys.argv[2]))
