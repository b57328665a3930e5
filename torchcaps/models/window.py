"""A window around the drawn pixels of an image, and the way back to the whole image."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.core.errors import UserError

INK = 0.3
"""A pixel counts as ink by what it has above this part of the way from the mean of its image to the brightest."""
FAINT = 1e-6
"""Ink of every pixel: without any other, the window is in the middle."""


class Window(nn.Module):
    """The square around the drawn pixels ("ink"), so that the network need not learn every position of an object.

    Its middle is the ink's centre of mass. A speck, noise or grey paper moves that by a fraction of a pixel, where it
    would move a bounding box by half an image. Cutting and placing are products with matrices of zeros and ones: exact,
    differentiable, and easy to export.
    """

    def __init__(self, image: tuple[int, int, int], side: int) -> None:
        super().__init__()
        if not 0 < side <= min(image[1:]):
            raise UserError(f"a window of {side} pixels does not lie in images of {image[1]}x{image[2]}")
        self.image, self.side = image, side

    def corner(self, images: Float[Tensor, "b c h w"]) -> Int64[Tensor, "b 2"]:
        """Top and left of each image's window, which is inside the image."""
        pixels = images.amax(1)
        mean = pixels.mean((1, 2), keepdim=True)
        ink = (pixels - mean - INK * (pixels.amax((1, 2), keepdim=True) - mean)).clamp(min=0) + FAINT
        centre = torch.stack([_mean_place(ink.sum(2)), _mean_place(ink.sum(1))], 1)
        free = torch.tensor(self.image[1:], device=images.device) - self.side
        corner = (centre - (self.side - 1) / 2).round().long()
        return corner.clamp(min=torch.zeros_like(free), max=free)

    def middle(self) -> tuple[int, int]:
        """The corner of a window in the middle."""
        _, height, width = self.image
        return (height - self.side) // 2, (width - self.side) // 2

    def forward(
        self, images: Float[Tensor, "b c h w"], corner: Int64[Tensor, "b 2"] | None = None
    ) -> Float[Tensor, "b c s s"]:
        rows, columns = self._chosen(self.corner(images) if corner is None else corner, images.dtype)
        return rows.unsqueeze(1) @ images @ columns.unsqueeze(1).mT

    def put_back(
        self, pictures: Float[Tensor, "b k c s s"], corner: Int64[Tensor, "b 2"] | None = None
    ) -> Float[Tensor, "b k c h w"]:
        """Pictures of the window, placed on an empty image at `corner`, or in the middle."""
        if corner is None:
            corner = torch.tensor(self.middle(), device=pictures.device).expand(len(pictures), 2)
        rows, columns = (chosen[:, None, None] for chosen in self._chosen(corner, pictures.dtype))
        return rows.mT @ pictures @ columns

    def _chosen(
        self, corner: Int64[Tensor, "b 2"], dtype: torch.dtype
    ) -> tuple[Float[Tensor, "b s h"], Float[Tensor, "b s w"]]:
        """Matrices that select the rows and the columns of the window: one 1 in each row, else zeros."""
        inside = corner.unsqueeze(2) + torch.arange(self.side, device=corner.device)
        rows, columns = (
            (inside[:, axis].unsqueeze(2) == torch.arange(size, device=corner.device)).to(dtype)
            for axis, size in enumerate(self.image[1:])
        )
        return rows, columns

    def extra_repr(self) -> str:
        return f"{self.side} of {self.image[1]}x{self.image[2]}"


def _mean_place(ink: Float[Tensor, "b n"]) -> Float[Tensor, "b"]:
    """Where the ink of rows, or of columns, is on average."""
    return (ink * torch.arange(ink.shape[1], device=ink.device)).sum(1) / ink.sum(1)
