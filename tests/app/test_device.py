"""Models and inputs meet on the device that was asked for, shown with a second device that every machine has."""

from pathlib import Path

import pytest
import torch
from elsewhere import PLACE, Elsewhere, elsewhere
from PIL import Image
from torch import Tensor

from torchcaps import data as named
from torchcaps.analysis.evaluate import evaluate
from torchcaps.analysis.explain import Explainer, to_json
from torchcaps.analysis.neighbours import PoseIndex
from torchcaps.app.asking import _load
from torchcaps.app.cli import main
from torchcaps.app.predict import predict
from torchcaps.app.web.engine import Engine, Question, Vectors
from torchcaps.core.errors import UserError
from torchcaps.data import ImageSet
from torchcaps.models.capsnet import CapsNet
from torchcaps.models.registry import create_model

SMALL, OVERLAPPING = "capsnet-mnist-small", "capsnet-multimnist-small"
DIGITS = tuple("0123456789")


def model_of(name: str) -> CapsNet:
    return create_model(name, pretrained=True).eval()


@pytest.fixture(scope="module")
def pictures() -> Tensor:
    return named.images("mnist-mini", "test").images[:8].float() / 255


def test_the_other_device_does_not_mix_with_this_one(pictures: Tensor) -> None:
    model = model_of(SMALL)
    with torch.no_grad():
        expected = model(pictures).lengths
    with elsewhere(model), torch.no_grad():
        with pytest.raises(RuntimeError, match="two devices"):
            model(pictures)
        found = model(pictures.to(PLACE)).lengths
        assert isinstance(found, Elsewhere)
        torch.testing.assert_close(found.cpu(), expected)


def test_evaluate_there(pictures: Tensor) -> None:
    data = ImageSet("some", (pictures * 255).to(torch.uint8), torch.tensor([7, 2, 1, 0, 4, 1, 4, 9]), DIGITS)
    model = model_of(SMALL)
    expected = evaluate(model, data, classes=DIGITS)
    with elsewhere(model):
        found = evaluate(model, data, classes=DIGITS)
    for key in ("accuracy", "reconstruction_mse", "ece"):
        assert found[key] == pytest.approx(expected[key], abs=1e-5)
    assert found["per_class"] == expected["per_class"]


def test_predict_there(pictures: Tensor, tmp_path: Path) -> None:
    path = tmp_path / "digit.png"
    Image.fromarray((pictures[0, 0] * 255).to(torch.uint8).numpy()).save(path)
    model = model_of(SMALL)
    (expected,) = predict(model, DIGITS, [[str(path)]])
    with elsewhere(model):
        (found,) = predict(model, DIGITS, [[str(path)]])
    assert isinstance(expected, dict)
    assert isinstance(found, dict)
    assert found["label"] == expected["label"]
    assert found["lengths"] == pytest.approx(expected["lengths"], abs=1e-5)


@pytest.mark.parametrize("name", [SMALL, OVERLAPPING])
def test_explain_there(name: str) -> None:
    model = model_of(name)
    data = "mnist-mini" if name == SMALL else "multimnist-mini"
    pixels = torch.rand(model.config.image, generator=torch.Generator().manual_seed(0))
    original = Image.new("L", (8, 8))
    expected = Explainer(model, PoseIndex.of(model, data, 0, sample=20)).explain("x", original, pixels)
    with elsewhere(model):
        found = Explainer(model, PoseIndex.of(model, data, 0, sample=20)).explain("x", original, pixels)
    view, same = found.answers[0], expected.answers[0]
    assert view.picture is not None
    assert view.moved is not None
    for here, there in ((view.heat, same.heat), (view.picture, same.picture), (view.moved, same.moved)):
        assert not isinstance(here, Elsewhere)
        torch.testing.assert_close(here, there, atol=1e-4, rtol=1e-3)
    assert to_json(found, DIGITS)["label"] == to_json(expected, DIGITS)["label"]


def test_the_playground_there() -> None:
    image = torch.rand(1, 36, 36, generator=torch.Generator().manual_seed(0))
    vectors = Vectors(3, torch.rand(2, 16))

    def answers(model: CapsNet) -> list[object]:
        engine = Engine(model, OVERLAPPING, "multimnist")
        return [*engine.look([image]), *engine.decode([vectors]), *engine.route([Question(image, None)])]

    model = model_of(OVERLAPPING)
    look, drawn, routed = answers(model)
    with elsewhere(model):
        look_there, drawn_there, routed_there = answers(model)
    assert isinstance(look, dict)
    assert isinstance(look_there, dict)
    assert look_there["lengths"] == pytest.approx(look["lengths"], abs=1e-3)
    assert look_there["longest"] == look["longest"]
    assert isinstance(drawn, dict)
    assert isinstance(drawn_there, dict)
    assert [len(picture) for picture in drawn_there["pictures"]] == [len(picture) for picture in drawn["pictures"]]
    assert isinstance(routed, dict)
    assert isinstance(routed_there, dict)
    assert routed_there["parents"] == routed["parents"]


@pytest.mark.parametrize("command", ["evaluate", "predict", "explain", "serve"])
def test_a_device_that_is_not_here_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    images = ["x.png"] if command in ("predict", "explain") else []
    with pytest.raises(SystemExit) as stop:
        main([command, SMALL, *images, "--device", "nonsense"])
    assert stop.value.code == 2
    assert "'nonsense' is not here" in capsys.readouterr().err


def test_a_network_is_loaded_to_its_device() -> None:
    model, _, _ = _load(SMALL, "meta")
    assert all(parameter.device.type == "meta" for parameter in model.parameters())
    with pytest.raises(UserError, match="device"):
        _load(SMALL, "nonsense")
