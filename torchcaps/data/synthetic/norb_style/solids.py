"""Simple solids as signed distances: how far a point is from the surface, negative inside.

x points forward, y to the left, z up. A solid is a function of points `[m 3]`, so toys are built by calling functions.
Blended and stretched solids give a lower bound of the distance, which is all that tracing a ray needs.
"""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

Solid = Callable[[Tensor], Tensor]
Point = tuple[float, float, float]


def _vector(point: Point) -> Float[Tensor, "3"]:
    return torch.tensor(point, dtype=torch.float32)


def _rounded(beyond: Float[Tensor, "m k"], rounding: float) -> Float[Tensor, "m"]:
    """The distance of points that are so far beyond each face of a convex solid, whose edges are then rounded."""
    return beyond.clamp(min=0).norm(dim=1) + beyond.amax(1).clamp(max=0) - rounding


def box(centre: Point, half: Point, rounding: float = 0.02) -> Solid:
    """Half its length, width and height; `rounding` is the radius of its edges."""

    def distance(points: Float[Tensor, "m 3"]) -> Float[Tensor, "m"]:
        return _rounded((points - _vector(centre)).abs() - (_vector(half) - rounding), rounding)

    return distance


def ellipsoid(centre: Point, radii: Point) -> Solid:
    def distance(points: Float[Tensor, "m 3"]) -> Float[Tensor, "m"]:
        q = (points - _vector(centre)) / _vector(radii)
        k = q.norm(dim=1)
        return k * (k - 1) / (q / _vector(radii)).norm(dim=1).clamp(min=1e-6)

    return distance


def sphere(centre: Point, radius: float) -> Solid:
    return lambda points: (points - _vector(centre)).norm(dim=1) - radius


def limb(start: Point, end: Point, radius: float, end_radius: float | None = None) -> Solid:
    """A capsule from `start` to `end`, thinner or thicker along its way."""
    tip = radius if end_radius is None else end_radius

    def distance(points: Float[Tensor, "m 3"]) -> Float[Tensor, "m"]:
        along = _vector(end) - _vector(start)
        q = points - _vector(start)
        t = (q @ along / along.dot(along)).clamp(0, 1)
        return (q - t[:, None] * along).norm(dim=1) - (radius + (tip - radius) * t)

    return distance


def cylinder(centre: Point, axis: int, radius: float, half: float, rounding: float = 0.02) -> Solid:
    """Round about the axis 0, 1 or 2 (x, y or z): a wheel has axis 1."""

    def distance(points: Float[Tensor, "m 3"]) -> Float[Tensor, "m"]:
        q = points - _vector(centre)
        across = q[:, [k for k in range(3) if k != axis]].norm(dim=1) - (radius - rounding)
        along = q[:, axis].abs() - (half - rounding)
        return _rounded(torch.stack([across, along], 1), rounding)

    return distance


def prism(outline: Sequence[tuple[float, float]], plane: str, at: float, half: float, rounding: float = 0.02) -> Solid:
    """A polygon in the plane "xy" or "xz", as thick as twice `half` around `at` on the third axis."""
    axes = ["xyz".index(letter) for letter in plane]
    third = 3 - sum(axes)

    def distance(points: Float[Tensor, "m 3"]) -> Float[Tensor, "m"]:
        flat = _polygon(points[:, axes], outline) + rounding
        along = (points[:, third] - at).abs() - (half - rounding)
        return _rounded(torch.stack([flat, along], 1), rounding)

    return distance


def _polygon(points: Float[Tensor, "m 2"], outline: Sequence[tuple[float, float]]) -> Float[Tensor, "m"]:
    """Distance to the nearest edge, negative where an odd number of edges is crossed on the way out."""
    corners = torch.tensor(outline, dtype=torch.float32)
    nearest, inside = torch.full((len(points),), math.inf), torch.zeros(len(points), dtype=torch.bool)
    for a, b in zip(corners, corners.roll(-1, 0), strict=True):
        q, along = points - a, b - a
        t = (q @ along / along.dot(along)).clamp(0, 1)
        nearest = torch.minimum(nearest, (q - t[:, None] * along).square().sum(1))
        crosses = (points[:, 1] >= a[1]) != (points[:, 1] >= b[1])
        left = (q[:, 0] * along[1] < q[:, 1] * along[0]) == bool(along[1] > 0)
        inside ^= crosses & left
    return torch.where(inside, -nearest.sqrt(), nearest.sqrt())


def joined(*solids: Solid) -> Solid:
    return lambda points: torch.stack([solid(points) for solid in solids]).amin(0)


def blended(softness: float, *solids: Solid) -> Solid:
    """Joined with a fillet of about the width `softness`: a smooth minimum, two by two."""

    def distance(points: Float[Tensor, "m 3"]) -> Float[Tensor, "m"]:
        d = solids[0](points)
        for solid in solids[1:]:
            other = solid(points)
            overlap = (1 - (d - other).abs() / softness).clamp(min=0)
            d = torch.minimum(d, other) - overlap.square() * (softness / 4)
        return d

    return distance


def without(solid: Solid, removed: Solid) -> Solid:
    return lambda points: torch.maximum(solid(points), -removed(points))


def mirrored(solid: Solid) -> Solid:
    """A solid on the left, and its mirror image on the right."""
    return lambda points: solid(torch.cat([points[:, :1], points[:, 1:2].abs(), points[:, 2:]], 1))


def moved(solid: Solid, by: Point) -> Solid:
    return lambda points: solid(points - _vector(by))


def turned(solid: Solid, axis: int, degrees: float, about: Point = (0.0, 0.0, 0.0)) -> Solid:
    """Rotated about an axis through a point; a positive turn about y (1) lowers the front."""
    first, second = ((1, 2), (2, 0), (0, 1))[axis]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    back = torch.eye(3)
    back[first, first], back[first, second] = cos, sin
    back[second, first], back[second, second] = -sin, cos

    def distance(points: Float[Tensor, "m 3"]) -> Float[Tensor, "m"]:
        return solid((points - _vector(about)) @ back.T + _vector(about))

    return distance
