"""Cars. Lengths are relative: every toy is scaled to the same size in the end."""

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
    prism,
    turned,
    without,
)


class Car(NamedTuple):
    """The cabin's corners along the car: foot and head of the windscreen, head and foot of the rear window."""

    length: float
    width: float
    wheel: float
    bonnet: float
    boot: float
    roof: float
    cabin: tuple[float, float, float, float]
    feature: str = ""


CARS = (
    Car(2.2, 0.46, 0.21, 0.50, 0.52, 0.82, (0.42, 0.12, -0.52, -0.78)),
    Car(1.8, 0.44, 0.21, 0.52, 0.55, 0.86, (0.42, 0.16, -0.74, -0.90)),
    Car(2.2, 0.50, 0.23, 0.40, 0.46, 0.64, (0.38, -0.06, -0.40, -0.95), "spoiler"),
    Car(1.75, 0.48, 0.31, 0.74, 0.74, 1.16, (0.24, 0.16, -0.78, -0.82), "jeep"),
    Car(2.4, 0.45, 0.21, 0.52, 0.54, 0.84, (0.40, 0.12, -1.00, -1.18), "rack"),
    Car(1.7, 0.46, 0.23, 0.40, 0.40, 0.84, (0.30, 0.12, -0.30, -0.50), "round"),
    Car(2.1, 0.48, 0.22, 0.48, 0.50, 0.74, (0.36, 0.00, -0.42, -0.98)),
    Car(2.3, 0.48, 0.20, 0.52, 0.58, 0.98, (0.86, 0.30, -0.98, -1.10)),
    Car(2.3, 0.42, 0.28, 0.56, 0.50, 0.95, (0.06, 0.00, -0.68, -0.74), "fenders"),
    Car(2.1, 0.47, 0.22, 0.48, 0.50, 0.52, (0.36, 0.30, -0.46, -0.50), "open"),
)


BEETLE = (
    (0.84, 0.12), (0.86, 0.34), (0.74, 0.50), (0.36, 0.58), (0.16, 0.84), (-0.12, 0.90), (-0.42, 0.80), (-0.70, 0.54),
    (-0.84, 0.30), (-0.84, 0.12),
)  # fmt: skip


def car(row: Car) -> Solid:
    length, width, wheel, bonnet, boot, roof, cabin, feature = row
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
