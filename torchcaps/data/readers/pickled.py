"""MNIST out of `mnist.pkl.gz`, the pickle that the Theano tutorials spread: float32 pixel/256 in 50k + 10k + 10k.

A pickle can run code, so this one is opened only if its bytes have the pinned hash, and even then by an unpickler that
knows nothing but NumPy arrays.
"""

import gzip
import hashlib
import io
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from torchcaps.data.readers import idx

SHA256 = "f11bb9e41d6c1b6c124aa38fd605497bdcfe2ee08cf7c2bb5a41ab5d759e1416"
FOLDS = {"train": (0, 1), "test": (2,)}


class ArrayUnpickler(pickle.Unpickler):
    """Builds NumPy arrays and refuses to look up anything else."""

    def find_class(self, module: str, name: str) -> object:
        match module, name:
            case "numpy", "ndarray":
                return np.ndarray
            case "numpy", "dtype":
                return np.dtype
            case (("numpy.core.multiarray" | "numpy._core.multiarray"), "_reconstruct"):
                return np.zeros(0).__reduce__()[0]
        raise pickle.UnpicklingError(f"{module}.{name} is not part of an array")


def idx_file(folder: Path, split: str, part: str, sha256: str = SHA256) -> Iterator[bytes]:
    """The idx file of `part` ("images" or "labels") of a split, bit for bit as MNIST's authors published it."""
    packed = (folder / "mnist.pkl.gz").read_bytes()
    if hashlib.sha256(packed).hexdigest() != sha256:
        raise pickle.UnpicklingError("mnist.pkl.gz is not the file whose hash is pinned, so it stays closed")
    folds = ArrayUnpickler(io.BytesIO(gzip.decompress(packed)), encoding="latin1").load()
    column = ("images", "labels").index(part)
    values = np.concatenate([folds[fold][column] for fold in FOLDS[split]])
    if part == "images":
        values = (values * 256).reshape(-1, 28, 28)
    values = values.astype(np.uint8)
    yield idx.header(values.dtype, values.shape)
    yield values.tobytes()
