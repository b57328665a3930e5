"""Draw docs/norb-style.png: the fifty toys of norb-style, and how viewpoint and lighting change one of them.

python tools/norb_style_sheet.py
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from torchcaps.data.synthetic.norb_style.making import TOYS  # noqa: E402
from torchcaps.data.synthetic.norb_style.render import LIGHTINGS, render  # noqa: E402
from torchcaps.data.synthetic.norb_style.volume import Volume, voxels  # noqa: E402
from torchcaps.viz.figures.style import SMALL, Pixels, Sheet, rgb, style, to_png  # noqa: E402

COLUMNS = 10
LABEL = 1.5
SHOWN = ("truck", 6)


def picture(volume: Volume, elevation: int, azimuth: int, lighting: int, eye: int = 0) -> Pixels:
    return rgb(render(volume, [elevation], [azimuth], [lighting])[0, 0, 0, eye : eye + 1] / 255)


def sheet() -> Figure:
    category, instance = SHOWN
    truck = voxels(TOYS[category][instance])
    rows = {
        name: [
            picture(voxels(toy), 35 + 5 * (k % 4), (20 + 80 * k) % 360, (k + row) % len(LIGHTINGS))
            for k, toy in enumerate(toys)
        ]
        for row, (name, toys) in enumerate(TOYS.items())
    }
    rows["azimuth"] = [picture(truck, 40, 40 * k, 3) for k in range(9)]
    rows["elevation"] = [picture(truck, elevation, 40, 3) for elevation in range(30, 75, 5)]
    rows["lighting"] = [picture(truck, 40, 40, lighting) for lighting in range(len(LIGHTINGS))]
    rows["lighting"] += [picture(truck, 40, 40, 0, eye) for eye in range(2)]
    width, gap = LABEL + COLUMNS, 0.35
    page = Sheet(width, len(rows) + gap)
    for number, (name, pictures) in enumerate(rows.items()):
        top = number + (gap if number >= len(TOYS) else 0)
        page.words(LABEL - 0.1, top + 0.5, name, SMALL, ha="right", va="center")
        for k, pixels in enumerate(pictures):
            # The last two of the last row are the two eyes of one pair.
            page.picture(LABEL + k + (1 if name == "lighting" and k >= len(LIGHTINGS) else 0), top, pixels)
    page.words(LABEL + len(LIGHTINGS) + 0.95, len(rows) + gap - 0.5, "stereo", SMALL, ha="right", va="center")
    return page.figure


if __name__ == "__main__":
    with style():
        (ROOT / "docs" / "norb-style.png").write_bytes(to_png(sheet()))
