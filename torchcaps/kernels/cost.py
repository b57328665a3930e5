"""What a convolution costs, computed: multiplications, bytes moved, calls.

Each way to do it is described by four amounts of work: multiplications; bytes of weights and of pixels, as they are
multiplied; and calls. What a unit of each takes, relative to a large matrix product, a copy and an empty call, was
fitted to measurements (`benchmarks/conv_costs.py`). How fast those three are is a constant for each level of vectors,
measured on one machine: only their ratios matter, and a machine three times slower had the same ones within a half. So
no estimate depends on what else runs, and all processes on a machine compute the same. Most estimates are right within
a third; what that leaves open is measured in inference, but not in training (`tuning.py`).
"""

import math
from typing import NamedTuple

import torch

from torchcaps.kernels import native, winograd
from torchcaps.kernels.dft import factor_count


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


MACHINES = {"AVX512": Machine(0.0076, 0.0344, 6.8e-7), "AVX2": Machine(0.0168, 0.0345, 6.8e-7)}
"""A core of an AMD EPYC (2025), by PyTorch's name of the level; others are taken for the last."""
# Of what `work` counts, how often it happens or how much slower than a large product or a copy; calls are counted here.
RATES: dict[tuple[str, bool], Work] = {
    ("plain", False): Work(1.08, 3.87, 2.16, 42),
    ("plain", True): Work(2.69, 9.24, 14.9, 360),
    ("fourier", False): Work(0.99, 1.4, 7.3, 114),
    ("fourier", True): Work(1.59, 7.73, 17.6, 348),
    ("tiles", False): Work(1.08, 0.39, 1.9, 77),
    ("tiles", True): Work(2.44, 3.76, 6.03, 228),
    ("columns", False): Work(1.37, 0, 5.1, 50),
}
LANES = 8
"""Channels that the loops of `fourier` and `tiles` take at a time: fewer cost as much."""
UNAIDED = 1.75
"""How many times longer `fourier` takes without its loops in C."""
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
    factors, rows = _factors(twin, conv)
    phases = conv.stride**2
    weights = factors * phases * conv.channels * conv.outputs
    inputs, outputs = phases * _filled(conv.channels), _filled(conv.outputs)
    return Work(
        factors * inputs * outputs * rows, conv.bytes * weights, conv.bytes * factors * rows * (inputs + outputs)
    )


def _factors(twin: str, conv: Conv) -> tuple[int, int]:
    """Factors, and rows of a factor's matrix product."""
    if twin == "tiles":
        cut = winograd.cut(conv.result, winograd.taps_of(conv.kernel[0], conv.stride))
        return cut.factors, conv.batch * cut.down * cut.across
    taps = [math.ceil(size / conv.stride) for size in conv.kernel]
    return factor_count(conv.result, (taps[0], taps[1])), conv.batch


def _filled(channels: int) -> int:
    return -(-channels // LANES) * LANES


def estimate(conv: Conv, twin: str) -> float:
    """Seconds, on as many threads as PyTorch has now. Calls are not shared out among them, memory only in part."""
    threads = torch.get_num_threads()
    machine = this_machine()
    readers = min(threads, BUSY_MEMORY + (threads - BUSY_MEMORY) / 4)
    shared = Machine(machine.products / threads, machine.bytes / readers, machine.call)
    seconds = work(twin, conv).seconds(shared, RATES[twin, conv.training])
    unaided = twin == "fourier" and (conv.bytes != 4 or native.library("dft") is None)
    return UNAIDED * seconds if unaided else seconds


def this_machine() -> Machine:
    return MACHINES.get(torch.backends.cpu.get_cpu_capability(), MACHINES["AVX2"])
