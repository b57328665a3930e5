"""Equal seeds end in equal bytes, whatever runs beside the first use of the kernels on a machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TRAIN = """
import hashlib, json, random, sys
import torch
from torchcaps import create_model
from torchcaps.data.sets import Batch
from torchcaps.kernels import tuning
from torchcaps.training.loop import train_step
from torchcaps.training.optim import make_optimisers

if sys.argv[1] == "lying clock":
    tuning.spent = lambda call: (call(), random.random())[1]
digest = hashlib.sha256()
for name, optimiser, images, steps in (("capsnet-multimnist-small", "muon", 16, 3), ("capsnet-mnist", "adam", 16, 2)):
    torch.manual_seed(0)
    model = create_model(name)
    shown = torch.rand(images, *model.config.image)
    labels = torch.rand(images, 10).argsort(1)[:, : model.config.objects]
    batch = Batch(shown, labels, shown[:, None].repeat(1, model.config.objects, 1, 1, 1))
    optimisers = make_optimisers(model, optimiser, 1e-3)
    for _ in range(steps):
        train_step(model, batch, optimisers)
        with torch.no_grad():
            model.eval()(shown)
        model.train()
    for value in model.state_dict().values():
        digest.update(value.numpy().tobytes())
training = {name: twin for name, twin in tuning.choices().items() if name.startswith("training")}
print(json.dumps([digest.hexdigest(), training]))
"""
BURSTS = """
import random, time
one, two = bytearray(1 << 25), bytearray(1 << 25)
while True:
    end = time.time() + random.uniform(0.01, 0.1)
    while time.time() < end:
        one[:] = two
        sum(range(10**5))
    time.sleep(random.uniform(0.01, 0.1))
"""


def trained(cache: Path, beside: str) -> str:
    """The SHA-256 of the weights after a few steps, and the choices, of a new process with an empty cache folder."""
    environment = os.environ | {"XDG_CACHE_HOME": str(cache / beside), "OMP_NUM_THREADS": "1", "TORCHCAPS_KERNELS": ""}
    answer = subprocess.run(
        [sys.executable, "-c", TRAIN, beside], env=environment, capture_output=True, text=True, check=True
    )
    return answer.stdout


@contextmanager
def bursts() -> Iterator[None]:
    """A process beside this one that computes and rests by turns."""
    other = subprocess.Popen([sys.executable, "-c", BURSTS])
    try:
        yield
    finally:
        other.kill()
        other.wait()


@pytest.mark.alone
def test_weights_do_not_depend_on_what_runs_beside_the_first_use(tmp_path: Path) -> None:
    quiet = trained(tmp_path, "nothing")
    assert "fourier" in quiet
    assert "tiles" in quiet
    with bursts():
        assert trained(tmp_path, "bursts") == quiet
    assert trained(tmp_path, "lying clock") == quiet
