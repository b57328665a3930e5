"""Any network as the loop sees it: asked for its answers, and for its loss.

A network of torchcaps returns a `ModelOutput` and has a `loss(output, batch)`. Another one may take images alone, give
a tensor of class scores, and have no loss: then cross entropy is taken for scores, and the margin loss for lengths.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.nn.parallel import DistributedDataParallel

from torchcaps.core.errors import UserError
from torchcaps.core.functional import present
from torchcaps.core.types import ModelOutput
from torchcaps.data.sets import Batch
from torchcaps.nn.losses import margin_loss

Loss = Callable[[Any, Batch], Tensor | Mapping[str, Tensor]]
"""Of what the network returned and its batch: a number, or numbers by name with their "total"."""


def ask(model: nn.Module, batch: Batch) -> Any:
    """What the network returns for a batch; the labels go along if its `forward` has a parameter of that name."""
    takes_labels = "labels" in inspect.signature(_inner(model).forward).parameters
    return model(batch.images, batch.labels) if takes_labels else model(batch.images)


def as_output(returned: Any, objects: int) -> ModelOutput:
    """Scores become lengths from 0 to 1: shares of a sum where there is one object, one by one where there are more."""
    if isinstance(returned, ModelOutput):
        return returned
    if not isinstance(returned, Tensor) or returned.ndim != 2:
        found = list(returned.shape) if isinstance(returned, Tensor) else type(returned).__name__
        raise UserError(f"a network must return a ModelOutput or scores of [batch, classes], not {found}")
    return ModelOutput(returned.softmax(1) if objects == 1 else returned.sigmoid(), logits=returned)


def losses_of(model: nn.Module, returned: Any, batch: Batch, loss: Loss | None = None) -> dict[str, Tensor]:
    """By name, with their "total": the loss given, else the network's own, else what suits its output."""
    own = getattr(_inner(model), "loss", None)
    chosen = loss or (own if callable(own) and not isinstance(own, nn.Module) else _usual_loss)
    found = chosen(returned, batch)
    losses: dict[str, Any] = dict(found) if isinstance(found, Mapping) else {"total": found}
    total = losses.get("total")
    if not isinstance(total, Tensor) or total.ndim:
        shape = list(total.shape) if isinstance(total, Tensor) else total
        raise UserError(f"a loss must return one number, or a dict with a number called total, not {shape}")
    return losses


def _usual_loss(returned: Any, batch: Batch) -> Tensor:
    objects = batch.labels.shape[1]
    if not isinstance(returned, Tensor):
        lengths = as_output(returned, objects).lengths
        return margin_loss(lengths, present(batch.labels, lengths.shape[1]))
    if objects == 1:
        return cross_entropy(returned, batch.labels[:, 0])
    targets = present(batch.labels, returned.shape[1])
    return binary_cross_entropy_with_logits(returned, targets, reduction="none").sum(1).mean()


def _inner(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


@torch.no_grad()
def classes_of(model: nn.Module, name: str, batch: Batch) -> int:
    """How many classes a network tells apart: by its configuration, else by its answer to a few images."""
    if (config := getattr(model, "config", None)) is not None and hasattr(config, "classes"):
        return config.classes
    was_training = model.training
    try:
        output = as_output(ask(model.eval(), batch), batch.labels.shape[1])
    except (RuntimeError, TypeError) as error:
        shape, why = tuple(batch.images.shape[1:]), str(error).splitlines()[0]
        raise UserError(f"{name} cannot take images of {shape}: {why}") from None
    finally:
        model.train(was_training)
    return output.lengths.shape[1]
