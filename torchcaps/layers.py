"""Capsule layers: votes plus a routing. Each drops into anybody's `nn.Sequential`."""

import math

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.errors import UserError
from torchcaps.functional import coordinates, length, matrix_transform, squash, votes
from torchcaps.kernels import blocks, fused_em, fused_routing, phase_conv
from torchcaps.routing import ROUTINGS, Routing, VoteShape, make_routing, route
from torchcaps.types import CapsuleMap, Capsules, RoutingOutput
from torchcaps.windows import Windows


class PrimaryCaps(nn.Module):
    """Feature map to capsules: a convolution with Eq. 1 as its block non-linearity (Sabour et al. 2017, section 4).

    The channels of the convolution are `types` groups of `dim` neighbours; each group at each position is one capsule,
    so that child `i = (type · h + y) · w + x`. `divide` is the constant by which the authors' released code shrinks the
    convolution before it adds the bias and squashes (the one-iteration softmax over its types).
    """

    def __init__(
        self, channels: int, types: int, dim: int, kernel: int, stride: int = 1, *, norm: bool = False, divide: int = 1
    ) -> None:
        super().__init__()
        self.types, self.dim, self.divide = types, dim, divide
        self.conv = nn.Conv2d(channels, types * dim, kernel, stride, bias=not norm)
        self.norm = BatchNorm(types * dim) if norm else nn.Identity()

    def forward(self, features: Float[Tensor, "b c h w"]) -> Capsules:
        maps = self.norm(phase_conv.convolve(self.conv, features))
        if self.divide != 1:
            maps = maps / self.divide
            if self.conv.bias is not None:
                maps = maps + (1 - 1 / self.divide) * self.conv.bias[:, None, None]
        u = squash(rearrange(maps, "b (n d) h w -> b (n h w) d", d=self.dim))
        return Capsules(u, length(u))


class DenseCaps(nn.Module):
    """Every child votes for every parent through its own matrix `W[i, j]`, and a routing decides (Eq. 2).

    `routing` is a name in `ROUTINGS`, whose options follow as keywords, or a `Routing` made by hand. Children may come
    as capsules or as plain poses, which are taken to be as active as they are long, up to 1.
    """

    def __init__(
        self,
        children: int,
        child_dim: int,
        parents: int,
        dim: int,
        routing: str | Routing = "dynamic",
        *,
        init_std: float | None = None,
        **options: object,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(children, parents, dim, child_dim))
        kind = ROUTINGS.get(routing, Routing) if isinstance(routing, str) else routing
        std = kind.init_std if init_std is None else init_std
        nn.init.trunc_normal_(self.weight, std=std, a=-2 * std, b=2 * std)
        if isinstance(routing, str):
            routing = make_routing(routing, VoteShape(children, parents, dim, child_dim), **options)
        self.routing = routing

    def forward(
        self, capsules: Capsules | RoutingOutput | Float[Tensor, "b i p"], trace: bool = False
    ) -> RoutingOutput:
        if isinstance(capsules, Tensor):
            capsules = Capsules(capsules, length(capsules).clamp(max=1))
        if not trace and fused_routing.supports(self.routing, capsules.poses, self.weight):
            return fused_routing.route(self.routing, capsules.poses, self.weight)
        if not trace and fused_em.supports(self.routing, capsules, self.weight):
            return fused_em.route(self.routing, capsules, self.weight)
        return route(self.routing, votes(capsules.poses, self.weight), capsules, trace)

    def extra_repr(self) -> str:
        children, parents, dim, child_dim = self.weight.shape
        return f"{children} x {child_dim} -> {parents} x {dim}"


class PrimaryPoses(nn.Module):
    """Feature map to capsules whose activation is a number of its own (Hinton et al. 2018, section 4)."""

    def __init__(self, channels: int, types: int, dim: int = 16, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.types = types
        self.conv = nn.Conv2d(channels, types * (dim + 1), kernel, stride)

    def forward(self, features: Float[Tensor, "b c h w"]) -> CapsuleMap:
        maps = rearrange(self.conv(features), "b (t d) h w -> b t h w d", t=self.types)
        return CapsuleMap(maps[..., :-1], maps[..., -1].sigmoid())


class ConvCaps(nn.Module):
    """Capsules that see a window of the layer below, with a transform of its own for each place in the window.

    "Each capsule outputs a local grid of vectors to each type of capsule in the layer above, using different
    transformation matrices for each member of the grid as well as for each type of capsule" (Sabour et al. 2017,
    section 4). All parents that a child reaches compete for it, also those at other positions; `local` lets each window
    share out its children by itself, which is cheaper and not the same. With `matrix` a pose is a square matrix, laid
    out row by row, and a transform multiplies it from the right (Hinton et al. 2018).
    """

    def __init__(
        self,
        types: int,
        child_dim: int,
        parents: int,
        dim: int,
        kernel: int,
        stride: int = 1,
        routing: str | Routing = "dynamic",
        *,
        matrix: bool = False,
        local: bool = False,
        init_std: float | None = None,
        **options: object,
    ) -> None:
        super().__init__()
        self.kernel, self.stride, self.matrix, self.local = kernel, stride, matrix, local
        reach = max(1.0, kernel / stride) ** 2
        std = _deviation(kernel * kernel * types, parents * reach, dim, matrix) if init_std is None else init_std
        self.weight = _transforms((kernel, kernel, types, parents), dim, child_dim, matrix, std)
        self.shape = VoteShape(kernel * kernel * types, parents, dim, child_dim)
        self.routing = make_routing(routing, self.shape, **options) if isinstance(routing, str) else routing

    def forward(self, capsules: CapsuleMap, trace: bool = False) -> CapsuleMap:
        windows = self._windows(*capsules.poses.shape[2:4])
        if not trace and fused_em.supports(self.routing, capsules, self.weight):
            return fused_em.route_windows(self.routing, capsules, self.weight, windows, self.matrix, self.local)
        competition = None if self.local else windows.competition
        weight = (matrix_transform(self.weight) if self.matrix else self.weight).flatten(0, 2)
        output = blocks.route(self.routing, windows.cut(capsules), weight, trace, competition, windows.count)
        place = {"y": windows.rows, "x": windows.columns}
        return CapsuleMap(
            rearrange(output.poses, "(b y x) t d -> b t y x d", **place),
            rearrange(output.activations, "(b y x) t -> b t y x", **place),
            output.trace,
        )

    def peak_bytes(self, batch: int, height: int, width: int, training: bool = True) -> int:
        """The most memory that a forward pass, in training also its backward pass, will have in use at once.

        For numbers of 4 bytes on the CPU, beyond the map of `height` x `width` capsules itself.
        """
        windows = self._windows(height, width)
        if fused_em.runs(self.routing):
            return fused_em.peak_bytes(self.routing, batch, self.weight, windows, self.matrix, self.local, training)
        spread_out = 4 * math.prod(self.shape) if self.matrix else 0
        rows = batch * windows.count
        return spread_out + blocks.peak_bytes(self.routing, rows, windows.count, self.shape, training)

    def _windows(self, height: int, width: int) -> Windows:
        if min(height, width) < self.kernel:
            raise UserError(f"a map of {height}x{width} capsules is too small for a kernel of {self.kernel}")
        return Windows(height, width, self.kernel, self.stride)

    def extra_repr(self) -> str:
        return f"{self.shape}, kernel={self.kernel}, stride={self.stride}, matrix={self.matrix}, local={self.local}"


class ClassCaps(nn.Module):
    """One capsule a class, seen by every position of a map through the same transforms (Hinton et al. 2018).

    Where a child stands would be lost by sharing, so its row and column are added to two numbers of its vote: the first
    two of the last column of a matrix, the first two of a vector. `grid` is types, height and width of the map.
    """

    def __init__(
        self,
        grid: tuple[int, int, int],
        child_dim: int,
        classes: int,
        dim: int,
        routing: str | Routing = "em",
        *,
        matrix: bool = False,
        init_std: float | None = None,
        **options: object,
    ) -> None:
        super().__init__()
        types, height, width = grid
        self.grid, self.matrix = grid, matrix
        children = types * height * width
        std = _deviation(children, classes, dim, matrix) if init_std is None else init_std
        self.weight = _transforms((types, classes), dim, child_dim, matrix, std)
        # Row and column are part of the pose that is routed (`placed`).
        shape = VoteShape(children, classes, dim, child_dim + 2)
        self.routing = make_routing(routing, shape, **options) if isinstance(routing, str) else routing
        side = math.isqrt(dim)
        places = torch.zeros(dim, 2)
        places[[side - 1, 2 * side - 1] if matrix else [0, 1], [0, 1]] = 1.0
        self.places: Tensor
        self.where: Tensor
        self.register_buffer("places", places, persistent=False)
        self.register_buffer("where", coordinates(height, width), persistent=False)

    def forward(self, capsules: CapsuleMap, trace: bool = False) -> RoutingOutput:
        if not trace and fused_em.supports(self.routing, capsules, self.weight):
            added = self.where @ self.places.T
            return fused_em.route_shared(self.routing, capsules, self.weight, self.matrix, added)
        children, weight = self.placed(capsules), self.transforms()
        return blocks.route(self.routing, children, weight, trace)

    def placed(self, capsules: CapsuleMap) -> Capsules:
        """The capsules of the map, each with its row and column as two more numbers of its pose."""
        b, types = capsules.poses.shape[:2]
        where = self.where.expand(b, types, -1, -1, -1)
        return CapsuleMap(torch.cat([capsules.poses, where], 4), capsules.activations).flat()

    def transforms(self) -> Float[Tensor, "i j d q"]:
        """The same for every position; row and column are added to the vote as they are."""
        _, height, width = self.grid
        weight = matrix_transform(self.weight) if self.matrix else self.weight
        weight = torch.cat([weight, self.places.expand(*weight.shape[:2], -1, -1)], 3)
        return weight.unsqueeze(1).expand(-1, height * width, -1, -1, -1).flatten(0, 1)

    def extra_repr(self) -> str:
        return f"grid={self.grid}, classes={self.weight.shape[1]}, matrix={self.matrix}"


def _deviation(children: int, reached: float, dim: int, matrix: bool) -> float:
    """Of the initial transforms, such that even couplings hand on poses as long as they come, and deep stacks learn.

    A vector is the sum over the children of `votes / reached`, the number of parents among which each is shared. A
    matrix is their mean, and its transforms begin near the identity.
    """
    return 0.1 if matrix else reached / (children * dim) ** 0.5


def _transforms(grid: tuple[int, ...], dim: int, child_dim: int, matrix: bool, std: float) -> nn.Parameter:
    """Initial transforms for every place in `grid`."""
    side = math.isqrt(dim)
    if matrix and (side * side != dim or child_dim != dim):
        raise ValueError(f"matrix capsules have square poses of one size, not {child_dim} -> {dim} numbers")
    weight = torch.empty(*grid, *((side, side) if matrix else (dim, child_dim)))
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)
    return nn.Parameter(weight + torch.eye(side) if matrix else weight)


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation whose statistics are those of the global batch, on any device.

    torch's SyncBatchNorm is for GPUs only; without it, two processes would train another function than one does.
    """

    def forward(self, input: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        if not (self.training and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1):
            if not phase_conv.is_pixel_major(input):
                return super().forward(input)
            # All pixels of all images as one image, channels last: torch knows a fast way for that layout alone.
            b, c, h, w = input.shape
            pixels = input.permute(2, 3, 0, 1).reshape(1, h * w, b, c).permute(0, 3, 1, 2)
            return super().forward(pixels).permute(0, 2, 3, 1).reshape(h, w, b, c).permute(2, 3, 0, 1)
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
