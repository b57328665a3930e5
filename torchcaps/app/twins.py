"""What the benchmarks measure, in three versions: plain PyTorch, the same through `torch.compile`, and torchcaps.

The plain twin is written as a careful user would write it: direct convolution, votes stored once in the layout that
measures faster (`[b j i d]`, where both contractions are batched matrix products), the routing loop as in the paper.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps import data
from torchcaps.core.functional import length, squash
from torchcaps.core.types import Capsules, RoutingOutput
from torchcaps.data.sets import Batch
from torchcaps.models.registry import create_model, find
from torchcaps.nn.dense import DenseCaps
from torchcaps.training.loop import ask, losses_of, train_step
from torchcaps.training.optim import make_optimisers

Twin = Literal["plain", "compiled", "ours"]
Work = Callable[[], object]
PARENTS, DIM, CHILD_DIM = 10, 16, 8
PAPERS = ("capsnet-mnist", "capsnet-multimnist")


class StoredVotes(nn.Module):
    """Dynamic routing on stored votes; takes the place of a `DenseCaps`."""

    def __init__(self, layer: DenseCaps) -> None:
        super().__init__()
        self.weight, self.routing = layer.weight, layer.routing
        self.sharpness = float(getattr(layer.routing, "sharpness", 1.0))

    def forward(self, capsules: Capsules, trace: bool = False) -> RoutingOutput:
        v = stored_votes_routing(capsules.poses, self.weight, self.routing.iterations, self.sharpness)
        return RoutingOutput(v, length(v))


def stored_votes_routing(
    poses: Float[Tensor, "b i p"], weight: Float[Tensor, "i j d p"], iterations: int = 3, sharpness: float = 1.0
) -> Float[Tensor, "b j d"]:
    u_hat = torch.einsum("bip,ijdp->bjid", poses, weight).contiguous()
    b = u_hat.new_zeros(u_hat.shape[:3])
    v = u_hat[:, :, :1]
    for r in range(iterations):
        v = squash(b.softmax(1).unsqueeze(2) @ u_hat)
        if r < iterations - 1:
            b = b + sharpness * (u_hat @ v.transpose(2, 3)).squeeze(3)
    return v.squeeze(2)


def _model(name: str, twin: Twin) -> nn.Module:
    torch.manual_seed(0)
    model = create_model(name)
    if twin == "ours":
        return model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    if isinstance(getattr(model, "classes", None), DenseCaps):
        model.classes = StoredVotes(model.classes)  # pyright: ignore
    return model


def _batch(name: str, size: int) -> Batch:
    config = find(name).config
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(size, *config.image, generator=generator)
    labels = torch.rand(size, config.classes, generator=generator).argsort(1)[:, : config.objects]
    return Batch(images, labels, images[:, None].repeat(1, config.objects, 1, 1, 1))


def training(name: str, size: int, twin: Twin) -> Work:
    """One step: forward, loss, backward, update."""
    model, batch = _model(name, twin), _batch(name, size)
    if twin == "compiled":
        return _compiled_step(model, batch)
    plain: list[torch.optim.Optimizer] = [torch.optim.Adam(model.parameters(), 1e-5)]
    optimisers = make_optimisers(model, "adam", 1e-5) if twin == "ours" else plain
    return lambda: train_step(model, batch, optimisers)


def _compiled_step(model: nn.Module, batch: Batch) -> Work:
    """Network, loss and their backward pass compiled; the update is the optimiser's own fused loop."""
    optimiser = torch.optim.Adam(model.parameters(), 1e-5, fused=True)

    @torch.compile
    def total() -> Tensor:
        return losses_of(model, ask(model, batch), batch)["total"]

    def step() -> None:
        optimiser.zero_grad()
        total().backward()
        optimiser.step()

    return step


def inference(name: str, size: int, twin: Twin) -> Work:
    model, batch = _model(name, twin).eval(), _batch(name, size)
    if twin == "compiled":
        model.compile()

    @torch.no_grad()
    def answer() -> Tensor:
        return model(batch.images).lengths

    return answer


def routing(children: int, size: int, twin: Twin) -> Work:
    """Votes and routing, forward and backward."""
    layer = DenseCaps(children, CHILD_DIM, PARENTS, DIM)
    generator = torch.Generator().manual_seed(0)
    poses = squash(torch.randn(size, children, CHILD_DIM, generator=generator)).requires_grad_()
    capsules = Capsules(poses, length(poses).detach())
    chosen = layer if twin == "ours" else StoredVotes(layer)
    if twin == "compiled":
        chosen.compile()

    def step() -> None:
        layer.weight.grad = poses.grad = None
        chosen(capsules).activations.sum().backward()

    return step


def pairs(size: int, twin: Twin) -> Work:
    """A batch of overlapping digits. The plain twin is the usual data set: one pair at a time, then stacked."""
    digits = data.images("mnist-mini", "train")
    if twin == "ours":
        stream = data.resolve("multimnist-mini").stream(digits, 0)
        steps = iter(range(10**9))
        return lambda: stream.batch(next(steps), size)
    generator = torch.Generator().manual_seed(0)

    def one() -> tuple[Tensor, Tensor]:
        while True:
            chosen = torch.randint(len(digits), (2,), generator=generator)
            if digits.labels[chosen[0]] != digits.labels[chosen[1]]:
                break
        canvas = torch.zeros(2, 36, 36)
        for number, (y, x) in enumerate(torch.randint(0, 9, (2, 2), generator=generator).tolist()):
            canvas[number, y : y + 28, x : x + 28] = digits.images[chosen[number], 0] / 255
        return canvas.sum(0).clamp(max=1), canvas

    return lambda: [torch.stack(column) for column in zip(*(one() for _ in range(size)), strict=True)]


CASES: dict[str, tuple[Callable[[int, Twin], Work], int]] = {
    **{f"train {name}": (partial(training, name), 128) for name in (*PAPERS, *(f"{name}-small" for name in PAPERS))},
    **{f"infer {name}": (partial(inference, name), 256) for name in PAPERS},
    "train matrix-smallnorb": (partial(training, "matrix-smallnorb"), 8),
    "train matrix-smallnorb-small": (partial(training, "matrix-smallnorb-small"), 32),
    "infer capsnet-multimnist-small": (partial(inference, "capsnet-multimnist-small"), 256),
    "infer capsnet-mnist, one image": (partial(inference, "capsnet-mnist"), 1),
    "routing 1152 children": (partial(routing, 1152), 128),
    "routing 3200 children": (partial(routing, 3200), 128),
    "data multimnist": (pairs, 128),
}
"""By name: what is measured, and the batch at which."""
COMPILED = tuple(name for name in CASES if not name.startswith("data"))
"""Of which there is also a compiled twin."""
