"""Which pixels belong to which of the digits in an image, by the pictures that their capsules draw.

Sabour et al. 2017, section 6: "We decode the two most active DigitCaps capsules one at a time and get two images. Then
by assigning any pixel with non-zero intensity to each digit we get the segmentation results for each digit." A decoder
that ends in a sigmoid draws no exact zero, so non-zero means here: not black as one of 256 shades of grey. The rule
`half` is ours: what is drawn brighter than 0.5 where the image is, too.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from torchcaps.analysis.probes import aligned, decode
from torchcaps.data.sets import ScoredSet
from torchcaps.training.scoring import INK, scored_at_once

SHADE = 0.5 / 255
"""What is rounded to a shade other than black."""
Pictures = Float[Tensor, "b k c h w"]
Masks = Bool[Tensor, "b k c h w"]


class Rule(NamedTuple):
    """`claim` is what a picture takes of its image, `own` what belongs to a digit alone on its image."""

    title: str
    claim: Callable[[Pictures, Float[Tensor, "b c h w"]], Masks]
    own: Callable[[Pictures], Masks]


RULES = {
    "as written": Rule(
        "any pixel drawn with non-zero intensity, as the paper writes",
        lambda pictures, images: pictures >= SHADE,
        lambda digits: digits >= SHADE,
    ),
    "half": Rule(
        "pixels drawn brighter than 0.5, where the image is too",
        lambda pictures, images: (pictures > INK) & (images > INK).unsqueeze(1),
        lambda digits: digits > INK,
    ),
}


class Segmented(NamedTuple):
    """Sums over images: of the digits' overlaps with what was claimed, and of pixels."""

    iou: Float[Tensor, ""]
    ink: Int64[Tensor, ""]
    covered: Int64[Tensor, ""]
    both: Int64[Tensor, ""]
    found: Int64[Tensor, ""]


def compare(rule: Rule, pictures: Pictures, images: Float[Tensor, "b c h w"], digits: Pictures) -> Segmented:
    """Intersection over union of each digit with what its capsule claims; pixels of any digit, and those of them that a
    capsule claims; pixels of several digits, and those that all of their capsules claim."""
    claimed, owned = rule.claim(pictures, images), rule.own(digits)
    union = (claimed | owned).flatten(2).sum(2).clamp(min=1)
    iou = ((claimed & owned).flatten(2).sum(2) / union).mean(1).sum()
    ink, both = owned.any(1), owned.all(1)
    return Segmented(iou, ink.sum(), (ink & claimed.any(1)).sum(), both.sum(), (both & claimed.all(1)).sum())


@torch.no_grad()
def segmentation(model: nn.Module, data: ScoredSet, most: int | None = None) -> dict[str, dict[str, float]]:
    """How well the longest capsules take the images of a set apart, by each rule.

    Capsules are held against the digits of their class; one whose class is not there against the digit that was missed.
    `iou` is the mean over digits, `covered` the share of the ink that a capsule claims, `shared` the share of the ink
    of both digits that both of their capsules claim.
    """
    totals: dict[str, Segmented] = {}
    count, size = 0, scored_at_once(data)
    for batch in data.batches(size):
        longest = model(batch.images).lengths.topk(batch.labels.shape[1]).indices
        pairs = zip(longest.tolist(), batch.labels.tolist(), strict=True)
        pictures = decode(model, batch.images, torch.tensor([aligned(found, labels) for found, labels in pairs]))
        for name, rule in RULES.items():
            found = compare(rule, pictures, batch.images, batch.targets)
            before = totals.get(name)
            totals[name] = found if before is None else Segmented(*(a + b for a, b in zip(before, found, strict=True)))
        count += len(batch.images)
        if most is not None and count >= most:
            break
    return {
        name: {
            "iou": (sums.iou / count).item(),
            "covered": (sums.covered / sums.ink.clamp(min=1)).item(),
            "shared": (sums.found / sums.both.clamp(min=1)).item(),
            "images": count,
        }
        for name, sums in totals.items()
    }
