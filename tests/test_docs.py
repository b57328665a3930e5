"""The documents: their Python runs, one namespace each, and their commands are commands."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchcaps.app.cli import _parser
from torchcaps.routing import ROUTINGS

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# These need a server that runs, or are a sketch.
NOT_RUN = {"docs/api.md", "README.md"}
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))


def blocks(document: str, language: str) -> Iterator[str]:
    """Each block padded with empty lines, so that an error names the line of the document."""
    text = (ROOT / document).read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        if found[1] == language:
            yield "\n" * (text[: found.start(2)].count("\n")) + found[2]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder, data that is in the package only, and a table of routings that is put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path / "data"))
    before = dict(ROUTINGS)
    yield
    ROUTINGS.clear()
    ROUTINGS.update(before)


RUN = [document for document in DOCUMENTS if document not in NOT_RUN and any(blocks(document, "python"))]


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("document", RUN)
def test_python_of_a_document_runs(document: str) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    for code in blocks(document, "python"):
        exec(compile(code, document, "exec"), namespace)


def commands(document: str) -> list[str]:
    """Lines of console blocks that begin with `$ torchcaps`."""
    lines = [line for block in blocks(document, "console") for line in block.splitlines()]
    return [line.removeprefix("$ torchcaps ") for line in lines if line.startswith("$ torchcaps ")]


@pytest.mark.parametrize("document", [document for document in DOCUMENTS if commands(document)])
def test_commands_of_a_document_parse(document: str) -> None:
    for command in commands(document):
        _parser().parse_args(shlex.split(command, comments=True))


def test_the_documents_are_found() -> None:
    wanted = {f"docs/own-{part}.md" for part in ("data", "routing", "layers", "backbone", "network")}
    wanted |= {"docs/quick-start.md", "docs/from-mnist-to-colour.md"}
    assert wanted <= set(RUN)
    assert len(commands("docs/own-data.md")) > 5
