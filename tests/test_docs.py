"""The documents: their Python runs, one namespace each, and their commands are commands."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import lessons
import pytest

from torchcaps.app.cli import _parser
from torchcaps.routing import ROUTINGS

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Executed by test_lessons.py, and by app/web/test_api.py, which has a server.
ELSEWHERE = {path.relative_to(ROOT).as_posix() for path in lessons.EXECUTED} | {"docs/api.md"}
DOCUMENTS = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
LINK = re.compile(r"\]\(([^)\s]+)\)")


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


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hugging Face hub, as far as an upload goes."""
    mixin = pytest.importorskip("huggingface_hub.hub_mixin")
    commit = SimpleNamespace(commit_url="https://hub/commit/1")
    api = SimpleNamespace(
        create_repo=lambda repo_id, **_: SimpleNamespace(repo_id=repo_id), upload_folder=lambda **_: commit
    )
    monkeypatch.setattr(mixin, "HfApi", lambda token=None: api)


RUN = [document for document in DOCUMENTS if document not in ELSEWHERE and any(blocks(document, "python"))]


@pytest.mark.usefixtures("elsewhere", "hub")
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


def anchors(text: str) -> set[str]:
    """Of the headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_somewhere(document: str) -> None:
    made = {"docs/models.md", "docs/reference/command-line.md"}  # by tools/site_hooks.py
    page = ROOT / document
    dead = []
    for link in LINK.findall(re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)):
        target, _, anchor = link.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        place = (page.parent / target).resolve() if target else page
        if place.is_relative_to(ROOT) and place.relative_to(ROOT).as_posix() in made:
            continue
        if not place.exists() or (anchor and place.suffix == ".md" and anchor not in anchors(place.read_text("utf-8"))):
            dead.append(link)
    assert not dead


def test_the_readme_is_one_screen() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 60


def test_the_documents_are_found() -> None:
    wanted = {f"docs/own-{part}.md" for part in ("data", "routing", "layers", "backbone", "network")}
    wanted |= {"README.md", "docs/quick-start.md", "docs/from-mnist-to-colour.md", "docs/hub.md", "docs/install.md"}
    assert wanted <= set(RUN)
    assert len(commands("docs/own-data.md")) > 5
