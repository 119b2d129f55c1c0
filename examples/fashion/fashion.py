"""Fashion-MNIST's files, for the programs in this project."""
import gzip


def read_idx(path):
    """Returns (the extents, the bytes) of a file of images or labels."""
    with gzip.open(path, "rb") as file:
        content = file.read()
    count = content[3]
    extents = [int.from_bytes(content[4 + 4 * k:8 + 4 * k], "big") for k in range(count)]
    return extents, memoryview(content)[4 + 4 * count:]
