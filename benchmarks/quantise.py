"""Would eight-bit integers make inference faster? `python benchmarks/quantise.py`.

The paper's primary-capsule convolution, where most of the time of inference is: PyTorch's float32 convolution,
ours among frequencies, and PyTorch's int8 convolution, interleaved. Writes `results/bench/quantise.json`. Inputs are
already quantised and the result is left so: the integer kernel alone is timed, which flatters it.
"""

import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from torchcaps.core.files import write_json
from torchcaps.kernels.phase_conv import phase_conv2d
from torchcaps.kernels.workspace import keep_freed_memory
from torchcaps.training.runs import manifest

RESULT = Path(__file__).parent.parent / "results" / "bench" / "quantise.json"
BATCH, WARM_UP, REPEATS = 256, 3, 10


@torch.no_grad()
def main() -> None:
    keep_freed_memory()
    torch.manual_seed(0)
    images = torch.rand(BATCH, 256, 20, 20).contiguous(memory_format=torch.channels_last)
    conv = nn.Conv2d(256, 256, 9, stride=2).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    twins = {
        "float32": lambda: conv(images),
        "float32 among frequencies": lambda: phase_conv2d(images, conv.weight, conv.bias, 2),
        "int8": _integer(conv, images),
    }
    start = time.perf_counter()
    times: dict[str, list[float]] = {name: [] for name in twins}
    for repeat in range(WARM_UP + REPEATS):
        for name, work in twins.items():
            began = time.perf_counter()
            work()
            if repeat >= WARM_UP:
                times[name].append(1e3 * (time.perf_counter() - began))
    rows = {
        name: {"ms": round(statistics.median(t), 1), "range": [round(min(t), 1), round(max(t), 1)]}
        for name, t in times.items()
    }
    seconds = round(time.perf_counter() - start, 1)
    origin = {**manifest({"train": {"seed": 0}}, {}), "command": "python benchmarks/quantise.py"}
    write_json(RESULT, {**origin, "seconds": seconds, "batch": BATCH, "repeats": REPEATS, "rows": rows})


def _integer(conv: nn.Conv2d, images: torch.Tensor) -> Callable[[], object]:
    weight = torch.quantize_per_tensor(conv.weight, 1 / 127 / 144, 0, torch.qint8)
    packed = torch.ops.quantized.conv2d_prepack(weight, conv.bias, [2, 2], [0, 0], [1, 1], 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = torch.quantize_per_tensor(images, 1 / 127, 0, torch.quint8)
    return lambda: torch.ops.quantized.conv2d(whole, packed, 0.02, 64)


if __name__ == "__main__":
    main()
