"""Capsules that see a window of the layer below."""

import math

from einops import rearrange
from torch import Tensor, nn

from torchcaps.core.errors import UserError
from torchcaps.core.functional import matrix_transform
from torchcaps.core.types import CapsuleMap, map_of
from torchcaps.core.windows import Windows
from torchcaps.kernels import blocks, dispatch, fused_em
from torchcaps.nn.transforms import check_sizes, deviation, transforms
from torchcaps.routing import RoutingChoice, VoteShape, make_routing


class ConvCaps(nn.Module):
    """Capsules that see a window of the layer below, with a separate transform for each position in the window.

    "Each capsule outputs a local grid of vectors to each type of capsule in the layer above, using different
    transformation matrices for each member of the grid as well as for each type of capsule" (Sabour et al. 2017,
    section 4). All parents that a child reaches compete for it, also those at other positions. With `local` only the
    parents of the same window compete, which is cheaper and gives other results. With `matrix` a pose is a square
    matrix, stored row by row, and a transform multiplies it from the right (Hinton et al. 2018).
    """

    def __init__(
        self,
        types: int,
        child_dim: int,
        parents: int,
        dim: int,
        kernel: int,
        stride: int = 1,
        routing: RoutingChoice = "dynamic",
        *,
        matrix: bool = False,
        local: bool = False,
        init_std: float | None = None,
        **options: object,
    ) -> None:
        super().__init__()
        check_sizes("ConvCaps", types=types, parents=parents, dim=dim, kernel=kernel, stride=stride)
        self.kernel, self.stride, self.matrix, self.local = kernel, stride, matrix, local
        reach = max(1.0, kernel / stride) ** 2
        std = deviation(kernel * kernel * types, parents * reach, dim, matrix) if init_std is None else init_std
        self.weight = transforms((kernel, kernel, types, parents), dim, child_dim, matrix, std)
        self.shape = VoteShape(kernel * kernel * types, parents, dim, child_dim)
        self.routing = make_routing(routing, self.shape, **options)

    def forward(self, capsules: CapsuleMap | Tensor, trace: bool = False) -> CapsuleMap:
        given = map_of(capsules, "ConvCaps")
        types, child_dim = self.shape.children // self.kernel**2, self.shape.child_dim
        if (given.poses.shape[1], given.poses.shape[4]) != (types, child_dim):
            count, _, _, size = given.poses.shape[1:]
            raise UserError(
                f"ConvCaps was made for {types} types of {child_dim} numbers and is given {count} of {size}: "
                f"ConvCaps({count}, {size}, ...) would fit"
            )
        windows = self._windows(*given.poses.shape[2:4])
        kernel = dispatch.kernel_for("windows", self.routing, given, self.weight, trace)
        if kernel is not None:
            return kernel(self.routing, given, self.weight, windows, self.matrix, self.local)
        competition = None if self.local else windows.competition
        weight = (matrix_transform(self.weight) if self.matrix else self.weight).flatten(0, 2)
        output = dispatch.route(
            self.routing, windows.cut(given), weight, competition=competition, trace=trace, together=windows.count
        )
        place = {"y": windows.rows, "x": windows.columns}
        return CapsuleMap(
            rearrange(output.poses, "(b y x) t d -> b t y x d", **place),
            rearrange(output.activations, "(b y x) t -> b t y x", **place),
            output.trace,
        )

    def peak_bytes(self, batch: int, height: int, width: int, training: bool = True) -> int:
        """Peak memory of a forward pass and, with `training`, of its backward pass.

        For numbers of 4 bytes on the CPU; the map of `height` x `width` capsules itself is not counted.
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
