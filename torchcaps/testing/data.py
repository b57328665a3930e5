"""Properties of training data: pairs of digits, targets of the reconstruction, augmentation."""

from collections.abc import Iterator
from itertools import islice
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchcaps.data.sets import Augment, Batch, ImageSet, ScoredSet, Stream
from torchcaps.testing.core import must_run, require, require_close, same_bytes

BATCH = 64


def check_pairs(
    data: Stream | ScoredSet, split: ImageSet, *, overlay: Literal["sum", "maximum"] = "sum", batches: int = 4
) -> None:
    """Two digits of different classes on top of each other, both out of `split`."""
    inks = {(int(label), _ink(image)) for image, label in zip(split.images[:, 0], split.labels, strict=True)}
    for batch in _read(data, batches):
        same = int((batch.labels[:, 0] == batch.labels[:, 1]).sum())
        require(same == 0, f"{same} of {len(batch.labels)} pairs show two digits of one class")
        check_reconstruction_targets(batch)
        both = batch.targets.sum(1).clamp(max=1) if overlay == "sum" else batch.targets.amax(1)
        require_close(batch.images, both, f"an image is not the {overlay} of its two digits", 1e-6)
        for number, digit in ((n, d) for n, pair in enumerate(batch.targets) for d, _ in enumerate(pair)):
            ink = _ink((batch.targets[number, digit, 0] * 255).round().to(torch.uint8))
            label = int(batch.labels[number, digit])
            require((label, ink) in inks, f"a digit labelled {label} is not an image of {split.name} under that label")


def _read(data: Stream | ScoredSet, batches: int) -> Iterator[Batch]:
    if isinstance(data, Stream):
        yield from (data.batch(step, BATCH) for step in range(batches))
    else:
        yield from islice(data.batches(BATCH), batches)


def _ink(image: Tensor) -> tuple[tuple[int, ...], bytes]:
    """The drawn pixels, without the empty border around them."""
    drawn = image.nonzero()
    if not len(drawn):
        return (0, 0), b""
    (top, left), (bottom, right) = drawn.amin(0).tolist(), drawn.amax(0).tolist()
    crop = image[top : bottom + 1, left : right + 1].contiguous()
    return tuple(crop.shape), crop.numpy().tobytes()


def check_reconstruction_targets(batch: Batch) -> None:
    """Targets have pixels between 0 and 1, as a decoder with a sigmoid gives them, and show what the image shows.

    With one object the target is the image itself, perhaps before normalisation; with several, the image is an overlay
    of the targets.
    """
    low, high = batch.targets.min().item(), batch.targets.max().item()
    require(
        low >= 0 and high <= 1,
        f"targets run from {low:.3g} to {high:.3g}: a decoder that ends in a sigmoid cannot draw outside 0 .. 1",
    )
    if batch.targets.shape[1] == 1:
        target, shown = batch.targets[:, 0].double(), batch.images.double()
        if not same_bytes(target, shown):
            require_close(target, _denormalised(shown, target), "the target is not the image that was shown", 1e-5)
        return
    missing = (batch.targets.amax(1) - batch.images).clamp(min=0).max().item()
    require(missing <= 1e-6, f"a target has ink that the image has not: up to {missing:.3g}")
    added = (batch.images - batch.targets.sum(1)).clamp(min=0).max().item()
    require(added <= 1e-6, f"the image has ink that no target has: up to {added:.3g}")


def _denormalised(shown: Tensor, target: Tensor) -> Tensor:
    """`shown` with the positive scale and the offset of each channel that bring it nearest to `target`."""
    x, y = (images - images.mean((0, 2, 3), keepdim=True) for images in (shown, target))
    scale = (x * y).sum((0, 2, 3), keepdim=True) / x.square().sum((0, 2, 3), keepdim=True).clamp(min=1e-12)
    return scale.clamp(min=0) * x + target.mean((0, 2, 3), keepdim=True)


def check_augmentation(augment: Augment, *, pixels: int, images: int = 4000) -> None:
    """Shifts by up to `pixels` in each direction with zero padding: whole pixels, each shift equally likely."""
    side = 9
    # All pixels are different and none is zero, so that a wrapped, blended or lost pixel is detected.
    original = torch.arange(1, side * side + 1, dtype=torch.uint8).reshape(1, 1, side, side)
    given = original.repeat(images, 1, 1, 1)
    with must_run("augmentation"):
        moved = augment(given, torch.Generator().manual_seed(0))
        again = augment(given, torch.Generator().manual_seed(0))
        other = augment(given, torch.Generator().manual_seed(1))
    require(same_bytes(given, original.repeat(images, 1, 1, 1)), "augmentation changes its input in place")
    require(same_bytes(moved, again), "the same generator does not give the same augmentation")
    require(not same_bytes(moved, other), "augmentation does not use the generator it is given")
    steps = range(-pixels, pixels + 1)
    # What is padded on one side is cut off on the other.
    shifts = torch.stack([pad(original[0], (x, -x, y, -y)) for y in steps for x in steps])
    matches = (moved[:, None] == shifts[None]).flatten(2).all(2)
    strange = int((~matches.any(1)).sum())
    require(
        strange == 0, f"{strange} of {images} images are not shifted by at most {pixels} whole pixels with zero padding"
    )
    counts, expected = matches.sum(0).double(), images / len(shifts)
    chi_squared = ((counts - expected).square() / expected).sum().item()
    freedom = len(shifts) - 1
    require(
        chi_squared < freedom + 6 * (2 * freedom) ** 0.5,
        f"the {len(shifts)} shifts are not equally likely: they occur {counts.min():.0f} to {counts.max():.0f} times, "
        f"{expected:.0f} are expected",
    )
