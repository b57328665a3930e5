"""The pages: one HTML file each with everything in it, no script, nothing fetched from anywhere.

Jinja2 fills in the files of `templates/` and escapes every value: names of classes and files come from anybody.
"""

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from torchcaps.viz.figures.style import Theme, style, to_png


@dataclass(frozen=True)
class Picture:
    """A figure in the versions that the style sheet chooses from: light and dark, or moving and still."""

    title: str
    about: str
    versions: Mapping[str, bytes]


@dataclass(frozen=True)
class Table:
    """Numbers to read one by one. The rows after the first `shown` are folded away."""

    title: str
    about: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    shown: int = 25


@dataclass(frozen=True)
class Published:
    """A published result to compare with, as far as it is known."""

    name: str
    accuracy: float
    reconstruction_mse: float | None = None
    seconds: float | None = None
    parameters: int | None = None


PUBLISHED = {
    "multimnist-iou80": (Published("NumPy reproduction, one thread", 0.486, 0.036, 395),),
    "multimnist": (
        Published("CapsNet (Sabour et al. 2017)", 0.948, parameters=11_361_808),
        Published("their CNN baseline", 0.919, parameters=24_560_000),
    ),
    "mnist": (
        Published("CapsNet (Sabour et al. 2017)", 0.9975, parameters=8_215_568),
        Published("their CNN baseline", 0.9961, parameters=35_445_522),
    ),
}


def render(template: str, filters: Mapping[str, Callable[..., Any]] | None = None, **values: Any) -> str:
    look: dict[str, Any] = {"autoescape": True, "undefined": StrictUndefined, "trim_blocks": True}
    pages = Environment(loader=PackageLoader("torchcaps.viz.report"), **look)
    pages.filters |= {"data_uri": data_uri, **(filters or {})}
    return pages.get_template(template).render(values)


def in_both_themes(draw: Callable[[], Figure]) -> dict[str, bytes]:
    drawn = {}
    for theme in get_args(Theme):
        with style(theme):
            drawn[theme] = to_png(draw())
    return drawn


def page(
    result: Mapping[str, Any],
    manifest: Mapping[str, Any],
    parts: Sequence[Picture | Table],
    details: Mapping[str, str],
) -> str:
    machine, command = manifest.get("machine", {}), manifest.get("command", "")
    facts = {
        "at least one digit right": _percent(result.get("at_least_one")),
        "digits right": _percent(result.get("per_digit")),
        "reconstruction error per pixel": _decimals(result.get("reconstruction_mse")),
        "segmentation IoU": _decimals(result.get("segmentation_iou")),
        "trained for": f"{result['seconds']:,.0f}\u202fs",
        "images seen": f"{result['images_seen']:,}",
        "parameters": f"{result['parameters']:,}",
        "seed": str(result["seed"]),
        "processor": machine.get("processor", ""),
        "threads": str(machine.get("threads", "")),
    }
    return render(
        "report.html",
        result=result,
        interval=wilson(result["accuracy"], result["images"]),
        facts=facts,
        command=command if " " in command else "",
        comparison=_comparison(result),
        parts=parts,
        details=details,
    )


def wilson(share: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share that was counted on `count` images (Wilson 1927)."""
    centre = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return (centre - spread) / scale, (centre + spread) / scale


def _comparison(result: Mapping[str, Any]) -> list[list[str]]:
    """A header and rows: the run and what was published for the same data, with the columns that somebody published."""
    error = result.get("reconstruction_mse")
    ours = Published("this run", result["accuracy"], error, result["seconds"], result["parameters"])
    published = PUBLISHED.get(result["data"], ())
    rows = [
        [
            row.name,
            _percent(row.accuracy),
            _decimals(row.reconstruction_mse),
            f"{row.seconds:,.0f}\u202fs" if row.seconds else "",
            f"{row.parameters / 1e6:.1f}\u202fM" if row.parameters else "",
        ]
        for row in (ours, *published)
    ]
    known = [n for n, cells in enumerate(zip(*rows[1:], strict=True)) if any(cells)]
    header = ["", "right", "error per pixel", "training", "parameters"]
    return [[row[n] for n in known] for row in (header, *rows)] if published else []


def data_uri(content: bytes) -> str:
    kind = "gif" if content.startswith(b"GIF8") else "png"
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.2%}".replace("%", "\u202f%")


def _decimals(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
