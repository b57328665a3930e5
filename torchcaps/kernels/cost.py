"""What a convolution costs, computed: multiplications, bytes moved, calls.

Each way to do it is described by four amounts of work: multiplications; bytes of weights and of pixels, as they are
multiplied; and calls. What a unit of each takes, relative to a large matrix product, a copy and an empty call, was
fitted once to measurements (`benchmarks/conv_costs.py`); how fast this machine does those three is measured once per
machine, by processor time, and rounded so coarsely that other programs hardly change it. Estimates are right within a
third or so, which decides most shapes; what they leave open is measured (`tuning.py`).
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch

from torchcaps.kernels import evidence, winograd
from torchcaps.kernels.dft import factor_count
from torchcaps.kernels.processor_time import one_thread, spent
from torchcaps.kernels.products import bmm


class Conv(NamedTuple):
    """A convolution as its cost sees it. `batch` is rounded up to a power of two."""

    batch: int
    channels: int
    image: tuple[int, int]
    outputs: int
    kernel: tuple[int, int]
    stride: int
    padding: int
    training: bool
    bytes: int = 4
    """Of a number."""

    @property
    def result(self) -> tuple[int, int]:
        down, across = (
            (size + 2 * self.padding - taps) // self.stride + 1
            for size, taps in zip(self.image, self.kernel, strict=True)
        )
        return down, across


class Machine(NamedTuple):
    """Seconds of processor time: for 10⁹ multiplications, for 10⁹ bytes copied, for a call of PyTorch's."""

    products: float
    bytes: float
    call: float


class Work(NamedTuple):
    products: float
    weights: float
    pixels: float
    calls: float = 1

    def seconds(self, machine: Machine, rates: "Work") -> float:
        return (
            rates.products * self.products * machine.products
            + (rates.weights * self.weights + rates.pixels * self.pixels) * machine.bytes
        ) / 1e9 + rates.calls * self.calls * machine.call


# Of what `work` counts, how often it happens or how much slower than a large product or a copy; calls are counted here.
RATES: dict[tuple[str, bool], Work] = {
    ("plain", False): Work(1.14, 2.2, 2.7, 21),
    ("plain", True): Work(3.8, 15, 11, 180),
    ("fourier", False): Work(1.28, 0.66, 6.6, 520),
    ("fourier", True): Work(2.7, 8.7, 16, 540),
    ("tiles", False): Work(1.58, 2.5, 3.9, 250),
    ("tiles", True): Work(3.1, 4.6, 12.4, 480),
    ("columns", False): Work(1.2, 0.1, 3.7, 56),
}
BUSY_MEMORY = 4
"""Threads up to which memory is as many times faster; of more, a quarter counts: those have more channels, too."""


def work(twin: str, conv: Conv) -> Work:
    """Counted; the rates say what of it happens several times."""
    places = math.prod(conv.result)
    kernel = conv.outputs * conv.channels * math.prod(conv.kernel)
    numbers = conv.batch * (conv.channels * math.prod(conv.image) + conv.outputs * places)
    if twin == "plain":
        return Work(conv.batch * kernel * places, conv.bytes * kernel, conv.bytes * numbers)
    if twin == "columns":
        laid_out = conv.batch * places * kernel // conv.outputs
        return Work(conv.batch * kernel * places, conv.bytes * kernel, conv.bytes * laid_out)
    channels, factors, rows = _factors(twin, conv)
    weights = factors * channels * conv.outputs
    return Work(weights * rows, conv.bytes * weights, conv.bytes * factors * rows * (channels + conv.outputs))


def _factors(twin: str, conv: Conv) -> tuple[int, int, int]:
    """Channels of a factor, factors, and rows of a factor's matrix product."""
    if twin == "tiles":
        cut = winograd.cut(conv.result, winograd.taps_of(conv.kernel[0], conv.stride))
        return conv.channels * conv.stride**2, cut.factors, conv.batch * cut.down * cut.across
    taps = [math.ceil(size / conv.stride) for size in conv.kernel]
    return conv.channels * conv.stride**2, factor_count(conv.result, (taps[0], taps[1])), conv.batch


def estimate(conv: Conv, twin: str) -> float:
    """Seconds, on as many threads as PyTorch has now. Calls are not shared out among them, memory only in part."""
    threads = torch.get_num_threads()
    machine = this_machine()
    readers = min(threads, BUSY_MEMORY + (threads - BUSY_MEMORY) / 4)
    shared = Machine(machine.products / threads, machine.bytes / readers, machine.call)
    return work(twin, conv).seconds(shared, RATES[twin, conv.training])


@lru_cache(maxsize=1)
def this_machine() -> Machine:
    """Measured once, then read from the user's cache folder."""
    try:
        found = Machine(**evidence.read()["rates"])
        if all(isinstance(value, float) and 0 < value < 1e3 for value in found):
            return found
    except (KeyError, TypeError):
        pass
    found = Machine(*(_rounded(value) for value in calibrate()))
    evidence.store("rates", found._asdict())
    return found


def calibrate() -> Machine:
    """The least processor time of several tries."""
    side, size, calls = 384, 1 << 25, 300
    matrix, result, one = torch.ones(1, side, side), torch.empty(1, side, side), torch.ones(1)
    source, target = torch.ones(size // 4), torch.ones(size // 4)

    def call_often() -> None:
        for _ in range(calls):
            one.add(one)

    with one_thread(), torch.inference_mode():
        return Machine(
            products=_least(lambda: bmm(matrix, matrix, result)) / side**3 * 1e9,
            bytes=_least(lambda: target.copy_(source)) / size * 1e9,
            call=_least(call_often) / calls,
        )


def _least(call: Callable[[], object], tries: int = 8) -> float:
    return min(spent(call) for _ in range(tries))


def _rounded(value: float) -> float:
    """To a power of √2: what two tries find is nearly always the same then."""
    return 2 ** (round(2 * math.log2(value)) / 2)
