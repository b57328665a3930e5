"""Two-dimensional discrete Fourier transforms of small real images, as products with small real matrices.

A real image has conjugate frequencies, of which one half is enough, and a complex product takes three real ones:
`k1 = w_r (x_r + x_i), k2 = x_r (w_i - w_r), k3 = x_i (w_r + w_i)`, then `y_r = k1 - k3, y_i = k1 + k2`. These sums are
part of the matrices, so that between transforms there is nothing but real products.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Transform:
    """A linear map from `[h w n]` to real factors `[f n]`: along the rows, then, group by group, along the columns.

    A group is one real frequency of the rows, or the real and the imaginary part of a complex one.
    """

    first: Float[Tensor, "g h"]
    second: tuple[Tensor, ...]
    """Of each group, `[f gw]`."""

    @cached_property
    def factors(self) -> int:
        return sum(len(matrix) for matrix in self.second)

    @cached_property
    def groups(self) -> tuple[Tensor, Tensor]:
        """Of each group its factors, and its rows of `first`."""
        width = sum(matrix.shape[1] for matrix in self.second) // len(self.first)
        sizes = [(len(matrix), matrix.shape[1] // width) for matrix in self.second]
        heights, rows = zip(*sizes, strict=True)
        return torch.tensor(heights), torch.tensor(rows)

    @cached_property
    def packed(self) -> tuple[Tensor, Tensor]:
        """Both matrices as `dft.c` reads them, and, below, for the adjoint map."""
        return self.first.contiguous(), torch.cat([matrix.flatten() for matrix in self.second])

    @cached_property
    def packed_transposed(self) -> tuple[Tensor, Tensor]:
        return self.first.T.contiguous(), torch.cat([matrix.T.flatten() for matrix in self.second])

    def apply(self, x: Float[Tensor, "h w n"], out: Float[Tensor, "f n"]) -> None:
        rows = (self.first @ x.flatten(1)).view(-1, x.shape[2])
        for matrix, source, target in self._groups(rows, out):
            torch.mm(matrix, source, out=target)

    def transpose(self, factors: Float[Tensor, "f n"], width: int) -> Float[Tensor, "h w n"]:
        """The adjoint map: what gradients take."""
        rows = factors.new_empty(len(self.first) * width, factors.shape[1])
        for matrix, target, source in self._groups(rows, factors):
            torch.mm(matrix.T, source, out=target)
        return (self.first.T @ rows.view(len(self.first), -1)).view(-1, width, factors.shape[1])

    def _groups(self, rows: Tensor, factors: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        sources = rows.split([matrix.shape[1] for matrix in self.second])
        targets = factors.split([len(matrix) for matrix in self.second])
        return list(zip(self.second, sources, targets, strict=True))


class Correlation(NamedTuple):
    """`y[m] = Σ_t x[m + t] w[t]` in two dimensions is `outputs.transpose(inputs(x) · weights(w))`."""

    inputs: Transform
    weights: Transform
    outputs: Transform


Axes = tuple[int, int]


def factor_count(outputs: Axes, taps: Axes) -> int:
    """How many factors `correlation` makes of these sizes: one of a real frequency, three of a pair of conjugates."""
    n, m = (size + kernel - 1 for size, kernel in zip(outputs, taps, strict=True))
    real = (2 - n % 2) * (2 - m % 2)
    return real + 3 * (n * m - real) // 2


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def correlation(
    outputs: Axes, taps: Axes, dtype: torch.dtype, device: torch.device, padding: Axes = (0, 0)
) -> Correlation:
    """Matrices for these sizes, computed in float64 and rounded once. Zeros around `x` are never touched."""
    period = (outputs[0] + taps[0] - 1, outputs[1] + taps[1] - 1)
    inputs = (period[0] - 2 * padding[0], period[1] - 2 * padding[1])

    def transform(
        sizes: Axes, triple: Callable, start: Axes = (0, 0), conjugate: bool = False, weighted: bool = False
    ) -> Transform:
        first, second = _matrices(sizes, period, triple, start, conjugate, weighted)
        return Transform(*(_tensors(first, second, dtype, device)))

    return Correlation(
        transform(inputs, lambda r, i: (r + i, r, i), padding),
        transform(taps, lambda r, i: (r, i - r, r + i), conjugate=True),
        transform(outputs, lambda r, i: (r + i, i, -r), weighted=True),
    )


def _tensors(
    first: np.ndarray, second: list[np.ndarray], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, tuple[Tensor, ...]]:
    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device, dtype)

    return tensor(first), tuple(tensor(matrix) for matrix in second)


def _matrices(
    sizes: Axes, period: Axes, triple: Callable, start: Axes, conjugate: bool, weighted: bool
) -> tuple[np.ndarray, list[np.ndarray]]:
    """`start` is where the first pixel lies. `weighted` counts a frequency twice that stands for its conjugate too, as
    the inverse transform has to.
    """
    n, m = period
    sign = 2j if conjugate else -2j
    first, second = [], []
    for f in range(n // 2 + 1):
        row = np.exp(sign * np.pi * f * (start[0] + np.arange(sizes[0])) / n)
        real_row = 2 * f % n == 0
        first += [np.real(row)] if real_row else [np.real(row), np.imag(row)]
        group: list[np.ndarray] = []
        for g in range(m // 2 + 1 if real_row else m):
            column = np.exp(sign * np.pi * g * (start[1] + np.arange(sizes[1])) / m)
            real = real_row and 2 * g % m == 0
            column *= (1 if real else 2) / (n * m) if weighted else 1
            r, i = np.real(column), np.imag(column)
            if not real_row:
                r, i = np.r_[r, -i], np.r_[i, r]
            group += [r] if real else triple(r, i)
        second.append(np.stack(group))
    return np.stack(first), second
