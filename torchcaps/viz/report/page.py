"""The page: one HTML file with everything in it, no script, nothing fetched from anywhere."""

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

# The browser refuses whatever is not in the file itself.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Picture:
    """A figure in the versions that the style sheet chooses from: light and dark, or moving and still."""

    title: str
    about: str
    versions: Mapping[str, bytes]


@dataclass(frozen=True)
class Table:
    """Numbers to read one by one. What goes beyond the first rows is folded away."""

    title: str
    about: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    shown: int = 25


@dataclass(frozen=True)
class Published:
    """A result to read ours against, with what is known about it."""

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


def page(
    result: Mapping[str, Any],
    manifest: Mapping[str, Any],
    parts: Sequence[Picture | Table],
    details: Mapping[str, str],
) -> str:
    title = f"{result['model']} on {result['data']}"
    body = [
        _headline(title, result),
        _facts(result, manifest),
        _comparison(result),
        *(figure(part) if isinstance(part, Picture) else _table(part) for part in parts),
        *(folded(name, f"<pre><code>{escape(text)}</code></pre>") for name, text in details.items()),
    ]
    return document(title, body)


def document(title: str, body: Iterable[str]) -> str:
    """A whole file from its parts, in our style."""
    css = files("torchcaps.viz.report").joinpath("page.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<style>
{css}</style>
</head>
<body>
<main>
{"".join(body)}</main>
</body>
</html>
"""


def wilson(share: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share that was counted on `count` images (Wilson 1927)."""
    centre = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return (centre - spread) / scale, (centre + spread) / scale


def _headline(title: str, result: Mapping[str, Any]) -> str:
    low, high = (100 * bound for bound in wilson(result["accuracy"], result["images"]))
    right = "with both digits right" if "at_least_one" in result else "right"
    return f"""<header>
<h1>{escape(title)}</h1>
<p class="headline">{100 * result["accuracy"]:.2f}<span class="unit">&#8239;%</span></p>
<p class="lead">of {result["images"]:,} test images {right}. One seed; the size of the test set alone leaves
{low:.2f} to {high:.2f}&#8239;% open (95&#8239;%).</p>
</header>
"""


def _facts(result: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
    machine = manifest.get("machine", {})
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
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>\n" for name, value in facts.items() if value
    )
    command = manifest.get("command", "")
    shown = f"<pre class='command'><code>{escape(command)}</code></pre>\n" if " " in command else ""
    return f"<dl class='facts'>\n{items}</dl>\n{shown}"


def _comparison(result: Mapping[str, Any]) -> str:
    """The run beside what was published for the same data, if anything was."""
    published = PUBLISHED.get(result["data"])
    if not published:
        return ""
    error = result.get("reconstruction_mse")
    ours = Published("this run", result["accuracy"], error, result["seconds"], result["parameters"])
    columns = {
        "right": [_percent(row.accuracy) for row in (ours, *published)],
        "error per pixel": [_decimals(row.reconstruction_mse) for row in (ours, *published)],
        "training": [f"{row.seconds:,.0f}\u202fs" if row.seconds else "" for row in (ours, *published)],
        "parameters": [f"{row.parameters / 1e6:.1f}\u202fM" if row.parameters else "" for row in (ours, *published)],
    }
    columns = {name: cells for name, cells in columns.items() if any(cells[1:])}
    rows = [_cells("td", (row.name, *(c[n] for c in columns.values()))) for n, row in enumerate((ours, *published))]
    return f"""<table>
<thead>{_cells("th", ("", *columns))}</thead>
<tbody>{"".join(rows)}</tbody>
</table>
"""


def _cells(tag: str, texts: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts) + "</tr>\n"


def _table(table: Table) -> str:
    head, rest = table.rows[: table.shown], table.rows[table.shown :]
    blocks = [
        f"<table class='plain'>\n<thead>{_cells('th', table.header)}</thead>\n"
        f"<tbody>{''.join(_cells('td', row) for row in rows)}</tbody>\n</table>\n"
        for rows in (head, rest)
    ]
    more = folded(f"{len(rest)} more", blocks[1]) if rest else ""
    return f"""<section class="long">
<h2>{escape(table.title)}</h2>
{blocks[0]}{more}<p class="about">{escape(table.about)}</p>
</section>
"""


def figure(picture: Picture) -> str:
    images = "\n".join(
        f'<img class="{name}" alt="{escape(picture.title)}" src="{data_uri(content)}">'
        for name, content in picture.versions.items()
    )
    return f"""<section>
<h2>{escape(picture.title)}</h2>
<figure>
{images}
<figcaption>{escape(picture.about)}</figcaption>
</figure>
</section>
"""


def data_uri(content: bytes) -> str:
    kind = "gif" if content.startswith(b"GIF8") else "png"
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def folded(name: str, content: str) -> str:
    return f"<details><summary>{escape(name)}</summary>{content}</details>\n"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.2%}".replace("%", "\u202f%")


def _decimals(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
