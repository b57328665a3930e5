"""From a feature map to the first layer of capsules."""

import torch
from einops import rearrange
from torch import Tensor, nn

from torchcaps.core.errors import UserError
from torchcaps.core.functional import length, squash
from torchcaps.core.types import CapsuleMap
from torchcaps.kernels import convolution
from torchcaps.nn.norm import BatchNorm
from torchcaps.nn.transforms import check_sizes


class PrimaryCaps(nn.Module):
    """Feature map to capsules: a convolution with Eq. 1 as its block non-linearity (Sabour et al. 2017, section 4).

    The channels of the convolution are `types` groups of `dim` neighbours; each group at each position is one capsule,
    on a map that `flat()` lists as child `i = (type · h + y) · w + x`. `divide` is the constant by which the authors'
    released code shrinks the convolution before it adds the bias and squashes (the one-iteration softmax over its
    types).
    """

    def __init__(
        self, channels: int, types: int, dim: int, kernel: int, stride: int = 1, *, norm: bool = False, divide: int = 1
    ) -> None:
        super().__init__()
        check_sizes("PrimaryCaps", channels=channels, types=types, dim=dim, kernel=kernel, stride=stride)
        self.types, self.dim, self.divide = types, dim, divide
        self.conv = nn.Conv2d(channels, types * dim, kernel, stride, bias=not norm)
        self.norm = BatchNorm(types * dim) if norm else nn.Identity()

    def forward(self, features: Tensor) -> CapsuleMap:
        _check_channels(self, features, self.conv)
        maps = self.norm(convolution.convolve(self.conv, features))
        if self.divide != 1:
            maps = maps / self.divide
            if self.conv.bias is not None:
                maps = maps + (1 - 1 / self.divide) * self.conv.bias[:, None, None]
        u = squash(rearrange(maps, "b (n d) h w -> b (n h w) d", d=self.dim))
        grid = (self.types, *maps.shape[2:])
        return CapsuleMap(u.unflatten(1, grid), length(u).unflatten(1, grid))


class PrimaryPoses(nn.Module):
    """Feature map to capsules with a separate channel for the activation (Hinton et al. 2018, section 4).

    `activation_init` is the deviation of the initial kernel of that channel and its bias, a logit; without it they are
    those of any convolution, and activations begin near one half. The authors' code has (3, -1).
    """

    def __init__(
        self,
        channels: int,
        types: int,
        dim: int = 16,
        kernel: int = 1,
        stride: int = 1,
        *,
        activation_init: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        check_sizes("PrimaryPoses", channels=channels, types=types, dim=dim, kernel=kernel, stride=stride)
        self.types = types
        self.conv = nn.Conv2d(channels, types * (dim + 1), kernel, stride)
        if activation_init is not None:
            std, bias = activation_init
            assert self.conv.bias is not None
            with torch.no_grad():
                nn.init.trunc_normal_(self.conv.weight[dim :: dim + 1], std=std, a=-2 * std, b=2 * std)
                self.conv.bias[dim :: dim + 1] = bias

    def forward(self, features: Tensor) -> CapsuleMap:
        _check_channels(self, features, self.conv)
        maps = rearrange(self.conv(features), "b (t d) h w -> b t h w d", t=self.types)
        return CapsuleMap(maps[..., :-1], maps[..., -1].sigmoid())


def _check_channels(layer: nn.Module, features: Tensor, conv: nn.Conv2d) -> None:
    """A feature map of the right width, and at least as large as the kernel."""
    name, kernel = type(layer).__name__, conv.kernel_size[0]
    if not isinstance(features, Tensor):
        raise UserError(
            f"{name} takes a feature map [batch, channel, row, column], not {type(features).__name__}; capsules go to "
            "ConvCaps, ClassCaps or DenseCaps"
        )
    if features.ndim != 4 or features.shape[1] != conv.in_channels or min(features.shape[2:]) < kernel:
        raise UserError(
            f"{name} takes feature maps of {conv.in_channels} channels, at least {kernel}x{kernel}, as "
            f"[batch, channel, row, column]; it is given {list(features.shape)}"
        )
