"""Trucks. Lengths are relative: every toy is scaled to the same size in the end."""

from typing import NamedTuple

from torchcaps.data.synthetic.norb_style.solids import (
    Solid,
    blended,
    box,
    cylinder,
    ellipsoid,
    joined,
    limb,
    mirrored,
    moved,
    prism,
    turned,
    without,
)


class Truck(NamedTuple):
    """`bonnet` is the length of the nose before the cab, 0 for a cab over the engine."""

    length: float
    width: float
    cab: float
    height: float
    bonnet: float
    wheel: float
    axles: tuple[float, ...]
    load: str


TRUCKS = (
    Truck(2.2, 0.40, 0.50, 0.95, 0.00, 0.19, (0.75, -0.55), "box"),
    Truck(2.5, 0.38, 0.50, 0.90, 0.30, 0.19, (0.90, -0.50, -0.92), "tank"),
    Truck(2.0, 0.46, 0.50, 1.00, 0.28, 0.26, (0.66, -0.55), "dump"),
    Truck(2.6, 0.40, 0.48, 0.85, 0.00, 0.18, (0.98, -0.50, -0.90), "crates"),
    Truck(2.0, 0.42, 0.55, 0.80, 0.55, 0.22, (0.62, -0.60), "pickup"),
    Truck(3.0, 0.38, 0.46, 1.00, 0.00, 0.18, (1.15, 0.45, -0.80, -1.18), "trailer"),
    Truck(2.2, 0.42, 0.48, 0.95, 0.00, 0.20, (0.78, -0.30, -0.72), "mixer"),
    Truck(2.6, 0.40, 0.60, 0.85, 0.00, 0.20, (0.85, -0.75), "ladder"),
    Truck(2.5, 0.38, 0.46, 0.90, 0.32, 0.20, (0.85, -0.50, -0.92), "logs"),
    Truck(2.1, 0.44, 0.46, 0.90, 0.26, 0.23, (0.66, -0.60), "cover"),
)


def truck(row: Truck) -> Solid:
    length, width, cab, height, bonnet, wheel, axles, load = row
    front, rear, floor = row.length / 2, -row.length / 2, wheel * 1.35
    back = front - bonnet - cab
    waist = floor + (height - floor) * 0.48
    shape = [
        (front, wheel * 0.8), (front, waist), (front - bonnet, waist + 0.04), (front - bonnet - 0.12, height),
        (back, height), (back, wheel * 0.8),
    ]  # fmt: skip
    parts = [
        prism(shape, "xz", 0, width * (0.95 if bonnet else 1.0), 0.04),
        box(((rear + front) / 2 - 0.05, 0, floor - 0.06), (length / 2 - 0.08, width * 0.55, 0.06)),
        *(mirrored(cylinder((x, width * 0.84, wheel), 1, wheel, 0.09, 0.03)) for x in axles),
    ]
    return joined(*parts, *_load(load, rear, back - 0.06, floor, width))


def _load(load: str, rear: float, front: float, floor: float, width: float) -> list[Solid]:
    middle, half = (rear + front) / 2, (front - rear) / 2
    bed = box((middle, 0, floor + 0.03), (half, width, 0.05))
    match load:
        case "box" | "trailer":
            return [box((middle, 0, floor + 0.45), (half, width, 0.45), 0.03)]
        case "tank":
            return [bed, limb((rear + 0.33, 0, floor + 0.38), (front - 0.33, 0, floor + 0.38), 0.34)]
        case "dump":
            outline = [
                (rear, 0.5), (rear - 0.02, 0.72), (front + 0.3, 0.95), (front + 0.3, 0.88), (front, 0.0),
                (rear + 0.15, 0.0),
            ]  # fmt: skip
            body = prism(outline, "xz", 0, width, 0.02)
            hollow = box((middle, 0, 0.75), (half - 0.1, width - 0.09, 0.55), 0.02)
            return [turned(moved(without(body, hollow), (0, 0, floor)), 1, -8, (rear, 0, floor))]
        case "crates":
            crates = ((-0.72, 0.24, 0.2), (-0.2, 0.2, 0.26), (0.5, 0.3, 0.16))
            return [bed, *(box((middle + half * x, 0, floor + h + 0.06), (s, width * 0.8, h)) for x, s, h in crates)]
        case "pickup":
            walls = box((middle, 0, floor + 0.12), (half, width * 0.95, 0.18), 0.03)
            return [without(walls, box((middle, 0, floor + 0.25), (half - 0.07, width * 0.78, 0.22), 0.01)), bed]
        case "mixer":
            drum = blended(
                0.05,
                ellipsoid((middle + 0.08, 0, floor + 0.46), (half * 0.85, 0.38, 0.38)),
                limb((middle, 0, floor + 0.46), (rear + 0.08, 0, floor + 0.48), 0.3, 0.15),
            )
            return [bed, turned(drum, 1, 14, (middle, 0, floor + 0.4))]
        case "ladder":
            rails = mirrored(limb((rear - 0.05, 0.13, floor + 0.68), (front + 0.62, 0.13, floor + 0.86), 0.04))
            steps = [(rear + 0.28 * k, floor + 0.69 + 0.024 * k) for k in range(9)]
            rungs = [limb((x, -0.13, z), (x, 0.13, z), 0.03) for x, z in steps]
            return [box((middle, 0, floor + 0.28), (half, width, 0.28), 0.03), rails, *rungs]
        case "logs":
            places = ((-0.22, 0.19), (0.02, 0.17), (0.25, 0.2), (-0.1, 0.44), (0.13, 0.43), (0.02, 0.66))
            logs = [cylinder((middle - 0.05, y, floor + z), 0, 0.125, half + 0.02) for y, z in places]
            return [bed, *logs, mirrored(box((middle + half * 0.7, width * 0.95, floor + 0.3), (0.03, 0.03, 0.32)))]
        case "cover":
            arch = cylinder((middle, 0, floor + 0.42), 0, width, half, 0.03)
            return [box((middle, 0, floor + 0.22), (half, width, 0.22), 0.02), arch]
    return []
