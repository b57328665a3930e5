"""Compiles models as one graph and prints what came out as JSON; in a process of its own, without the shape checks."""

import json
import sys

import torch

from torchcaps.data.sets import Batch
from torchcaps.models.registry import create_model


def step(network, model, batch: Batch) -> tuple[torch.Tensor, list[torch.Tensor]]:
    model.zero_grad()
    output = network(batch.images, batch.labels)
    model.loss(output, batch)["total"].backward()
    return output.lengths.detach(), [p.grad.clone() for p in model.parameters()]


def differences(name: str, training: bool, overrides: dict) -> dict[str, float]:
    """Largest difference of lengths, and of gradients relative to the largest of each parameter."""
    torch.manual_seed(0)
    model = create_model(name, **overrides).train(training)
    config, size = model.config, 2
    images = torch.rand(size, *config.image)
    labels = torch.arange(size * config.objects).reshape(size, -1) % config.classes
    batch = Batch(images, labels, images[:, None].repeat(1, config.objects, 1, 1, 1))
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    # Dropout and batch normalisation: both see the same state.
    state = {key: value.clone() for key, value in model.state_dict().items()}
    answers = []
    for network in (model, compiled):
        model.load_state_dict(state)
        torch.manual_seed(1)
        answers.append(step(network, model, batch))
    (plain, gradients), (ours, same) = answers
    scaled = [(a - b).abs().max() / b.abs().max().clamp(min=1e-6) for a, b in zip(same, gradients, strict=True)]
    return {"lengths": float((ours - plain).abs().max()), "gradients": float(max(scaled))}


if __name__ == "__main__":
    cases = json.loads(sys.argv[1])
    print(json.dumps([differences(*case) for case in cases]))
