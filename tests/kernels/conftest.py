"""A machine as the kernels find it: with or without libraries, with an empty cache."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from torchcaps.kernels import compiler, evidence, native, tuning


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A package without libraries and an empty cache folder, which is returned."""
    monkeypatch.setattr(compiler, "PACKAGED", tmp_path / "no libraries")
    monkeypatch.setattr(native, "cache_folder", lambda: tmp_path / "cache")
    native.library.cache_clear()
    native._told.clear()
    yield tmp_path / "cache" / "native"
    native.library.cache_clear()
    native._told.clear()


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """No choices made, none stored; where they will be is returned."""
    path = tmp_path / "deep" / "kernels.json"
    monkeypatch.setattr(evidence, "path", lambda: path)
    monkeypatch.delenv(tuning.VARIABLE, raising=False)
    new_process()
    yield path
    new_process()


def new_process() -> None:
    """Forget what a process remembers, but not what is stored."""
    tuning._choices.clear()
    tuning._calls.clear()
    tuning._inherited.clear()
