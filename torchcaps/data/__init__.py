"""Data by name, in memory, as tensors."""

from torchcaps.data.named import (
    DATA,
    DataSpec,
    find,
    for_testing,
    for_training,
    hashes,
    images,
    is_here,
    load_test_set,
    prepared,
    title,
    training_and_validation,
)
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
    "hashes",
    "images",
    "is_here",
    "load_test_set",
    "prepared",
    "title",
    "training_and_validation",
]
