"""How routing grows: cost and memory against batch, children, parents, iterations and image size.

`python benchmarks/growth.py` writes `results/bench/growth.json` and `docs/images/growth.png`. Times are of forward and
backward on one thread, medians; memory is the most that torch's allocator had handed out.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from torchcaps.core.files import write_json
from torchcaps.core.functional import squash, votes
from torchcaps.kernels import fused_routing
from torchcaps.kernels.workspace import keep_freed_memory
from torchcaps.routing import Dynamic, VoteShape
from torchcaps.training.forecast import peak_bytes
from torchcaps.training.runs import manifest

ROOT = Path(__file__).parent.parent
BASE = {"batch": 32, "children": 576, "parents": 10, "iterations": 3}
SWEEPS = {
    "batch": (8, 16, 32, 64, 128),
    "children": (144, 288, 576, 1152, 2304),
    "parents": (5, 10, 20, 40),
    "iterations": (1, 2, 3, 5, 8),
    "image side": (20, 28, 36, 44),
}
REPEATS = 5


def children_of(side: int) -> int:
    """Primary capsules that the paper's network has on a square image."""
    grid = (side - 8 - 9) // 2 + 1
    return 32 * grid * grid


def cost(batch: int, children: int, parents: int, iterations: int) -> dict[str, list[float]]:
    """Milliseconds and megabytes of the kernel and of its plain twin."""
    routing = Dynamic(VoteShape(children, parents, 16), iterations=iterations)
    generator = torch.Generator().manual_seed(0)
    poses = squash(torch.randn(batch, children, 8, generator=generator)).requires_grad_()
    weight = (torch.randn(children, parents, 16, 8, generator=generator) * 0.1).requires_grad_()
    twins: dict[str, Callable[[], object]] = {
        "ours": lambda: fused_routing.route(routing, poses, weight).activations.sum().backward(),
        "plain": lambda: routing(votes(poses, weight)).activations.sum().backward(),
    }
    times: dict[str, list[float]] = {name: [] for name in twins}
    megabytes = {}
    for name, step in twins.items():
        poses.grad = weight.grad = None
        megabytes[name] = peak_bytes(step) / 2**20
    for _ in range(REPEATS):
        for name, step in twins.items():
            start = time.process_time()
            step()
            times[name].append(1e3 * (time.process_time() - start))
    return {name: [statistics.median(times[name]), megabytes[name]] for name in twins}


def sweep(axis: str) -> list[dict[str, object]]:
    rows = []
    for value in SWEEPS[axis]:
        sizes = {**BASE, "children": children_of(value)} if axis == "image side" else {**BASE, axis: value}
        rows.append({"value": value, **cost(**sizes)})
    return rows


def draw(result: dict[str, list[dict]], path: Path) -> None:
    figure, panels = plt.subplots(2, len(result), figsize=(3 * len(result), 5.4), sharex="col", layout="constrained")
    for column, (axis, rows) in enumerate(result.items()):
        for row, (unit, label) in enumerate((("ms", "forward and backward, ms"), ("MB", "peak memory, MB"))):
            panel = panels[row, column]
            for twin, style in (("plain", "o--"), ("ours", "o-")):
                panel.plot([r["value"] for r in rows], [r[twin][row] for r in rows], style, label=twin, markersize=4)
            panel.set_ylim(bottom=0)
            panel.grid(alpha=0.3)
            if column == 0:
                panel.set_ylabel(label)
            if unit == "MB":
                panel.set_xlabel(axis)
    panels[0, 0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    start = time.perf_counter()
    result = {axis: sweep(axis) for axis in SWEEPS}
    seconds = round(time.perf_counter() - start, 1)
    origin = {**manifest({"train": {"seed": 0}}, {}), "command": "python benchmarks/growth.py"}
    write_json(ROOT / "results/bench/growth.json", {**origin, "seconds": seconds, "base": BASE, "sweeps": result})
    draw(result, ROOT / "docs" / "images" / "growth.png")


if __name__ == "__main__":
    main()
