"""Data by name, in memory, as tensors."""

from torchcaps.data.named import DATA, DataSpec, find, for_testing, for_training, images, load_test_set
from torchcaps.data.sets import Batch, ImageSet, ImageStream, ScoredSet, Stream

__all__ = [
    "DATA",
    "Batch",
    "DataSpec",
    "ImageSet",
    "ImageStream",
    "ScoredSet",
    "Stream",
    "find",
    "for_testing",
    "for_training",
    "images",
    "load_test_set",
]
