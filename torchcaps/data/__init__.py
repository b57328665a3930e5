"""Data by name, in memory, as tensors."""

from torchcaps.data.dataset import TEST_PAIRS, DataSet
from torchcaps.data.named import DATA, images, load_test_set, register_data, resolve
from torchcaps.data.sets import Batch, ImageSet, ImageStream, ScoredSet, Stream

__all__ = [
    "DATA", "TEST_PAIRS", "Batch", "DataSet", "ImageSet", "ImageStream", "ScoredSet", "Stream", "images",
    "load_test_set", "register_data", "resolve",
]  # fmt: skip
