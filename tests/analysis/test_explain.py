"""Why a network answers as it does: the numbers, and the page."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from html_tags import Tags
from PIL import Image

from torchcaps import data as named
from torchcaps.analysis.attribution import couplings_to_classes, heat, receptive_fields, sent
from torchcaps.analysis.explain import Explainer, to_json
from torchcaps.analysis.neighbours import FILE, PoseIndex, pose_index
from torchcaps.app.cli import main
from torchcaps.core.errors import UserError
from torchcaps.core.files import write_json, write_tensors
from torchcaps.core.types import capsules_of
from torchcaps.models.capsnet import CapsNet
from torchcaps.models.config import model_config
from torchcaps.models.registry import create_model
from torchcaps.routing import ROUTINGS
from torchcaps.training.config import defaults_for
from torchcaps.viz.figures.pixels import heated, thumbnail
from torchcaps.viz.report.explanation import explanation_page

TINY = {"backbone": "compact", "channels": 16, "primary_types": 2, "decoder": (8,)}
COLOUR = {**TINY, "image": (3, 20, 28), "classes": 3}


def colour_model(**options: object) -> CapsNet:
    torch.manual_seed(0)
    return create_model("capsnet", **{**COLOUR, **options}).eval()


def test_fields_of_the_papers_network_lie_where_its_kernels_do() -> None:
    model = create_model("capsnet", channels=4, primary_types=1, decoder=None).eval()
    fields = receptive_fields(model)
    assert fields.shape == (6, 6, 28, 28)
    torch.testing.assert_close(fields.sum((2, 3)), torch.ones(6, 6))
    rows = torch.einsum("yxhw,h->yx", fields, torch.arange(28.0))
    columns = torch.einsum("yxhw,w->yx", fields, torch.arange(28.0))
    # A 9x9 convolution and another of stride 2 see 17x17 pixels from (2y, 2x) on, the middle of them best.
    centres = 2.0 * torch.arange(6) + 8
    assert (rows - centres[:, None]).abs().max() < 1.5
    assert (columns - centres).abs().max() < 1.5


def test_what_is_sent_is_coupling_times_activation_over_the_types() -> None:
    couplings, activations = torch.rand(2 * 3 * 4, 5), torch.rand(24)
    amounts = sent(couplings, activations, (2, 3, 4))
    i = [(t * 3 + 1) * 4 + 2 for t in range(2)]
    assert amounts.shape == (5, 3, 4)
    torch.testing.assert_close(amounts[:, 1, 2], (couplings[i] * activations[i, None]).sum(0))


def test_even_amounts_are_even_heat_and_a_hot_place_glows_where_it_looks() -> None:
    fields = receptive_fields(create_model("capsnet", channels=4, primary_types=1, decoder=None).eval())
    even = heat(torch.ones(1, 6, 6), fields, least=0)[0]
    torch.testing.assert_close(even, torch.ones(28, 28))
    amounts = torch.zeros(1, 6, 6)
    amounts[0, 0, 5] = 1
    y, x = divmod(int(heat(amounts, fields)[0].argmax()), 28)
    assert y < 10 < 18 < x


@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_routing_can_be_explained_in_colour(routing: str) -> None:
    model = colour_model(routing=routing, routing_options={}, decoder=None)
    pixels = torch.rand(3, 20, 28)
    one = Explainer(model).explain("toy.png", Image.new("RGB", (56, 40)), pixels)
    with torch.no_grad():
        torch.testing.assert_close(one.lengths, model(pixels[None]).lengths[0], rtol=1e-4, atol=1e-5)
    assert [view.label for view in (*one.answers, *one.runners_up)] == one.lengths.topk(2).indices.tolist()
    assert all(view.heat.shape == (20, 28) and view.heat.isfinite().all() for view in one.answers)
    assert one.answers[0].picture is None
    assert one.answers[0].moved is None


def test_matrix_capsules_of_a_stereo_pair() -> None:
    torch.manual_seed(0)
    model = create_model("matrix-smallnorb-stem").eval()
    fields = receptive_fields(model)
    _, rows, columns = model.classes.grid
    assert fields.shape == (rows, columns, 32, 32)
    lowest, highest = (int(fields[y, 0].sum(1).argmax()) for y in (rows - 1, 0))
    assert highest < 16 < lowest
    pixels = torch.rand(2, 32, 32)
    one = Explainer(model).explain("toy.png", Image.new("L", (64, 32)), pixels)
    with torch.no_grad():
        torch.testing.assert_close(one.lengths, model(pixels[None]).lengths[0], rtol=1e-4, atol=1e-5)
    assert all(view.heat.shape == (32, 32) and view.heat.any() and view.picture is None for view in one.answers)
    page = explanation_page([one], list("abcde"), "toys", [to_json(one, list("abcde"))])
    assert "toy.png" in page


def test_a_cnn_is_refused() -> None:
    with pytest.raises(UserError, match="capsules, which CNN"):
        Explainer(create_model("cnn-mnist", design="compact"))


@pytest.mark.parametrize("hidden", [((4, 8),), ((6, 4), (4, 8, "em"))])
def test_hidden_layers_pass_on_what_the_primary_capsules_send(hidden: tuple[tuple[object, ...], ...]) -> None:
    model = colour_model(hidden=hidden, routing="uniform", routing_options={})
    pixels = torch.rand(3, 20, 28)
    one = Explainer(model).explain("toy.png", Image.new("RGB", (56, 40)), pixels)
    assert all(view.heat.shape == (20, 28) and view.heat.isfinite().all() and view.heat.any() for view in one.answers)
    with torch.no_grad():
        output = model(pixels[None], trace=True)
        couplings, activations = couplings_to_classes(model, pixels[None], output)
        primary = capsules_of(model.primary(model.backbone(pixels[None])))
    assert couplings.shape == (math.prod(model.grid), 3)
    torch.testing.assert_close(activations, primary.activations[0])
    if len(hidden) == 1:
        # Uniform couplings share everything out equally, whatever the number of layers.
        torch.testing.assert_close(couplings, torch.full_like(couplings, 1 / 3))
    assert "couplings of the layers between" in Tags(explanation_page([one], ("a", "b", "c"), "x", [])).words


def test_a_backbone_of_ones_own_can_be_explained() -> None:
    backbone = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 5, stride=4), torch.nn.ReLU())
    one = Explainer(colour_model(backbone=backbone)).explain("x.png", Image.new("L", (9, 9)), torch.rand(3, 20, 28))
    assert one.answers[0].heat.any()


@pytest.mark.parametrize("count", [2, 5, 10, 100])
def test_bars_of_any_number_of_classes_share_one_list_width(count: int) -> None:
    names = tuple(f"{'a rather long name of a class, number ' if n % 2 else ''}{n}" for n in range(count))
    explainer = Explainer(colour_model(classes=count, decoder=None))
    one = explainer.explain("x", Image.new("L", (9, 9)), torch.rand(3, 20, 28))
    page = Tags(explanation_page([one], names, "capsnet", []))
    widths = [attributes["style"] for tag, attributes in page.tags if tag == "dl"]
    assert widths == ["--name: 22ch"] * (1 if count <= 12 else 2)


def index(count: int = 6) -> PoseIndex:
    poses = torch.randn(count, 1, 16, generator=torch.Generator().manual_seed(0))
    return PoseIndex(
        torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 20, 28),
        torch.arange(count)[:, None] % 3,
        poses,
    )


def test_the_nearest_are_of_the_class_and_sorted() -> None:
    known = index()
    found = known.nearest(1, known.poses[4, 0], 5)
    assert [near.labels for near in found] == [(1,), (1,)]
    assert found[0].distance == 0
    assert found[0].picture[0, 0, 0].item() == pytest.approx(4 / 255)
    assert found[1].distance == pytest.approx((known.poses[4] - known.poses[1]).norm().item())


def test_whatever_a_name_says_is_text() -> None:
    hostile = "</figcaption><script>alert(1)</script><img src=https://example.org/x.png>\"'&amp;"
    explainer = Explainer(colour_model(decoder=None), index())
    one = explainer.explain(hostile, Image.new("RGB", (56, 40)), torch.rand(3, 20, 28))
    plain = explainer.explain("x", Image.new("RGB", (56, 40)), torch.rand(3, 20, 28))
    names = (hostile,) * 3
    text = explanation_page([one], names, hostile, [to_json(one, names)], [hostile], index())
    page = Tags(text)
    assert [tag for tag, _ in page.tags] == [
        tag for tag, _ in Tags(explanation_page([plain], ("a", "b", "c"), "x", [], ["x"], index())).tags
    ]
    assert all((attributes.get("src") or "data:").startswith("data:") for _, attributes in page.tags)
    assert "url(" not in text


def test_a_hundred_classes_are_folded_and_none_of_these_is_said() -> None:
    names = tuple(f"class number {n}" for n in range(100))
    model = colour_model(classes=100, decoder=None)
    one = Explainer(model).explain("x.png", Image.new("L", (20, 20)), torch.rand(3, 20, 28))
    page = Tags(explanation_page([one], names, "capsnet", [to_json(one, names)]))
    assert to_json(one, names)["label"] is None
    assert "none of these" in page.words
    assert "88 more classes" in page.words
    assert (
        sum((attributes.get("class") or "").startswith("bar") for tag, attributes in page.tags if tag == "div") == 100
    )


def test_heat_glows_where_it_is_hot() -> None:
    glow = torch.zeros(4, 4)
    glow[1, 2] = 1
    pixels = heated(torch.zeros(1, 4, 4), glow, 0, 1)
    assert pixels.sum(2).argmax() == 6
    assert np.count_nonzero(pixels) == 3


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK", "I;16", "F"])
def test_thumbnails_of_any_mode_are_small(mode: str) -> None:
    assert thumbnail(Image.new(mode, (1000, 700))).startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder as training leaves it, of a network that has learned nothing."""
    out = tmp_path_factory.mktemp("runs") / "run"
    model = create_model("capsnet-multimnist-small", channels=16, primary_types=2, decoder=(8,))
    config = defaults_for("capsnet-multimnist-small", data="multimnist-mini", epochs=1)
    write_json(out / "config.json", {"model": model_config(model), "train": asdict(config)})
    counts = dict.fromkeys(("images", "steps", "seed", "parameters", "images_seen", "accuracy", "seconds"), 1)
    sha256 = write_tensors(out / "model.safetensors", model.state_dict())
    known = {"model": "capsnet-multimnist-small", "data": "multimnist-mini", "weights_sha256": sha256}
    write_json(out / "result.json", {**counts, **known})
    return out


def test_explain_writes_a_page_that_asks_for_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    picture = next(named.load_test_set("multimnist-mini", 1).batches(1)).images[0, 0]
    Image.fromarray((picture * 255).byte().numpy()).save("pair.png")
    main(["explain", str(run), "pair.png", "--json"])
    (row,) = json.loads(capsys.readouterr().out)
    assert {"image", "label", "confidence", "lengths", "answers", "page", "notes"} == set(row)
    assert row["notes"] == []
    assert [len(answer["effects"]) for answer in row["answers"]] == [16, 16]
    assert all(answer["class"] in near["labels"] for answer in row["answers"] for near in answer["neighbours"])
    page = Tags(Path(row["page"]).read_text())
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    sources = [attributes["src"] or "" for tag, attributes in page.tags if tag == "img"]
    # The picture, as seen, two redrawn and both; three heats; two strips in light and dark; eight neighbours of each.
    assert len(sources) == 5 + 3 + 4 + 16
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert all(attributes["alt"] for tag, attributes in page.tags if tag == "img")
    assert "sample of 2,000 training images" in page.words
    main(["predict", str(run), "pair.png", "--json"])
    assert json.loads(capsys.readouterr().out)[0].items() <= row.items()


def test_the_sample_is_kept_with_the_run_until_its_weights_change(run: Path) -> None:
    model = create_model("capsnet-multimnist-small", channels=16, primary_types=2, decoder=(8,)).eval()
    sha256 = json.loads((run / "result.json").read_text())["weights_sha256"]
    kept = run / FILE
    pose_index(model, "multimnist-mini", sha256, kept)
    assert len(pose_index(model, "no-such-data", sha256, kept)) == 2000
    with pytest.raises(UserError):
        pose_index(model, "no-such-data", "other weights", kept)
    kept.write_bytes(kept.read_bytes()[:100])
    with pytest.raises(UserError):
        pose_index(model, "no-such-data", sha256, kept)


def test_without_the_data_the_rest_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path / "empty"))
    Image.fromarray(named.images("mnist-mini", "test").images[0, 0].numpy()).save("seven.png")
    main(["explain", "capsnet-mnist-small", "seven.png", "--out", "page.html"])
    out = capsys.readouterr().out
    assert "seven.png: 7" in out
    assert "torchcaps data fetch mnist" in out
    words = Tags(Path("page.html").read_text()).words
    assert "torchcaps data fetch mnist" in words
    assert "Training images nearest to" not in words
    assert not (tmp_path / "empty").exists()
