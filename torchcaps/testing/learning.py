"""Whether a network begins to learn: its gradients before the first step, and what the first step brings.

    check_learning(model, batches, lr=1e-2)        # two batches of real images, the learning rate of its training

A loss that is right and a routing that agrees with its paper can still learn nothing: parameters that start at zero may
hide everything below them, and badly conditioned iterations may make a gradient point nowhere that a step can go.
"""

import copy
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.data.sets import Batch
from torchcaps.testing.core import require, seeded

FAINTEST = 1e-5
"""The least norm of a layer's gradient, as a share of the norm of its weights."""
REALISED = 0.15
"""The least part of the drop of the loss that a gradient promises which a step brings, on the same images."""
AGREEMENT = 0.1
"""The least cosine of the gradients of two batches. Of independent directions in a network it is below 0.01."""
WARM = 0.1
"""The step is that of Adam at this share of the learning rate: at first it moves every weight by the rate, whether its
gradient is small or large, which is why trainings begin with a lower one."""


class FirstStep(NamedTuple):
    gradients: dict[str, float]
    """Of each module that has parameters of its own: the norm of its gradient divided by that of its weights."""
    promised: float
    """How much the loss would fall in the step if it were linear."""
    realised: float
    """The part of it by which it falls."""
    agreement: float
    """Cosine of the gradients of two batches."""


def first_step(model: nn.Module, batches: Sequence[Batch], lr: float) -> FirstStep:
    """Measured on a copy of a model in training mode; `lr` is the rate of its training."""
    model = copy.deepcopy(model).train()
    _, second = _gradient(model, batches[1])
    before, first = _gradient(model, batches[0])
    shares = {name: _norm(part.grad for part in own) / (_norm(own) + 1e-12) for name, own in _layers(model).items()}
    begun = _flat(model.parameters())
    torch.optim.Adam(model.parameters(), WARM * lr).step()
    promised = torch.dot(first, begun - _flat(model.parameters())).item()
    with torch.no_grad():
        fallen = before - _loss(model, batches[0]).item()
    return FirstStep(shares, promised, fallen / promised, torch.cosine_similarity(first, second, dim=0).item())


def check_learning(model: nn.Module, batches: Sequence[Batch], lr: float, *, unused: Sequence[str] = ()) -> None:
    """No layer's gradient vanishes, a step does what its gradient promises, and two batches ask for alike steps.

    The model has a `loss(output, batch)` as ours do. `unused` are names of modules that its loss need not ask for.
    """
    found = first_step(model, batches, lr)
    for name, share in found.gradients.items():
        require(name in unused or share >= FAINTEST, f"the gradient of {name} vanishes: {share:.1g} of its weights")
    require(
        found.realised >= REALISED,
        f"a step realises {found.realised:.1%} of the drop that its gradient promises: a learning rate of {lr:g} is "
        "too large for this network",
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
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    return loss.item(), _flat(parameter.grad for parameter in model.parameters())


def _loss(model: Any, batch: Batch) -> Tensor:
    with seeded(0):
        return model.loss(model(batch.images, batch.labels), batch)["total"]


def _flat(tensors: Iterable[Tensor | None]) -> Tensor:
    return torch.cat([tensor.detach().flatten().clone() for tensor in tensors if tensor is not None])


def _norm(tensors: Iterable[Tensor | None]) -> float:
    return _flat(tensors).norm().item()
