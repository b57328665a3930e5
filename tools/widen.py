"""Train a wider network on from the weights of a narrower one in the package, whose answers it gives at the start.

    python tools/widen.py capsnet-multimnist-fine capsnet-multimnist-wide --steps 50000 --lr 0.007 --out runs/wide

Chen, Goodfellow and Shlens, "Net2Net: Accelerating learning via knowledge transfer", 2016. The channels that are new
have random weights of their own, but nothing that was there before reads them yet.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor, nn

from torchcaps.data import resolve
from torchcaps.models.registry import create_model, find
from torchcaps.training.config import defaults_for
from torchcaps.training.recipes import chosen_augmentation
from torchcaps.training.train import train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("narrow", help="a model whose weights are in the package")
    parser.add_argument("wide", help="the same with more channels")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--validation", type=int, default=2000)
    parser.add_argument("--augment", type=json.loads, help="amounts of augmentation, such as '{\"noise\": 0.08}'")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    model = create_model(given.wide)
    widen(create_model(given.narrow, pretrained=True), model)
    name = find(given.wide).data
    data = resolve(name)
    budget = {"steps": given.steps, "lr": given.lr, "seed": given.seed, "validation": given.validation}
    augment = chosen_augmentation(data, given.augment)
    config = defaults_for(given.wide, data=name, augment=augment, **budget)
    train(config, given.out, module=model.to(memory_format=torch.channels_last), data=data)  # pyright: ignore


@torch.no_grad()
def widen(narrow: nn.Module, wide: nn.Module) -> None:
    """Give `wide` the weights of `narrow`, so that it computes the same."""
    before = narrow.state_dict()
    for name, value in wide.state_dict().items():
        value.copy_(_widened(before[name], value))


def _widened(small: Tensor, large: Tensor) -> Tensor:
    """The small one in the corner; old rows read no new channel, new rows begin as they are."""
    found = large.clone()
    if small.ndim > 1:
        found[: len(small)] = 0
    found[tuple(slice(size) for size in small.shape)] = small
    return found


if __name__ == "__main__":
    main()
