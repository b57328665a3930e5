"""Scoring: every test image once, weighted alike, in one pass."""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from torchcaps.data.sets import Batch, ScoredSet
from torchcaps.training.networks import as_output, ask

INK = 0.5
MOST_VALUES = 2**23
"""Of the images of a batch: more would take memory that a training step may not have needed."""


def hits(lengths: Float[Tensor, "b j"], labels: Int[Tensor, "b k"]) -> Int[Tensor, "b"]:
    """How many of an image's labels are among its `k` longest capsules."""
    longest = lengths.topk(labels.shape[1], dim=1).indices
    return (longest.unsqueeze(2) == labels.unsqueeze(1)).flatten(1).sum(1)


def exact_match(lengths: Float[Tensor, "b j"], labels: Int[Tensor, "b k"]) -> Bool[Tensor, "b"]:
    """An image is right only if all of its labels are found: no credit for one digit of two."""
    return hits(lengths, labels) == labels.shape[1]


def scored_at_once(data: ScoredSet) -> int:
    """Images in a batch: 250, or fewer where they are large."""
    image = next(iter(data.batches(1))).images.shape[1:]
    return min(250, max(1, MOST_VALUES // math.prod(image)))


def segmentation_iou(pictures: Float[Tensor, "b k c h w"], batch: Batch) -> Float[Tensor, "b k"]:
    """How well each reconstruction outlines its own digit among the image's ink (a pixel may belong to both)."""
    claimed = (pictures > INK) & (batch.images.unsqueeze(1) > INK)
    owned = batch.targets > INK
    return (claimed & owned).flatten(2).sum(2) / (claimed | owned).flatten(2).sum(2).clamp(min=1)


@torch.no_grad()
def score(
    model: nn.Module,
    data: ScoredSet,
    batch_size: int | None = None,
    answers: list[tuple[Tensor, Tensor]] | None = None,
) -> dict[str, Any]:
    """Accuracy (for MultiMNIST both digits right) and, where the model reconstructs, how well.

    Reconstructions are those of the true labels' capsules, as in the papers. The lengths and labels of each batch are
    appended to `answers`.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    totals: dict[str, float] = {}
    try:
        for cpu_batch in data.batches(batch_size or scored_at_once(data)):
            batch = Batch(*(field.to(device) for field in cpu_batch))
            output = as_output(ask(model, batch), batch.labels.shape[1])
            found = hits(output.lengths, batch.labels)
            if answers is not None:
                answers.append((output.lengths.cpu(), cpu_batch.labels))
            k = batch.labels.shape[1]
            sums: dict[str, Tensor] = {"accuracy": (found == k).sum()}
            if k > 1:
                sums |= {"at_least_one": (found > 0).sum(), "per_digit": found.sum() / k}
            if output.reconstruction is not None:
                errors = (output.reconstruction - batch.targets).square()
                sums["reconstruction_mse"] = errors.flatten(1).mean(1).sum()
                if k > 1:
                    sums["segmentation_iou"] = segmentation_iou(output.reconstruction, batch).mean(1).sum()
            for name, value in sums.items():
                totals[name] = totals.get(name, 0.0) + float(value)
    finally:
        model.train(was_training)
    scores: dict[str, Any] = {name: total / len(data) for name, total in totals.items()}
    return {
        **scores,
        "metric": "all labels right" if data.objects > 1 else "label right",
        "images": len(data),
        "data": data.name,
    }
