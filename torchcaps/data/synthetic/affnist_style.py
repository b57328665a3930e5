"""affNIST-style: MNIST under random small affine transformations, made here by a stated recipe.

What public sources say about affNIST (Tieleman 2013): rotation by -20 to 20 degrees, shear by -0.2 to 0.2, horizontal
and vertical expansion by 0.8 to 1.2 independently, and a translation such that no ink leaves the 40x40 canvas; 32
transformations of each digit. They leave open the order, the distribution of the translation and the interpolation.
Ours: expansion, shear, rotation, translation; uniform over all places that keep the ink inside; bilinear.

Random numbers come from NumPy's RandomState, whose streams are frozen for good, and sampling is done in integers on
positions rounded to 1/256 pixel, so that the set is the same bytes on every machine.
"""

from typing import Literal

import numpy as np
import torch

from torchcaps.data.transforms import affine_matrices

SIDE = 40
ROTATION = 20.0
SHEAR = 0.2
EXPANSION = (0.8, 1.2)
MOST_REPEATS = 32
SEEDS = {"train": 60_000, "test": 10_000}
BLOCK = 1000
UNIT_BITS = 8
UNIT = 1 << UNIT_BITS


def transformed(images: np.ndarray, split: Literal["train", "test"], repeats: int = 1) -> np.ndarray:
    """uint8 [n 1 h w] -> [repeats * n 1 40 40]: all images once, then all of them again under other maps."""
    if not 1 <= repeats <= MOST_REPEATS:
        raise ValueError(f"1 to {MOST_REPEATS} transformations of each image, not {repeats}")
    state = np.random.RandomState(SEEDS[split])
    drawn = np.empty((repeats, len(images), 1, SIDE, SIDE), np.uint8)
    for copy in drawn:
        # A row of numbers for each image, so that a part of the images gets the same maps as all of them.
        chances = state.random_sample((len(images), 6))
        for first in range(0, len(images), BLOCK):
            some = slice(first, first + BLOCK)
            copy[some, 0] = _draw(images[some, 0], *_maps(images[some, 0], chances[some]))
    return drawn.reshape(-1, 1, SIDE, SIDE)


def _maps(images: np.ndarray, chances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A [n 2 2] and t [n 2]: the image's pixel p is found at A p + t on the canvas, both (y, x) from the corner."""
    rotation, shear = (2 * chances[:, 0] - 1) * ROTATION, (2 * chances[:, 1] - 1) * SHEAR
    low, high = EXPANSION
    scale = low + (high - low) * chances[:, 2:4]
    parts = (torch.from_numpy(part) for part in (rotation, shear, scale, np.zeros_like(scale)))
    matrices = affine_matrices(*parts)[:, :, :2].numpy()
    # Bilinearly a pixel spreads over the open square of points less than 1 away in y and in x.
    spread = np.abs(matrices).sum(2)
    lowest, highest = _extent(images, matrices)
    nearest, furthest = -1 - (lowest - spread), SIDE - (highest + spread)
    return matrices, nearest + (furthest - nearest) * chances[:, 4:6]


def _extent(images: np.ndarray, matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How far the ink reaches under A, [n 2] in (y, x): least and most over the ink's pixels; an empty image is a dot.

    A linear function is greatest at an end of a row's ink, so the first and the last inked pixel of each row suffice.
    """
    ink = np.greater(images, 0)
    rows = np.asarray(ink.any(2))
    first, last = ink.argmax(2), ink.shape[2] - 1 - ink[:, :, ::-1].argmax(2)
    y = np.broadcast_to(np.arange(ink.shape[1])[None, :], rows.shape)
    reached = [np.einsum("nij,njr->nri", matrices, np.stack([y, x], 1)) for x in (first, last)]
    none, empty = ~rows[:, :, None], ~rows.any(1, keepdims=True)
    lowest = np.where(none, np.inf, np.minimum(*reached)).min(1)
    highest = np.where(none, -np.inf, np.maximum(*reached)).max(1)
    return np.where(empty, 0, lowest), np.where(empty, 0, highest)


def _draw(images: np.ndarray, matrices: np.ndarray, translations: np.ndarray) -> np.ndarray:
    """uint8 [n h w] -> [n 40 40]: each canvas pixel q shows the image at A⁻¹ (q - t)."""
    n, h, w = images.shape
    (a, b), (c, d) = matrices.transpose(1, 2, 0)
    inverse = np.stack([d, -b, -c, a]).reshape(2, 2, n) / (a * d - b * c)
    origin = -np.einsum("ijn,nj->in", inverse, translations)
    q = np.arange(SIDE, dtype=np.float64)
    padded = np.zeros((n, h + 3, w + 3), np.int32)
    padded[:, 1 : h + 1, 1 : w + 1] = images
    corners, fractions = [], []
    for axis, size in enumerate((h, w)):
        down, across = (inverse[axis, k, :, None] * (q * UNIT) for k in range(2))
        position = (down + origin[axis, :, None] * UNIT)[:, :, None] + across[:, None, :]
        # One pixel of margin before the image and two after it: whatever lies further out is as empty.
        fixed = np.rint(np.clip(position, -UNIT, size * UNIT)).astype(np.int32) + UNIT
        corners.append(fixed >> UNIT_BITS)
        fractions.append(fixed & (UNIT - 1))
    y, x = fractions
    flat, stride = padded.reshape(-1), w + 3
    at = corners[0] * stride + corners[1] + (np.arange(n) * ((h + 3) * stride))[:, None, None]
    above = flat[at] * (UNIT - x) + flat[at + 1] * x
    below = flat[at + stride] * (UNIT - x) + flat[at + stride + 1] * x
    return ((above * (UNIT - y) + below * y + UNIT * UNIT // 2) >> (2 * UNIT_BITS)).astype(np.uint8)
