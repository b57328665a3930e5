"""Models by name: sizes, overrides, what they answer."""

import pytest
import torch

import torchcaps
from torchcaps.core.errors import UserError
from torchcaps.data.sets import Batch
from torchcaps.models.registry import MODELS, count_parameters, create_model, find
from torchcaps.testing import check_model

SMALL = [name for name in MODELS if "small" in name]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("capsnet-mnist", 8_215_568),
        ("capsnet-multimnist", 11_361_808),
        ("cnn-mnist", 35_445_522),
        ("cnn-multimnist", 24_563_978),
    ],
)
def test_parameters_are_the_papers(name: str, parameters: int) -> None:
    assert count_parameters(create_model(name)) == parameters


def test_parameters_without_decoder_are_the_papers() -> None:
    assert count_parameters(create_model("capsnet-mnist", decoder=None)) == 6_804_224


def test_list_models_is_the_table() -> None:
    assert torchcaps.list_models() == list(MODELS)


@pytest.mark.parametrize("name", ["capsnet-mnist-small", "capsnet-multimnist-small", "capsnet-svhn"])
def test_models_conform(name: str) -> None:
    config = find(name).config
    check_model(create_model(name), config.image, objects=config.objects)


@pytest.mark.parametrize("backbone", ["paper", "compact"])
@pytest.mark.parametrize(("image", "classes"), [((3, 32, 24), 7), ((1, 29, 31), 2), ((4, 40, 40), 3)])
def test_any_size_channels_and_classes(backbone: str, image: tuple[int, int, int], classes: int) -> None:
    model = create_model("capsnet", image=image, classes=classes, backbone=backbone, channels=16, primary_types=2)
    output = model.eval()(torch.rand(2, *image))
    assert output.lengths.shape == (2, classes)
    assert output.reconstruction.shape == (2, *image)


def test_reconstruction_follows_the_labels() -> None:
    model = create_model("capsnet-multimnist-small").eval()
    images = torch.rand(3, 1, 36, 36)
    both = model(images, torch.tensor([[1, 2], [3, 4], [5, 6]])).reconstruction
    assert both.shape == (3, 2, 1, 36, 36)
    first = model(images, torch.tensor([1, 3, 5])).reconstruction
    assert torch.allclose(first, both[:, 0], atol=1e-6)
    longest = model(images)
    assert torch.allclose(
        longest.reconstruction, model(images, longest.lengths.topk(2).indices).reconstruction, atol=1e-6
    )


def test_official_recipe_weighs_reconstruction_twenty_times_more() -> None:
    batch = Batch(torch.rand(2, 1, 28, 28), torch.tensor([[1], [2]]), torch.rand(2, 1, 1, 28, 28))
    parts = {}
    for recipe in ("paper", "official"):
        model = create_model("capsnet-mnist", recipe=recipe, channels=8, primary_types=2).eval()
        losses = model.loss(model(batch.images, batch.labels), batch)
        parts[recipe] = (losses["total"] - 0.0005 * losses["reconstruction"]) / losses["margin"]
    assert parts["paper"].item() == pytest.approx(1.0, rel=1e-4)
    assert parts["official"].item() == pytest.approx(1 / 20, rel=1e-4)
    toys = create_model("capsnet-smallnorb", recipe="official", channels=8, primary_types=2, decoder=None).eval()
    batch = Batch(torch.rand(2, 2, 32, 32), torch.tensor([[1], [2]]), torch.rand(2, 1, 2, 32, 32))
    losses = toys.loss(toys(batch.images), batch)
    assert (losses["total"] / losses["margin"]).item() == pytest.approx(1 / 10), "the mean over five classes, halved"
    assert model.classes.routing.bias is not None
    assert model.primary.divide == 2


def test_bad_requests_are_user_errors() -> None:
    with pytest.raises(UserError, match="capsnet-mnist"):
        create_model("capsnet-mnits")
    with pytest.raises(UserError, match="no option colour"):
        create_model("capsnet-mnist", colour=True)
    with pytest.raises(UserError, match="too small"):
        create_model("capsnet-mnist", image=(1, 6, 6))
    with pytest.raises(UserError, match="no weights"):
        create_model("capsnet-mnist", pretrained=True)
