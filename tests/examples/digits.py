"""Generated images in the format of MNIST."""
import os
import random
import struct


def draw(folder, images):
    """Writes ten patterns with noise to the files of MNIST."""
    chance = random.Random(5)
    patterns = [bytes(chance.choice((30, 200)) for _ in range(784)) for _ in range(10)]
    labels = [chance.randrange(10) for _ in range(images)]
    for name, count in (("train", images), ("t10k", images // 6)):
        with open(os.path.join(folder, f"{name}-images-idx3-ubyte"), "wb") as file:
            file.write(struct.pack(">IIII", 0x803, count, 28, 28))
            for label in labels[:count]:
                noise = chance.randbytes(784)
                file.write(bytes((3 * a + b) // 4 if b < 225 else b for a, b in zip(patterns[label], noise)))
        with open(os.path.join(folder, f"{name}-labels-idx1-ubyte"), "wb") as file:
            file.write(struct.pack(">II", 0x801, count) + bytes(labels[:count]))
