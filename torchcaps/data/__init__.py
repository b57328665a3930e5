"""Data by name, in memory, as tensors."""

from torchcaps.data.named import DATA, DataSpec, find, for_testing, for_training, images, load_test_set
from torchcaps.data.sets import Batch, ImageSet, ImageStream, Stream, ScoredSet

__all__ = [
    "DATA",
    "Batch",
    "DataSpec",
    "ImageSet",
    "ImageStream",
    "Stream",
    "ScoredSet",
    "find",
    "for_testing",
    "for_training",
    "images",
    "load_test_set",
]
