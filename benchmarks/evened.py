"""What routing is worth in a trained network: its accuracy with fewer and more iterations than it was trained with.

    python benchmarks/evened.py capsnet-multimnist-fine multimnist

With one iteration all couplings are equal. Entropy is the share of the largest possible.

Writes `results/evened-MODEL.json`.
"""

import math
import sys
import time
from pathlib import Path

import torch

from torchcaps.core.files import write_json
from torchcaps.core.functional import coupling_entropy
from torchcaps.data import load_test_set
from torchcaps.experiments.fingerprint import of_training
from torchcaps.experiments.statistics import mcnemar
from torchcaps.models.pretrained import PRETRAINED
from torchcaps.models.registry import create_model
from torchcaps.training.runs import manifest
from torchcaps.training.scoring import exact_match, score

MOST = 5
TRACED = 8
"""Batches whose couplings are looked at."""


def main(name: str, data: str) -> None:
    began = time.perf_counter()
    model, test = create_model(name, pretrained=True).eval(), load_test_set(data)
    usual = model.classes.routing.iterations
    right: dict[int, list[bool]] = {}
    for iterations in range(1, MOST + 1):
        model.classes.routing.iterations = iterations
        answers: list[tuple[torch.Tensor, torch.Tensor]] = []
        score(model, test, answers=answers)
        right[iterations] = exact_match(*(torch.cat(column) for column in zip(*answers, strict=True))).tolist()
    model.classes.routing.iterations = usual
    batches = [batch for _, batch in zip(range(TRACED), test.batches(250), strict=False)]
    with torch.no_grad():
        couplings = torch.cat([model(batch.images, trace=True).trace.couplings[-1] for batch in batches])
    entropy = float(coupling_entropy(couplings).mean()) / math.log(couplings.shape[2])
    tested = mcnemar(right[usual], right[1])
    found = {
        "model": name,
        "data": data,
        "code": of_training(name, data),
        "weights_sha256": PRETRAINED[name]["sha256"],
        "images": len(right[usual]),
        "iterations": usual,
        "accuracy": {str(n): sum(values) / len(values) for n, values in right.items()},
        "lost_when_evened": tested.mean,
        "interval": [tested.low, tested.high],
        "p": tested.p,
        "coupling_entropy": entropy,
        "seconds": round(time.perf_counter() - began, 1),
    }
    origin = {**manifest({"train": {"seed": 0}}, {}), "command": f"python benchmarks/evened.py {name} {data}"}
    write_json(Path(__file__).parent.parent / "results" / f"evened-{name}.json", {**origin, **found})
    print({key: found[key] for key in ("accuracy", "lost_when_evened", "p", "coupling_entropy")})


if __name__ == "__main__":
    main(*sys.argv[1:])
