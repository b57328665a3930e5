"""Four-legged animals. Lengths are relative: every toy is scaled to the same size in the end."""

import math
from typing import NamedTuple

from torchcaps.data.synthetic.norb_style.solids import Point, Solid, blended, ellipsoid, limb, mirrored


class Animal(NamedTuple):
    """`rise` and `droop` are degrees: of the neck above, and of the tail below the horizontal."""

    length: float
    girth: float
    legs: float
    leg: float
    neck: float
    rise: float
    head: float
    snout: float
    ears: float
    tail: float
    droop: float
    feature: str = ""


ANIMALS = (
    Animal(1.00, 0.26, 0.62, 0.075, 0.55, 52, 0.15, 0.30, 0.13, 0.50, 70, "mane"),
    Animal(1.00, 0.42, 0.52, 0.140, 0.20, 15, 0.28, 0.05, 0.00, 0.35, 70, "trunk"),
    Animal(0.75, 0.25, 0.85, 0.065, 1.15, 66, 0.13, 0.24, 0.11, 0.35, 75, "horns"),
    Animal(0.90, 0.38, 0.26, 0.095, 0.12, 10, 0.27, 0.26, 0.15, 0.14, -40),
    Animal(1.20, 0.36, 0.50, 0.090, 0.30, 18, 0.19, 0.30, 0.00, 0.55, 75, "horns"),
    Animal(1.30, 0.21, 0.24, 0.075, 0.30, 50, 0.16, 0.30, -0.24, 0.45, -45),
    Animal(1.00, 0.36, 0.50, 0.120, 1.05, 48, 0.13, 0.16, 0.00, 1.20, 14, "thick tail"),
    Animal(0.95, 0.38, 0.36, 0.140, 0.20, 22, 0.25, 0.22, 0.11, 0.08, 45),
    Animal(1.10, 0.25, 0.50, 0.090, 0.24, 42, 0.17, 0.20, 0.00, 0.70, 40, "ruff"),
    Animal(0.90, 0.29, 0.75, 0.075, 0.70, 40, 0.14, 0.28, 0.09, 0.35, 75, "humps"),
)


def animal(row: Animal) -> Solid:
    length, girth, legs, leg, neck, rise, head, snout, ears, tail, droop, feature = row
    back = legs + girth * 0.8
    front, rear = length / 2, -length / 2
    up = math.radians(rise)
    neck_foot = (front, 0.0, back + girth * 0.25)
    skull = (front + neck * math.cos(up), 0.0, neck_foot[2] + neck * math.sin(up) + head * 0.4)
    nose = (skull[0] + head * 0.5 + snout, 0.0, skull[2] - head * 0.3 - snout * 0.55)
    stance = girth * 0.62
    down = math.radians(droop)
    rump = (rear - girth * 0.7, 0.0, back + girth * 0.3)
    tail_tip = (rump[0] - tail * math.cos(down), 0.0, max(rump[2] - tail * math.sin(down), 0.1))
    thick = girth * 0.55 if feature == "thick tail" else max(leg * 0.5, 0.04)
    parts = [
        limb((rear, 0, back), (front, 0, back), girth * 0.95, girth),
        mirrored(limb((front, stance, back), (front + 0.03, stance, leg), leg * 1.5, leg)),
        mirrored(limb((rear, stance, back), (rear - 0.03, stance, leg), leg * 1.7, leg)),
        limb(neck_foot, skull, max(girth * 0.55, head * 0.8), head * 0.75),
        ellipsoid(skull, (head * 1.15, head, head)),
        limb(skull, nose, head * 0.75, head * 0.5),
        limb(rump, tail_tip, thick, 0.04),
    ]
    if ears:
        side = (skull[0] - head * 0.3, head * 0.75, skull[2] + head * 0.6)
        tip = (side[0] - 0.02, head * (1.3 if ears < 0 else 0.95), side[2] + ears)
        parts.append(mirrored(limb(side, tip, 0.06, 0.04)))
    return blended(0.08, *parts, *_features(feature, skull, head, back, girth, neck_foot))


def _features(feature: str, skull: Point, head: float, back: float, girth: float, neck_foot: Point) -> list[Solid]:
    x, _, z = skull
    match feature:
        case "mane":
            return [limb((x - head, 0, z + head * 0.5), (neck_foot[0] - 0.2, 0, neck_foot[2] + 0.12), 0.07, 0.05)]
        case "trunk":
            knee, tip = (x + head * 1.6, 0.0, z - head * 0.9), (x + head * 1.9, 0.0, 0.16)
            trunk = [limb((x + head * 0.8, 0, z), knee, 0.13, 0.1), limb(knee, tip, 0.1, 0.06)]
            tusk = mirrored(limb((x + head * 0.9, 0.13, z - head * 0.5), (x + head * 2.3, 0.18, z - head * 0.9), 0.045))
            return [*trunk, tusk, mirrored(ellipsoid((x - head * 0.5, head * 1.35, z), (0.09, 0.3, 0.34)))]
        case "horns":
            return [mirrored(limb((x, head * 0.6, z + head * 0.6), (x + 0.08, head * 1.9, z + head * 1.9), 0.05, 0.03))]
        case "ruff":
            return [ellipsoid((x - head * 0.7, 0, z - head * 0.3), (head * 1.0, head * 1.9, head * 2.0))]
        case "humps":
            return [ellipsoid((shift, 0, back + girth), (0.17, 0.15, 0.28)) for shift in (-0.26, 0.26)]
    return []
