"""What makes matrix capsules learn with three iterations: short trainings, scored on toys that were held out.

    python benchmarks/em_trials.py results/em-trials.json --steps 1200

One toy of each category is kept out of the training set of norb-style and scored; the test set is never looked at. Each
trial is one line of the table below. A finished trial is not repeated, so the command can be stopped and started again.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from torchcaps.core.files import read_json, write_json
from torchcaps.data import resolve, viewpoints
from torchcaps.data.sets import Batch
from torchcaps.models.registry import count_parameters, create_model
from torchcaps.training.loop import train_step
from torchcaps.training.optim import learning_rate, make_optimisers, set_learning_rate
from torchcaps.training.runs import manifest
from torchcaps.training.scoring import score

BATCH, HELD_OUT, LOOKS = 32, 2048, 4
USUAL: dict[str, Any] = {"lr": 3e-3, "iterations": 3, "density_scale": 1.0, "inverse_temperature": 1.0, "init_std": 0.1}
TRIALS: dict[str, dict[str, Any]] = {
    "two iterations": {"iterations": 2},
    "two iterations, wide transforms": {"iterations": 2, "init_std": 0.3},
    "three iterations": {},
    "density 1/4": {"density_scale": 0.25},
    "density 1/4, wide transforms": {"density_scale": 0.25, "init_std": 0.3},
    "density 1/8, wide transforms": {"density_scale": 0.125, "init_std": 0.3},
    "density 1/16, wide transforms": {"density_scale": 0.0625, "init_std": 0.3},
    "density 1/4, wider transforms": {"density_scale": 0.25, "init_std": 0.5},
    "density 1/4, wide transforms, lr 1e-3": {"density_scale": 0.25, "init_std": 0.3, "lr": 1e-3},
    "density 1/4, wide transforms, lr 6e-3": {"density_scale": 0.25, "init_std": 0.3, "lr": 6e-3},
    "density 1/4, wide transforms, lambda 2": {"density_scale": 0.25, "init_std": 0.3, "inverse_temperature": 2.0},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="*", default=list(TRIALS))
    arguments = parser.parse_args()
    done = read_json(arguments.out) if arguments.out.exists() else {}
    for seed in arguments.seeds:
        for name in arguments.only:
            key = f"{name}, {arguments.steps} steps, seed {seed}"
            if key in done:
                continue
            done[key] = _run({**USUAL, **TRIALS[name]}, arguments.steps, seed)
            write_json(arguments.out, done)
            print(key, json.dumps(done[key]["held_out_accuracy"]), file=sys.stderr, flush=True)


def _run(options: dict[str, Any], steps: int, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    routing = {name: options[name] for name in ("iterations", "density_scale", "inverse_temperature")}
    model = create_model("matrix-smallnorb-small", routing_options=routing, init_std=options["init_std"])
    data = resolve("norb-style")
    toys = viewpoints.read("norb-style", "train").instance
    images = data.images("train")
    learned, kept = ((toys != toys.max()).nonzero()[:, 0], (toys == toys.max()).nonzero()[:, 0])
    stream = data.stream(images.take(learned), seed)
    order = torch.randperm(len(kept), generator=torch.Generator().manual_seed(0))[:HELD_OUT]
    held_out = data.scored(images.take(kept[order].sort().values), HELD_OUT)
    optimisers = make_optimisers(model, "adam", options["lr"])
    began, right, held, train = time.perf_counter(), 0.0, [], []
    for step in range(steps):
        set_learning_rate(optimisers, learning_rate("linear", step / steps, step, 0.05))
        model.schedule(step / steps)
        right += float(train_step(model, Batch(*stream.batch(step, BATCH)), optimisers)[1])
        if (step + 1) % (steps // LOOKS) == 0:
            held.append(round(score(model, held_out)["accuracy"], 4))
            train.append(round(right / (steps // LOOKS), 4))
            right = 0.0
    origin = manifest({"train": {"seed": seed}}, {})
    origin["command"] = " ".join(["python", "benchmarks/em_trials.py", *sys.argv[1:]])
    return {
        "options": options,
        "seed": seed,
        "steps": steps,
        "batch": BATCH,
        "parameters": count_parameters(model),
        "held_out_accuracy": held,
        "train_accuracy": train,
        "seconds": round(time.perf_counter() - began, 1),
        **{name: origin[name] for name in ("command", "commit", "versions", "machine")},
    }


if __name__ == "__main__":
    main()
