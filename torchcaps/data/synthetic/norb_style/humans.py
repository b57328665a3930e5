"""Human figures. Lengths are relative: every toy is scaled to the same size in the end."""

import math
from typing import NamedTuple

from torchcaps.data.synthetic.norb_style.solids import (
    Point,
    Solid,
    blended,
    box,
    cylinder,
    ellipsoid,
    joined,
    limb,
    mirrored,
    sphere,
    turned,
)


class Human(NamedTuple):
    """Hands are where they are from the shoulder: forward, outward, up. `stride` is in degrees."""

    girth: float
    shoulders: float
    head: float
    stride: float
    spread: float
    left: Point
    right: Point
    feature: str = ""


HUMANS = (
    Human(0.18, 0.26, 0.20, 0, 8, (0.00, 0.14, -0.60), (0.00, 0.14, -0.60), "base"),
    Human(0.19, 0.27, 0.20, 24, 2, (0.36, 0.08, -0.48), (-0.36, 0.08, -0.48)),
    Human(0.18, 0.26, 0.21, 0, 10, (0.05, 0.20, -0.58), (0.05, 0.34, 0.55), "cap"),
    Human(0.20, 0.27, 0.20, 0, 14, (0.00, 0.62, 0.00), (0.00, 0.62, 0.00)),
    Human(0.19, 0.27, 0.21, 14, 6, (0.42, -0.06, -0.16), (0.24, -0.10, -0.26), "rifle"),
    Human(0.17, 0.24, 0.23, 0, 9, (0.02, 0.28, 0.54), (0.02, 0.28, 0.54), "base"),
    Human(0.23, 0.35, 0.22, 0, 6, (0.30, 0.12, -0.40), (0.30, 0.12, -0.40), "robot"),
    Human(0.31, 0.29, 0.21, 0, 10, (0.05, 0.40, -0.42), (0.05, 0.40, -0.42), "hat"),
    Human(0.18, 0.23, 0.21, 0, 4, (0.10, 0.36, -0.40), (0.10, 0.36, -0.40), "skirt"),
    Human(0.18, 0.26, 0.20, 38, 2, (0.50, 0.06, -0.06), (-0.46, 0.10, -0.26)),
)
HIP, NECK = 0.86, 1.42
LEG = 0.80


def human(row: Human) -> Solid:
    girth, shoulders, head, stride, spread, left, right, feature = row
    forward, outward = LEG * math.sin(math.radians(stride)), LEG * math.sin(math.radians(spread))
    sole = HIP - LEG * math.cos(math.radians(max(stride, spread)))
    skull = (0.03, 0.0, NECK + 0.08 + head)
    parts = [ellipsoid(skull, (head, head * 0.88, head * 1.12)), limb((0, 0, NECK - 0.1), skull, 0.1)]
    if feature == "robot":
        parts.append(box((0, 0, 1.12), (0.17, 0.26, 0.32), 0.04))
        parts.append(box(skull, (head, head, head), 0.03))
    else:
        parts.append(limb((0, 0, HIP + 0.02), (0, 0, NECK - 0.16), girth, girth * 1.08))
        parts.append(limb((0, -shoulders + 0.06, NECK - 0.09), (0, shoulders - 0.06, NECK - 0.09), 0.14))
    for side, sign, (x, y, z) in ((1, 1, left), (-1, -1, right)):
        foot = (sign * forward, side * (0.11 + outward), sole)
        shoulder = (0.0, side * shoulders, NECK - 0.1)
        parts.append(limb((0, side * 0.11, HIP), foot, 0.155, 0.11))
        parts.append(limb((foot[0], foot[1], sole - 0.02), (foot[0] + 0.17, foot[1] + side * 0.03, sole - 0.03), 0.095))
        parts.append(limb(shoulder, (x, side * (shoulders + y), shoulder[2] + z), 0.12, 0.095))
    return joined(blended(0.05, *parts), *_equipment(feature, skull, head, left, shoulders, sole))


def _equipment(feature: str, skull: Point, head: float, hand: Point, shoulders: float, sole: float) -> list[Solid]:
    x, _, z = skull
    match feature:
        case "base":
            return [cylinder((0.03, 0, sole - 0.12), 2, 0.4, 0.05)]
        case "cap":
            return [limb((x, 0, z + head * 0.7), (x + head * 1.3, 0, z + head * 0.55), 0.09, 0.05)]
        case "rifle":
            height = NECK - 0.1 + hand[2]
            rifle = limb((-0.1, 0.1, height - 0.08), (0.95, 0.1, height + 0.08), 0.055, 0.04)
            return [rifle, ellipsoid((x, 0, z + head * 0.5), (head * 1.3, head * 1.2, head * 0.75))]
        case "hat":
            brim = cylinder((x, 0, z + head * 0.6), 2, head * 2.1, 0.035)
            return [brim, cylinder((x, 0, z + head * 1.25), 2, head * 1.05, 0.13, 0.05)]
        case "skirt":
            bun = sphere((x - head * 0.9, 0, z + head * 0.7), head * 0.5)
            return [limb((0, 0, 0.36), (0, 0, 1.05), 0.34, 0.12), bun]
        case "robot":
            return [mirrored(turned(cylinder((0, head * 0.6, z + head * 1.5), 2, 0.03, 0.14), 0, -15, (0, head, z)))]
    return []
