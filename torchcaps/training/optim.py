"""Optimisers and learning-rate schedules."""

import math
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

OptimiserName = Literal["adam", "muon"]
Schedule = Literal["decay", "cosine", "linear", "exponential", "constant"]


def learning_rate(
    schedule: Schedule, progress: float, step: int, warmup: float = 0.0, decay_steps: int = 2000
) -> float:
    """The factor on the learning rate; `progress` is the part of the budget, in steps or seconds, that is used up.

    `decay` is the paper's: 0.96 every 2000 steps, never below a thousandth. The authors' code of matrix capsules has
    the same with 20,000 steps. `exponential` falls by a constant factor too, to a hundredth at the end of the budget.
    """
    start = min(1.0, progress / warmup) if warmup else 1.0
    match schedule:
        case "constant":
            return start
        case "decay":
            return start * max(1e-3, 0.96 ** (step / decay_steps))
        case "cosine":
            return start * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        case "exponential":
            return start * 0.01 ** min(1.0, progress)
        case "linear":
            return start * max(0.0, 1 - progress) / (1 - warmup)


class Muon(Optimizer):
    """Momentum whose update is made orthogonal, for the matrices inside a network (Jordan et al. 2024).

    Written here because `torch.optim.Muon` takes matrices only, and most of these weights are convolutions.
    A convolution's weight counts as the matrix from its patch to its output channels. Five coefficients of the quintic
    Newton-Schulz iteration are theirs; three steps suffice at these sizes.
    """

    def __init__(self, parameters: list[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.01):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                average = state["momentum"].lerp_(gradient, 1 - group["momentum"])
                nesterov = gradient.lerp(average, group["momentum"]).flatten(1)
                update = orthogonalise(nesterov) * max(1.0, nesterov.shape[0] / nesterov.shape[1]) ** 0.5
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update.view_as(parameter), alpha=-group["lr"])


def orthogonalise(matrix: Float[Tensor, "m n"], steps: int = 3) -> Float[Tensor, "m n"]:
    """Push all singular values towards 1.

    A step is `x ← p(x x') x` with a polynomial p. All of them are functions of the first `x x'`, so that they commute:
    only that small square matrix is iterated, and the product of the polynomials is applied once.
    """
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = wide / (wide.norm() + 1e-7)
    gram, one = x @ x.T, torch.eye(len(x), dtype=x.dtype, device=x.device)
    applied = one
    for step in range(steps):
        p = 3.4445 * one - 4.7750 * gram + 2.0315 * gram @ gram
        applied = p @ applied if step else p
        if step < steps - 1:
            gram = p @ gram @ p
    x = applied @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def make_optimisers(model: nn.Module, name: OptimiserName, lr: float, muon_factor: float = 3.0) -> list[Optimizer]:
    """Adam for everything, or Muon for the inner convolutions, at `muon_factor` times the rate, and Adam for the rest.

    Weights that are not trained are left out.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    inner: list[nn.Parameter] = [
        module.weight  # pyright: ignore[reportAssignmentType]
        for module in model.modules()
        if isinstance(module, nn.Conv2d)
        and module.groups == 1
        and module.weight[0].numel() >= 128
        and module.weight.requires_grad
    ]
    if name == "adam" or not inner:
        return [_adam(parameters, lr)]
    chosen = {id(weight) for weight in inner}
    return [Muon(inner, muon_factor * lr), _adam([p for p in parameters if id(p) not in chosen], lr, betas=(0.9, 0.99))]


def _adam(parameters: list[nn.Parameter], lr: float, **options: Any) -> Optimizer:
    return AdamW(parameters, lr, weight_decay=0.0, fused=True, **options)


def set_learning_rate(optimisers: list[Optimizer], factor: float) -> None:
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group.setdefault("base_lr", group["lr"])
            group["lr"] = group["base_lr"] * factor


def optimiser_tensors(optimisers: list[Optimizer]) -> dict[str, Tensor]:
    """The whole state of the optimisers, flat and by name, for a checkpoint."""
    return {
        f"{place}.{index}.{key}": value
        for place, optimiser in enumerate(optimisers)
        for index, state in optimiser.state_dict()["state"].items()
        for key, value in state.items()
    }


def load_optimiser_tensors(optimisers: list[Optimizer], tensors: dict[str, Tensor]) -> None:
    for place, optimiser in enumerate(optimisers):
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            owner, index, key = name.split(".", 2)
            if int(owner) == place:
                state.setdefault(int(index), {})[key] = value
        optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
        for parameter, values in optimiser.state.items():
            for key, value in values.items():
                if value.shape == parameter.shape:
                    # Files know no memory layout, and the fused Adam takes it for granted that all are laid out alike.
                    values[key] = torch.empty_like(parameter).copy_(value)
