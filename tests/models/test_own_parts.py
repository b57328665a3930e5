"""Routings, backbones, hidden layers and models from outside: built, saved as JSON, built again, trained."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support import as_installed
from torch import Tensor, nn

import torchcaps
from torchcaps.core.errors import UserError
from torchcaps.core.types import ModelOutput, RoutingOutput
from torchcaps.data.named import resolve
from torchcaps.data.sets import Batch, ImageStream
from torchcaps.models.capsnet import CapsNet, CapsNetConfig
from torchcaps.models.config import KINDS, model_config, model_from_config
from torchcaps.models.registry import MODELS, count_parameters, create_model, register_model
from torchcaps.nn import squash
from torchcaps.routing import ROUTINGS, Dynamic, Routing, VoteShape

TINY: dict[str, Any] = {"backbone": "compact", "channels": 16, "primary_types": 2, "decoder": None}
IMAGES = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))


class Summed(Routing):
    """Every child to every parent alike, `times` times."""

    def __init__(self, shape: VoteShape, *, times: int = 1) -> None:
        super().__init__()
        self.times = times
        self.bias = nn.Parameter(torch.zeros(shape.parents, shape.dim))

    def forward(self, votes, children, *, competition=None, trace=False):
        poses = squash(self.times * votes.sum(1) + self.bias)
        return RoutingOutput(poses, poses.norm(dim=-1))


class Features(nn.Module):
    """A small network in the style of timm's: `give` is what it returns."""

    def __init__(self, give: str = "map") -> None:
        super().__init__()
        self.give = give
        self.first = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 12, 3, 2, 1), nn.BatchNorm2d(12), nn.ReLU())

    def forward(self, images: Tensor) -> Any:
        first = self.first(images)
        last = self.second(first)
        tokens = last.flatten(2).mT
        return {"map": last, "list": [first, last], "vector": last.mean((2, 3)), "tokens": tokens}[self.give]


@pytest.fixture
def tables() -> Iterator[None]:
    """What a test registers is forgotten after it."""
    before = [(table, dict(table)) for table in (ROUTINGS, MODELS, KINDS)]
    yield
    for table, content in before:
        table.clear()
        table.update(content)


def again(model: CapsNet, **given: Any) -> CapsNet:
    """From JSON, with the same weights and answers."""
    other = model_from_config(json.loads(json.dumps(model_config(model))), **given)
    assert isinstance(other, CapsNet)
    other.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(IMAGES).lengths, other.eval()(IMAGES).lengths)
    assert model_config(other) == model_config(model)
    return other


def test_own_routing_by_class_name_and_instance_comes_back(tables: None) -> None:
    by_class = create_model("capsnet", routing=Summed, routing_options={"times": 3}, **TINY)
    assert again(by_class).classes.routing.times == 3
    children, parents, dim = by_class.classes.weight.shape[:3]
    instance = Summed(VoteShape(children, parents, dim), times=2)
    by_hand = create_model("capsnet", routing=instance, **TINY)
    assert by_hand.classes.routing is instance
    assert again(by_hand).classes.routing.times == 2
    biased = Dynamic(VoteShape(children, parents, dim), iterations=2, bias=True)
    assert again(create_model("capsnet", routing=biased, **TINY)).classes.routing.iterations == 2
    torchcaps.register_routing("summed", Summed)
    by_name = create_model("capsnet", routing="summed", **TINY)
    assert model_config(by_name)["routing"] == {"class": f"{__name__}:Summed"}
    again(by_name)
    with pytest.raises(UserError, match="instance already"):
        create_model("capsnet", routing=instance, routing_options={"times": 3}, **TINY)
    with pytest.raises(UserError, match="was made for"):
        create_model("capsnet", routing=Summed(VoteShape(3, 10, 16)), **TINY)


def test_loading_says_which_import_is_missing(tables: None, monkeypatch: pytest.MonkeyPatch) -> None:
    torchcaps.register_routing("summed", Summed)
    config = json.loads(json.dumps(model_config(create_model("capsnet", routing="summed", **TINY))))
    monkeypatch.delitem(sys.modules, __name__)
    with pytest.raises(UserError, match=f"'import {__name__}' first"):
        model_from_config(config)


@pytest.mark.parametrize("path", [f"{__name__}:Gone", f"{__name__}:Features", "torch.nn:Linear", "os:system"])
def test_a_routing_that_is_not_there_is_refused(path: str) -> None:
    config = model_config(create_model("capsnet", **TINY))
    with pytest.raises(UserError, match="no such routing"):
        model_from_config({**config, "routing": {"class": path}})


def test_hidden_layers_come_back_each_with_its_routing() -> None:
    hidden = ((12, 8), (9, 6, "self-attention"), (8, 4, Summed))
    model = again(create_model("capsnet", hidden=hidden, **TINY))
    assert [layer.weight.shape[1:3] for layer in model.hidden] == [(12, 8), (9, 6), (8, 4)]
    assert [type(layer.routing).__name__ for layer in model.hidden] == ["Dynamic", "SelfAttention", "Summed"]
    output = model(IMAGES, trace=True)
    assert output.children.poses.shape == (2, 8, 4)
    assert output.trace.couplings.shape == (3, 2, 8, 10)


@pytest.mark.parametrize(
    "hidden", [(32, 8), ((32,),), ((32, 8, "em", 3),), ((32, 0),), ((3.5, 8),), "32x8", 7], ids=str
)
def test_hidden_layers_that_are_none_are_refused(hidden: Any) -> None:
    with as_installed(), pytest.raises(UserError, match="hidden is a tuple of layers"):
        create_model("capsnet", hidden=hidden, **TINY)


def test_a_routing_instance_does_not_serve_several_layers() -> None:
    with pytest.raises(UserError, match="fits one layer"):
        create_model("capsnet", hidden=((12, 8),), routing=Summed(VoteShape(32, 12, 8)), **TINY)
    with pytest.raises(UserError, match="fits one layer"):
        create_model("matrix-smallnorb-small", routing=Summed(VoteShape(32, 12, 8)))


def mini_batches(steps: int, size: int) -> Iterator[Batch]:
    stream = ImageStream(resolve("mnist-mini").training_and_validation(500)[0], seed=0)
    return (stream.batch(step, size) for step in range(steps))


def accuracies(model: Any, steps: int, size: int, lr: float = 3e-3) -> list[float]:
    """Of each step's batch, before the step."""
    optimiser = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr)
    found = []
    for batch in mini_batches(steps, size):
        output = model.train()(batch.images, batch.labels)
        optimiser.zero_grad()
        model.loss(output, batch)["total"].backward()
        optimiser.step()
        found.append((output.lengths.argmax(1) == batch.labels[:, 0]).float().mean().item())
    return found


def test_three_routed_layers_learn() -> None:
    torch.manual_seed(0)
    model = create_model("capsnet", hidden=((32, 8), (16, 8)), **{**TINY, "channels": 32, "primary_types": 4})
    found = accuracies(model, 150, 64)
    assert sum(found[:5]) / 5 < 0.4
    assert sum(found[-20:]) / 20 > 0.85


@pytest.mark.parametrize("give", ["map", "list", "vector"])
def test_a_foreign_backbone_stands_under_capsules(give: str) -> None:
    model = create_model("capsnet", backbone=Features(give), image=(1, 28, 28), classes=10)
    assert model.grid == (16, 1, 1) if give == "vector" else (16, 7, 7)
    output = model(IMAGES)
    assert output.lengths.shape == (2, 10)
    assert output.reconstruction.shape == IMAGES.shape


def test_a_foreign_backbone_trains_and_a_frozen_one_stays() -> None:
    torch.manual_seed(0)
    for frozen in (False, True):
        backbone = Features().requires_grad_(not frozen)
        before = {name: value.clone() for name, value in backbone.state_dict().items()}
        model = create_model("capsnet", backbone=backbone, image=(1, 28, 28), classes=10, primary_types=4, decoder=None)
        found = accuracies(model, 30, 32)
        assert sum(found[-5:]) > sum(found[:5]) + 0.5
        same = [torch.equal(value, before[name]) for name, value in backbone.state_dict().items()]
        assert all(same) if frozen else not any(same), "weights, and the statistics of batch normalisation"


def test_a_model_with_a_foreign_backbone_comes_back_with_the_backbone(tmp_path: Path) -> None:
    model = create_model("capsnet", backbone=Features(), image=(1, 28, 28), classes=10, decoder=None)
    again(model, backbone=Features())
    with pytest.raises(UserError, match=r"the backbone .*:Features, which is not saved.*backbone=\.\.\."):
        again(model)
    model.save_pretrained(tmp_path)
    loaded = CapsNet.from_pretrained(tmp_path, backbone=Features())
    assert torch.equal(loaded(IMAGES).lengths, model.eval()(IMAGES).lengths)
    again(create_model("capsnet", backbone=Features, image=(1, 28, 28), classes=10, decoder=None))
    with pytest.raises(UserError, match="capsnet has no option colour"):
        model_from_config(model_config(model), colour=1)


def test_a_backbone_that_does_not_fit_is_one_sentence() -> None:
    for backbone, image, sentence in (
        (Features(), (3, 28, 28), r"Features does not take images of \[3, 28, 28\]"),
        (Features("tokens"), (1, 28, 28), r"not \[1, 49, 12\]"),
        (nn.Linear, (1, 28, 28), "Linear needs arguments"),
        ("resnet", (1, 28, 28), "unknown backbone 'resnet'"),
        (7, (1, 28, 28), "unknown backbone 7"),
    ):
        with as_installed(), pytest.raises(UserError, match=sentence) as caught:
            create_model("capsnet", backbone=backbone, image=image, classes=10)
        assert "\n" not in str(caught.value)


def test_a_large_image_with_a_foreign_backbone_gets_a_small_decoder() -> None:
    pool = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(4))
    model = create_model("capsnet", backbone=pool, image=(3, 128, 128), classes=5)
    assert count_parameters(model) < 3_000_000
    assert model(torch.rand(1, 3, 128, 128)).reconstruction.shape == (1, 3, 128, 128)


def test_the_official_recipe_leaves_a_foreign_backbone_alone() -> None:
    backbone = Features()
    before = backbone.first[0].weight.clone()
    create_model("capsnet", backbone=backbone, recipe="official", image=(1, 28, 28), classes=10)
    assert torch.equal(backbone.first[0].weight, before)


@dataclass(frozen=True)
class OwnConfig:
    image: tuple[int, int, int] = (1, 28, 28)
    classes: int = 10
    objects: int = 1
    width: int = 8


class OwnModel(nn.Module):
    def __init__(self, config: OwnConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, config.width), nn.Linear(config.width, config.classes))

    def forward(self, images: Tensor, labels: Tensor | None = None, trace: bool = False) -> ModelOutput:
        return ModelOutput(self.layers(images).sigmoid())


def test_a_registered_model_is_made_by_name_and_comes_back(tables: None, monkeypatch: pytest.MonkeyPatch) -> None:
    register_model("own", OwnConfig(), OwnModel)
    register_model("own-wide", OwnConfig(width=16), OwnModel)
    model = create_model("own-wide", classes=3)
    config = json.loads(json.dumps(model_config(model)))
    assert config == {"kind": "own", "import": __name__, "image": [1, 28, 28], "classes": 3, "objects": 1, "width": 16}
    other = model_from_config(config)
    assert isinstance(other, OwnModel)
    assert other.config == model.config
    del KINDS["own"]
    with pytest.raises(UserError, match=f"model 'own', which {__name__} registers"):
        model_from_config(config)
    monkeypatch.delitem(sys.modules, __name__)
    with pytest.raises(UserError, match=f"'import {__name__}' first"):
        model_from_config(config)


def test_registering_refuses_what_would_take_anothers_place(tables: None) -> None:
    register_model("own", OwnConfig(), OwnModel)
    for name in ("own", "capsnet", "matrix"):
        with pytest.raises(UserError, match=f"'{name}' already"):
            register_model(name, OwnConfig(), OwnModel)
    with pytest.raises(UserError, match="OwnConfig belongs to another network"):
        register_model("other", OwnConfig(), lambda config: OwnModel(config))
    for config in (OwnConfig, {"image": (1, 28, 28)}, None):
        with pytest.raises(UserError, match="dataclass instance"):
            register_model("other", config, OwnModel)
    assert not torchcaps.list_models().count("other")


def test_a_class_derived_from_a_model_of_ours_is_not_taken_for_it() -> None:
    class Mine(CapsNet):
        pass

    model = Mine(CapsNetConfig(**TINY))
    assert model_config(model)["kind"] == "module"
    with pytest.raises(UserError, match=r"Mine: hand one over, load_run\(run, model=\.\.\.\)"):
        model_from_config(model_config(model))
