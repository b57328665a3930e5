"""How the transforms of a layer begin."""

import math

import torch
from torch import nn

from torchcaps.core.errors import UserError


def deviation(children: int, reached: float, dim: int, matrix: bool) -> float:
    """Of the initial transforms, such that even couplings hand on poses as long as they come, and deep stacks learn.

    A vector is the sum over the children of `votes / reached`, the number of parents among which each is shared. A
    matrix is their mean, and its transforms begin near the identity.
    """
    return 0.1 if matrix else reached / (children * dim) ** 0.5


def transforms(grid: tuple[int, ...], dim: int, child_dim: int, matrix: bool, std: float) -> nn.Parameter:
    """Initial transforms for every place in `grid`."""
    side = math.isqrt(dim)
    if matrix and (side * side != dim or child_dim != dim):
        raise UserError(f"matrix capsules have square poses of one size, not {child_dim} -> {dim} numbers")
    weight = torch.empty(*grid, *((side, side) if matrix else (dim, child_dim)))
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)
    return nn.Parameter(weight + torch.eye(side) if matrix else weight)
