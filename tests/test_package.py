"""The package as users get it: one version, types, and a wheel that works without the source tree."""

import ast
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import torchcaps

ROOT = Path(__file__).parents[1]

PREDICT = """
import contextlib, io, json
from PIL import Image
import torchcaps
from torchcaps import data
from torchcaps.app.cli import main
test = data.images("mnist-mini", "test")
Image.fromarray(test.images[0, 0].numpy()).save("digit.png")
with contextlib.redirect_stdout(io.StringIO()) as out:
    main(["predict", "capsnet-mnist-small", "digit.png", "--json"])
(row,) = json.loads(out.getvalue())
print(json.dumps({"file": torchcaps.__file__, "label": row["label"], "true": str(int(test.labels[0]))}))
"""


def test_the_version_is_in_one_place() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", torchcaps.__version__)
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [torchcaps.__version__]
    assert f"version = {{{torchcaps.__version__}}}" in (ROOT / "docs" / "citing.md").read_text()
    assert re.findall(r"^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0] == torchcaps.__version__
    project = (ROOT / "pyproject.toml").read_text()
    assert torchcaps.__version__ not in re.findall(r'^version = "(.*)"$', project, re.MULTILINE)


def test_what_type_checkers_see_is_what_there_is() -> None:
    """Names are resolved on first use; a type checker reads the imports that are never executed."""
    tree = ast.parse((ROOT / "torchcaps" / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert imported == torchcaps._HOMES
    assert sorted(torchcaps.__all__) == sorted(["__version__", *torchcaps._HOMES])
    for name in torchcaps.__all__:
        assert getattr(torchcaps, name) is not None


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel in it. What torchcaps needs comes from the environment of the tests."""
    place = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=120)
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(pip, check=True, capture_output=True, timeout=300)
    where = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    packages = Path(subprocess.run([python, "-c", where], check=True, capture_output=True, text=True).stdout.strip())
    # A line in a .pth file is only a folder to look in: an editable torchcaps there is not followed.
    (packages / "needed.pth").write_text("\n".join(path for path in sys.path if "site-packages" in path) + "\n")
    return place


@pytest.mark.slow
def test_a_wheel_holds_the_package_only(wheel: Path) -> None:
    assert wheel.name.startswith(f"torchcaps-{torchcaps.__version__}-")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"torchcaps/py.typed", "torchcaps/app/listings.json", "torchcaps/app/web/static/index.html"} <= set(names)
    assert any(name.endswith("capsnet-mnist-small.safetensors") for name in names)
    assert {name.split("/")[0] for name in names} == {"torchcaps", f"torchcaps-{torchcaps.__version__}.dist-info"}


@pytest.mark.slow
def test_an_sdist_builds_the_same_wheel_without_the_source_tree(tmp_path: Path) -> None:
    """As pip does where there is no wheel; without a compiler, because the loops are tested elsewhere."""
    build = "import sys; from hatchling.build import build_sdist; print(build_sdist(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=ROOT, check=True, capture_output=True, text=True, timeout=300
    )
    sdist = tmp_path / done.stdout.splitlines()[-1]
    assert sdist.name == f"torchcaps-{torchcaps.__version__}.tar.gz"
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    top = f"torchcaps-{torchcaps.__version__}"
    assert {f"{top}/hatch_build.py", f"{top}/LICENSE", f"{top}/torchcaps/kernels/tiles.c"} <= set(names)
    assert not [name for name in names if "/tests/" in name or name.endswith(".so")]
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(tmp_path / "site")]
    pip = [sys.executable, "-m", "pip", "install", *options, str(sdist)]
    subprocess.run(pip, check=True, capture_output=True, timeout=300, env=os.environ | {"CC": "no-such-compiler"})
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "TORCHCAPS_DATA": str(tmp_path / "data")}
    answer = subprocess.run(
        [sys.executable, "-c", PREDICT], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    found = json.loads(answer.stdout.splitlines()[-1])
    assert Path(found["file"]).is_relative_to(tmp_path / "site")
    assert found["label"] == found["true"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the folders of an environment have other names there")
def test_a_wheel_works_without_the_source_tree(installed: Path, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "TORCHCAPS_DATA")}
    environment |= {"TORCHCAPS_DATA": str(tmp_path / "data")}

    def run(*command: str) -> str:
        program = str(installed / "bin" / command[0])
        done = subprocess.run(
            [program, *command[1:]], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert any(row["name"] == "capsnet-mnist" for row in json.loads(run("torchcaps", "models", "--json")))
    assert "mnist-mini" in run("python", "-m", "torchcaps", "data", "list")
    answer = json.loads(run("python", "-c", PREDICT))
    assert Path(answer["file"]).is_relative_to(installed)
    assert answer["label"] == answer["true"]
