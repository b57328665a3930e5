"""Which children a convolutional parent sees, and which parents a child reaches.

A parent of a layer with kernel k sees a window of k x k positions of the map below. The windows are stored as a batch,
`[(b y x) (ky kx t) ...]`, so that any routing can be used; but a child is in several windows, and the parents of all of
them compete for it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import torch
from einops import rearrange
from jaxtyping import Float, Int64
from torch import Tensor

from torchcaps.core.types import CapsuleMap, Capsules

P = ParamSpec("P")
R = TypeVar("R")


def table(make: Callable[P, R]) -> Callable[P, R]:
    """Tensors that depend on sizes alone are made once for each; in a compiled graph they are constants anyway."""
    remembered = lru_cache(maxsize=64)(torch.inference_mode(False)(make))

    @wraps(make)
    def given(*sizes: P.args, **named: P.kwargs) -> R:
        return (make if torch.compiler.is_compiling() else remembered)(*sizes, **named)

    return given


@dataclass(frozen=True)
class Windows:
    """Windows of `kernel` x `kernel` positions, at every `stride`-th position of a map of `height` x `width`."""

    height: int
    width: int
    kernel: int
    stride: int

    @property
    def rows(self) -> int:
        return (self.height - self.kernel) // self.stride + 1

    @property
    def columns(self) -> int:
        return (self.width - self.kernel) // self.stride + 1

    @property
    def count(self) -> int:
        return self.rows * self.columns

    def cut(self, capsules: CapsuleMap) -> Capsules:
        """The children of every window: a batch of `(b y x)`, child `(ky kx t)`."""
        poses = capsules.poses.unfold(2, self.kernel, self.stride).unfold(3, self.kernel, self.stride)
        activations = capsules.activations.unfold(2, self.kernel, self.stride).unfold(3, self.kernel, self.stride)
        return Capsules(
            rearrange(poses, "b t y x p ky kx -> (b y x) (ky kx t) p"),
            rearrange(activations, "b t y x ky kx -> (b y x) (ky kx t)"),
        )

    def positions(self) -> Int64[Tensor, "n ky kx"]:
        """For each window the positions of the map that it sees, counted through."""
        rows, columns = torch.arange(self.rows) * self.stride, torch.arange(self.columns) * self.stride
        within = torch.arange(self.kernel)
        y, x = rows[:, None, None, None] + within[:, None], columns[:, None, None] + within
        return (y * self.width + x).flatten(0, 1)

    def competition(self, logits: Float[Tensor, "b i j"]) -> Float[Tensor, "b i 1"]:
        """For each child of each window, log Σ exp(logit) over the parents of all windows that it is in."""
        there, back = _places(self)
        size = self.kernel**2
        here = rearrange(logits.logsumexp(2), "(b n) (k t) -> b (n k) t", n=self.count, k=size)
        nobody = here.new_full((len(here), 1, here.shape[2]), torch.finfo(here.dtype).min)
        meetings = torch.cat([here, nobody], 1).index_select(1, there.flatten().to(here.device))
        total = meetings.unflatten(1, there.shape).logsumexp(2).index_select(1, back.to(here.device))
        return rearrange(total, "b (n k) t -> (b n) (k t) 1", k=size)


@table
def _places(windows: Windows) -> tuple[Int64[Tensor, "hw m"], Int64[Tensor, "nk"]]:
    """Two index tables: the places of each map position in the windows, and the map position of each place.

    A place is a pair (window, position in the window), as one number. Positions with fewer places than others have the
    number of places, one past the last valid index, in the rest of their row.
    """
    w = windows
    y_window, y_within = _along(w.height, w.rows, w.kernel, w.stride)
    x_window, x_within = _along(w.width, w.columns, w.kernel, w.stride)
    place = (y_window[:, None, :, None] * w.columns + x_window[:, None]) * w.kernel + y_within[:, None, :, None]
    place = place * w.kernel + x_within[:, None]
    missed = (y_window < 0)[:, None, :, None] | (x_window < 0)[:, None]
    there = place.masked_fill(missed, w.count * w.kernel**2).flatten(2).flatten(0, 1).sort(1).values
    return there, w.positions().flatten()


def _along(size: int, windows: int, kernel: int, stride: int) -> tuple[Int64[Tensor, "s m"], Int64[Tensor, "s m"]]:
    """Along one side of the map: the windows that each position is in, -1 where it has fewer, and its place in them."""
    position = torch.arange(size)[:, None]
    window = (position // stride).clamp(max=windows - 1) - torch.arange(min(windows, -(-kernel // stride)))
    within = position - window * stride
    return torch.where(within < kernel, window, -1), within
