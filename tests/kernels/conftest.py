"""A machine as the kernels find it: with or without libraries, with an empty cache."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from torchcaps.kernels import compiler, native


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A package without libraries and an empty cache folder, which is returned."""
    monkeypatch.setattr(compiler, "PACKAGED", tmp_path / "no libraries")
    monkeypatch.setattr(native, "cache_folder", lambda: tmp_path / "cache")
    native.library.cache_clear()
    native._tell.cache_clear()
    yield tmp_path / "cache" / "native"
    native.library.cache_clear()
    native._tell.cache_clear()
