"""A network and images that are not of torchcaps; run as a program, it trains slowly, so that it can be killed."""

import sys
import time

import torch
from torch import Tensor, nn

STEPS = {"steps": 120, "batch": 16, "average": 0.9, "checkpoint_seconds": 0.1, "quiet": True}


def bars(count: int = 240, kind: torch.dtype = torch.uint8) -> tuple[Tensor, Tensor]:
    """A bright row or column in noise: which of the four it is, is the label."""
    noise = torch.Generator().manual_seed(count)
    images = torch.randint(0, 80, (count, 1, 12, 12), generator=noise, dtype=torch.uint8)
    labels = torch.arange(count) % 4
    for n, label in enumerate(labels.tolist()):
        place = (n, 0, 3 + 5 * (label // 2)) if label % 2 else (n, 0, slice(None), 3 + 5 * (label // 2))
        images[place] = 255
    return (images if kind == torch.uint8 else images.to(kind) / 255), labels


class Net(nn.Module):
    """Takes images alone and returns scores."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.Flatten(), nn.LazyLinear(classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


if __name__ == "__main__":
    import own_network

    import torchcaps

    class Slow(own_network.Net):
        def forward(self, images: Tensor) -> Tensor:
            time.sleep(0.02)
            return super().forward(images)

    # The run folder shall name the class that goes on with it.
    Slow.__module__, Slow.__qualname__, Slow.__name__ = "own_network", "Net", "Net"
    torch.manual_seed(1)
    torchcaps.fit(Slow(), bars(), out=sys.argv[1], **STEPS)
