"""Faces drawn from parts, for the question that Picasso's portraits ask: do the parts make the face, or their places?

A head is an outline with four places: two for eyes, one for a nose, one for a mouth. A face has each part in its own
place. What is not a face has other parts (crosses, squares, bars ...) anywhere. A swapped face has the parts of a face,
but not in their places; none is in the training set. Every head is moved, turned and resized a little.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from torchcaps.data.sets import generator_for

SIDE = 28
CLASSES = ("face", "other")
COUNTS = {"train": 6_000, "test": 2_000}
SEED = 1881
PLACES = ((-4.0, -4.2), (-4.0, 4.2), (1.0, 0.0), (6.4, 0.0))
EYE, NOSE, MOUTH = range(3)
FACE = (EYE, EYE, NOSE, MOUTH)
SWAPPED = sorted(set(permutations(FACE)) - {FACE})
BLOCK = 500

Field = Float[Tensor, "*n h w"]


def _segment(y: Field, x: Field, start: tuple[float, float], end: tuple[float, float]) -> Field:
    """The distance to a line between two points (y, x)."""
    (ay, ax), (dy, dx) = start, (end[0] - start[0], end[1] - start[1])
    along = (((y - ay) * dy + (x - ax) * dx) / (dy * dy + dx * dx)).clamp(0, 1)
    return torch.hypot(y - ay - along * dy, x - ax - along * dx)


def strokes(*lines: tuple[tuple[float, float], tuple[float, float]]) -> Callable[[Field, Field], Field]:
    return lambda y, x: torch.stack([_segment(y, x, *line) for line in lines]).amin(0)


def _eye(y: Field, x: Field) -> Field:
    ring = (torch.hypot(y * 1.25, x) - 2.3).abs()
    return torch.minimum(ring, torch.hypot(y, x) - 0.3)


def _mouth(y: Field, x: Field) -> Field:
    """An arc, open upwards."""
    arc = (torch.hypot(y + 3.4, x) - 4.6).abs()
    return torch.maximum(arc, -0.6 - y)


def _square(y: Field, x: Field) -> Field:
    return (torch.maximum(y.abs(), x.abs()) - 2.0).abs()


# Distances from a part's strokes; the first three are a face's.
PARTS: tuple[Callable[[Field, Field], Field], ...] = (
    _eye,
    strokes(((-2.4, 0.3), (1.8, -1.2)), ((1.8, -1.2), (1.8, 1.2))),
    _mouth,
    strokes(((-2.3, 0.0), (2.3, 0.0)), ((0.0, -2.3), (0.0, 2.3))),
    strokes(((-1.8, -1.8), (1.8, 1.8)), ((-1.8, 1.8), (1.8, -1.8))),
    _square,
    strokes(((-1.2, -2.4), (-1.2, 2.4)), ((1.2, -2.4), (1.2, 2.4))),
    strokes(((-2.0, 0.0), (1.6, -2.1)), ((1.6, -2.1), (1.6, 2.1)), ((1.6, 2.1), (-2.0, 0.0))),
    strokes(((-1.6, -2.4), (1.6, -0.8)), ((1.6, -0.8), (-1.6, 0.8)), ((-1.6, 0.8), (1.6, 2.4))),
)
OTHERS = range(3, len(PARTS))


@dataclass(frozen=True)
class Scene:
    """What is drawn: kinds of parts, the places (y, x) that they can be in, and lines around them all."""

    parts: tuple[Callable[[Field, Field], Field], ...]
    places: tuple[tuple[float, float], ...]
    outline: Callable[[Field, Field], Field] | None = None


HEAD = Scene(PARTS, PLACES, lambda y, x: (torch.hypot(y * 0.92, x * 1.05) - 11.0).abs())


def draw(
    parts: Int[Tensor, "n p"],
    generator: torch.Generator,
    scene: Scene = HEAD,
    stretch: tuple[float, float] = (1.0, 1.0),
) -> UInt8[Tensor, "n 1 h w"]:
    """Pictures with the given kinds of parts in the places of a scene, stretched along y and x."""
    return torch.cat([_draw(block, generator, scene, stretch) for block in parts.split(BLOCK)])


def _draw(
    parts: Int[Tensor, "n p"], generator: torch.Generator, scene: Scene, stretch: tuple[float, float]
) -> UInt8[Tensor, "n 1 h w"]:
    n = len(parts)

    def within(limit: float, *shape: int) -> Tensor:
        return (2 * torch.rand(n, *shape, generator=generator) - 1) * limit

    angle, scale, centre = within(0.2), 1 + within(0.1), within(1.5, 2)
    axis = torch.arange(SIDE) - (SIDE - 1) / 2
    y, x = axis[None, :, None] - centre[:, :1, None], axis[None, None, :] - centre[:, 1:, None]
    cos, sin = (angle.cos() / scale)[:, None, None], (angle.sin() / scale)[:, None, None]
    v, u = (cos * y - sin * x) / stretch[0], (sin * y + cos * x) / stretch[1]
    pictures = [] if scene.outline is None else [_ink(scene.outline(v, u))]
    jitter = within(0.6, len(scene.places), 2)
    for slot, (row, column) in enumerate(scene.places):
        py, px = v - row - jitter[:, slot, :1, None], u - column - jitter[:, slot, 1:, None]
        strokes = torch.stack([_ink(part(py, px)) for part in scene.parts])
        pictures.append(strokes[parts[:, slot], torch.arange(n)])
    return (torch.stack(pictures).amax(0) * 255).round().to(torch.uint8)[:, None]


def _ink(distance: Field) -> Field:
    """A stroke of about a pixel and a half with soft edges."""
    return (1.25 - distance).clamp(0, 1)


@cache
def arrays(split: Literal["train", "test"]) -> tuple[np.ndarray, np.ndarray]:
    """Half faces, half others, in random order."""
    generator = generator_for(SEED, COUNTS[split])
    labels = torch.randint(2, (COUNTS[split],), generator=generator)
    others = torch.rand(len(labels), len(OTHERS), generator=generator).argsort(1)[:, :4] + OTHERS.start
    parts = torch.where(labels[:, None] == 0, torch.tensor(FACE), others)
    return draw(parts, generator).numpy(), labels.numpy()


def swapped(count: int) -> UInt8[Tensor, "n 1 h w"]:
    """Faces whose parts have changed places, every other arrangement equally likely."""
    generator = generator_for(SEED, count, 1)
    chosen = torch.randint(len(SWAPPED), (count,), generator=generator)
    return draw(torch.tensor(SWAPPED)[chosen], generator)
