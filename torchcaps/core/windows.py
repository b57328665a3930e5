"""Which children a convolutional parent sees, and which parents a child reaches.

A parent of a layer with kernel k sees a window of k x k positions of the map below. The windows are stored as a batch,
`[(b y x) (ky kx t) ...]`, so that any routing can be used; but a child is in several windows, and the parents of all of
them compete for it.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from einops import rearrange
from jaxtyping import Float, Int64
from torch import Tensor

from torchcaps.core.types import CapsuleMap, Capsules


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

    def competition(self, logits: Float[Tensor, "b i j"]) -> Float[Tensor, "b i 1"]:
        """For each child of each window, log Σ exp(logit) over the parents of all windows that it is in."""
        there, back = _places(self)
        size = self.kernel**2
        here = rearrange(logits.logsumexp(2), "(b n) (k t) -> b (n k) t", n=self.count, k=size)
        nobody = here.new_full((len(here), 1, here.shape[2]), torch.finfo(here.dtype).min)
        meetings = torch.cat([here, nobody], 1).index_select(1, there.flatten().to(here.device))
        total = meetings.unflatten(1, there.shape).logsumexp(2).index_select(1, back.to(here.device))
        return rearrange(total, "b (n k) t -> (b n) (k t) 1", k=size)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _places(windows: Windows) -> tuple[Int64[Tensor, "hw m"], Int64[Tensor, "nk"]]:
    """Two index tables: the places of each map position in the windows, and the map position of each place.

    A place is a pair (window, position in the window), as one number. Positions with fewer places than others have the
    number of places, one past the last valid index, in the rest of their row.
    """
    w = windows
    corner_y = torch.arange(w.rows)[:, None, None, None] * w.stride
    corner_x = torch.arange(w.columns)[None, :, None, None] * w.stride
    y = corner_y + torch.arange(w.kernel)[None, None, :, None]
    x = corner_x + torch.arange(w.kernel)[None, None, None, :]
    back = (y * w.width + x).flatten()
    order = back.argsort(stable=True)
    counts = back.bincount(minlength=w.height * w.width)
    nth = torch.arange(len(back)) - (counts.cumsum(0) - counts)[back[order]]
    there = torch.full((w.height * w.width, int(counts.max())), len(back))
    there[back[order], nth] = order
    return there, back
