"""Shapes are types while testing: every annotated function of the package is checked at each call."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import jaxtyping
import pytest
import torch

# Before anything imports torchcaps. An int is a float here, as PEP 484 says.
jaxtyping.install_import_hook("torchcaps", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

# One thread each, also in the processes that tests start: several tests may run at once.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
hypothesis.settings.register_profile(
    "torchcaps",
    deadline=None,
    max_examples=20,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],  # by the clock: a busy machine is slow
)
hypothesis.settings.load_profile("torchcaps")


def pytest_configure(config: pytest.Config) -> None:
    """Workers of pytest-xdist share the data, but not what the kernels measured: that may change while a test runs."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        from torchcaps.core.files import cache_folder

        os.environ.setdefault("TORCHCAPS_DATA", str(cache_folder()))
        folder = tempfile.TemporaryDirectory()
        config.add_cleanup(folder.cleanup)
        os.environ["XDG_CACHE_HOME"] = folder.name


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, built once for all tests that look at it."""
    from support import build_wheel

    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(autouse=True)
def seeded() -> None:
    """A test finds the same random numbers whichever tests ran before it."""
    torch.manual_seed(7)


@pytest.fixture(autouse=True)
def tables() -> Iterator[None]:
    """What a test registers is gone after it."""
    from torchcaps.data import DATA
    from torchcaps.models.config import KINDS
    from torchcaps.models.registry import MODELS
    from torchcaps.routing import ROUTINGS

    known: tuple[dict[str, Any], ...] = (DATA, KINDS, MODELS, ROUTINGS)
    before = [dict(table) for table in known]
    yield
    for table, entries in zip(known, before, strict=True):
        table.clear()
        table.update(entries)
