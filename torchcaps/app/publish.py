"""The playground as a folder of static files; the networks run in the visitor's browser.

    index.html style.css icon.svg js/   the same page as that of `torchcaps serve`, with another engine
    runtime/                            ONNX Runtime Web, for WebAssembly and for WebGPU
    site.json                           which models there are
    models/ID/                          what the page asks of a model: about.json, samples.json and its graphs
    sw.js                               keeps what has been loaded, so that the page works without a connection

Every address in the page is relative, so that the folder can lie anywhere on a host.
"""

import hashlib
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchcaps.app.export import check_installed
from torchcaps.app.graphs import graphs
from torchcaps.app.web.engine import Engine
from torchcaps.app.web.guard import SECURITY_HEADERS
from torchcaps.app.web.samples import NONE, load_samples
from torchcaps.app.web.server import STATIC
from torchcaps.core.errors import UserError
from torchcaps.data import sources
from torchcaps.data.sources.catalogue import FILES, RUNTIME, RUNTIME_FILES, RUNTIME_VERSION, WEBGPU_FILES

ONLY_SERVED = ("js/engines/server.js",)
"""Files of the page that a published one does not need."""
PACKAGE = f"{RUNTIME}@{RUNTIME_VERSION}"
NOTICE = f"""\
This page contains ONNX Runtime Web {RUNTIME_VERSION}, Copyright (c) Microsoft Corporation, under the MIT licence.
"""


def check_folder(out: Path) -> None:
    """Nothing of anybody's is overwritten."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file: name a folder for the site")
    if out.is_dir() and any(out.iterdir()):
        raise UserError(f"{out} is not empty: name a new folder, or empty this one first")


def find_runtime(given: Path | None) -> dict[str, Path]:
    """The verified files of the runtime by name: from a folder, or fetched as data sets are."""
    check_installed()
    if given is None:
        try:
            return {name: sources.fetch(f"{RUNTIME}/{name}") for name in RUNTIME_FILES}
        except UserError as error:
            by_hand = f"unpack what 'npm pack {PACKAGE}' brings and name it with --runtime"
            raise UserError(f"{error}; or {by_hand}") from None
    folder = next((place for place in (given / "package" / "dist", given / "dist") if place.is_dir()), given)
    found = {name: folder / name for name in RUNTIME_FILES}
    for name, path in found.items():
        if not path.is_file():
            raise UserError(f"{folder} has no {name}: --runtime is the unpacked npm package {PACKAGE}")
        if hashlib.sha256(path.read_bytes()).hexdigest() != FILES[f"{RUNTIME}/{name}"].sha256:
            raise UserError(f"{path} is not that of {RUNTIME} {RUNTIME_VERSION}: its SHA-256 is another")
    return found


def write_site(
    engines: Mapping[str, Engine], out: Path, runtime: Mapping[str, Path], samples: bool = True
) -> dict[str, Any]:
    """Write the site, its models in this order, and say what it weighs. An error leaves `out` as it was."""
    files: dict[str, bytes] = {"NOTICE.txt": NOTICE.encode()}
    models = []
    for name, engine in engines.items():
        identifier = _identifier(name, [model["id"] for model in models])
        print(f"  {name}: making its graphs", file=sys.stderr, flush=True)
        files |= {f"models/{identifier}/{file}": content for file, content in _model_files(engine, samples).items()}
        models.append({"id": identifier, "title": f"{engine.data.title} · {name}"})
    files["site.json"] = _json({"models": models})
    shell = {**_page(), "site.json": files["site.json"]}
    files |= shell | {f"runtime/{name}": path.read_bytes() for name, path in runtime.items()}
    files["sw.js"] = _service_worker(files, ["./", *shell])
    _write(files, out)
    sizes = {path: len(content) for path, content in files.items()}
    first = f"models/{models[0]['id']}/"
    visited = [path for path in sizes if not path.startswith("models/") or path.startswith(first)]
    webgpu = sum(sizes[f"runtime/{name}"] for name in WEBGPU_FILES)
    return {
        "folder": str(out),
        "bytes": sum(sizes.values()),
        "first_visit_bytes": sum(sizes[path] for path in visited) - webgpu,
        "webgpu_bytes": webgpu,
        "models": [
            {**model, "bytes": sum(sizes[path] for path in sizes if path.startswith(f"models/{model['id']}/"))}
            for model in models
        ],
    }


def _model_files(engine: Engine, samples: bool) -> dict[str, bytes]:
    pictures = load_samples(engine.data) if samples else NONE
    if samples and pictures is NONE:
        print(f"  {engine.data.title} is not on this machine: there will be no sample pictures", file=sys.stderr)
    described = {"about.json": _json(engine.about()), "samples.json": _json(pictures)}
    return described | {f"{name}.onnx": content for name, content in graphs(engine.model).items()}


def _identifier(name: str, taken: list[str]) -> str:
    """A name for a folder and an address, of letters that need no escape there.

    >>> _identifier("My flowers (2)", ["my-flowers-2"])
    'my-flowers-2-2'
    """
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "model"
    found, number = plain, 1
    while found in taken:
        number += 1
        found = f"{plain}-{number}"
    return found


def _page() -> dict[str, bytes]:
    """The files of the page, told that its engine is in the browser."""
    found = sorted(path for path in STATIC.rglob("*") if path.is_file())
    page = {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in found}
    html = page["index.html"].decode()
    charset = '<meta charset="utf-8">'
    for old, new in (
        ("<html ", '<html data-engine="browser" '),
        (charset, f'{charset}\n<meta http-equiv="Content-Security-Policy" content="{policy()}">'),
    ):
        assert html.count(old) == 1, old
        html = html.replace(old, new)
    return {path: content for path, content in page.items() if path not in ONLY_SERVED} | {"index.html": html.encode()}


def policy() -> str:
    """That of the server, with what WebAssembly and workers need; who may frame a page cannot be said inside it."""
    served = SECURITY_HEADERS["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in served.split(";"))
    rules.pop("frame-ancestors")
    rules |= {"script-src": f"{rules['script-src']} 'wasm-unsafe-eval'", "worker-src": "'self'"}
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _service_worker(files: Mapping[str, bytes], shell: list[str]) -> bytes:
    digest = hashlib.sha256()
    for path, content in sorted(files.items()):
        digest.update(path.encode() + b"\0" + hashlib.sha256(content).digest())
    site = json.dumps({"version": digest.hexdigest()[:16], "files": shell})
    return f'self.SITE = {site};\nimportScripts("js/engines/offline.js");\n'.encode()


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _write(files: Mapping[str, bytes], out: Path) -> None:
    """All files into a temporary folder, which is then renamed, or emptied into an empty folder that is there."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as folder:
            made = Path(folder) / "site"
            for path, content in files.items():
                (made / path).parent.mkdir(parents=True, exist_ok=True)
                (made / path).write_bytes(content)
            if not out.exists():
                made.rename(out)
                return
            check_folder(out)
            for entry in made.iterdir():
                shutil.move(entry, out / entry.name)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}") from error
