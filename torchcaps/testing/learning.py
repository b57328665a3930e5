"""Whether a network begins to learn: its gradients before the first step, and what the first step brings.

    check_learning(model, batches, lr=1e-3)        # two batches of real images, the learning rate it is trained with

A loss that is right and a routing that agrees with its paper can still learn nothing: parameters that start at zero may
hide everything below them, and badly conditioned iterations may make a gradient point nowhere that a step can go.
"""

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.data.sets import Batch
from torchcaps.testing.core import require, seeded

FAINTEST = 1e-5
"""The least norm of a layer's gradient, as a share of the norm of its weights."""
REALISED = 0.1
"""The least part of the drop of the loss that the gradient promises for a step of Adam, on the same images."""
AGREEMENT = 0.1
"""The least cosine of the gradients of two batches. Of independent directions in a network it is below 0.01."""


class FirstStep(NamedTuple):
    gradients: dict[str, float]
    """Of each module that has parameters of its own: the norm of its gradient divided by that of its weights."""
    promised: float
    """How much the loss would fall in a step of Adam if it were linear."""
    realised: float
    """The part of it by which it falls."""
    agreement: float
    """Cosine of the gradients of two batches."""


def first_step(model: nn.Module, batches: Sequence[Batch], lr: float) -> FirstStep:
    """Measured on a copy of a model in training mode; `lr` is that of its training."""
    model = copy.deepcopy(model).train()
    before, first = _gradient(model, batches[0])
    faint = {
        name: _norm([part.grad for part in parameters]) / max(_norm(parameters), 1e-12)
        for name, parameters in _layers(model).items()
    }
    _, second = _gradient(model, batches[1])
    begun = _flat(model.parameters())
    before, first = _gradient(model, batches[0])
    torch.optim.Adam(model.parameters(), lr).step()
    step = _flat(model.parameters()) - begun
    promised = -torch.dot(first, step).item()
    with torch.no_grad():
        after = _loss(model, batches[0]).item()
    agreement = torch.cosine_similarity(first, second, dim=0).item()
    return FirstStep(faint, promised, (before - after) / promised, agreement)


def check_learning(model: nn.Module, batches: Sequence[Batch], lr: float, *, unused: Sequence[str] = ()) -> None:
    """No layer's gradient vanishes, a step does what its gradient promises, and two batches ask for alike steps.

    The model has a `loss(output, batch)` as ours do. `unused` are names of modules that may have no gradient.
    """
    found = first_step(model, batches, lr)
    for name, share in found.gradients.items():
        if not name.startswith(tuple(unused)):
            require(share >= FAINTEST, f"the gradient of {name} vanishes: {share:.1g} of its weights")
    require(
        found.realised >= REALISED,
        f"a step with a learning rate of {lr:g} realises {found.realised:.0%} of the drop that its gradient promises",
    )
    require(
        found.agreement >= AGREEMENT,
        f"gradients of two batches have a cosine of {found.agreement:.3f}: no better than chance",
    )


def _layers(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    own = {name: list(module.parameters(recurse=False)) for name, module in model.named_modules()}
    return {name or "the model": parameters for name, parameters in own.items() if parameters}


def _gradient(model: nn.Module, batch: Batch) -> tuple[float, Tensor]:
    model.zero_grad()
    loss = _loss(model, batch)
    loss.backward()
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return loss.item(), _flat(parameter.grad for parameter in model.parameters())


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    with seeded(0):
        return model.loss(model(batch.images, batch.labels), batch)["total"]


def _flat(tensors) -> Tensor:
    return torch.cat([tensor.detach().flatten().clone() for tensor in tensors])


def _norm(tensors) -> float:
    return _flat(tensors).norm().item()
