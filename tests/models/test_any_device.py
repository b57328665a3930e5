"""Every model runs where there are no numbers (`meta`) and as one graph (`torch.compile`)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchcaps.data.sets import Batch
from torchcaps.models.backbones import Whitening
from torchcaps.models.registry import MODELS, create_model

WORKER = Path(__file__).with_name("compiled_worker.py")


@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_without_numbers(name: str) -> None:
    config = MODELS[name].config
    with torch.device("meta"):
        images, labels = torch.rand(2, *config.image), torch.zeros(2, config.objects, dtype=torch.int64)
        batch = Batch(images, labels, images[:, None].repeat(1, config.objects, 1, 1, 1))
    model = create_model(name).to("meta")
    output = model(batch.images, batch.labels)
    assert output.lengths.shape == (2, config.classes)
    model.loss(output, batch)["total"].backward()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert all(p.grad is not None and p.grad.shape == p.shape for p in trained.values())
    whitened = {f"{name}.weight" for name, part in model.named_modules() if isinstance(part, Whitening)}
    assert dict(model.named_parameters()).keys() - trained.keys() == whitened


CASES = [
    *((name, True, {}) for name in ("capsnet-mnist-small", "matrix-smallnorb-small", "cnn-mnist-small")),
    *(("capsnet-multimnist-small", training, {}) for training in (True, False)),
    *(("capsnet-mnist-small", True, {"routing": routing}) for routing in ("em", "heinsen")),
]


def test_models_and_routings_are_one_graph() -> None:
    """Kernels are operators that `torch.compile` knows: no break in the graph, the same answers and gradients."""
    done = subprocess.run(
        [sys.executable, str(WORKER), json.dumps(CASES)],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for case, found in zip(CASES, json.loads(done.stdout), strict=True):
        assert found["lengths"] < 1e-4, case
        assert found["gradients"] < 1e-3, case
