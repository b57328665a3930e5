"""Augmentation of whole batches at once. Pixels are `uint8` or float `[b c h w]`; outside the image there is zero."""

import torch
from jaxtyping import Int, Shaped
from torch import Generator, Tensor
from torch.nn.functional import pad


def place(
    images: Shaped[Tensor, "b c h w"], offsets: Int[Tensor, "b 2"], height: int, width: int
) -> Shaped[Tensor, "b c height width"]:
    """Each image on an empty canvas, its top left corner at `offsets` (y, x), which may lie outside: exact, by copying.

    >>> place(torch.ones(1, 1, 2, 2), torch.tensor([[1, -1]]), 3, 3)[0, 0]
    tensor([[0., 0., 0.],
            [1., 0., 0.],
            [1., 0., 0.]])
    """
    b, _, h, w = images.shape
    # A margin of the canvas on each side of the image: wherever the image lies, its canvas is one window of this.
    windows = pad(images, (width, width, height, height)).unfold(2, height, 1).unfold(3, width, 1)
    y = (height - offsets[:, 0]).clamp(0, height + h)
    x = (width - offsets[:, 1]).clamp(0, width + w)
    return windows[torch.arange(b, device=images.device), :, y, x]


def shift(images: Shaped[Tensor, "b c h w"], pixels: int, generator: Generator) -> Shaped[Tensor, "b c h w"]:
    """Move each image by up to `pixels` in each direction with zero padding, every shift equally likely."""
    offsets = torch.randint(-pixels, pixels + 1, (len(images), 2), generator=generator)
    return place(images, offsets, images.shape[2], images.shape[3])
