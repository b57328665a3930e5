"""One capsule per class, above a map of capsules."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.core.errors import UserError
from torchcaps.core.functional import coordinates, matrix_transform
from torchcaps.core.types import CapsuleMap, Capsules, RoutingOutput, map_of
from torchcaps.kernels import dispatch
from torchcaps.nn.transforms import check_sizes, deviation, transforms
from torchcaps.routing import RoutingChoice, VoteShape, make_routing


class ClassCaps(nn.Module):
    """One capsule per class; every position of the map votes through the same transforms (Hinton et al. 2018).

    Shared transforms lose the position of a child, so its row and column are added to two numbers of its vote: the
    first two of the last column of a matrix, the first two of a vector. `grid` is types, height and width of the map.
    """

    def __init__(
        self,
        grid: tuple[int, int, int],
        child_dim: int,
        classes: int,
        dim: int,
        routing: RoutingChoice = "em",
        *,
        matrix: bool = False,
        init_std: float | None = None,
        **options: object,
    ) -> None:
        super().__init__()
        types, height, width = grid
        check_sizes("ClassCaps", types=types, height=height, width=width, classes=classes)
        if dim < 2:
            raise UserError(
                f"ClassCaps adds row and column to two numbers of a vote: dim must be at least 2, not {dim}"
            )
        self.grid, self.child_dim, self.matrix = grid, child_dim, matrix
        children = types * height * width
        std = deviation(children, classes, dim, matrix) if init_std is None else init_std
        self.weight = transforms((types, classes), dim, child_dim, matrix, std)
        # Row and column are part of the pose that is routed (`placed`).
        shape = VoteShape(children, classes, dim, child_dim + 2)
        self.routing = make_routing(routing, shape, **options)
        side = math.isqrt(dim)
        places = torch.zeros(dim, 2)
        places[[side - 1, 2 * side - 1] if matrix else [0, 1], [0, 1]] = 1.0
        self.places: Tensor
        self.where: Tensor
        self.register_buffer("places", places, persistent=False)
        self.register_buffer("where", coordinates(height, width), persistent=False)

    def forward(self, capsules: CapsuleMap | Tensor, trace: bool = False) -> RoutingOutput:
        given = self._checked(capsules)
        kernel = dispatch.kernel_for("shared", self.routing, given, self.weight, trace)
        if kernel is not None:
            return kernel(self.routing, given, self.weight, self.matrix, self.where @ self.places.T)
        return dispatch.route(self.routing, self.placed(given), self.transforms(), trace=trace)

    def _checked(self, capsules: CapsuleMap | Tensor) -> CapsuleMap:
        given = map_of(capsules, "ClassCaps")
        grid, size = tuple(given.poses.shape[1:4]), given.poses.shape[4]
        if (grid, size) != (self.grid, self.child_dim):
            raise UserError(
                f"ClassCaps was made for a grid of {self.grid} capsules of {self.child_dim} numbers and is given "
                f"{grid} of {size}: ClassCaps({grid}, {size}, ...) would fit"
            )
        return given

    def placed(self, capsules: CapsuleMap) -> Capsules:
        """The capsules of the map, each with its row and column as two more numbers of its pose."""
        b, types = capsules.poses.shape[:2]
        where = self.where.expand(b, types, -1, -1, -1)
        return CapsuleMap(torch.cat([capsules.poses, where], 4), capsules.activations).flat()

    def transforms(self) -> Float[Tensor, "i j d q"]:
        """Transforms of all children: the same at every position, then those that add row and column to the vote."""
        _, height, width = self.grid
        weight = matrix_transform(self.weight) if self.matrix else self.weight
        weight = torch.cat([weight, self.places.expand(*weight.shape[:2], -1, -1)], 3)
        return weight.unsqueeze(1).expand(-1, height * width, -1, -1, -1).flatten(0, 1)

    def extra_repr(self) -> str:
        return f"grid={self.grid}, classes={self.weight.shape[1]}, matrix={self.matrix}"
