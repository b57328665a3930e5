"""The package as it is built and installed: the C loops come with it."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support import build_wheel

from torchcaps.kernels import compiler

ASK = """
import json, torchcaps
from torchcaps.kernels import compiler, native
print(json.dumps({n: native.state(n)[1:] for n in compiler.sources()} | {"at": torchcaps.__file__}))
"""

pytestmark = pytest.mark.slow


def ask(wheel: Path, folder: Path, **environment: str) -> dict:
    """What the installed package says in a process of its own, with an empty cache."""
    target = folder / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True)
    environment = {"PYTHONPATH": str(target), "XDG_CACHE_HOME": str(folder / "cache"), **environment}
    result = subprocess.run(
        [sys.executable, "-c", ASK],
        check=True,
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | environment,
    )
    answer = json.loads(result.stdout)
    assert answer.pop("at").startswith(str(target))
    return answer


@pytest.mark.skipif(compiler.command() is None, reason="no C compiler here")
def test_wheel_carries_the_loops_for_every_level_and_they_are_used(wheel: Path, tmp_path: Path) -> None:
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")
    names = [Path(name).name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("torchcaps/kernels/lib/")]
    expected = {(name, level) for name in compiler.sources() for level in compiler.levels()}
    assert {tuple(name.split("-")[:2]) for name in names} == expected
    answer = ask(wheel, tmp_path, CC="no-such-compiler")
    assert all(origin == "package" for origin, *_ in answer.values())
    assert not (tmp_path / "cache").exists()
    lower = ask(wheel, tmp_path / "lower", ATEN_CPU_CAPABILITY="default")
    assert all((origin, level) == ("package", "base") for origin, level, *_ in lower.values())


def test_without_a_compiler_a_pure_package_is_built(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, CC="no-such-compiler")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert all(origin == "missing" for origin, *_ in ask(wheel, tmp_path, CC="no-such-compiler").values())
