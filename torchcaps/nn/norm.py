"""Batch normalisation over all processes, alone or with the pooling before it and the ReLU after it."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from torchcaps.kernels import fused_norm
from torchcaps.kernels.transforms import is_pixel_major


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation whose statistics are those of the global batch, on any device.

    torch's SyncBatchNorm is for GPUs only; with plain batch normalisation, two processes would not train the same
    function as one.
    """

    def forward(self, input: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        if not (self.training and _several_processes()):
            # Of one image that is channels last as well, which needs no other view.
            if input.stride(0) >= input.stride(3) or not is_pixel_major(input):
                return super().forward(input)
            # All pixels of all images as one image, channels last: the only layout that torch has a fast path for.
            b, c, h, w = input.shape
            pixels = input.permute(2, 3, 0, 1).reshape(1, h * w, b, c).permute(0, 3, 1, 2)
            return super().forward(pixels).permute(0, 2, 3, 1).reshape(h, w, b, c).permute(2, 3, 0, 1)
        from torch.distributed.nn.functional import all_reduce

        world = torch.distributed.get_world_size()
        mean = all_reduce(input.mean((0, 2, 3))) / world
        variance = all_reduce((input - mean[:, None, None]).square().mean((0, 2, 3))) / world
        count = input.numel() / input.shape[1] * world
        fused_norm.follow(self, mean.detach(), (variance * count / (count - 1)).detach())
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return input * scale[:, None, None] + (self.bias - mean * scale)[:, None, None]

    def with_relu(self, input: Float[Tensor, "b c h w"], pool: bool = False) -> Float[Tensor, "b c y x"]:
        """Normalised, then ReLU; before both, if asked, the largest of every 2x2 pixels."""
        if fused_norm.supports(self, input) and not _several_processes():
            return fused_norm.norm_relu(self, input, pool)
        return relu(self(max_pool2d(input, 2) if pool else input))


def _several_processes() -> bool:
    return torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
