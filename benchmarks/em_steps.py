"""Does EM routing stay finite? Thirty thousand training steps of a small matrix-capsule network, each looked at.

    python benchmarks/em_steps.py --seeds 0 1 2

After every step the loss, every gradient and every parameter is checked. The digits are those inside the package, at
half size, so that a run takes minutes; the network has both convolutional capsule layers and the class layer.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import avg_pool2d

from torchcaps import data as named
from torchcaps.data.sets import Batch
from torchcaps.models.matrix import MatrixCaps, MatrixConfig
from torchcaps.training.loop import train_step
from torchcaps.training.optim import learning_rate, make_optimisers, set_learning_rate
from torchcaps.training.runs import manifest

CONFIG = MatrixConfig(image=(1, 14, 14), classes=10, channels=8, primary_types=2, types=(4, 4), kernel=2)
BATCH, LR, LAST = 4, 3e-3, 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--out", type=Path, default=Path("results/em-30000-steps.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs = [_run(seed, arguments.steps) for seed in arguments.seeds]
    origin = manifest({"train": {"seed": arguments.seeds[0]}}, {})
    summary = {
        "command": " ".join(["python", *sys.argv]),
        "seeds": arguments.seeds,
        "steps": arguments.steps,
        "seconds": round(sum(run["seconds"] for run in runs), 1),
        "ever_not_finite": any(run["first_not_finite"] is not None for run in runs),
        "runs": runs,
        **{name: origin[name] for name in ("commit", "versions", "machine")},
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(summary, indent=2) + "\n")
    print(f"{arguments.out}: ever not finite: {summary['ever_not_finite']}, {summary['seconds']} s")


def _run(seed: int, steps: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = MatrixCaps(CONFIG)
    optimisers = make_optimisers(model, "adam", LR)
    stream = named.resolve("mnist-mini").stream(named.images("mnist-mini", "train"), seed)
    began, broken, largest = time.perf_counter(), None, 0.0
    losses, right = [], []
    for step in range(steps):
        progress = step / steps
        set_learning_rate(optimisers, learning_rate("linear", progress, step, 0.05))
        model.schedule(progress)
        images, labels, targets = stream.batch(step, BATCH)
        parts, share = train_step(model, Batch(avg_pool2d(images, 2), labels, targets), optimisers)
        losses.append(parts["total"].item())
        right.append(share.item())
        norm = torch.stack([parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None])
        largest = max(largest, norm.max().item())
        weights = torch.stack([parameter.detach().abs().sum() for parameter in model.parameters()])
        finite = torch.isfinite(parts["total"]) & torch.isfinite(norm).all() & torch.isfinite(weights).all()
        if broken is None and not finite:
            broken = step
    return {
        "seed": seed,
        "first_not_finite": broken,
        "loss": sum(losses[-LAST:]) / len(losses[-LAST:]),
        "train_accuracy": sum(right[-LAST:]) / len(right[-LAST:]),
        "largest_gradient": largest,
        "seconds": round(time.perf_counter() - began, 1),
    }


if __name__ == "__main__":
    main()
