"""The convolutions of the models: each model is run once without numbers, and the calls of `convolve` are noted."""

from contextlib import suppress

import torch

from torchcaps.kernels import convolution
from torchcaps.models.registry import MODELS, build


def shapes() -> dict[convolution.Shape, list[str]]:
    """Of all models in the table, in its order: each shape with the models that have it."""
    found: dict[convolution.Shape, list[str]] = {}
    for name, entry in MODELS.items():
        for shape in _shapes_of(entry.config):
            found.setdefault(shape, []).append(name)
    return found


def _shapes_of(config: object) -> dict[convolution.Shape, None]:
    """Without those behind an error: a model that users register need not run without numbers.

    Only its parameters are made without numbers: tables that its layers make and keep are used by later models, too.
    """
    with convolution.noted() as noted, suppress(Exception), torch.no_grad():
        with torch.device("meta"):
            model, images = build(config).eval(), torch.empty(2, *config.image)  # pyright: ignore[reportAttributeAccessIssue]
        model(images)
    return dict.fromkeys(noted)
