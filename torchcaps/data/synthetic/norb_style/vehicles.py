"""Airplanes, trucks and cars. Lengths are relative: every toy is scaled to the same size in the end."""

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


class Airplane(NamedTuple):
    """`wing` is its height from -1 (below the fuselage) to 1 (above), `sweep` how far its tips lie behind its root."""

    length: float
    radius: float
    span: float
    root: float
    tip: float
    sweep: float
    place: float
    wing: float
    fin: float
    engines: str


AIRPLANES = (
    Airplane(2.2, 0.17, 1.05, 0.52, 0.20, 0.50, 0.15, -0.6, 0.45, "two below"),
    Airplane(1.9, 0.15, 0.62, 1.00, 0.16, 0.75, -0.15, 0.0, 0.42, "twin fins"),
    Airplane(1.5, 0.17, 0.95, 0.42, 0.40, 0.04, 0.25, -0.9, 0.32, "biplane"),
    Airplane(1.7, 0.18, 1.05, 0.36, 0.28, 0.02, 0.25, 1.0, 0.40, "propeller"),
    Airplane(2.4, 0.24, 1.25, 0.62, 0.22, 0.70, 0.20, -0.6, 0.62, "four below"),
    Airplane(1.7, 0.11, 1.55, 0.26, 0.14, 0.06, 0.20, 0.5, 0.34, "high tail"),
    Airplane(1.9, 0.15, 0.90, 0.46, 0.20, 0.36, 0.00, -0.6, 0.42, "at the rear"),
    Airplane(1.9, 0.18, 1.30, 0.46, 0.26, 0.10, 0.20, 0.4, 0.46, "four in front"),
    Airplane(2.5, 0.13, 0.72, 1.45, 0.10, 1.30, -0.25, -0.5, 0.36, "delta"),
    Airplane(1.5, 0.18, 0.92, 0.48, 0.26, 0.10, 0.18, -0.7, 0.36, "propeller"),
)


def airplane(row: Airplane) -> Solid:
    length, radius, span, root, tip, sweep, place, wing, fin, engines = row
    nose, end = length / 2, -length / 2
    tail_height = radius * 0.45
    fuselage = blended(
        0.06,
        limb((end + length * 0.38, 0, 0), (nose - length * 0.2, 0, 0), radius),
        limb((end + length * 0.38, 0, 0), (end + 0.06, 0, tail_height), radius, radius * 0.4),
        limb((nose - length * 0.2, 0, 0), (nose, 0, -radius * 0.2), radius, radius * (0.25 if sweep > 0.6 else 0.6)),
        ellipsoid((nose - length * 0.24, 0, radius * 0.8), (length * 0.1, radius * 0.6, radius * 0.55)),
    )
    height, front = wing * radius * 0.9, place + root / 2
    parts = [fuselage, _wing(front, root, tip, sweep, span, height)]
    raised = tail_height + fin * 0.95 if engines in ("high tail", "at the rear") else tail_height
    if engines != "delta":
        parts.append(_wing(end + 0.36, 0.28, 0.18, 0.16, span * 0.38 + 0.06, raised))
    outline = [(end + 0.42, 0.0), (end + 0.12, fin), (end - 0.04, fin), (end + 0.04, 0.0)]
    standing = [(x, z + tail_height) for x, z in outline]
    if engines == "twin fins":
        parts.append(mirrored(turned(prism(standing, "xz", radius * 1.2, 0.03), 0, -18)))
    else:
        parts.append(prism(standing, "xz", 0.0, 0.035))
    parts.extend(_engines(row, front, height))
    low = -radius - 0.2
    wheels = [limb((nose * 0.7, 0, 0), (nose * 0.7, 0, low), 0.035)]
    wheels.append(mirrored(limb((place - 0.1, radius * 0.6, 0), (place - 0.1, radius * 1.2, low), 0.04)))
    return joined(blended(0.03, *parts), *wheels)


def _wing(front: float, root: float, tip: float, sweep: float, span: float, height: float) -> Solid:
    outline = [(front, 0.0), (front - sweep, span), (front - sweep - tip, span), (front - root, 0.0)]
    return mirrored(prism(outline, "xy", height, max(0.038, 0.034 * span), 0.03))


def _engines(row: Airplane, front: float, height: float) -> list[Solid]:
    nose, radius = row.length / 2, row.radius

    def hung(share: float, size: float, drop: float) -> Solid:
        x = front - row.sweep * share + 0.02
        return mirrored(
            limb((x - 0.22, row.span * share, height + drop), (x + 0.08, row.span * share, height + drop), size)
        )

    match row.engines:
        case "two below":
            return [hung(0.38, 0.1, -0.12)]
        case "four below":
            return [hung(0.32, 0.1, -0.12), hung(0.62, 0.09, -0.12)]
        case "four in front":
            return [hung(0.3, 0.085, 0.0), hung(0.6, 0.075, 0.0)]
        case "at the rear":
            x = -nose + 0.55
            return [mirrored(limb((x - 0.15, radius * 1.6, 0.06), (x + 0.15, radius * 1.6, 0.06), 0.1))]
        case "biplane":
            upper = _wing(front + 0.08, row.root, row.tip, row.sweep, row.span, height + 0.52)
            strut = mirrored(box((front - row.root / 2, row.span * 0.7, height + 0.26), (0.03, 0.02, 0.26), 0.01))
            inner = mirrored(box((front - row.root / 2, radius * 0.8, height + 0.3), (0.03, 0.02, 0.26), 0.01))
            return [upper, strut, inner, _propeller(nose, radius)]
        case "propeller":
            return [_propeller(nose, radius)]
    return []


def _propeller(nose: float, radius: float) -> Solid:
    blades = turned(box((nose + 0.12, 0, 0), (0.025, radius * 1.9, 0.05), 0.02), 0, 25)
    return joined(limb((nose, 0, 0), (nose + 0.14, 0, 0), radius * 0.45, 0.03), blades)


def truck(
    length: float,
    width: float,
    cab: float,
    height: float,
    bonnet: float,
    wheel: float,
    axles: tuple[float, ...],
    load: str,
) -> Solid:
    """`bonnet` is the length of the nose before the cab, 0 for a cab over the engine."""
    front, rear, floor = length / 2, -length / 2, wheel * 1.35
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


TRUCKS = (
    (2.2, 0.40, 0.50, 0.95, 0.00, 0.19, (0.75, -0.55), "box"),
    (2.5, 0.38, 0.50, 0.90, 0.30, 0.19, (0.90, -0.50, -0.92), "tank"),
    (2.0, 0.46, 0.50, 1.00, 0.28, 0.26, (0.66, -0.55), "dump"),
    (2.6, 0.40, 0.48, 0.85, 0.00, 0.18, (0.98, -0.50, -0.90), "crates"),
    (2.0, 0.42, 0.55, 0.80, 0.55, 0.22, (0.62, -0.60), "pickup"),
    (3.0, 0.38, 0.46, 1.00, 0.00, 0.18, (1.15, 0.45, -0.80, -1.18), "trailer"),
    (2.2, 0.42, 0.48, 0.95, 0.00, 0.20, (0.78, -0.30, -0.72), "mixer"),
    (2.6, 0.40, 0.60, 0.85, 0.00, 0.20, (0.85, -0.75), "ladder"),
    (2.5, 0.38, 0.46, 0.90, 0.32, 0.20, (0.85, -0.50, -0.92), "logs"),
    (2.1, 0.44, 0.46, 0.90, 0.26, 0.23, (0.66, -0.60), "cover"),
)


BEETLE = (
    (0.84, 0.12), (0.86, 0.34), (0.74, 0.50), (0.36, 0.58), (0.16, 0.84), (-0.12, 0.90), (-0.42, 0.80), (-0.70, 0.54),
    (-0.84, 0.30), (-0.84, 0.12),
)  # fmt: skip


def car(
    length: float,
    width: float,
    wheel: float,
    bonnet: float,
    boot: float,
    roof: float,
    cabin: tuple[float, float, float, float],
    feature: str = "",
) -> Solid:
    """The cabin's corners along the car: foot and head of the windscreen, head and foot of the rear window."""
    front, rear, sill = length / 2, -length / 2, wheel * 0.75
    body = prism(
        [(front, sill), (front, bonnet * 0.78), (front - 0.1, bonnet * 0.92), (cabin[0], bonnet), (cabin[3], boot),
         (rear + 0.05, boot * 0.96), (rear, boot * 0.8), (rear, sill)],
        "xz", 0, width, 0.05,
    )  # fmt: skip
    foot = min(bonnet, boot) - 0.1
    glass = prism(
        [(cabin[0], foot), (cabin[0], bonnet - 0.01), (cabin[1], roof), (cabin[2], roof), (cabin[3], boot - 0.01),
         (cabin[3], foot)],
        "xz", 0, width * 0.86, 0.04,
    )  # fmt: skip
    axle = length * 0.31
    wheels = [mirrored(cylinder((x, width * 0.93, wheel), 1, wheel, 0.09, 0.03)) for x in (axle, -axle)]
    parts = [body, glass]
    match feature:
        case "round":
            fenders = (mirrored(ellipsoid((x, width * 0.84, wheel + 0.08), (0.3, 0.1, 0.2))) for x in (axle, -axle))
            parts = [prism(BEETLE, "xz", 0, width * 0.84, 0.1), *fenders]
        case "spoiler":
            parts.append(box((rear + 0.12, 0, boot + 0.16), (0.12, width * 0.95, 0.03)))
            parts.append(mirrored(box((rear + 0.12, width * 0.6, boot + 0.06), (0.04, 0.03, 0.1), 0.01)))
        case "jeep":
            parts.append(cylinder((rear - 0.06, 0, 0.62), 0, 0.27, 0.09, 0.03))
        case "rack":
            parts.append(
                mirrored(limb((cabin[1] - 0.1, width * 0.7, roof + 0.05), (cabin[2], width * 0.7, roof + 0.05), 0.035))
            )
        case "fenders":
            parts = [
                box((0.52, 0, 0.42), (0.62, width * 0.55, 0.18), 0.08), glass,
                box((-0.45, 0, 0.4), (0.58, width * 0.86, 0.18), 0.06),
                *(mirrored(ellipsoid((x, width * 0.86, wheel + 0.1), (0.36, 0.12, 0.22))) for x in (axle, -axle)),
                mirrored(limb((1.12, 0.26, 0.52), (1.18, 0.26, 0.52), 0.09)),
                box((0, width * 0.82, 0.22), (0.5, 0.1, 0.03)), box((0, -width * 0.82, 0.22), (0.5, 0.1, 0.03)),
            ]  # fmt: skip
        case "open":
            pit = box((-0.1, 0, 0.56), (0.4, width * 0.76, 0.2), 0.03)
            screen = turned(box((cabin[0], 0, 0.62), (0.025, width * 0.82, 0.17), 0.01), 1, -28, (cabin[0], 0, 0.5))
            seats = mirrored(box((-0.3, width * 0.38, 0.5), (0.07, 0.14, 0.24), 0.05))
            parts = [without(body, pit), screen, seats]
    return joined(blended(0.03, *parts), *wheels)


CARS = (
    (2.2, 0.46, 0.21, 0.50, 0.52, 0.82, (0.42, 0.12, -0.52, -0.78)),
    (1.8, 0.44, 0.21, 0.52, 0.55, 0.86, (0.42, 0.16, -0.74, -0.90)),
    (2.2, 0.50, 0.23, 0.40, 0.46, 0.64, (0.38, -0.06, -0.40, -0.95), "spoiler"),
    (1.75, 0.48, 0.31, 0.74, 0.74, 1.16, (0.24, 0.16, -0.78, -0.82), "jeep"),
    (2.4, 0.45, 0.21, 0.52, 0.54, 0.84, (0.40, 0.12, -1.00, -1.18), "rack"),
    (1.7, 0.46, 0.23, 0.40, 0.40, 0.84, (0.30, 0.12, -0.30, -0.50), "round"),
    (2.1, 0.48, 0.22, 0.48, 0.50, 0.74, (0.36, 0.00, -0.42, -0.98)),
    (2.3, 0.48, 0.20, 0.52, 0.58, 0.98, (0.86, 0.30, -0.98, -1.10)),
    (2.3, 0.42, 0.28, 0.56, 0.50, 0.95, (0.06, 0.00, -0.68, -0.74), "fenders"),
    (2.1, 0.47, 0.22, 0.48, 0.50, 0.52, (0.36, 0.30, -0.46, -0.50), "open"),
)
