"""The course: every notebook is executed, cell by cell, with the data inside the package."""

import json
import time
from pathlib import Path

import lessons
import pytest

ROOT = Path(__file__).parents[1]
TWO_MINUTES = 120.0


def code_of(path: Path) -> list[str]:
    """The code cells of the notebook that this page becomes, after a round through JSON."""
    notebook = json.loads(json.dumps(lessons.notebook(path.read_text(encoding="utf-8"))))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", lessons.EXECUTED, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    began = time.process_time()
    results = lessons.run(code_of(path), path.stem)
    assert time.process_time() - began < TWO_MINUTES
    assert not list(tmp_path.iterdir())  # nothing was fetched
    assert sum(len(result.figures) for result in results) >= 1


@pytest.mark.parametrize("path", lessons.CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_ends_with_three_questions_and_an_exercise(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    questions, exercise = text.split("## Questions")[1].split("**Exercise.**")
    assert [line[:2] for line in questions.split("<details")[0].splitlines() if line[:1].isdigit()] == [
        "1.",
        "2.",
        "3.",
    ]
    assert "<summary>Answers</summary>" in questions
    assert "```python answer" in exercise


def test_there_are_nine_chapters_and_the_index_names_them() -> None:
    assert len(lessons.CHAPTERS) == 9
    index = (lessons.LEARN / "index.md").read_text(encoding="utf-8")
    assert all(f"({chapter.name})" in index for chapter in lessons.CHAPTERS)


EXAMPLE = (
    "# T\n\n```python\nx = 3\nx\n```\n\n```python figure\nprint('drawn')\n```\n\n```python answer\nprint(x + 1)\n```\n"
)


def test_a_page_shows_results_and_folds_answers() -> None:
    page, pictures = lessons.page(EXAMPLE, "example")
    assert not pictures
    assert "```text\n3\n```" in page
    assert page.index("drawn\n```") < page.index("Code of the figure")
    assert page.index("One solution") < page.index("```text\n4\n```") < page.rindex("</details>")


def test_a_notebook_keeps_the_order_and_folds_code() -> None:
    cells = lessons.notebook(EXAMPLE)["cells"]
    assert [cell["cell_type"] for cell in cells] == ["markdown", "code", "code", "code"]
    assert [bool(cell["metadata"]) for cell in cells] == [False, False, True, True]
    assert cells[3]["source"][0] == "#@title One solution\n"


def test_an_error_names_the_page_and_its_cell() -> None:
    with pytest.raises(ZeroDivisionError) as error:
        lessons.run(["x = 1", "x / 0"], "broken")
    assert any(str(entry.path) == "broken, cell 2" for entry in error.traceback)
