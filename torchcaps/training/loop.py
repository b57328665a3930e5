"""The training loop: a budget in epochs, steps or seconds; checkpoints that survive anything; one process or many.

Every step is a function of the seed and the step's number (see `data/sets.py`), so that a run that was killed and
resumed ends in the same bytes as one that was not. A budget in seconds is the exception: its schedule is the clock's.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from torchcaps import data as named
from torchcaps.core.errors import UserError
from torchcaps.core.files import read_json, write_json, write_tensors
from torchcaps.data import folder
from torchcaps.data.sets import Batch, ImageStream, ScoredSet, Stream, generator_for
from torchcaps.data.synthetic.multimnist import TEST_PAIRS
from torchcaps.data.transforms import Augmentation
from torchcaps.kernels import tuning
from torchcaps.models.config import Model, model_config
from torchcaps.models.registry import count_parameters, create_model, find
from torchcaps.routing import EM, Dynamic, Routing
from torchcaps.training.forecast import forecast
from torchcaps.training.optim import (
    OptimiserName,
    Schedule,
    learning_rate,
    load_optimiser_tensors,
    make_optimisers,
    optimiser_tensors,
    set_learning_rate,
)
from torchcaps.training.progress import Reporter
from torchcaps.training.runs import Checkpoint, Rows, check_same, keep_origin, manifest, write_rows
from torchcaps.training.scoring import exact_match, score

Probe = Callable[[nn.Module], dict[str, float]]

LOG_EVERY = 50
FRAMES = 40
WATCHED = 8


@runtime_checkable
class Scheduled(Protocol):
    """A model of which something changes in the course of a training, such as the margin of its loss."""

    def schedule(self, progress: float) -> None: ...


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides the outcome of a training."""

    model: str
    data: str
    epochs: float | None = None
    steps: int | None = None
    max_seconds: float | None = None
    seed: int = 0
    batch: int = 128
    optimiser: OptimiserName = "adam"
    lr: float = 1e-3
    schedule: Schedule = "decay"
    warmup: float = 0.0
    average: float = 0.0
    validation: int = 2000
    pairs: int | None = None
    device: str = "auto"
    checkpoint_seconds: float = 30.0
    decay_steps: int = 2000
    per_class: int | None = None
    """Learn from so many images of each class only, drawn by the seed."""
    test_pairs: int = TEST_PAIRS
    stop_at: float | None = None
    """Stop as soon as this accuracy is reached on the validation images, looked at every `LOG_EVERY` steps."""
    augment: dict[str, Any] | None = None
    """Fields of `Augmentation`, instead of what the data is meant for."""
    balance: Literal["auto", "none", "classes"] = "auto"
    """Whether rare classes are shown more often; `auto` does so where the largest is over ten times the smallest."""


@dataclass
class State:
    """All that changes while training."""

    step: int
    seconds: float
    model: nn.Module
    optimisers: list[torch.optim.Optimizer]
    average: nn.Module | None
    rows: Rows
    frames: list[Tensor]
    sums: dict[str, float] = field(default_factory=dict)
    """Of what was measured since the last row, over `summed` steps."""
    summed: int = 0

    @property
    def best(self) -> nn.Module:
        """The weights that count: the averaged ones where there is an average."""
        return self.model if self.average is None else self.average

    def save(self, checkpoint: Checkpoint) -> None:
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"optimiser.{name}": value for name, value in optimiser_tensors(self.optimisers).items()}
        if self.average is not None:
            tensors |= {f"average.{name}": value for name, value in self.average.state_dict().items()}
        if self.frames:
            tensors["frames"] = torch.stack(self.frames)
        position = {"step": self.step, "seconds": self.seconds, "rows": self.rows}
        position |= {"sums": self.sums, "summed": self.summed}
        checkpoint.save(tensors, {**position, "kernels": tuning.choices()})

    def load(self, tensors: dict[str, Tensor], saved: dict[str, Any]) -> None:
        def part(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

        self.step, self.seconds, self.rows = saved["step"], saved["seconds"], saved["rows"]
        self.sums, self.summed = saved.get("sums", {}), saved.get("summed", 0)
        tuning.use(saved["kernels"])
        self.model.load_state_dict(part("model."))
        load_optimiser_tensors(self.optimisers, part("optimiser."))
        if self.average is not None:
            self.average.load_state_dict(part("average."))
        self.frames = list(tensors["frames"]) if "frames" in tensors else []


@dataclass(frozen=True)
class Task:
    """What is learned from and what is looked at meanwhile."""

    stream: Stream
    validation: ScoredSet | None
    watched: Batch


def load_task(config: TrainConfig) -> Task:
    training, kept = named.training_and_validation(config.data, config.validation)
    held_out = len(kept)
    if config.stop_at is not None and not held_out:
        raise UserError("to stop at an accuracy, images must be held out: give --validation")
    if config.per_class is not None:
        training = training.some_of_each(config.per_class, config.seed)
    augment = None if config.augment is None else Augmentation(**config.augment)
    stream = named.for_training(config.data, training, config.seed, config.pairs, augment)
    if isinstance(stream, ImageStream) and config.balance in ("classes", "auto" if stream.uneven else None):
        stream = stream.balanced()
    if config.per_class is None and config.batch > len(stream):
        raise UserError(f"a batch of {config.batch} is more than the {len(stream)} images to train on")
    validation = named.for_testing(config.data, kept, held_out) if held_out else None
    watched = next(validation.batches(WATCHED)) if validation is not None else stream.batch(0, WATCHED)
    return Task(stream, validation, watched)


def resolve_device(name: str) -> torch.device:
    """The device of that name; of several GPUs the one that belongs to this process."""
    wanted = name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda":
        wanted = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    try:
        return torch.empty(0, device=wanted).device
    except (RuntimeError, AssertionError):
        raise UserError(f"device '{name}' is not here; try --device auto") from None


def train(
    config: TrainConfig,
    out: Path,
    overrides: dict[str, Any] | None = None,
    tensorboard: bool = False,
    probe: Probe | None = None,
) -> dict[str, Any]:
    """Train, keep everything in the folder `out`, score the test set once, and return the result.

    What `probe` measures of the network is kept in every logged row.

    A folder that already has a checkpoint of this configuration is gone on with; a finished one is only read.
    """
    world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    check_same(out, "train", asdict(config))
    if (out / "result.json").exists():
        return read_json(out / "result.json")
    if config.batch % world:
        raise UserError(f"the batch of {config.batch} cannot be shared evenly among {world} processes")
    device = resolve_device(config.device)
    if world > 1 and not dist.is_initialized():
        # The clock is shared through the CPU also where gradients are not.
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(config.seed)
    model = create_model(config.model, **(overrides or {})).to(device)
    data = named.prepared(config.data, model.config.image, out)
    task = load_task(replace(config, data=data))
    model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    _check_fits(model, task.watched, replace(config, data=data))
    check_same(out, "model", model_config(model))
    optimisers = make_optimisers(model, config.optimiser, config.lr)
    average = deepcopy(model).requires_grad_(False) if config.average else None
    state = State(0, 0.0, model, optimisers, average, [], [])
    checkpoint = Checkpoint(out)
    saved = checkpoint.load()
    if saved:
        state.load(*saved)
    elif rank == 0:
        # One process alone must not step a network whose batch normalisation waits for the others; and what the
        # processor would take says nothing about a GPU.
        alone = world == 1 and device.type == "cpu"
        expected = forecast(config.model, config.batch, len(task.stream), overrides) if alone else None
        if expected:
            expected.check()
        resolved = {"train": asdict(config), "model": model_config(model)}
        write_json(out / "config.json", resolved)
        keep_origin(out, manifest(resolved, named.hashes(data)))
        if folder.is_record(data):
            _keep_record(folder.load(data), task.stream, out)
        if expected:
            print(f"{config.model}: {expected}", file=sys.stderr, flush=True)
    with Reporter(config, out if tensorboard else None) if rank == 0 else nullcontext() as reporter:
        _loop(config, task, state, checkpoint if rank == 0 else None, reporter, rank, world, probe)
    if world > 1:
        dist.destroy_process_group()
    return _finish(replace(config, data=data), out, task, state) if rank == 0 else {}


def _keep_record(record: folder.Collection, stream: Stream, out: Path) -> None:
    """The division into splits goes with the run, and what was noticed about the images is said once."""
    record.save(out / folder.RECORD)
    shown = [stream.about_balance()] if isinstance(stream, ImageStream) and stream.uneven else []
    for line in (*record.about(), *shown):
        print(f"{record.name}: {line}", file=sys.stderr, flush=True)


def _check_fits(model: Model, batch: Batch, config: TrainConfig) -> None:
    wanted, given = model.config.image, tuple(batch.images.shape[1:])
    if wanted != given:
        raise UserError(f"{config.model} takes images of {wanted}, {config.data} has {given}: choose the other to fit")
    classes = len(named.find(config.data).classes)
    if model.config.classes != classes:
        raise UserError(f"{config.model} tells {model.config.classes} classes apart, {config.data} has {classes}")
    if model.config.objects != batch.labels.shape[1]:
        shown = batch.labels.shape[1]
        raise UserError(
            f"{config.model} looks for {model.config.objects} things in an image, {config.data} shows {shown}"
        )


def _loop(
    config: TrainConfig,
    task: Task,
    state: State,
    checkpoint: Checkpoint | None,
    reporter: Reporter | None,
    rank: int,
    world: int,
    probe: Probe | None = None,
) -> None:
    device = next(state.model.parameters()).device
    wrapped = _parallel(state.model) if world > 1 else state.model
    total_steps = _total_steps(config, len(task.stream))
    steps_per_epoch = max(1, len(task.stream) // config.batch)
    began, last_save = time.perf_counter() - state.seconds, time.perf_counter()
    while True:
        state.seconds = time.perf_counter() - began
        progress = _agree(_progress(config, state, total_steps), world)
        if progress >= 1:
            break
        _watch(state, task, progress)
        factor = learning_rate(config.schedule, progress, state.step, config.warmup, config.decay_steps)
        set_learning_rate(state.optimisers, factor)
        if isinstance(state.model, Scheduled):
            state.model.schedule(progress)
        place = (state.step, rank) if rank else (state.step,)
        torch.manual_seed(generator_for(config.seed, *place).initial_seed())
        batch = task.stream.batch(state.step, config.batch).part(rank, world)
        losses, right = train_step(wrapped, Batch(*(field.to(device) for field in batch)), state.optimisers)
        if state.average is not None:
            _follow(state.average, state.model, min(config.average, (1 + state.step) / (10 + state.step)))
        state.step += 1
        for name, value in {**losses, "train_accuracy": right}.items():
            state.sums[name] = state.sums.get(name, 0.0) + float(value)
        state.summed += 1
        if not torch.isfinite(losses["total"]):
            raise UserError(f"the loss is {float(losses['total'])} at step {state.step}: try a lower --lr")
        if state.step % LOG_EVERY == 0 or state.step == total_steps:
            row = {"step": state.step, "epoch": round(state.step / steps_per_epoch, 3), "lr": config.lr * factor}
            means = _mean(torch.tensor(list(state.sums.values()), dtype=torch.float64) / state.summed, world)
            row |= {name: round(mean, 6) for name, mean in zip(state.sums, means.tolist(), strict=True)}
            state.sums, state.summed = {}, 0
            look = config.stop_at is not None or state.step % steps_per_epoch < LOG_EVERY
            if look and task.validation is not None:
                row["validation_accuracy"] = score(state.best, task.validation)["accuracy"]
            state.rows.append(row | (probe(state.model) if probe else {}))
            if reporter:
                reporter.show(row, progress, state.seconds)
        if checkpoint and time.perf_counter() - last_save > config.checkpoint_seconds:
            state.save(checkpoint)
            last_save = time.perf_counter()
    _watch(state, task, 1.0)
    if checkpoint:
        state.save(checkpoint)


def _total_steps(config: TrainConfig, images: int) -> int | None:
    """Of a budget in steps or epochs, the smaller one of both."""
    epochs = None if config.epochs is None else max(1, round(config.epochs * images / config.batch))
    return min((count for count in (config.steps, epochs) if count is not None), default=None)


def _parallel(model: nn.Module) -> DistributedDataParallel:
    """Not every routing reads poses and activations alike: some parameter of its layers may take no part in a loss."""
    other = any(isinstance(part, Routing) and not isinstance(part, Dynamic | EM) for part in model.modules())
    return DistributedDataParallel(model, broadcast_buffers=False, find_unused_parameters=other)


def train_step(
    model: Callable[..., Any], batch: Batch, optimisers: list[torch.optim.Optimizer]
) -> tuple[dict[str, Tensor], Tensor]:
    """Forward, backward, update; the parts of the loss and the share of images that were right."""
    output = model(batch.images, batch.labels)
    losses = getattr(model, "module", model).loss(output, batch)  # pyright: ignore
    for optimiser in optimisers:
        optimiser.zero_grad()
    losses["total"].backward()
    for optimiser in optimisers:
        optimiser.step()
    return (
        {name: value.detach() for name, value in losses.items()},
        exact_match(output.lengths.detach(), batch.labels).float().mean(),
    )


def _progress(config: TrainConfig, state: State, total_steps: int | None) -> float:
    """The part of the budget that is used up; with two budgets, of the one that ends first."""
    parts = [1.0 if total_steps is None and config.max_seconds is None else 0.0]
    if total_steps is not None:
        parts.append(state.step / total_steps)
    if config.max_seconds is not None:
        parts.append(state.seconds / config.max_seconds)
    return 1.0 if _good_enough(config, state) else max(parts)


def _good_enough(config: TrainConfig, state: State) -> bool:
    reached = state.rows[-1].get("validation_accuracy", 0.0) if state.rows else 0.0
    return config.stop_at is not None and reached >= config.stop_at


def _agree(progress: float, world: int) -> float:
    """All processes follow the first one's clock."""
    if world == 1:
        return progress
    shared = torch.tensor([progress], dtype=torch.float64)
    dist.broadcast(shared, 0)
    return shared.item()


def _mean(values: Tensor, world: int) -> Tensor:
    """Over all processes, whose shares of a batch are equal."""
    if world > 1:
        dist.all_reduce(values)
    return values / world


@torch.no_grad()
def _follow(average: nn.Module, model: nn.Module, decay: float) -> None:
    """An exponential average of the weights; counters are copied."""
    for kept, new in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
        if kept.is_floating_point():
            kept.lerp_(new, 1 - decay)
        else:
            kept.copy_(new)


@torch.no_grad()
def _watch(state: State, task: Task, progress: float) -> None:
    """Keep what the network redraws of a few fixed images, at moments that grow apart: the frames of the animation."""
    if getattr(state.model, "decoder", None) is None or progress < (len(state.frames) / FRAMES) ** 2:
        return
    device = next(state.model.parameters()).device
    state.model.eval()
    pictures = state.model(task.watched.images.to(device), task.watched.labels.to(device)).reconstruction
    state.model.train()
    if pictures is not None:
        state.frames.append((pictures * 255).round().to("cpu", torch.uint8))


def _finish(config: TrainConfig, out: Path, task: Task, state: State) -> dict[str, Any]:
    """Weights, metrics, frames, and the one look at the test set. `result.json` comes last and makes the run whole."""
    model = state.best
    write_rows(out / "metrics.csv", state.rows)
    if state.frames:
        # Of single images the targets are the images themselves; files hold no tensor twice, so each gets its own copy.
        watched = {name: field.clone() for name, field in task.watched._asdict().items()}
        write_tensors(out / "frames.safetensors", {"frames": torch.stack(state.frames), **watched})
    weights_sha256 = write_tensors(out / "model.safetensors", model.state_dict())
    scores = score(model, named.load_test_set(config.data, config.test_pairs))
    result = {
        **scores,
        "model": config.model,
        "parameters": count_parameters(model),
        "seconds": round(state.seconds, 1),
        "steps": state.step,
        "images_seen": state.step * min(config.batch, len(task.stream)),
        "seed": config.seed,
        "selection": f"{config.stop_at:.2%} on validation" if _good_enough(config, state) else "last step",
        "weights_sha256": weights_sha256,
    }
    write_json(out / "result.json", result)
    return result


def defaults_for(model: str, **given: Any) -> TrainConfig:
    """The training that suits a model, with whatever was asked for instead."""
    entry = find(model)
    config = replace(TrainConfig(model, entry.data), **entry.training)
    return replace(config, **{name: value for name, value in given.items() if value is not None})
