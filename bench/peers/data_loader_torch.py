#!/usr/bin/python3
"""PyTorch's DataLoader on the task of bench/data_loader.cpp's first row: 50,000 images of 3x32x32 bytes in memory,
shuffled batches of 128, each image padded by 4, cropped, flipped in half of the cases, normalised to float32. Prints
samples per second for each setting, the median over the epochs, and the best.

    /usr/bin/python3 bench/peers/data_loader_torch.py [--samples N] [--epochs N]

(Debian: apt-get install --no-install-recommends python3-torch)
"""
import argparse
import statistics
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    """The operations of torchvision's RandomCrop, RandomHorizontalFlip, ToTensor and Normalize, without their detour by
    PIL."""

    def __init__(self, samples):
        self.images = torch.randint(0, 256, (samples, 3, 32, 32), dtype=torch.uint8)
        self.labels = torch.randint(0, 10, (samples,))
        self.scale = 1 / (255 * torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1))
        self.shift = -torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1) / torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        down, right, flip = torch.randint(0, 18, (3,)).tolist()
        down, right = down // 2, right // 2
        padded = torch.nn.functional.pad(self.images[index], (4, 4, 4, 4))
        cut = padded[:, down:down + 32, right:right + 32]
        if flip < 9:
            cut = cut.flip(2)
        return torch.addcmul(self.shift, cut.float(), self.scale), self.labels[index]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    torch.set_num_threads(1)  # in each process: images are too small to share
    data = Images(options.samples)
    best = 0.0
    for workers in (0, 1, 2, 3):
        loader = DataLoader(data, batch_size=128, shuffle=True, num_workers=workers, persistent_workers=workers > 0,
                            prefetch_factor=4 if workers > 0 else 2)
        rates = []
        for epoch in range(options.epochs + 1):  # the first warms up
            begin = time.perf_counter()
            samples = sum(len(labels) for _, labels in loader)
            if epoch > 0:
                rates.append(samples / (time.perf_counter() - begin))
        rate = statistics.median(rates)
        best = max(best, rate)
        print(f"{workers} workers: {rate:.0f} samples/s", flush=True)
    print(f"best: {best:.0f} samples/s")


if __name__ == "__main__":
    main()
