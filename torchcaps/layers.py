"""Capsule layers: votes plus a routing. Each drops into anybody's `nn.Sequential`."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.functional import length, squash, votes
from torchcaps.kernels import fused_routing, phase_conv
from torchcaps.routing import ROUTINGS, Routing, VoteShape
from torchcaps.types import Capsules, RoutingOutput


class PrimaryCaps(nn.Module):
    """Feature map to capsules: a convolution with Eq. 1 as its block non-linearity (Sabour et al. 2017, section 4).

    The channels of the convolution are `types` groups of `dim` neighbours; each group at each position is one capsule,
    so that child `i = (type · h + y) · w + x`. `divide` is the constant by which the authors' released code shrinks the
    values before the squash (the one-iteration softmax over its types).
    """

    def __init__(
        self, channels: int, types: int, dim: int, kernel: int, stride: int = 1, *, norm: bool = False, divide: int = 1
    ) -> None:
        super().__init__()
        self.types, self.dim, self.divide = types, dim, divide
        self.conv = nn.Conv2d(channels, types * dim, kernel, stride, bias=not norm)
        self.norm = BatchNorm(types * dim) if norm else nn.Identity()

    def forward(self, features: Float[Tensor, "b c h w"]) -> Capsules:
        if phase_conv.supports(self.conv, features):
            maps = phase_conv.phase_conv2d(features, self.conv.weight, self.conv.bias, self.conv.stride[0])
        else:
            maps = self.conv(features)
        s = rearrange(self.norm(maps), "b (n d) h w -> b (n h w) d", d=self.dim)
        u = squash(s / self.divide if self.divide != 1 else s)
        return Capsules(u, length(u))


class DenseCaps(nn.Module):
    """Every child votes for every parent through its own matrix `W[i, j]`, and a routing decides (Eq. 2).

    `routing` is a name in `ROUTINGS`, whose options follow as keywords, or a `Routing` made by hand.
    """

    def __init__(
        self,
        children: int,
        child_dim: int,
        parents: int,
        dim: int,
        routing: str | Routing = "dynamic",
        *,
        init_std: float = 0.1,
        **options: object,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(children, parents, dim, child_dim))
        nn.init.trunc_normal_(self.weight, std=init_std, a=-2 * init_std, b=2 * init_std)
        if isinstance(routing, str):
            routing = ROUTINGS[routing](VoteShape(children, parents, dim), **options)  # pyright: ignore[reportCallIssue]
        self.routing = routing

    def forward(self, capsules: Capsules | RoutingOutput, trace: bool = False) -> RoutingOutput:
        if not trace and fused_routing.supports(self.routing, capsules.poses, self.weight):
            return fused_routing.route(self.routing, capsules.poses, self.weight)
        return self.routing(votes(capsules.poses, self.weight), capsules.activations, trace)

    def extra_repr(self) -> str:
        children, parents, dim, child_dim = self.weight.shape
        return f"{children} x {child_dim} -> {parents} x {dim}"


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation whose statistics are those of the global batch, on any device.

    torch's SyncBatchNorm is for GPUs only; without it, two processes would train another function than one does.
    """

    def forward(self, input: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        if not (self.training and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1):
            return super().forward(input)
        from torch.distributed.nn.functional import all_reduce

        world = torch.distributed.get_world_size()
        mean = all_reduce(input.mean((0, 2, 3))) / world
        variance = all_reduce((input - mean[:, None, None]).square().mean((0, 2, 3))) / world
        count = input.numel() / input.shape[1] * world
        with torch.no_grad():
            assert self.running_mean is not None
            assert self.running_var is not None
            assert self.momentum is not None
            assert self.num_batches_tracked is not None
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
            self.num_batches_tracked.add_(1)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return input * scale[:, None, None] + (self.bias - mean * scale)[:, None, None]
