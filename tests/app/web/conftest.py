"""A real server on a real socket, with the package's weights or, where there are none yet, a briefly trained model."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import torch

from torchcaps import data as named
from torchcaps.app.publish import find_runtime, write_site
from torchcaps.app.web.engine import Engine
from torchcaps.app.web.limits import Limits
from torchcaps.app.web.server import create_app, listen, make_server
from torchcaps.core.errors import UserError
from torchcaps.data.synthetic.multimnist import RULES, Digits, PairStream
from torchcaps.data.tensors import TensorSet
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
def running(engine: Engine, limits: Limits | None = None, token: str | None = None) -> Iterator[str]:
    """The address of a server that lives as long as the block."""
    server = make_server(create_app(engine, token, limits=limits))
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


@pytest.fixture(scope="session")
def runtime() -> dict[str, Path]:
    """ONNX Runtime Web, fetched once by npm as any user's `publish` does."""
    try:
        return find_runtime(None)
    except UserError as error:
        skip_or_fail(str(error))
        raise


def pictures(name: str, image: tuple[int, int, int], classes: tuple[str, ...]) -> TensorSet:
    """Noise of two images a class, in bytes."""
    generator = torch.Generator().manual_seed(len(classes))
    pixels = torch.randint(0, 256, (2 * len(classes), *image), generator=generator, dtype=torch.uint8)
    labelled = (pixels, torch.arange(len(classes)).repeat(2))
    return TensorSet(name, name, image, classes, train=labelled, tested=labelled)


SPECIES = ("Rose", "Ox-eye daisy", "Bird of paradise (Strelitzia reginae)", "Deep-rooted dandelion of northern meadows")


@pytest.fixture(scope="session")
def engines(engine: Engine) -> dict[str, Engine]:
    """Models that need different pages: pairs of digits; toys without a decoder, by EM; photographs of many classes."""
    torch.manual_seed(0)
    toys = create_model("matrix-smallnorb-small", channels=8, primary_types=2, types=(), classes=3)
    names = tuple(f"{SPECIES[n % 4]}, no. {n}" for n in range(200))
    photographs = create_model(
        "capsnet-mnist",
        image=(3, 24, 24),
        classes=200,
        channels=8,
        primary_types=2,
        dim=8,
        routing="self-attention",
        decoder="conv",
    )
    return {
        "digits": engine,
        "toys": Engine(toys, "matrix-smallnorb-small", pictures("toys", (2, 32, 32), ("animal", "human", "car"))),
        "photographs": Engine(photographs, "capsnet", pictures("photographs", (3, 24, 24), names)),
    }


@pytest.fixture(scope="session")
def site(engines: dict[str, Engine], runtime: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published") / "site"
    write_site(engines, folder, runtime)
    return folder


@contextmanager
def hosting(folder: Path, log: Path) -> Iterator[str]:
    """The address of a plain web host; `log` gets a line for every request."""
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(folder)]
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdout is not None
            yield re.search(r"http://[\d.:]+", process.stdout.readline())[0]  # pyright: ignore[reportOptionalSubscript]
        finally:
            process.terminate()
            process.wait(timeout=10)
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture(scope="session")
def site_address(site: Path) -> Iterator[str]:
    with hosting(site, site.parent / "requests.log") as url:
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
        # Several workers may want it at the same time: it appears whole.
        with tempfile.TemporaryDirectory(dir=folder) as room:
            fetched = subprocess.run([str(npm), "pack", AXE], cwd=room, capture_output=True, timeout=120)
            if fetched.returncode:
                skip_or_fail("npm could not fetch axe-core")
            (Path(room) / packed.name).replace(packed)
    with tarfile.open(packed) as archive:
        file = archive.extractfile("package/axe.min.js")
        assert file is not None
        return file.read().decode()
