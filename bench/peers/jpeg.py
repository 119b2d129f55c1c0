#!/usr/bin/python3
"""Converts JPEG files to training images, and compares with torchvision and FFCV: a random window, 224 x 224, mirrored in half of the
cases, normalised. Prints images a second in turns, the medians, and their ratio.

    bench/peers/jpeg.py [--build build/release] [--threads 2] [--images 1000] [--rounds 3]

Makes a tree with ILSVRC's layout: pictures of about 500 x 375 pixels, like ImageNet's. torchvision reads it by ImageFolder
(PIL) in a DataLoader, and by decode_jpeg with its v2 transforms, FFCV from its own file with the same JPEG pictures;
each with as many workers as muster has threads. Needs torch, torchvision and pillow (pip install). FFCV has a row if it is
installed (pip install ffcv, which needs libopencv-dev and libturbojpeg0-dev).
"""
import argparse
import io
import pathlib
import random
import statistics
import subprocess
import tempfile
import time

import torch
import torchvision
from PIL import Image, ImageFilter
from torchvision import io as tv_io
from torchvision.transforms import v2

HERE = pathlib.Path(__file__).resolve().parent
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def make_tree(folder, count):
    """Writes images with smooth colours and some noise: about 100 KB a file, like a photograph."""
    chosen = random.Random(1)
    for k in range(count):
        width, height = chosen.choice([(500, 375), (375, 500), (500, 333), (500, 500)])
        picture = Image.frombytes("RGB", (32, 24), chosen.randbytes(32 * 24 * 3)).resize((width, height), Image.BICUBIC)
        noise = Image.frombytes("RGB", (width, height), chosen.randbytes(width * height * 3)).filter(ImageFilter.GaussianBlur(1))
        encoded = io.BytesIO()
        Image.blend(picture, noise, 0.3).save(encoded, "JPEG", quality=92)
        place = folder / f"n{k % 10:08d}"
        place.mkdir(exist_ok=True)
        (place / f"{k}.JPEG").write_bytes(encoded.getvalue())
    return sum(file.stat().st_size for file in folder.rglob("*.JPEG")) / count / 1024


def by_pil(folder):
    steps = torchvision.transforms.Compose([
        torchvision.transforms.RandomResizedCrop(224), torchvision.transforms.RandomHorizontalFlip(),
        torchvision.transforms.ToTensor(), torchvision.transforms.Normalize(MEAN, DEVIATION)])
    return torchvision.datasets.ImageFolder(folder, steps)


def by_tensors(folder):
    steps = v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(),
                        v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, DEVIATION)])
    return torchvision.datasets.ImageFolder(folder, steps, loader=lambda path: tv_io.decode_jpeg(tv_io.read_file(path)))


class peer:
    def __init__(self, data, workers):
        self.loader = torch.utils.data.DataLoader(data, batch_size=128, shuffle=True, num_workers=workers, persistent_workers=True,
                                                  prefetch_factor=2)
        self.epoch()

    def epoch(self):
        begin = time.perf_counter()
        images = sum(len(labels) for _, labels in self.loader)
        return images / (time.perf_counter() - begin)


class ffcv_peer:
    def __init__(self, folder, workers):
        import numpy
        from ffcv import fields, transforms
        from ffcv.fields import decoders
        from ffcv.loader import Loader, OrderOption
        from ffcv.writer import DatasetWriter
        file = str(folder / "of_ffcv")
        DatasetWriter(file, {"image": fields.RGBImageField(write_mode="jpg", jpeg_quality=92), "label": fields.IntField()},
                      num_workers=workers).from_indexed_dataset(torchvision.datasets.ImageFolder(folder))
        numbers = [255 * numpy.array(each) for each in (MEAN, DEVIATION)]
        steps = [decoders.RandomResizedCropRGBImageDecoder((224, 224)), transforms.RandomHorizontalFlip(),
                 transforms.NormalizeImage(*numbers, numpy.float32), transforms.ToTensor(),
                 transforms.ToTorchImage(convert_back_int16=False)]
        self.loader = Loader(file, batch_size=128, num_workers=workers, order=OrderOption.RANDOM, os_cache=True, drop_last=False,
                             pipelines={"image": steps, "label": [decoders.IntDecoder(), transforms.ToTensor()]})
        self.epoch()

    epoch = peer.epoch


def muster(build, folder, threads):
    output = subprocess.run([build / "bench/peers/jpeg", folder, str(threads), "1"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return float(output.split("epoch: ")[1].split()[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parent.parent / "build/release")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)  # in each worker
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        each = make_tree(folder, options.images)
        print(f"{options.images} files of {each:.0f} KiB, {options.threads} threads; torchvision {torchvision.__version__}")
        pil, tensors = peer(by_pil(folder), options.threads), peer(by_tensors(folder), options.threads)
        contenders = {"muster": lambda: muster(options.build, folder, options.threads), "torchvision, PIL": pil.epoch,
                      "torchvision, decode_jpeg and v2": tensors.epoch}
        try:
            contenders["FFCV"] = ffcv_peer(folder, options.threads).epoch
        except ImportError as missing:
            print(f"no row of FFCV ({missing})")
        rates = {name: [] for name in contenders}
        for _ in range(options.rounds):
            for name, run in contenders.items():
                rates[name].append(run())
        found = {name: statistics.median(all) for name, all in rates.items()}
        for name, rate in found.items():
            print(f"{name}: {rate:.0f} images/s; muster is {found['muster'] / rate:.2f} times as fast")


if __name__ == "__main__":
    main()
