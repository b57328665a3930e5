"""A toy as a grid of distances: made once from its solids, then looked up by every ray."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate

from torchcaps.data.synthetic.norb_style.solids import Solid

GRID = 96
CELL = 2 / (GRID - 1)
COARSE = 32
NEAR = 0.15
REACH = 2.6
SURVEY = 48
CHUNK = 1 << 15


@dataclass(frozen=True, eq=False)
class Volume:
    """A toy in the ball of radius 1: signed distance and its gradient on a grid of the cube around the ball.

    `table` is the height of what the toy stands on.
    """

    distances: Float[Tensor, "1 1 g g g"]
    gradients: Float[Tensor, "1 3 g g g"]
    table: float

    def distance(self, points: Float[Tensor, "3 m"]) -> Float[Tensor, "m"]:
        """Fast: of the nearest cell, and for a point outside the cube at least the way to it in addition."""
        x, y, z = ((points + 1) * (1 / CELL)).round_().clamp_(0, GRID - 1).int()
        inside = self.distances.view(-1).index_select(0, x.mul_(GRID).add_(y).mul_(GRID).add_(z))
        return inside.add_((points.abs().amax(0) - 1).clamp_(min=0))

    def exact_distance(self, points: Float[Tensor, "3 m"]) -> Float[Tensor, "m"]:
        """Slower: between the eight cells around a point in the cube."""
        return _between(self.distances, points)[0]

    def normal(self, points: Float[Tensor, "3 m"]) -> Float[Tensor, "3 m"]:
        return unit(_between(self.gradients, points))


def voxels(toy: Solid) -> Volume:
    """The toy moved and scaled into the ball of radius 1, around the middle of the box that holds it."""
    survey = _lattice(SURVEY) * REACH
    filled = survey[_distances(toy, survey) < REACH / SURVEY]
    centre = (filled.amin(0) + filled.amax(0)) / 2
    scale = float((filled - centre).norm(dim=1).max())

    def distances(points: Float[Tensor, "m 3"]) -> Float[Tensor, "m"]:
        return _distances(toy, points * scale + centre) / scale

    # Far from the surface distances hardly bend: there a coarse grid is enough.
    coarse = distances(_lattice(COARSE)).reshape(1, 1, COARSE, COARSE, COARSE)
    fine = interpolate(coarse, size=(GRID, GRID, GRID), mode="trilinear", align_corners=True).flatten()
    near = (fine.abs() < NEAR).nonzero()[:, 0]
    fine[near] = distances(_lattice(GRID)[near])
    field = fine.unflatten(0, (GRID, GRID, GRID))
    heights = torch.linspace(-1, 1, GRID)
    table = float(heights[field.amin((0, 1)) < 0].min()) - CELL / 2
    return Volume(field[None, None], torch.stack(torch.gradient(field))[None], table)


def unit(vectors: Float[Tensor, "3 m"]) -> Float[Tensor, "3 m"]:
    return vectors * vectors.square().sum(0).clamp_(min=1e-12).rsqrt_()


def _between(grid: Float[Tensor, "1 c g g g"], points: Float[Tensor, "3 m"]) -> Float[Tensor, "c m"]:
    """Trilinear."""
    return grid_sample(grid, points.flip(0).T[None, :, None, None], align_corners=True)[0, :, :, 0, 0]


def _lattice(side: int) -> Float[Tensor, "cells 3"]:
    return torch.cartesian_prod(*[torch.linspace(-1, 1, side)] * 3)


def _distances(toy: Solid, points: Float[Tensor, "m 3"]) -> Float[Tensor, "m"]:
    return torch.cat([toy(part) for part in points.split(CHUNK)])
