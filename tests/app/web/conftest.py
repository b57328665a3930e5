"""A real server on a real socket, with the package's weights or, where there are none yet, a briefly trained model."""

import os
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import torch

from torchcaps import data as named
from torchcaps.app.web.engine import Engine
from torchcaps.app.web.limits import Limits
from torchcaps.app.web.server import create_app, listen, make_server
from torchcaps.data.synthetic.multimnist import RULES, Digits, PairStream
from torchcaps.models.pretrained import PRETRAINED
from torchcaps.models.registry import create_model
from torchcaps.training.loop import train_step
from torchcaps.training.optim import make_optimisers

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

AXE = "axe-core@4.14.0"
CHROMIUM_FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
IN_CI = os.environ.get("CI") == "true"


def skip_or_fail(reason: str) -> None:
    """What a user's machine may lack, CI may not."""
    (pytest.fail if IN_CI else pytest.skip)(reason)


@pytest.fixture(scope="session")
def model() -> torch.nn.Module:
    name = "capsnet-multimnist-small"
    if name in PRETRAINED:
        return create_model(name, pretrained=True).eval()
    torch.manual_seed(0)
    network = create_model(name)
    stream = PairStream(Digits(named.images("mnist-mini", "train"), RULES["multimnist"]), seed=0)
    optimisers = make_optimisers(network, "adam", 1e-3)
    for step in range(20):
        train_step(network, stream.batch(step, 32), optimisers)
    return network.eval()


@pytest.fixture(scope="session")
def engine(model: torch.nn.Module) -> Engine:
    return Engine(model, "capsnet-multimnist-small", "multimnist")


@contextmanager
def running(engine: Engine, limits: Limits | None = None) -> Iterator[str]:
    """The address of a server that lives as long as the block."""
    server = make_server(create_app(engine, limits=limits))
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=10)


@pytest.fixture(scope="session")
def address(engine: Engine) -> Iterator[str]:
    with running(engine) as url:
        yield url


@pytest.fixture
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=60) as session:
        yield session


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    chromium = shutil.which("chromium")
    if chromium is None:
        skip_or_fail("there is no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        instance = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS.split())
        yield instance
        instance.close()


@pytest.fixture(scope="session")
def axe_source() -> str:
    """axe-core as npm packs it, from the folder that TORCHCAPS_AXE names or a cache; fetched once if npm is here."""
    folder = Path(os.environ.get("TORCHCAPS_AXE") or Path.home() / ".cache" / "torchcaps-axe")
    packed = folder / f"{AXE.replace('@', '-')}.tgz"
    if not packed.exists():
        npm = shutil.which("npm")
        if npm is None:
            skip_or_fail("there is no npm on this machine to fetch axe-core with")
        folder.mkdir(parents=True, exist_ok=True)
        fetched = subprocess.run([str(npm), "pack", AXE], cwd=folder, capture_output=True, timeout=120)
        if fetched.returncode:
            skip_or_fail("npm could not fetch axe-core")
    with tarfile.open(packed) as archive:
        file = archive.extractfile("package/axe.min.js")
        assert file is not None
        return file.read().decode()
