"""Four-legged animals and human figures. Lengths are relative: every toy is scaled to the same size in the end."""

import math

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


def animal(
    length: float,
    girth: float,
    legs: float,
    leg: float,
    neck: float,
    rise: float,
    head: float,
    snout: float,
    ears: float,
    tail: float,
    droop: float,
    feature: str = "",
) -> Solid:
    """`rise` and `droop` are degrees: of the neck above, and of the tail below the horizontal."""
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


ANIMALS = (
    (1.00, 0.26, 0.62, 0.075, 0.55, 52, 0.15, 0.30, 0.13, 0.50, 70, "mane"),
    (1.00, 0.42, 0.52, 0.140, 0.20, 15, 0.28, 0.05, 0.00, 0.35, 70, "trunk"),
    (0.75, 0.25, 0.85, 0.065, 1.15, 66, 0.13, 0.24, 0.11, 0.35, 75, "horns"),
    (0.90, 0.38, 0.26, 0.095, 0.12, 10, 0.27, 0.26, 0.15, 0.14, -40),
    (1.20, 0.36, 0.50, 0.090, 0.30, 18, 0.19, 0.30, 0.00, 0.55, 75, "horns"),
    (1.30, 0.21, 0.24, 0.075, 0.30, 50, 0.16, 0.30, -0.24, 0.45, -45),
    (1.00, 0.36, 0.50, 0.120, 1.05, 48, 0.13, 0.16, 0.00, 1.20, 14, "thick tail"),
    (0.95, 0.38, 0.36, 0.140, 0.20, 22, 0.25, 0.22, 0.11, 0.08, 45),
    (1.10, 0.25, 0.50, 0.090, 0.24, 42, 0.17, 0.20, 0.00, 0.70, 40, "ruff"),
    (0.90, 0.29, 0.75, 0.075, 0.70, 40, 0.14, 0.28, 0.09, 0.35, 75, "humps"),
)


HIP, NECK = 0.86, 1.42
LEG = 0.80


def human(
    girth: float,
    shoulders: float,
    head: float,
    stride: float,
    spread: float,
    left: Point,
    right: Point,
    feature: str = "",
) -> Solid:
    """Hands are where they are from the shoulder: forward, outward, up. `stride` is in degrees."""
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


HUMANS = (
    (0.18, 0.26, 0.20, 0, 8, (0.00, 0.14, -0.60), (0.00, 0.14, -0.60), "base"),
    (0.19, 0.27, 0.20, 24, 2, (0.36, 0.08, -0.48), (-0.36, 0.08, -0.48)),
    (0.18, 0.26, 0.21, 0, 10, (0.05, 0.20, -0.58), (0.05, 0.34, 0.55), "cap"),
    (0.20, 0.27, 0.20, 0, 14, (0.00, 0.62, 0.00), (0.00, 0.62, 0.00)),
    (0.19, 0.27, 0.21, 14, 6, (0.42, -0.06, -0.16), (0.24, -0.10, -0.26), "rifle"),
    (0.17, 0.24, 0.23, 0, 9, (0.02, 0.28, 0.54), (0.02, 0.28, 0.54), "base"),
    (0.23, 0.35, 0.22, 0, 6, (0.30, 0.12, -0.40), (0.30, 0.12, -0.40), "robot"),
    (0.31, 0.29, 0.21, 0, 10, (0.05, 0.40, -0.42), (0.05, 0.40, -0.42), "hat"),
    (0.18, 0.23, 0.21, 0, 4, (0.10, 0.36, -0.40), (0.10, 0.36, -0.40), "skirt"),
    (0.18, 0.26, 0.20, 38, 2, (0.50, 0.06, -0.06), (-0.46, 0.10, -0.26)),
)
