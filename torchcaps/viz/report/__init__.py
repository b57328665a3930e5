"""The report of a run: its figures as files, and one page that shows them all."""

import json
from pathlib import Path
from typing import Any

from torch import nn

from torchcaps.core.files import write_bytes
from torchcaps.viz.figures import Animation
from torchcaps.viz.report.page import Picture, Table, in_both_themes, page
from torchcaps.viz.report.sections import Section, read_run, sections


def write_report(run: Path, model: nn.Module | None = None, data: Any = None, test: Any = None) -> Path:
    """Draw the pictures into `run/figures` and write `run/report.html`, one file that needs no other.

    A network and tensors of one's own, which a run cannot hold, are handed over as they were to `fit`.
    """
    finished = read_run(run, model, data, test)
    parts = [part if isinstance(part, Table) else _draw(part, run / "figures") for part in sections(finished)]
    report = run / "report.html"
    details = {"Configuration": finished.config, "Result": finished.result, "Manifest": finished.manifest}
    texts = {title: json.dumps(value, indent=2, ensure_ascii=False) for title, value in details.items()}
    write_bytes(report, page(finished.result, finished.manifest, parts, texts).encode(errors="replace"))
    return report


def _draw(section: Section, folder: Path) -> Picture:
    """Light for the folder, light and dark for the page; of an animation, also the last frame for print."""
    if isinstance(section.content, Animation):
        write_bytes(folder / f"{section.name}.gif", section.content.gif)
        return Picture(section.title, section.about, {"moving": section.content.gif, "still": section.content.last})
    drawn = in_both_themes(section.content)
    write_bytes(folder / f"{section.name}.png", drawn["light"])
    return Picture(section.title, section.about, drawn)
