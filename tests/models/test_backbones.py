from pathlib import Path

import pytest
import torch
from torch import nn

import torchcaps
from torchcaps.models.backbones import PhotoBackbone, Whitening, whiten
from torchcaps.training.runs import load_run


def smooth_images(count: int, channels: int = 3, side: int = 16) -> torch.Tensor:
    """Neighbouring pixels and colours are alike, as in photographs."""
    generator = torch.Generator().manual_seed(0)
    blurred = nn.functional.avg_pool2d(torch.rand(count, channels, side + 4, side + 4, generator=generator), 5, 1)
    return 0.5 * blurred + 0.5 * blurred.mean(1, keepdim=True)


def test_whitened_patches_are_uncorrelated_with_unit_variance() -> None:
    images = 4 * smooth_images(64)
    layer = Whitening(3, 2, 1)
    layer.fit_to(images)
    found = layer(images).detach()[:, :12].permute(1, 0, 2, 3).flatten(1).cov()
    # Directions of hardly any variance are not blown up to one.
    strength = found.diagonal()
    assert strength[0] == pytest.approx(1, abs=0.02)
    assert (strength <= 1.001).all()
    assert (found - strength.diag()).abs().max() < 1e-3
    assert torch.equal(layer.weight[:12], -layer.weight[12:])


def test_patches_with_fewer_values_than_directions() -> None:
    layer = Whitening(1, 2, 1)
    assert layer.out_channels == 8
    layer.fit_to(smooth_images(8, channels=1))
    assert layer.weight.isfinite().all()


@pytest.mark.parametrize("image", [(3, 8, 8), (1, 9, 30), (3, 64, 16), (2, 32, 32), (3, 48, 48), (3, 224, 160)])
def test_the_backbone_for_photographs_takes_images_of_any_size(image: tuple[int, int, int]) -> None:
    network = PhotoBackbone(image, 16)
    whiten(network, torch.rand(2, *image))
    rows, columns = network(torch.rand(2, *image)).shape[2:]
    assert network.training
    assert min(rows, columns) >= 1
    assert max(rows, columns) <= 7


def test_a_training_begins_with_whitened_patches_and_keeps_them(tmp_path: Path) -> None:
    images, labels = smooth_images(40), torch.arange(40) % 2
    chosen = {"channels": 16, "primary_types": 2, "decoder": None}
    torchcaps.fit("capsnet", (images, labels), steps=3, batch=8, out=tmp_path, overrides=chosen, quiet=True)
    layer = load_run(tmp_path)[0].backbone[0]
    assert isinstance(layer, Whitening)
    assert torch.equal(layer.weight[:12], -layer.weight[12:])
    assert layer.bias is not None
    assert layer.bias.abs().max() > 0


def test_a_network_handed_over_is_whitened_once(tmp_path: Path) -> None:
    images, labels = smooth_images(40), torch.arange(40) % 2
    network = torchcaps.create_model("capsnet", image=(3, 16, 16), classes=2, channels=16, decoder=None)
    assert not network.backbone[0].fitted
    torchcaps.fit(network, (images, labels), steps=1, batch=8, out=tmp_path / "a", quiet=True)
    assert network.backbone[0].fitted
    kept = network.backbone[0].weight.clone()
    torchcaps.fit(network, (1 - images, labels), steps=1, batch=8, out=tmp_path / "b", quiet=True)
    assert torch.equal(network.backbone[0].weight, kept)


def test_the_network_for_cifar10_is_that_of_the_released_code() -> None:
    network = torchcaps.create_model("capsnet-cifar10", channels=8)
    assert network.grid == (64, 12, 12)
    assert network.primary.divide == 65
    assert network.config.standardise


@pytest.mark.parametrize(("image", "grid"), [((1, 24, 24), (12, 12)), ((1, 15, 10), (8, 5))])
def test_padding_keeps_half_of_the_positions(image: tuple[int, int, int], grid: tuple[int, int]) -> None:
    network = torchcaps.create_model("capsnet-mnist", image=image, backbone="paper-padded", channels=8, decoder=None)
    assert network.grid[1:] == grid


def test_networks_without_such_a_layer_are_left_alone() -> None:
    network = nn.Conv2d(3, 4, 3)
    before = network.weight.clone()
    whiten(network, torch.rand(2, 3, 8, 8))
    assert torch.equal(network.weight, before)
