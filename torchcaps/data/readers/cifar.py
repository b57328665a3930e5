"""CIFAR-10 out of whatever carries it, as one canonical form: uint8 pixels image by image in NHWC, uint8 labels.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. The binary version of the archive is used
because the Python version is a pickle.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

SIDE, CHANNELS = 32, 3
PIXELS = SIDE * SIDE * CHANNELS
BATCHES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}


def read(images: Path, labels: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images [n 3 32 32] and labels [n] out of the two canonical files."""
    pixels = np.fromfile(images, np.uint8).reshape(-1, SIDE, SIDE, CHANNELS)
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)), np.fromfile(labels, np.uint8).astype(np.int64)


def sprite_images(folder: Path, split: str) -> Iterator[bytes]:
    """PNGs of 1024 x 10000 RGB pixels: row i is image i in raster order, so the pixels are canonical as they stand."""
    from torchcaps.data.readers.pictures import open_image  # the only decoder here that needs Pillow

    for batch in BATCHES[split]:
        yield open_image(folder / f"{batch}.png").convert("RGB").tobytes()


def sprite_labels(folder: Path, split: str) -> Iterator[bytes]:
    """A JSON list of class numbers, in a file whose name is misspelled by its publisher."""
    yield bytes(json.loads((folder / f"{split}_lables.json").read_bytes()))


def binary_images(folder: Path, split: str) -> Iterator[bytes]:
    """The binary version: records of one label byte and 3072 pixels, red plane first."""
    for records in _records(folder, split):
        yield records[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE).transpose(0, 2, 3, 1).tobytes()


def binary_labels(folder: Path, split: str) -> Iterator[bytes]:
    """The first byte of every record of the binary version."""
    for records in _records(folder, split):
        yield records[:, 0].tobytes()


def _records(folder: Path, split: str) -> Iterator[np.ndarray]:
    for batch in BATCHES[split]:
        yield np.fromfile(folder / f"{batch}.bin", np.uint8).reshape(-1, 1 + PIXELS)
