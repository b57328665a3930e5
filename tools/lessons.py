"""Pages whose Python is executed: a Markdown file is the source of a page with its results, and of a notebook.

A code block is `python` (the code and what it gives are shown), `python figure` (its code is folded away, the picture
is shown) or `python answer` (code and result are folded away). `tools/site_hooks.py` puts pages and notebooks into the
site, `tests/test_lessons.py` executes the notebooks.

python tools/lessons.py FOLDER            # writes the notebooks
"""

import ast
import contextlib
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
LEARN = ROOT / "docs" / "learn"
CHAPTERS = sorted(LEARN.glob("[0-9]*.md"))
EXECUTED = (*CHAPTERS, ROOT / "docs" / "leaderboard.md")

BLOCK = re.compile(r"^```python(?: (figure|answer))?\n(.*?)^```\n?", re.MULTILINE | re.DOTALL)
DPI = 160


class Cell(NamedTuple):
    """A piece of a page: `kind` is `text`, `python`, `figure` or `answer`."""

    kind: str
    source: str


class Result(NamedTuple):
    """What a cell printed, and the PNG files of its figures."""

    text: str
    figures: list[bytes]


def cells(markdown: str) -> Iterator[Cell]:
    at = 0
    for block in BLOCK.finditer(markdown):
        if text := markdown[at : block.start()].strip():
            yield Cell("text", text)
        yield Cell(block[1] or "python", block[2].rstrip())
        at = block.end()
    if text := markdown[at:].strip():
        yield Cell("text", text)


def notebook(markdown: str) -> dict[str, Any]:
    """The same cells as a notebook without outputs; folded code is folded there too, in Jupyter and in Colab."""

    def cell(number: int, kind: str, source: str) -> dict[str, Any]:
        base = {"id": f"cell-{number}", "metadata": {}, "source": source.splitlines(keepends=True)}
        if kind == "text":
            return {"cell_type": "markdown", **base}
        if kind != "python":
            base["metadata"] = {"cellView": "form", "jupyter": {"source_hidden": True}}
            title = "Code of the figure" if kind == "figure" else "One solution"
            base["source"] = f"#@title {title}\n{source}".splitlines(keepends=True)
        return {"cell_type": "code", "execution_count": None, "outputs": [], **base}

    return {
        "cells": [cell(number, *found) for number, found in enumerate(cells(markdown))],
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def run(codes: list[str], name: str) -> list[Result]:
    """Execute cells one after the other in one namespace, as Jupyter does: the last expression of a cell is shown."""
    import matplotlib

    matplotlib.use("Agg")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with matplotlib.rc_context():
        return [_run_cell(code, f"{name}, cell {number}", namespace) for number, code in enumerate(codes, 1)]


def _run_cell(code: str, name: str, namespace: dict[str, Any]) -> Result:
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure

    tree = ast.parse(code, name)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(tree, name, "exec"), namespace)
        value = eval(compile(ast.Expression(last.value), name, "eval"), namespace) if last else None
        if value is not None and not isinstance(value, Figure) and not code.rstrip().endswith(";"):
            print(repr(value))
    figures = [plt.figure(number) for number in plt.get_fignums()] + ([value] if isinstance(value, Figure) else [])
    pictures = [_png(figure) for figure in figures]
    plt.close("all")
    return Result(out.getvalue().rstrip(), pictures)


def _png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DPI, bbox_inches="tight", pad_inches=0.15, metadata={"Software": None})
    return file.getvalue()


def page(markdown: str, name: str) -> tuple[str, dict[str, bytes]]:
    """The page with the results of its cells, and its pictures by file name."""
    found = list(cells(markdown))
    results = iter(run([cell.source for cell in found if cell.kind != "text"], name))
    parts, pictures = [], {}
    for cell in found:
        if cell.kind == "text":
            parts.append(cell.source)
            continue
        result, shown = next(results), []
        if result.text:
            shown.append(f"```text\n{result.text}\n```")
        for png in result.figures:
            file = f"{name}-{len(pictures) + 1}.png"
            pictures[file] = png
            shown.append(f"![Figure {len(pictures)}](figures/{file}){{ .drawn }}")
        code = f"```python\n{cell.source}\n```"
        if cell.kind == "python":
            parts += [code, *shown]
        elif cell.kind == "figure":
            parts += [*shown, _folded("Code of the figure", [code])]
        else:
            parts.append(_folded("One solution", [code, *shown]))
    return "\n\n".join(parts) + "\n", pictures


def _folded(title: str, parts: list[str]) -> str:
    inside = "\n\n".join(parts)
    return f'<details markdown="1"><summary>{title}</summary>\n\n{inside}\n\n</details>'


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for chapter in CHAPTERS:
        made = json.dumps(notebook(chapter.read_text(encoding="utf-8")), indent=1)
        (folder / f"{chapter.stem}.ipynb").write_text(made + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
