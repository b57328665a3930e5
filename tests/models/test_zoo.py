"""The networks that are neither the papers' nor their small copies: convolutional capsules, and digits for matrices."""

import json

import pytest
import torch

from torchcaps import data as named
from torchcaps.analysis.attribution import couplings_to_classes, receptive_fields, sent
from torchcaps.app.web.receptive import placement
from torchcaps.core.errors import UserError
from torchcaps.models.config import model_config, model_from_config
from torchcaps.models.registry import create_model
from torchcaps.nn.conv import ConvCaps
from torchcaps.routing import Dynamic, VoteShape
from torchcaps.testing import check_learning, check_model
from torchcaps.training.config import defaults_for

SMALL = {"channels": 16, "decoder": (8,)}


def test_convolutional_capsules_conform_and_come_back() -> None:
    torch.manual_seed(0)
    model = create_model("capsnet-mnist-conv", **SMALL).eval()
    check_model(model, (1, 28, 28))
    (layer,) = model.conv
    assert isinstance(layer, ConvCaps)
    assert isinstance(layer.routing, Dynamic)
    assert model.grid == (8, 3, 3)
    again = model_from_config(json.loads(json.dumps(model_config(model)))).eval()
    again.load_state_dict(model.state_dict())
    images = torch.rand(2, 1, 28, 28)
    assert torch.equal(again(images).lengths, model(images).lengths)


def test_what_convolutional_capsules_see_and_send() -> None:
    torch.manual_seed(0)
    model = create_model("capsnet-mnist-conv", **SMALL, hidden=((6, 4),)).eval()
    images = torch.rand(1, 1, 28, 28)
    output = model(images, trace=True)
    couplings, activations = couplings_to_classes(model, images, output)
    assert couplings.shape == (8 * 3 * 3, 10)
    torch.testing.assert_close(couplings.sum(1), torch.ones(72))
    assert sent(couplings, activations, model.grid).shape == (10, 3, 3)
    fields = receptive_fields(model)
    assert fields.shape == (3, 3, 28, 28)
    rows = (fields[:, 0].sum(2) * torch.arange(28)).sum(1)
    assert rows[0] < rows[1] < rows[2]
    place = placement(create_model("capsnet-mnist-conv", **SMALL), 3)
    assert place.start + place.step == pytest.approx(13.5, abs=1)


def test_convolutional_capsules_refuse_what_does_not_fit() -> None:
    with pytest.raises(UserError, match="too small"):
        create_model("capsnet-mnist-conv", **SMALL, conv=((8, 8, 5, 1),))
    with pytest.raises(UserError, match="fits one layer"):
        create_model("capsnet-mnist-conv", **SMALL, routing=Dynamic(VoteShape(72, 10, 16)))


@pytest.mark.parametrize("name", ["capsnet-mnist-conv", "matrix-mnist"])
def test_they_begin_to_learn(name: str) -> None:
    torch.manual_seed(0)
    images = named.images("mnist-mini", "train").batches(32)
    model = create_model(name)
    if name.startswith("matrix"):
        model = create_model(name, routing_options={"iterations": 3, "density_scale": 0.25}, init_std=0.3)
        model.schedule(0.0)
    check_learning(model, [next(images), next(images)], defaults_for(name).lr)
