"""A window around the drawn pixels of an image, and the way back to the whole image."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.core.errors import UserError
from torchcaps.data.transforms import bounding_boxes

INK = 0.1
"""Pixels below this value count as background."""


class Window(nn.Module):
    """The square around the drawn pixels ("ink"), so that the network need not learn every position of an object.

    Cutting and placing are products with matrices of zeros and ones: exact, differentiable, and easy to export.
    """

    def __init__(self, image: tuple[int, int, int], side: int) -> None:
        super().__init__()
        if not 0 < side <= min(image[1:]):
            raise UserError(f"a window of {side} pixels does not lie in images of {image[1]}x{image[2]}")
        self.image, self.side = image, side

    def corner(self, images: Float[Tensor, "b c h w"]) -> Int64[Tensor, "b 2"]:
        """Top and left of each image's window, which is inside the image."""
        boxes = bounding_boxes(images.amax(1) > INK)
        free = torch.tensor(self.image[1:], device=images.device) - self.side
        return ((boxes[:, :2] + boxes[:, 2:] - self.side) // 2).clamp(min=torch.zeros_like(free), max=free)

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
