#!/usr/bin/env python3
"""Writes the dataset of stacking-training as scikit-learn makes it, and its SHA-256 beside it (Debian: python3-sklearn).

    make_data.py FILE.npy

300 rows of 1024 features and, as the last column, a label of 0 or 1."""
import hashlib
import pathlib
import sys

import numpy
from sklearn.datasets import make_classification


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_data.py FILE.npy")
    path = pathlib.Path(sys.argv[1])
    features, labels = make_classification(n_samples=300, n_features=1024, n_redundant=0, n_clusters_per_class=2, weights=[0.9, 0.1],
                                           flip_y=0.1, random_state=42)
    with path.open("wb") as file:
        numpy.save(file, numpy.asfortranarray(numpy.column_stack([features, labels])))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_name(path.name + ".sha256").write_text(f"{digest}  {path.name}\n")
    print(digest)


if __name__ == "__main__":
    main()
