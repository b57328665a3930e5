"""Initial values of a layer's transforms, and a check of its sizes."""

import math

import torch
from torch import nn

from torchcaps.core.errors import UserError


def check_sizes(layer: str, **sizes: int) -> None:
    """Refuse sizes below 1 by name."""
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"{layer} needs {name} of at least 1, not {size}")


def deviation(children: int, reached: float, dim: int, matrix: bool) -> float:
    """Standard deviation of the initial transforms: with it, poses keep their length from layer to layer.

    Without this, the poses of a deep stack shrink to zero and it does not learn. The formula is for equal couplings: a
    vector pose is then the sum of the children's votes, each divided by `reached`, the number of parents of a child. A
    matrix pose is the mean of the votes, and its transforms start near the identity.
    """
    return 0.1 if matrix else reached / (children * dim) ** 0.5


def transforms(grid: tuple[int, ...], dim: int, child_dim: int, matrix: bool, std: float) -> nn.Parameter:
    """Initial transforms, one for each index of `grid`."""
    side = math.isqrt(dim)
    if matrix and (side * side != dim or child_dim != dim):
        raise UserError(f"matrix capsules have square poses of one size, not {child_dim} -> {dim} numbers")
    weight = torch.empty(*grid, *((side, side) if matrix else (dim, child_dim)))
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)
    return nn.Parameter(weight + torch.eye(side) if matrix else weight)
