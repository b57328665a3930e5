"""What a network says about one image, in words and numbers."""

from typing import Any

import torch

NONE_OF_THESE = 0.5
"""No capsule is longer than this: the image shows none of the classes."""

Row = dict[str, Any]


def answer(path: str, lengths: torch.Tensor, classes: tuple[str, ...], shown: int) -> Row:
    """`image`, `label`, `confidence` and `lengths`; a list of labels where an image shows several things."""
    top = lengths.topk(shown)
    found = [classes[i] for value, i in zip(*(x.tolist() for x in top), strict=True) if value >= NONE_OF_THESE]
    return {
        "image": str(path),
        "label": found if shown > 1 else (found or [None])[0],
        "confidence": round(top.values.min().item(), 6),
        "lengths": {classes[i]: round(value, 6) for i, value in enumerate(lengths.tolist())},
    }


def label_text(row: Row) -> str:
    label = " and ".join(row["label"]) if isinstance(row["label"], list) else row["label"]
    return label or "none of these"
