"""A small renderer: a toy on a plain table, seen from many viewpoints, under lamps that are switched on and off.

A ray steps through the toy's grid by the distance it finds there (sphere tracing, Hart 1996), all rays at once. The
surface is found once for a viewpoint and each lamp's light on it once; a lighting is a weighted sum of the lamps. The
lamps stand with the cameras in front of a turntable, so that the table looks the same from every elevation: it is lit
once for an azimuth. Vectors are `[3 m]`: x forward, y left, z up.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from torch.nn.functional import avg_pool2d, grid_sample

from torchcaps.data.synthetic.norb_style import SIDE
from torchcaps.data.synthetic.norb_style.volume import CELL, Volume, unit

SUPERSAMPLED = 2
# smallNORB's two cameras are 7.5 cm apart and about 40 cm from the object, so each is 5.35 degrees off the middle.
EYES = (5.35, -5.35)
DISTANCE = 5.0
HALF_VIEW = 0.262
TRACE_STEPS = 32
COMPACT_EVERY = 4
ARRIVED = CELL / 8

TABLE_SIDE = 96
TABLE_REACH = 2.6
TOY, TABLE = 0.5, 0.72
GLOSS, SHININESS = 0.16, 24
NEARBY = (0.05, 0.1, 0.2, 0.36)
SHADOW_STEPS = 14
SHADOW_HARDNESS = 7.0
SHADOW_REACH = 2.4

# Degrees round from the camera, degrees above the table.
LAMPS = ((50, 52), (-50, 52), (0, 78), (180, 42))
# What comes from all around, then what each lamp adds.
LIGHTINGS = (
    (0.40, 0.85, 0.00, 0.00, 0.00),
    (0.35, 0.00, 0.90, 0.00, 0.00),
    (0.30, 0.00, 0.00, 0.75, 0.00),
    (0.25, 0.45, 0.45, 0.00, 0.00),
    (0.40, 0.30, 0.00, 0.00, 0.55),
    (0.25, 0.30, 0.30, 0.25, 0.20),
)
GAMMA = 1.6


class Camera(NamedTuple):
    """Where it stands, and the directions of its pixels' rays."""

    place: Float[Tensor, "3"]
    directions: Float[Tensor, "3 pixels"]


def away(azimuth: float, elevation: float) -> Float[Tensor, "3"]:
    """The unit vector so many degrees round and above the table."""
    a, e = torch.deg2rad(torch.tensor([azimuth, elevation]))
    return torch.stack([e.cos() * a.cos(), e.cos() * a.sin(), e.sin()])


def camera(azimuth: float, elevation: float, side: int) -> Camera:
    """One that looks at the middle of the toy."""
    back = away(azimuth, elevation)
    right = away(azimuth + 90, 0)
    up = torch.linalg.cross(back, right)
    along = ((torch.arange(side) + 0.5) / side * 2 - 1) * HALF_VIEW
    y, x = torch.meshgrid(-along, along, indexing="ij")
    directions = right[:, None] * x.flatten() + up[:, None] * y.flatten() - back[:, None]
    return Camera(back * DISTANCE, unit(directions))


def turn(vectors: Float[Tensor, "3 m"], degrees: float) -> Float[Tensor, "3 m"]:
    """Rotated about the vertical axis."""
    a = torch.deg2rad(torch.tensor(float(degrees)))
    x, y, z = vectors
    return torch.stack([x * a.cos() - y * a.sin(), x * a.sin() + y * a.cos(), z])


def trace(
    volume: Volume, origins: Float[Tensor, "3 m"], directions: Float[Tensor, "3 m"]
) -> tuple[Float[Tensor, "3 k"], Int64[Tensor, "k"]]:
    """Where rays meet the toy, and which rays those are."""
    middle = -(origins * directions).sum(0)
    chord = 1 - origins.square().sum(0) + middle.square()
    going = (chord > 0).nonzero()[:, 0]
    half = chord[going].sqrt()
    t, end = middle[going] - half, middle[going] + half
    o, v = origins.index_select(1, going), directions.index_select(1, going)
    hits, found = [], []
    for step in range(1, TRACE_STEPS + 1):
        at = torch.addcmul(o, v, t)
        d = volume.distance(at)
        close = (d < 2 * CELL).nonzero()[:, 0]
        d[close] = volume.exact_distance(at.index_select(1, close))
        t += d
        near = d < ARRIVED
        if step % COMPACT_EVERY == 0:
            hits.append(torch.addcmul(o, v, t)[:, near])
            found.append(going[near])
            left = (~near & (t < end)).nonzero()[:, 0]
            o, v = o.index_select(1, left), v.index_select(1, left)
            t, end, going = t[left], end[left], going[left]
    return torch.cat(hits, 1), torch.cat(found)


def openness(volume: Volume, points: Float[Tensor, "3 m"], normals: Float[Tensor, "3 m"]) -> Float[Tensor, "m"]:
    """How little of the surroundings the toy and the table hide (ambient occlusion), up to 1."""
    hidden = torch.zeros(points.shape[1])
    for step in NEARBY:
        ahead = points + step * normals
        free = torch.minimum(volume.distance(ahead), ahead[2] - volume.table)
        hidden += (1 - free / step).clamp_(0, 1)
    return 1 - 0.85 / len(NEARBY) * hidden


def lit(volume: Volume, points: Float[Tensor, "3 m"], lamp: Float[Tensor, "3 m"]) -> Float[Tensor, "m"]:
    """How much of a wide lamp each point sees: less where the way to it passes close by the toy, 0 behind the toy."""
    seen, t = torch.ones(points.shape[1]), torch.full((points.shape[1],), 3 * CELL)
    for _ in range(SHADOW_STEPS):
        at = torch.addcmul(points, lamp, t)
        d = volume.distance(at)
        seen = torch.minimum(seen, (SHADOW_HARDNESS * (d + CELL / 2) / t).clamp_(0, 1))
        t += d.clamp_(CELL, SHADOW_REACH / 8)
    return seen


def table_light(volume: Volume, azimuth: float) -> Float[Tensor, "parts side side"]:
    """The table around the toy as the cameras' side sees it: light from all around, then from each lamp."""
    along = torch.linspace(-TABLE_REACH, TABLE_REACH, TABLE_SIDE)
    y, x = (axis.flatten() for axis in torch.meshgrid(along, along, indexing="ij"))
    points = turn(torch.stack([x, y, torch.full_like(x, volume.table)]), azimuth)
    normals = torch.tensor([0.0, 0.0, 1.0])[:, None].expand_as(points)
    parts = [openness(volume, points, normals)]
    for around, height in LAMPS:
        lamp = away(azimuth + around, height)
        parts.append(lamp[2] * lit(volume, points, lamp[:, None].expand_as(points)))
    return TABLE * torch.stack(parts).unflatten(1, (TABLE_SIDE, TABLE_SIDE))


def toy_light(
    volume: Volume,
    points: Float[Tensor, "3 k"],
    backward: Float[Tensor, "3 k"],
    azimuths: Float[Tensor, "a"],
    which: Int64[Tensor, "k"],
) -> Float[Tensor, "parts k"]:
    """The same for points of the toy: matt, with a little gloss towards the eye (Blinn 1977)."""
    normals = volume.normal(points)
    # What is seen faces the eye; at the very edge the grid does not know it.
    normals = unit(normals + backward * (-(normals * backward).sum(0)).clamp_(min=0))
    raised = points + 2 * CELL * normals
    parts = [TOY * openness(volume, points, normals) * (0.7 + 0.3 * normals[2])]
    for around, height in LAMPS:
        lamps = torch.stack([away(float(azimuth) + around, height) for azimuth in azimuths], 1).index_select(1, which)
        facing = (normals * lamps).sum(0).clamp_(min=0)
        towards = (facing > 0).nonzero()[:, 0]
        seen = torch.zeros_like(facing)
        seen[towards] = lit(volume, raised.index_select(1, towards), lamps.index_select(1, towards))
        gloss = (normals * unit(lamps + backward)).sum(0).clamp_(min=0) ** SHININESS
        parts.append(seen * (TOY * facing + GLOSS * gloss))
    return torch.stack(parts)


def render(
    volume: Volume,
    elevations: Sequence[int],
    azimuths: Sequence[int],
    lightings: Sequence[int],
    show: Callable[[int], None] = lambda count: None,
) -> UInt8[Tensor, "e a l 2 side side"]:
    """Stereo pairs from every elevation and azimuth (degrees) under every lighting; `show` is told of so many bytes."""
    side = SIDE * SUPERSAMPLED
    weights = torch.tensor([LIGHTINGS[lighting] for lighting in lightings])
    tables = torch.stack([torch.einsum("lp,phw->lhw", weights, table_light(volume, azimuth)) for azimuth in azimuths])
    views = []
    for elevation in elevations:
        for eye in EYES:
            views.append(_view(volume, camera(eye, elevation, side), azimuths, tables, weights))
            show(views[-1].numel())
    pictures = torch.stack(views).unflatten(0, (len(elevations), len(EYES)))
    return pictures.permute(0, 2, 3, 1, 4, 5)


def _view(
    volume: Volume,
    seen_by: Camera,
    azimuths: Sequence[int],
    tables: Float[Tensor, "a l t t"],
    weights: Float[Tensor, "l parts"],
) -> UInt8[Tensor, "a l side side"]:
    """What one camera sees while the toy turns."""
    place, directions = seen_by
    pixels = directions.shape[1]
    side = SIDE * SUPERSAMPLED
    ground = place[:2, None] + directions[:2] * ((volume.table - place[2]) / directions[2])
    grid = (ground / TABLE_REACH).T.reshape(1, side, side, 2)
    seen = grid_sample(tables.flatten(0, 1)[None], grid, padding_mode="border", align_corners=True)
    pictures = seen.reshape(len(azimuths), len(weights), pixels).transpose(0, 1).flatten(1).contiguous()

    origins = torch.cat([turn(place[:, None], azimuth).expand(3, pixels) for azimuth in azimuths], 1)
    rays = torch.cat([turn(directions, azimuth) for azimuth in azimuths], 1)
    points, where = trace(volume, origins, rays)
    light = toy_light(volume, points, -rays[:, where], torch.tensor(azimuths).float(), where // pixels)
    pictures[:, where] = weights @ light
    small = avg_pool2d(pictures.unflatten(1, (len(azimuths), side, side)), SUPERSAMPLED)
    return (255 * small.clamp_(0, 1) ** (1 / GAMMA)).round_().to(torch.uint8).transpose(0, 1)
