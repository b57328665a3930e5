"""The training loop: a budget in epochs, steps or seconds; checkpoints that survive anything; one process or many.

Every step is a function of the seed and the step's number (see `data/sets.py`), so that a run that was killed and
resumed ends in the same bytes as one that was not. A budget in seconds is the exception: its schedule is the clock's.
"""

import math
import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from torchcaps.core.errors import UserError, argument
from torchcaps.core.progress import say
from torchcaps.data.sets import Batch, generator_for
from torchcaps.kernels import tuning
from torchcaps.models.config import known_kind
from torchcaps.routing import EM, Dynamic, Routing
from torchcaps.training import processes
from torchcaps.training.config import TrainConfig
from torchcaps.training.networks import Loss, as_output, ask, losses_of
from torchcaps.training.optim import learning_rate, set_learning_rate
from torchcaps.training.progress import Reporter
from torchcaps.training.runs import Checkpoint
from torchcaps.training.scoring import exact_match, score
from torchcaps.training.state import State
from torchcaps.training.stopping import Stop
from torchcaps.training.task import Task

Probe = Callable[[nn.Module], dict[str, float]]

LOG_EVERY = 50
FRAMES = 40


@runtime_checkable
class Scheduled(Protocol):
    """A model of which something changes in the course of a training, such as the margin of its loss."""

    def schedule(self, progress: float) -> None: ...


def run_loop(
    config: TrainConfig,
    task: Task,
    state: State,
    checkpoint: Checkpoint | None,
    reporter: Reporter | None,
    stop: Stop,
    *,
    probe: Probe | None = None,
    loss: Loss | None = None,
) -> None:
    """Step until the budget is used up; only the first process has a checkpoint to write and somebody to report to.

    Asked to stop, by Ctrl-C or by a scheduler, it saves first. If one of several processes is asked, all stop.
    """
    rank, world = processes.rank(), processes.world()
    device = next(state.model.parameters()).device
    wrapped = _parallel(state.model) if world > 1 else state.model
    total_steps = config.total_steps(len(task.stream))
    steps_per_epoch = max(1, len(task.stream) // config.batch)
    began_at = state.step
    began, last_save = time.perf_counter() - state.seconds, time.perf_counter()
    while True:
        state.seconds = time.perf_counter() - began
        # All processes follow the first one's clock.
        progress = processes.largest(0.0 if rank else _progress(config, state, total_steps))
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
        shown = Batch(*(field.to(device) for field in batch))
        losses, right = train_step(wrapped, shown, state.optimisers, loss, config.clip)
        if state.average is not None:
            follow(state.average, state.model, min(config.average, (1 + state.step) / (10 + state.step)))
        state.step += 1
        measured = {**losses, "train_accuracy": right}
        numbers = [float(value) for value in (*measured.values(), stop.asked is not None)]
        *means, asked = processes.mean(torch.tensor(numbers, dtype=torch.float64)).tolist()
        for name, value in zip(measured, means, strict=True):
            state.sums[name] = state.sums.get(name, 0.0) + value
        state.summed += 1
        if not math.isfinite(total := dict(zip(measured, means, strict=True))["total"]):
            raise _diverged(f"the loss is {total}", config, state, checkpoint)
        if world > 1 and state.step == began_at + 1:
            # Sums in another order would end in other bytes: all compute as the first one does.
            tuning.use(processes.from_first(tuning.choices))
        if state.step % LOG_EVERY == 0 or state.step == total_steps:
            row = {"step": state.step, "epoch": round(state.step / steps_per_epoch, 3), "lr": config.lr * factor}
            row |= {name: round(total / state.summed, 6) for name, total in state.sums.items()}
            state.sums, state.summed = {}, 0
            look = config.stop_at is not None or state.step % steps_per_epoch < LOG_EVERY
            if look and task.validation is not None:
                row["validation_accuracy"] = score(state.best, task.validation)["accuracy"]
            state.rows.append(row | (probe(state.model) if probe else {}))
            if reporter:
                reporter.show(row, progress, state.seconds)
        if checkpoint and (asked or time.perf_counter() - last_save > config.checkpoint_seconds):
            _save(config, state, checkpoint)
            last_save = time.perf_counter()
            if asked:
                say(f"stopped at step {state.step}, which is saved: go on with {argument('resume', True)}")
        if asked:
            processes.meet()
            stop.now()
    _watch(state, task, 1.0)
    if checkpoint:
        _save(config, state, checkpoint)
    if stop.asked:
        stop.now()


def _save(config: TrainConfig, state: State, checkpoint: Checkpoint) -> None:
    """Weights that are not finite never take the place of good ones."""
    for name, value in state.model.state_dict().items():
        if value.is_floating_point() and not value.isfinite().all():
            raise _diverged(f"{name} is not finite", config, state, checkpoint)
    state.save(checkpoint)


def _diverged(what: str, config: TrainConfig, state: State, checkpoint: Checkpoint | None) -> UserError:
    kept = checkpoint.step() if checkpoint else None
    slower = argument("lr", f"{config.lr / 3:.1g}")
    if kept is None:
        return UserError(f"{what} at step {state.step}: try {slower}")
    on = f"go on from there with {argument('resume', True)} and {slower}"
    return UserError(f"{what} at step {state.step}; the checkpoint of step {kept} is kept: {on}")


def _parallel(model: nn.Module) -> DistributedDataParallel:
    """Not every routing reads poses and activations alike: some parameter of its layers may take no part in a loss."""
    other = any(isinstance(part, Routing) and not isinstance(part, Dynamic | EM) for part in model.modules())
    other |= known_kind(model) is None
    return DistributedDataParallel(model, broadcast_buffers=False, find_unused_parameters=other)


def train_step(
    model: nn.Module,
    batch: Batch,
    optimisers: list[torch.optim.Optimizer],
    loss: Loss | None = None,
    clip: float | None = None,
) -> tuple[dict[str, Tensor], Tensor]:
    """Forward, backward, update; the parts of the loss and the share of images that were right.

    `clip` is the largest norm that the gradient may have.
    """
    returned = ask(model, batch)
    losses = losses_of(model, returned, batch, loss)
    for optimiser in optimisers:
        optimiser.zero_grad()
    losses["total"].backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    for optimiser in optimisers:
        optimiser.step()
    output = as_output(returned, batch.labels.shape[1])
    right = exact_match(output.lengths.detach(), batch.labels).float().mean()
    return {name: value.detach() for name, value in losses.items()}, right


def _progress(config: TrainConfig, state: State, total_steps: int | None) -> float:
    """The part of the budget that is used up; with two budgets, of the one that ends first."""
    parts = [1.0 if total_steps is None and config.max_seconds is None else 0.0]
    if total_steps is not None:
        parts.append(state.step / total_steps)
    if config.max_seconds is not None:
        parts.append(state.seconds / config.max_seconds)
    return 1.0 if good_enough(config, state) else max(parts)


def good_enough(config: TrainConfig, state: State) -> bool:
    reached = state.rows[-1].get("validation_accuracy", 0.0) if state.rows else 0.0
    return config.stop_at is not None and reached >= config.stop_at


@torch.no_grad()
def follow(average: nn.Module, model: nn.Module, decay: float) -> None:
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
    returned = ask(state.model, Batch(*(field.to(device) for field in task.watched)))
    state.model.train()
    if (pictures := getattr(returned, "reconstruction", None)) is not None:
        state.frames.append((pictures * 255).round().to("cpu", torch.uint8))
