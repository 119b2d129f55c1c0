"""Generated images in the format of MNIST."""
import os
import random
import struct


def draw(folder, images):
    """Writes ten patterns with noise to the files of MNIST."""
    chance = random.Random(5)
    patterns = [bytes(chance.choice((30, 200)) for _ in range(784)) for _ in range(10)]
    labels = [chance.randrange(10) for _ in range(images)]
    with open(os.path.join(folder, "train-images-idx3-ubyte"), "wb") as file:
        file.write(struct.pack(">IIII", 0x803, images, 28, 28))
        for label in labels:
            noise = chance.randbytes(784)
            file.write(bytes((3 * a + b) // 4 if b < 225 else b for a, b in zip(patterns[label], noise)))
    with open(os.path.join(folder, "train-labels-idx1-ubyte"), "wb") as file:
        file.write(struct.pack(">II", 0x801, images) + bytes(labels))
