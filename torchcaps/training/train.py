"""A training from its first file to its last, with every choice made already; `fit` makes them."""

import math
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from torchcaps.core.errors import UserError, argument
from torchcaps.core.files import write_json, write_tensors
from torchcaps.core.progress import quietly, say
from torchcaps.data import DataSet, resolve
from torchcaps.data.folder import RECORD
from torchcaps.models.backbones import whiten
from torchcaps.models.config import model_config, model_from_config
from torchcaps.models.registry import count_parameters, create_model
from torchcaps.training import processes, runs
from torchcaps.training.config import TrainConfig, config_from
from torchcaps.training.forecast import measure
from torchcaps.training.loop import Probe, good_enough, run_loop
from torchcaps.training.networks import Loss
from torchcaps.training.optim import make_optimisers
from torchcaps.training.progress import Reporter
from torchcaps.training.records import read_config, read_result
from torchcaps.training.scoring import score
from torchcaps.training.state import State
from torchcaps.training.stopping import Stop
from torchcaps.training.task import Task, check_fits, load_task

LOOKED_AT = 512 * 32 * 32
"""Pixels of the images by which patches are whitened, if the network has a layer that does so."""


def go_on(
    out: str | Path,
    *,
    epochs: float | None = None,
    steps: int | None = None,
    max_seconds: float | None = None,
    lr: float | None = None,
    checkpoint_seconds: float | None = None,
    device: str | None = None,
    images: str | Path | None = None,
    quiet: bool = False,
    tensorboard: bool = False,
) -> dict[str, Any]:
    """Go on with the run in a folder as it was begun; a larger budget prolongs it, also if it was finished.

    Another learning rate holds from here on. `images` says where the images of one's own are that it is trained on.
    """
    run = Path(out)

    def begun() -> dict[str, Any]:
        read_config(run)
        with runs.alone(run):
            runs.prolong(run, {"epochs": epochs, "steps": steps, "max_seconds": max_seconds})
            runs.change(run, lr=lr, checkpoint_seconds=checkpoint_seconds, device=device)
        return read_config(run)

    with quietly(quiet), processes.together():
        saved = processes.from_first(begun)
        config = config_from(saved["train"], run / "config.json")
        has_record = (run / RECORD).exists()
        for name in filter(None, (None if has_record else config.data, config.test)):
            runs.check_folder(run, saved, name)
        data = None if images is None else runs.run_data(run, saved, images)
        return train(config, run, build=lambda: model_from_config(saved["model"]), data=data, tensorboard=tensorboard)


@runs.alone_in_its_folder
def train(
    config: TrainConfig,
    out: Path,
    overrides: Mapping[str, Any] | None = None,
    tensorboard: bool = False,
    probe: Probe | None = None,
    *,
    build: Callable[[], nn.Module] | None = None,
    module: nn.Module | None = None,
    data: DataSet | None = None,
    test: DataSet | None = None,
    loss: Loss | None = None,
) -> dict[str, Any]:
    """Train what the configuration names, or the `module` and `data` handed over.

    What `probe` measures of the network is kept in every logged row. A folder that already has a checkpoint of this
    configuration is gone on with; a finished one is only read.
    """
    world, rank = processes.world(), processes.rank()
    if result := processes.from_first(lambda: _known_result(config, out)):
        if module is not None:
            runs.load_weights(out, module, processes.tensors_of_first(lambda: runs.read_weights(out)))
        return {} if rank else result
    if config.batch % world:
        raise UserError(f"the batch of {config.batch} cannot be shared evenly among {world} processes")
    device = resolve_device(config.device)
    torch.manual_seed(config.seed)
    build = build or (lambda: create_model(config.model, **(overrides or {})))
    model: Any = (build() if module is None else module).to(device)
    data = data or resolve(str(out / RECORD) if (out / RECORD).exists() else config.data)
    data = data.prepared(getattr(getattr(model, "config", None), "image", data.image), out)
    task = load_task(config, data)
    if module is None:
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    check_fits(model, config.model, data, task.watched)
    few = max(1, min(512, LOOKED_AT // math.prod(data.image[1:])))
    whiten(model, task.stream.batch(0, few).images.to(device))
    runs.check_same(out, "model", model_config(model))
    optimisers = make_optimisers(model, config.optimiser, config.lr, config.muon_factor)
    average = deepcopy(model).requires_grad_(False) if config.average else None
    state = State(0, 0.0, model.train(), optimisers, average, [], [])
    checkpoint = runs.Checkpoint(out)
    saved = processes.state_of_first(checkpoint.load, checkpoint.step)
    if saved:
        try:
            state.load(*saved)
        except (RuntimeError, ValueError, KeyError, TypeError, IndexError) as error:
            why = str(error).splitlines()[0][:200]
            raise UserError(f"the checkpoint in {out} does not fit its network: {why}") from None
    elif rank == 0:
        # One process alone must not step a network whose batch normalisation waits for the others; and what the
        # processor would take says nothing about a GPU.
        expected = None
        if world == 1 and device.type == "cpu":
            shape = SimpleNamespace(image=data.image, classes=len(data.classes), objects=data.objects)
            expected = measure(config.model, deepcopy(model), shape, config.batch, len(task.stream), loss=loss)
            expected.check()
        _begin(config, out, model, data, [*task.about, f"{expected}"] if expected else task.about)
        if module is not None:
            # Its first weights come from outside: a run that is killed at once has to find them again.
            state.save(checkpoint)
    with Reporter(config, out if tensorboard else None) if rank == 0 else nullcontext() as reporter, Stop() as stop:
        written = checkpoint if rank == 0 else None
        run_loop(config, task, state, written, reporter, stop, probe=probe, loss=loss)
    if module is not None and average is not None:
        module.load_state_dict(average.state_dict())
    asked = test or (resolve(config.test, like=data) if config.test else data)
    return processes.wait_for_first(lambda: _finish(config, out, task, state, asked)) or {}


def resolve_device(name: str) -> torch.device:
    """The device of that name; of several GPUs the one that belongs to this process."""
    wanted = name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda":
        wanted = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    try:
        return torch.empty(0, device=wanted).device
    except (RuntimeError, AssertionError):
        raise UserError(f"device '{name}' is not here; try {argument('device', 'auto')}") from None


def _known_result(config: TrainConfig, out: Path) -> dict[str, Any] | None:
    """Of a run that is finished."""
    runs.check_same(out, "train", asdict(config))
    return read_result(out) if (out / "result.json").exists() else None


def _begin(config: TrainConfig, out: Path, model: nn.Module, data: DataSet, about: list[str]) -> None:
    """The files that are there before the first step, and what a person should know before it."""
    resolved = {"train": asdict(config), "model": model_config(model), "classes": list(data.classes)}
    write_json(out / "config.json", runs.seal_folders(resolved))
    runs.keep_origin(out, runs.manifest(resolved, data.hashes()))
    for line in data.keep(out):
        say(f"{data.title}: {line}")
    for line in about:
        say(f"{config.model}: {line}")


def _finish(config: TrainConfig, out: Path, task: Task, state: State, asked: DataSet) -> dict[str, Any]:
    """Weights, metrics, frames, and the one look at the test set. `result.json` comes last and makes the run whole."""
    model = state.best
    runs.write_rows(out / "metrics.csv", state.rows)
    if state.frames:
        # Of single images the targets are the images themselves; files hold no tensor twice, so each gets its own copy.
        watched = {name: field.clone() for name, field in task.watched._asdict().items()}
        write_tensors(out / "frames.safetensors", {"frames": torch.stack(state.frames), **watched})
    weights_sha256 = write_tensors(out / "model.safetensors", model.state_dict())
    answers: list[tuple[torch.Tensor, torch.Tensor]] = []
    scores = score(model, asked.test(config.test_pairs), answers=answers)
    lengths, labels = (torch.cat(column) for column in zip(*answers, strict=True))
    result = {
        **scores,
        "model": config.model,
        "parameters": count_parameters(model),
        "seconds": round(state.seconds, 1),
        "steps": state.step,
        "images_seen": state.step * min(config.batch, len(task.stream)),
        "seed": config.seed,
        "selection": f"{config.stop_at:.2%} on validation" if good_enough(config, state) else "last step",
        "weights_sha256": weights_sha256,
        "answers_sha256": runs.write_answers(out, lengths, labels),
    }
    write_json(out / "result.json", result)
    return result
