"""What makes matrix capsules, and a CNN of their size, know toys that they have never seen: short trainings.

    python benchmarks/em_trials.py results/em-trials.json --steps 600 --toys 9 6
    python benchmarks/em_trials.py results/em-trials.json --only mine --options '{"lr": 0.006, "augment": {"bend": 2}}'

One toy of each category is kept out of the training set of norb-style and scored; the test set is never looked at. One
toy is a small sample: repeat a trial with another one (`--toys`). Each trial is one line of the table below, or has a
name and options of its own. A finished trial is not repeated, so the command can be stopped and started again.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from torchcaps.core.files import read_json, write_json
from torchcaps.core.types import ModelOutput
from torchcaps.data import resolve, viewpoints
from torchcaps.data.sets import Batch, ScoredSet
from torchcaps.data.transforms import Augmentation
from torchcaps.models.registry import count_parameters, create_model
from torchcaps.training.loop import follow, train_step
from torchcaps.training.optim import learning_rate, make_optimisers, set_learning_rate
from torchcaps.training.runs import manifest
from torchcaps.training.scoring import exact_match, score

EVERY, LOOKS = 4, 4
"""Of the kept toys every fourth image is scored, four times in a training."""
CAPSULES, CNN = "matrix-smallnorb-small", "cnn-smallnorb-norm"
USUAL: dict[str, Any] = {"model": CAPSULES, "network": {}, "lr": 3e-3, "batch": 32, "clip": 5.0, "average": 0.0}
USUAL |= {"augment": {}, "gain": None, "smoothing": 0.0, "decay": 0.0, "reach": None}
MOVED = {"rotation": 10, "scale": 0.2, "shear": 0.15}
BENT = {**MOVED, "bend": 2.0}


def _routed(init_std: float = 0.3, **options: float) -> dict[str, Any]:
    return {"network": {"routing_options": {"iterations": 3, **options}, "init_std": init_std}}


TRIALS: dict[str, dict[str, Any]] = {
    "capsules": {},
    "capsules, two iterations": _routed(iterations=2),
    "capsules, as in the paper": _routed(0.1),
    "capsules, density 1/4, narrow transforms": _routed(0.1, density_scale=0.25),
    "capsules, density 1/8": _routed(density_scale=0.125),
    "capsules, lr 1e-3": {"lr": 1e-3},
    "capsules, lr 6e-3": {"lr": 6e-3},
    "capsules, averaged": {"average": 0.995},
    "capsules, moved": {"augment": MOVED},
    "capsules, bent": {"augment": BENT},
    "capsules, bent, cross entropy": {"augment": BENT, "gain": 2.0},
    "CNN": {"model": CNN},
    "CNN, moved": {"model": CNN, "augment": MOVED},
    "CNN, bent": {"model": CNN, "augment": BENT},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--toys", type=int, nargs="+", default=[9], help="numbers of the toys to keep out, one a trial")
    parser.add_argument("--only", nargs="*", default=list(TRIALS))
    parser.add_argument("--options", type=json.loads, help="of a trial that is not in the table")
    arguments = parser.parse_args()
    command = " ".join(["python", "benchmarks/em_trials.py", *sys.argv[1:]])
    kept = read_json(arguments.out) if arguments.out.exists() else {"command": command, "trials": {}}
    done = kept["trials"]
    for name in arguments.only:
        for toy in arguments.toys:
            for seed in arguments.seeds:
                key = f"{name}, {arguments.steps} steps, without toy {toy}, seed {seed}"
                if key not in done:
                    done[key] = _run({**USUAL, **(arguments.options or TRIALS[name])}, arguments.steps, toy, seed)
                    write_json(arguments.out, kept)
                    shown = ("held_out_accuracy", "train_accuracy", "of_categories", "seconds", "parameters")
                    print(key, *(json.dumps(done[key][part]) for part in shown), file=sys.stderr, flush=True)


def _run(options: dict[str, Any], steps: int, toy: int, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = create_model(options["model"], **_tuples(options["network"])).to(memory_format=torch.channels_last)
    average = deepcopy(model).requires_grad_(False) if options["average"] else None
    data, toys = resolve("norb-style"), viewpoints.read("norb-style", "train").instance
    images = data.images("train")
    if options["reach"] is not None:  # random crops are at most so many pixels from the middle, where the test's is
        edge = (images.images.shape[2] - data.image[1]) // 2 - options["reach"]
        images = replace(images, images=images.images[:, :, edge:-edge, edge:-edge])
    learned, kept = (toys != toy).nonzero()[:, 0], (toys == toy).nonzero()[::EVERY, 0]
    stream = data.stream(images.take(learned), seed, augment=Augmentation(**options["augment"]))
    held_out = data.scored(images.take(kept), len(kept))
    optimisers = make_optimisers(model, "adam", options["lr"])
    for group in optimisers[0].param_groups:
        group["weight_decay"] = options["decay"]
    began, used, right = time.perf_counter(), time.process_time(), 0.0
    held, train = [], []

    def loss(output: ModelOutput, batch: Batch) -> torch.Tensor:
        logits = output.lengths.clamp(1e-6, 1 - 1e-6).logit()
        return cross_entropy(options["gain"] * logits, batch.labels[:, 0], label_smoothing=options["smoothing"])

    for step in range(steps):
        set_learning_rate(optimisers, learning_rate("linear", step / steps, step, 0.05))
        if hasattr(model, "schedule"):
            model.schedule(step / steps)
        batch = stream.batch(step, options["batch"])
        right += float(train_step(model, batch, optimisers, loss if options["gain"] else None, options["clip"])[1])
        if average is not None:
            follow(average, model, min(options["average"], (1 + step) / (10 + step)))
        if (step + 1) % (steps // LOOKS) == 0:
            held.append(round(score(model if average is None else average, held_out)["accuracy"], 4))
            train.append(round(right / (steps // LOOKS), 4))
            right = 0.0
    origin = manifest({"train": {"seed": seed}}, {})
    origin["command"] = " ".join(["python", "benchmarks/em_trials.py", *sys.argv[1:]])
    return {
        "options": options,
        "toy": toy,
        "seed": seed,
        "steps": steps,
        "parameters": count_parameters(model),
        "held_out_accuracy": held,
        "of_categories": _by_category(model if average is None else average, held_out, data.classes),
        "train_accuracy": train,
        "seconds": round(time.perf_counter() - began, 1),
        "processor_seconds": round(time.process_time() - used, 1),
        **{name: origin[name] for name in ("command", "commit", "versions", "machine")},
    }


def _tuples(value: Any) -> Any:
    """JSON has lists where a configuration has tuples."""
    if isinstance(value, dict):
        return {name: _tuples(part) for name, part in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _by_category(model: nn.Module, held_out: ScoredSet, classes: Sequence[str]) -> dict[str, float]:
    """The share of each category's images that are right."""
    answers: list[tuple[torch.Tensor, torch.Tensor]] = []
    score(model, held_out, answers=answers)
    lengths, labels = (torch.cat(parts) for parts in zip(*answers, strict=True))
    right = exact_match(lengths, labels).float()
    return {name: round(float(right[labels[:, 0] == n].mean()), 4) for n, name in enumerate(classes)}


if __name__ == "__main__":
    main()
