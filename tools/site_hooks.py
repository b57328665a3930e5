"""What mkdocs does while it builds the site (mkdocs.yml names this file).

- README, CONTRIBUTING and CHANGELOG become pages; there is no second copy of them in docs/.
- Files outside docs/ that a page links to (results/, sources) become part of the site, so that no link is dead.
- Executed pages (tools/lessons.py) are executed, and get a notebook beside them.
- A page for each model with weights in the package, and one with the help of every command.
- `playground/` has a place for what `torchcaps publish` writes after the site is built (see the Makefile).
- KaTeX, which sets the formulas, is fetched from npm, pinned by its hash.

Results of executed pages are kept in .cache/ as long as neither the page, the package nor results/ change.
"""

import hashlib
import io
import json
import os
import pickle
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.exceptions import Abort
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import cards  # noqa: E402
import lessons  # noqa: E402

COPIED = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")
KATEX = "katex@0.19.1"
KATEX_SHA256 = "24da5a599eb2fcede2e270b99a6ff48bca816beecc95feeb84e8cccbd1bb34fd"
CACHE = ROOT / ".cache"
PLAYGROUND = b"<!doctype html><title>playground</title><p>Here comes: torchcaps publish --out site/playground"
OPEN_IT = "\n[Open the playground](playground/index.html){ .md-button .md-button--primary }\n"


def on_config(config: Any) -> None:
    """A page that mkdocs.yml does not place is in the last section, so that none is out of reach."""
    placed = json.dumps(config["nav"])
    (last,) = config["nav"][-1].values()
    last += [path.name for path in sorted((ROOT / "docs").glob("*.md")) if f'"{path.name}"' not in placed]


def on_files(files: Files, config: Any) -> Files:
    pages = {file.src_uri: (ROOT / "docs" / file.src_uri).read_text("utf-8") for file in files.documentation_pages()}
    for source, page in COPIED.items():
        pages[page] = (ROOT / source).read_text("utf-8")
    pages |= {f"models/{name}.md": card for name, card in cards.pages().items()}
    pages["models.md"] = cards.overview()
    title, _, rest = pages["playground.md"].partition("\n")
    pages["playground.md"] = f"{title}\n{OPEN_IT}{rest}"
    _put(files, config, "playground/index.html", PLAYGROUND)
    pages["reference/command-line.md"] = _command_line()
    homes = {page: Path(source).parent.as_posix() for source, page in COPIED.items()}
    for path in lessons.EXECUTED:
        pages |= _executed(path, files, config, pages)
    for uri, text in pages.items():
        home = homes.get(uri, Path("docs", uri).parent.as_posix())
        fresh = LINK.sub(lambda found, uri=uri, home=home: _link(found, uri, home, files, config), text)
        _put(files, config, uri, fresh.encode())
    _katex(files, config)
    return files


def _put(files: Files, config: Any, uri: str, content: bytes) -> None:
    if (before := files.get_file_from_path(uri)) is not None:
        files.remove(before)
    files.append(File.generated(config, uri, content=content))


def _link(found: re.Match[str], uri: str, home: str, files: Files, config: Any) -> str:
    """A link of a page, as it has to be in the site; the file is added to the site if it is outside docs/."""
    before, target, anchor, after = found.groups(default="")
    if "://" in target or target.startswith(("mailto:", "data:", "figures/", "playground/")):
        return found[0]
    path = Path(os.path.normpath(Path(home, target))).as_posix()
    page = Path(uri).parent
    if path in COPIED:
        return f"{before}{os.path.relpath(COPIED[path], page)}{anchor}{after}"
    if path.startswith("docs/"):
        return f"{before}{os.path.relpath(path.removeprefix('docs/'), page)}{anchor}{after}"
    if not (ROOT / path).is_file():
        return found[0]  # mkdocs says what is missing
    place = f"files/{path}" + (".txt" if path.endswith((".py", ".toml", ".md")) else "")
    if files.get_file_from_path(place) is None:
        _put(files, config, place, (ROOT / path).read_bytes())
    return f"{before}{os.path.relpath(place, page)}{after}"


def _executed(path: Path, files: Files, config: Any, pages: dict[str, str]) -> dict[str, str]:
    uri = path.relative_to(ROOT / "docs").as_posix()
    text, pictures = _remembered(path.read_text("utf-8"), path.stem)
    for name, png in pictures.items():
        _put(files, config, (Path(uri).parent / "figures" / name).as_posix(), png)
    if path in lessons.CHAPTERS:
        notebook = json.dumps(lessons.notebook(pages[uri]), indent=1).encode()
        _put(files, config, Path(uri).with_suffix(".ipynb").as_posix(), notebook)
        title, _, rest = text.partition("\n")
        text = f"{title}\n\n[Download this chapter as a notebook]({path.stem}.ipynb){{ .notebook download }}\n{rest}"
    return {uri: text}


def _remembered(markdown: str, name: str) -> tuple[str, dict[str, bytes]]:
    digest = hashlib.sha256(markdown.encode())
    for folder, pattern in (("torchcaps", "*.py"), ("torchcaps/models/weights", "*.json"), ("results", "*.json")):
        for file in sorted((ROOT / folder).rglob(pattern)):
            digest.update(file.read_bytes())
    kept = CACHE / "lessons" / f"{name}-{digest.hexdigest()[:16]}.pickle"
    if not kept.exists():
        here = Path.cwd()
        os.chdir(ROOT)
        made = lessons.page(markdown, name)
        os.chdir(here)
        kept.parent.mkdir(parents=True, exist_ok=True)
        for old in kept.parent.glob(f"{name}-*.pickle"):
            old.unlink()
        kept.write_bytes(pickle.dumps(made))
    return pickle.loads(kept.read_bytes())  # written above, by this program


def _command_line() -> str:
    """The help of every command, as the command line prints it."""
    from torchcaps.app.cli import _parser

    parser = _parser()
    (commands,) = (action for action in parser._actions if hasattr(action, "choices") and action.choices)
    parts = ["# Command line", "", "```text", parser.format_help().strip(), "```"]
    for name, command in commands.choices.items():
        parts += ["", f"## {name}", "", "```text", command.format_help().strip(), "```"]
    return "\n".join(parts) + "\n"


def _katex(files: Files, config: Any) -> None:
    archive = CACHE / f"{KATEX.replace('@', '-')}.tgz"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            command = ["npm", "pack", "--silent", KATEX, "--pack-destination", folder]
            try:
                subprocess.run(command, check=True, capture_output=True, timeout=300)
            except (OSError, subprocess.SubprocessError) as error:
                raise Abort(f"the formulas need {KATEX}, fetched once with npm: {error}") from None
            next(Path(folder).glob("*.tgz")).replace(archive)
    content = archive.read_bytes()
    if hashlib.sha256(content).hexdigest() != KATEX_SHA256:
        raise Abort(f"{archive} is not {KATEX}: its hash differs; remove it to fetch it again")
    wanted = re.compile(r"package/dist/(katex\.min\.(?:js|css)|contrib/auto-render\.min\.js|fonts/[\w-]+\.woff2)")
    with tarfile.open(fileobj=io.BytesIO(content)) as opened:
        for member in opened:
            if found := wanted.fullmatch(member.name):
                file = opened.extractfile(member)
                assert file is not None
                _put(files, config, f"assets/katex/{found[1]}", file.read())
