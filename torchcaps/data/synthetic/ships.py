"""Ships drawn from parts: disfigured, if their parts change places, or of other proportions, if they are stretched.

A ship has a hull, a mast, a sail on either side of it and a flag, each in its own place. What is not a ship has other
parts in these places. A disfigured ship has the parts of a ship, but not in their places; a stretched one has all in
their places, but is too tall, too wide, too low or too narrow. None of these is in the training set.
"""

from functools import cache
from itertools import permutations
from typing import Literal

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from torchcaps.data.sets import generator_for
from torchcaps.data.synthetic.faces import COUNTS, OTHERS, PARTS, Scene, draw, strokes

CLASSES = ("ship", "other")
SEED = 1912
HULL = strokes(((-1.6, -5.0), (-1.6, 5.0)), ((1.8, -3.2), (1.8, 3.2)), ((-1.6, -5.0), (1.8, -3.2)),
               ((-1.6, 5.0), (1.8, 3.2)))  # fmt: skip
MAST = strokes(((-3.6, 0.0), (3.6, 0.0)))
SAIL = strokes(((-3.0, -1.4), (2.6, -1.4)), ((2.6, -1.4), (2.6, 2.4)), ((2.6, 2.4), (-3.0, -1.4)))
FORESAIL = strokes(((-1.6, 1.4), (2.6, 1.4)), ((2.6, 1.4), (2.6, -2.2)), ((2.6, -2.2), (-1.6, 1.4)))
FLAG = strokes(((-1.0, -1.4), (-1.0, 1.4)), ((0.0, -1.4), (0.0, 1.4)), ((1.0, -1.4), (1.0, 1.4)))
SHIP = tuple(range(5))
PLACES = ((7.0, 0.0), (0.0, -0.4), (-0.2, 3.4), (0.4, -3.4), (-7.6, 1.0))
SCENE = Scene((HULL, MAST, SAIL, FORESAIL, FLAG, *(PARTS[kind] for kind in OTHERS)), PLACES)
FOREIGN = len(SCENE.parts) - len(SHIP)
DISFIGURED = [places for places in permutations(SHIP) if all(a != b for a, b in zip(places, SHIP, strict=True))]
"""Arrangements with no part in its own place."""
STRETCHED = ((1.3, 0.8), (0.8, 1.3), (1.0, 0.7), (0.7, 1.0))
"""Along y and x."""


@cache
def arrays(split: Literal["train", "test"]) -> tuple[np.ndarray, np.ndarray]:
    """Half ships, half others, in random order."""
    generator = generator_for(SEED, COUNTS[split])
    labels = torch.randint(2, (COUNTS[split],), generator=generator)
    others = torch.rand(len(labels), FOREIGN, generator=generator).argsort(1)[:, : len(SHIP)] + len(SHIP)
    parts = torch.where(labels[:, None] == 0, torch.tensor(SHIP), others)
    return draw(parts, generator, SCENE).numpy(), labels.numpy()


def disfigured(count: int) -> UInt8[Tensor, "n 1 h w"]:
    """Every arrangement equally likely."""
    generator = generator_for(SEED, count, 1)
    chosen = torch.randint(len(DISFIGURED), (count,), generator=generator)
    return draw(torch.tensor(DISFIGURED)[chosen], generator, SCENE)


def stretched(count: int) -> UInt8[Tensor, "n 1 h w"]:
    """Of each proportion the same number."""
    generator, each = generator_for(SEED, count, 2), -(-count // len(STRETCHED))
    ships = torch.tensor(SHIP).expand(each, -1)
    return torch.cat([draw(ships, generator, SCENE, stretch) for stretch in STRETCHED])[:count]
