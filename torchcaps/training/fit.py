"""Any network on any data, trained into a run folder: what programs and the command line call."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchcaps.core.errors import UserError, argument
from torchcaps.core.progress import quietly, say
from torchcaps.data import DataSet, resolve
from torchcaps.data.tensors import TensorSet, is_tensors
from torchcaps.models.config import import_path
from torchcaps.models.registry import configure, create_model, find, suited_training
from torchcaps.models.timm_backbones import is_of_timm
from torchcaps.training import processes, recipes
from torchcaps.training.config import TrainConfig, check_numbers, defaults_for
from torchcaps.training.loop import Probe
from torchcaps.training.networks import Loss, classes_of
from torchcaps.training.train import train


def fit(
    model: str | nn.Module,
    data: Any = None,
    *,
    out: str | Path,
    test: Any = None,
    loss: Loss | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    max_seconds: float | None = None,
    seed: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    validation: int | None = None,
    device: str = "auto",
    classes: Sequence[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    size: str | int | tuple[int, int] | None = None,
    augment: recipes.Augment = None,
    pretrained: bool = False,
    resume: bool = True,
    quiet: bool = False,
    tensorboard: bool = False,
    probe: Probe | None = None,
    **training: Any,
) -> dict[str, Any]:
    """Train a network, score it once on the test images, keep everything in the folder `out`; returns the result.

    `model` is a name from `list_models()`, with `overrides` as `create_model` takes them, or any `nn.Module` that
    returns a `ModelOutput` or a tensor of class scores; afterwards it has the weights of the run. `data` is a name, a
    folder, a pair of tensors `(images, labels)` or a torch `Dataset`, and so is `test`, which takes the place of the
    data's own test images; `classes` names the classes of tensors. `loss(output, batch)` returns a number, or a dict of
    numbers with their "total"; without it the network's own `loss` counts, else cross entropy for scores and the margin
    loss for capsules.

    The budget is `epochs`, `steps` or `max_seconds`; with several, the one that ends first. `training` are other fields
    of `TrainConfig`. What is None is what suits the model of that name, else `seed=0`, `batch=128` (fewer where an
    epoch would have less than ten steps), `lr=1e-3`, `optimiser="adam"`, `schedule="decay"`, `warmup=0.0`,
    `average=0.0`, `clip=None`, `validation=2000` (at most a tenth of the images), `checkpoint_seconds=30.0`,
    `balance="auto"`.
    `augment` is the name of a preset, an `Augmentation`, or some of its fields; `size` is for pictures in files.
    `pretrained` begins with the weights that come with the package, for any classes (see `create_model`).

    Killed, it is gone on with by the same call, and ends in the same bytes; finished, it is only read.
    """
    training |= {"epochs": epochs, "steps": steps, "max_seconds": max_seconds, "seed": seed, "batch": batch, "lr": lr}
    training |= {"validation": validation, "device": device}
    with quietly(quiet), processes.together():
        _check(training)
        run = Path(out)
        # After a worker was killed, torchrun starts the same command once more: that goes on.
        again = processes.started_again()
        if not (resume or again) and processes.from_first((run / "config.json").exists):
            others = f"go on with {argument('resume', True)}, or choose another {argument('out')}"
            raise UserError(f"{run} already holds a run: {others}")
        both = test if is_tensors(data) and is_tensors(test) else None
        if isinstance(model, str):
            known = recipes.data_for(find(model), data, size, test=both, classes=classes)
        else:
            known = _wide_enough(model, resolve(data, size=recipes.sides(size), test=both, classes=classes))
        if known.own and training.get("validation") is not None and not isinstance(known, TensorSet):
            own = "divide your own images by folders named train, val and test"
            raise UserError(f"{argument('validation')} is for sets by name; {own}")
        tested = None if test is None or both is not None else _test_data(known, test)
        given = {name: value for name, value in training.items() if value is not None}
        given |= {"data": known.name, "augment": recipes.chosen_augmentation(known, augment)}
        given |= {"test": tested and tested.name, "loss": loss and import_path(loss)}
        extra: dict[str, Any] = {"data": known, "test": tested, "loss": loss, "probe": probe}
        extra["tensorboard"] = tensorboard
        if not isinstance(model, str):
            if pretrained:
                raise UserError("pretrained weights are for models by name: this network has weights of its own")
            config = TrainConfig(**{"model": type(model).__name__, **_usual(known), **given})
            return train(config, run, module=model, **extra)
        sized, suiting = recipes.suited_to(model, known, (overrides or {}).get("backbone"))
        chosen = {**sized, **(overrides or {})}
        configure(model, **chosen)
        config = defaults_for(model, **{**suiting, **given})
        if sized.keys() & {"backbone", "design"}:
            say(f"{model}: {recipes.summary(config, known, chosen)}")
        if pretrained or is_of_timm(chosen.get("backbone")):
            # Weights that come from elsewhere are in the first checkpoint: whoever goes on need not fetch them again.
            torch.manual_seed(config.seed)
            extra["module"] = create_model(model, pretrained, **chosen).to(memory_format=torch.channels_last)
        return train(config, run, chosen, **extra)


def _check(training: Mapping[str, Any]) -> None:
    known = {field.name for field in fields(TrainConfig)} - {"model", "data", "augment", "test", "loss"}
    if unknown := sorted(set(training) - known):
        raise UserError(f"fit has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    check_numbers(training)
    budgets = {"epochs": "N", "steps": "N", "max_seconds": "S"}
    if all(training.get(name) is None for name in budgets):
        epochs, steps, seconds = (argument(name, value) for name, value in budgets.items())
        raise UserError(f"how long? Give {epochs}, {steps} or {seconds}")


def _usual(data: DataSet) -> dict[str, Any]:
    """Of a network without a name: ten steps in an epoch at least, as far as there are images."""
    return {"batch": suited_training(data.training_images())["batch"]}


def _wide_enough(model: nn.Module, data: DataSet) -> DataSet:
    """Without names, the classes are those that the network tells apart, whether or not there is a label of each."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(f"{type(model).__name__} has no parameters to train")
    if not isinstance(data, TensorSet) or data.classes != _numbers(len(data.classes)):
        return data
    device = next(model.parameters()).device
    shown = next(data.images("test").batches(2))
    told = classes_of(model, type(model).__name__, shown._replace(images=shown.images.to(device)))
    return replace(data, classes=_numbers(told)) if told > len(data.classes) else data


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def _test_data(data: DataSet, test: Any) -> DataSet:
    """Other images to be scored on, which have to be of the same size and classes."""
    options = {"test": test, "classes": data.classes} if is_tensors(test) else {}
    found = resolve(test, like=data, **options)
    sizes = [(known.image, len(known.classes), known.objects) for known in (found, data)]
    if sizes[0] != sizes[1]:
        words = ["images of {}, {} classes, {} in an image".format(*size) for size in sizes]
        raise UserError(f"the test data {found.title} has {words[0]}; {data.title} has {words[1]}")
    return found
