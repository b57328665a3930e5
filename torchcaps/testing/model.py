"""Properties of a whole model: `model(images, labels=None, trace=False)`, however it is built."""

import copy

import torch
from torch import Tensor, nn

from torchcaps.core.types import ModelOutput
from torchcaps.testing import modules
from torchcaps.testing.core import must_run, require, require_close, require_finite, seeded
from torchcaps.testing.modules import Run

BATCH = 3


def check_model(model: nn.Module, image_shape: tuple[int, int, int], *, classes: int = 10, objects: int = 1) -> None:
    """Check a model: outputs, batches, labels, trace, state, devices, gradients.

    In float64, because the outputs of an untrained network differ little; so a model must not name a dtype.
    """
    single, model = copy.deepcopy(model).float().eval(), copy.deepcopy(model).double().eval()
    with seeded(0):
        images = torch.rand(BATCH, *image_shape, dtype=torch.float64)
    check_state(model, images)
    check_answers(model, images, classes, objects)
    require_close(_answer(single, images.float()).lengths, _answer(model, images).lengths, "float32 lengths", 1e-3)
    check_batches(model, images)
    check_labels(model, images, classes, objects)
    check_trace(model, images)
    modules.require_any_device("model", model, _runner, (images,))
    check_gradients(model, images, classes, objects)


def check_state(model: nn.Module, images: Tensor) -> None:
    """A forward pass changes no state, except for the statistics of batch normalisation in training."""
    training = copy.deepcopy(model).train()
    modules.require_stateless("model", model, _runner(model), (images,))
    modules.require_stateless("model", training, _runner(training), (images,), buffers=False)


def check_answers(model: nn.Module, images: Tensor, classes: int, objects: int) -> None:
    output = _answer(model, images)
    _require_shape(output.lengths, [BATCH, classes], "lengths")
    require_finite(output.lengths, "lengths")
    low, high = output.lengths.min().item(), output.lengths.max().item()
    require(low >= 0 and high <= 1 + 1e-6, f"lengths run from {low:.3g} to {high:.3g}, outside 0 .. 1")
    if output.capsules is not None:
        _require_shape(output.capsules, [BATCH, classes, output.capsules.shape[-1]], "capsules")
    if output.reconstruction is not None:
        several = [objects] if objects > 1 else []
        _require_shape(output.reconstruction, [BATCH, *several, *images.shape[1:]], "reconstruction")
        low, high = output.reconstruction.min().item(), output.reconstruction.max().item()
        require(low >= 0 and high <= 1, f"reconstructed pixels run from {low:.3g} to {high:.3g}, outside 0 .. 1")


def check_batches(model: nn.Module, images: Tensor) -> None:
    """The output for an image does not depend on the batch, also for a batch of one."""
    modules.require_independent_images("model", _runner(model), (images,))
    modules.require_repeatable("model in eval mode", _runner(model), (images,))


def check_labels(model: nn.Module, images: Tensor, classes: int, objects: int) -> None:
    """Labels choose what is reconstructed, and nothing else."""
    plain = _answer(model, images)
    longest = plain.lengths.topk(objects, 1).indices
    with must_run("model with labels [b k]"):
        labelled = model(images, longest)
    require_close(labelled.lengths, plain.lengths, "the lengths depend on the labels that were given")
    if plain.reconstruction is None:
        return
    _require_shape(labelled.reconstruction, [BATCH, objects, *images.shape[1:]], "reconstruction for labels [b k]")
    if objects == 1:
        require_close(
            labelled.reconstruction[:, 0],
            plain.reconstruction,
            "without labels, the reconstruction is not that of the longest capsule",
        )
        with must_run("model with labels [b]"):
            flat = model(images, longest[:, 0]).reconstruction
        require_close(flat, plain.reconstruction, "labels [b] and [b 1] give different reconstructions")
    with must_run("model with other labels"):
        other = model(images, (longest + 1) % classes).reconstruction
    difference = (other - labelled.reconstruction).abs().max().item()
    require(difference > 0, "the reconstruction is the same for every label")


def check_trace(model: nn.Module, images: Tensor) -> None:
    plain = _answer(model, images)
    require(plain.trace is None, "a trace is returned although nobody asked for it")
    with must_run("model with trace=True"):
        traced = model(images, trace=True)
    require_close(traced.lengths, plain.lengths, "trace=True changes the lengths")
    if traced.trace is not None:
        require(
            traced.trace.couplings.shape[1] == BATCH, f"the trace's couplings are {list(traced.trace.couplings.shape)}"
        )


def check_gradients(model: nn.Module, images: Tensor, classes: int, objects: int) -> None:
    """Every parameter has a gradient, and no gradient is NaN, also for an empty image."""
    model = copy.deepcopy(model).train()
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    labels = torch.arange(BATCH * objects).reshape(BATCH, objects) % classes
    for name, pictures in {"random images": images, "empty images": torch.zeros_like(images)}.items():
        with must_run(f"training on {name}"):
            output = model(pictures, labels)
            total = output.lengths.square().sum()
            for answer in (output.capsules, output.reconstruction):
                total = total if answer is None else total + answer.square().sum()
            gradients = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            require(gradient is not None, f"{parameter} takes no part in the answer")
            assert gradient is not None
            require_finite(gradient, f"the gradient of {parameter} on {name}")


def _runner(model: nn.Module) -> Run:
    def run(images: Tensor) -> list[Tensor]:
        output = model(images)
        answers = (output.lengths, output.capsules, output.reconstruction)
        return [answer for answer in answers if answer is not None]

    return run


def _answer(model: nn.Module, images: Tensor) -> ModelOutput:
    with must_run("model"):
        return model(images)


def _require_shape(tensor: Tensor, expected: list[int], name: str) -> None:
    require(list(tensor.shape) == expected, f"{name}: the shape is {list(tensor.shape)} instead of {expected}")
