"""Memory and time of a training before it begins: for this model, this batch, this machine.

A few small steps are run for real and extrapolated. Every part of a step grows linearly with the batch, from a constant
that weights, gradients, optimiser and the transformed weights take; so two batches are enough to know the line.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from torchcaps.core.errors import UserError, argument
from torchcaps.core.machine import memory_available
from torchcaps.data.sets import Batch
from torchcaps.kernels import workspace
from torchcaps.training.networks import Loss, ask, losses_of

SAMPLES = (16, 32)
RESERVED = 0.1
"""Share of the free memory that is left alone."""
AT_ONCE = 0.5
"""Seconds of a step below which the batch itself is tried."""


@dataclass(frozen=True)
class Forecast:
    """What a training will take; `available_bytes` is what there is."""

    model: str
    batch: int
    bytes: int
    available_bytes: int
    seconds_per_step: float
    seconds_per_epoch: float
    largest_batch: int

    def __str__(self) -> str:
        seconds = self.seconds_per_epoch
        epoch = f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.1f} s"
        return f"about {self.bytes / 2**20:,.0f} MB, and {epoch} for an epoch"

    @property
    def fits(self) -> bool:
        return self.batch <= self.largest_batch

    def check(self) -> None:
        """Refuse what will not fit, and say what would."""
        if self.fits:
            return
        needed, free = (f"{count / 2**30:.1f} GB" for count in (self.bytes, self.available_bytes))
        if self.largest_batch < 1:
            raise UserError(f"{self.model} needs {needed} and {free} are free: choose a smaller model")
        raise UserError(
            f"{self.model} needs {needed} at a batch of {self.batch} and {free} are free: "
            f"{argument('batch', self.largest_batch)} fits"
        )


def measure(
    model: str,
    network: nn.Module,
    shape: Any,
    batch: int,
    images: int,
    *,
    loss: Loss | None = None,
    available_bytes: int | None = None,
) -> Forecast:
    """For an epoch of `images`; `shape` has the network's `image`, `classes` and `objects`.

    Runs a few steps, on small batches first, so it takes seconds; the network is not used afterwards.
    """
    if batch < 1:
        raise UserError(f"the batch must be at least 1, not {batch}")
    (few_bytes, few_seconds), (many_bytes, many_seconds) = (
        _step(network, random_batch(shape, size), loss) for size in SAMPLES
    )
    more = SAMPLES[1] - SAMPLES[0]
    per_image, slope = max(1.0, (many_bytes - few_bytes) / more), max(0.0, (many_seconds - few_seconds) / more)
    # Weights and the two moments that Adam keeps of each; their gradients are among the step's own allocations.
    fixed = max(0.0, few_bytes - SAMPLES[0] * per_image) + 3 * sum(p.nbytes for p in network.parameters())
    seconds = max(0.0, few_seconds - SAMPLES[0] * slope) + batch * slope
    available = memory_available() if available_bytes is None else available_bytes
    largest = int(((1 - RESERVED) * available - fixed) // per_image)
    needed = int(fixed + batch * per_image)
    if seconds < AT_ONCE and 4 * needed < available:
        # Kernels are chosen by the size of the batch: where trying costs nothing, it is tried.
        used, seconds = _step(network, random_batch(shape, batch), loss)
        needed = used + 3 * sum(p.nbytes for p in network.parameters())
    return Forecast(model, batch, needed, available, seconds, seconds * images / batch, max(0, largest))


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that torch's CPU allocator had handed out at once during `work`, beyond what was out before.

    What earlier work left to the garbage collector is not collected meanwhile: it would be taken off.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.profiler.profile(profile_memory=True) as profile:
            work()
    finally:
        if collecting:
            gc.enable()
    assert profile.profiler is not None
    changes = [event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]  # pyright: ignore
    return max(accumulate(changes), default=0)


def _step(model: nn.Module, batch: Batch, loss: Loss | None) -> tuple[int, float]:
    """Bytes and seconds of forward and backward."""

    def work() -> None:
        model.zero_grad()
        losses_of(model, ask(model, batch), batch, loss)["total"].backward()

    work()
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    model.zero_grad()
    workspace.clear()
    used = peak_bytes(work)
    workspace.clear()
    return used, seconds


def random_batch(config: Any, size: int) -> Batch:
    images = torch.rand(size, *config.image)
    labels = torch.rand(size, config.classes).argsort(1)[:, : config.objects]
    return Batch(images, labels, images[:, None].repeat(1, config.objects, 1, 1, 1))
