"""Airplanes. Lengths are relative: every toy is scaled to the same size in the end."""

from typing import NamedTuple

from torchcaps.data.synthetic.norb_style.solids import (
    Solid,
    blended,
    box,
    ellipsoid,
    joined,
    limb,
    mirrored,
    prism,
    turned,
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
