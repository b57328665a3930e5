"""The matrix-capsule network: sizes, contract, training, and the picture of its votes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support import forecast

from torchcaps import data as named
from torchcaps.analysis.agreement import vote_distances
from torchcaps.core.errors import UserError
from torchcaps.models.config import model_config, model_from_config
from torchcaps.models.matrix import MatrixCaps, MatrixConfig
from torchcaps.models.registry import count_parameters, create_model, find
from torchcaps.routing import ROUTINGS
from torchcaps.testing import check_model
from torchcaps.training.config import defaults_for
from torchcaps.training.runs import Checkpoint, load_run
from torchcaps.training.state import State
from torchcaps.training.train import train
from torchcaps.viz.figures import style, to_png, vote_histograms

TINY = {"image": (1, 28, 28), "classes": 10, "channels": 8, "primary_types": 2, "types": (2, 3)}


@pytest.mark.parametrize(
    ("name", "paper"),
    [
        ("matrix-smallnorb", 310_000),
        ("matrix-smallnorb-small", 68_000),
        ("matrix-smallnorb-stem", 66_800),
        ("cnn-smallnorb", 4_200_000),
        ("cnn-smallnorb-small", 68_000),
        ("cnn-smallnorb-norm", 68_000),
    ],
)
def test_parameters_are_about_the_papers(name: str, paper: int) -> None:
    assert count_parameters(create_model(name)) == pytest.approx(paper, rel=0.03)


def test_matrix_capsules_conform() -> None:
    config = MatrixConfig(image=(2, 18, 20), classes=4, channels=4, primary_types=2, types=(3, 2), side=2)
    check_model(MatrixCaps(config), config.image, classes=4)


def test_cnn_for_smallnorb_conforms() -> None:
    config = find("cnn-smallnorb-small").config
    check_model(create_model("cnn-smallnorb-small"), config.image, classes=5)


def test_routing_and_size_can_be_chosen() -> None:
    model = create_model("matrix-smallnorb-small", image=(3, 40, 36), classes=7, routing="dynamic", local=True)
    output = model.eval()(torch.rand(1, 3, 40, 36), trace=True)
    assert output.lengths.shape == (1, 7)
    assert output.capsules.shape == (1, 7, 16)
    assert output.trace.couplings.shape == (3, 1, 16 * 6 * 5, 7)
    with pytest.raises(UserError, match="too small"):
        create_model("matrix-smallnorb-small", image=(1, 12, 12))
    with pytest.raises(UserError, match="no option leaky"):
        create_model("matrix-smallnorb-small", routing_options={"leaky": True})


@pytest.mark.parametrize("routing", ROUTINGS)
def test_any_routing_serves_and_trains_after_inference(routing: str) -> None:
    model = create_model("matrix-smallnorb-small", **TINY, routing=routing)
    images = torch.rand(2, 1, 28, 28)
    with torch.inference_mode():
        model.eval()(images)
    output = model.train()(images)
    (output.lengths.sum() + output.capsules.sum()).backward()
    assert model.primary.conv.weight.grad.abs().sum() > 0
    assert model.classes.weight.grad is not None


def test_they_look_for_one_thing() -> None:
    with pytest.raises(UserError, match="one object"):
        create_model("matrix-smallnorb-small", image=(1, 36, 36), classes=10, objects=2)


def test_answers_do_not_depend_on_brightness_and_contrast() -> None:
    torch.manual_seed(0)
    model = create_model("matrix-smallnorb-small", **TINY).eval()
    images = torch.rand(2, 1, 28, 28)
    assert torch.allclose(model(images).lengths, model(images * 0.4 + 0.3).lengths, atol=1e-4)


def test_the_margin_grows_with_progress_alone() -> None:
    model = create_model("matrix-smallnorb-small", **TINY)
    batch = next(named.images("mnist-mini", "test").batches(4))
    output = model(batch.images)
    losses = []
    for progress in (0.0, 0.5, 1.0):
        model.schedule(progress)
        losses.append(model.loss(output, batch)["total"].item())
    assert losses == sorted(losses)
    assert model.margin == pytest.approx(0.9)
    model.schedule(0.0)
    assert model.margin == pytest.approx(0.2)


def test_the_authors_margin_is_a_sigmoid() -> None:
    model = create_model("matrix-smallnorb-small", **TINY, margin=(0.2, 0.99), margin_schedule="sigmoid")
    for step in (0, 100_000, 300_000, 700_000):
        model.schedule(step / 700_000)
        assert model.margin == pytest.approx(0.2 + 0.79 / (1 + np.exp(4 - step / 50_000)), abs=1e-12)


def test_several_convolutions_below_the_capsules() -> None:
    stem = {"stem": ((4, 3, 1), (6, 3, 2)), "norm": True}
    model = create_model("matrix-smallnorb-small", **TINY, **stem).eval()
    images = torch.rand(2, 1, 28, 28)
    assert model.backbone(images).shape == (2, 6, 12, 12)
    again = model_from_config(json.loads(json.dumps(model_config(model)))).eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(images).lengths, model(images).lengths)
    with pytest.raises(UserError, match="too small"):
        create_model("matrix-smallnorb-small", **TINY | {"image": (1, 9, 9)}, **stem)


def test_dropped_capsules_are_no_data() -> None:
    torch.manual_seed(0)
    model = create_model("matrix-smallnorb-small", **TINY, dropout=0.5)
    images, seen = torch.rand(2, 1, 28, 28), []
    model.layers[0].register_forward_pre_hook(lambda _, given: seen.append(given[0].activations))
    model(images)
    model.eval()(images)
    trained, asked = seen
    assert 0.4 < (trained == 0).float().mean() < 0.6
    torch.testing.assert_close(trained[trained > 0], 2 * asked[trained > 0])


def test_batch_normalisation_and_spread_activations_are_options() -> None:
    torch.manual_seed(0)
    images = next(named.images("mnist-mini", "test").batches(16)).images
    flat = create_model("matrix-smallnorb-small", **TINY)
    model = create_model("matrix-smallnorb-small", **TINY, norm=True, activation_init=(3.0, -1.0))
    normalised = model.backbone[1](model.backbone[0](images))
    torch.testing.assert_close(normalised.mean((0, 2, 3)), torch.zeros(8), rtol=0, atol=1e-5)
    torch.testing.assert_close(normalised.std((0, 2, 3)), torch.ones(8), rtol=0, atol=1e-2)
    spread, narrow = (one.primary(one.backbone(images)).activations.std() for one in (model, flat))
    assert spread > 3 * narrow
    assert model.primary.conv.bias[16::17].tolist() == [-1.0, -1.0]
    assert "norm" not in str(flat.backbone).lower()
    check_model(model, (1, 28, 28))


def test_interrupted_and_resumed_ends_in_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the margin of the loss, which is no part of the checkpoint."""
    given = {"data": "mnist-mini", "epochs": 1.0, "batch": 4, "per_class": 8, "validation": 0}
    config = defaults_for("matrix-smallnorb-small", **given, checkpoint_seconds=0.0)
    monkeypatch.setattr("torchcaps.training.loop.LOG_EVERY", 4)
    whole = train(config, tmp_path / "whole", TINY)

    save, saves = State.save, []

    def save_then_stop(state: State, checkpoint: Checkpoint) -> None:
        save(state, checkpoint)
        saves.append(state.step)
        if len(saves) == 6:  # between two rows
            raise KeyboardInterrupt

    monkeypatch.setattr(State, "save", save_then_stop)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "cut", TINY)
    assert saves == [1, 2, 3, 4, 5, 6]
    assert whole["steps"] > 8
    assert train(config, tmp_path / "cut", TINY)["weights_sha256"] == whole["weights_sha256"]
    assert (tmp_path / "cut/metrics.csv").read_bytes() == (tmp_path / "whole/metrics.csv").read_bytes()
    model, saved = load_run(tmp_path / "cut")
    assert isinstance(model, MatrixCaps)
    assert saved["model"]["kind"] == "matrix"


def test_configuration_goes_through_json() -> None:
    model = create_model("matrix-smallnorb-small", **TINY)
    again = model_from_config(json.loads(json.dumps(model_config(model))))
    assert again.config == model.config


def test_forecast_knows_matrix_capsules() -> None:
    assert forecast("matrix-smallnorb-small", 32, 320, TINY).bytes > 2**20


def test_vote_distances_shrink_to_the_mean_of_what_was_assigned() -> None:
    """After an iteration, the assigned part of the votes is nearer to the mean than the votes at large."""
    torch.manual_seed(0)
    model = create_model("matrix-smallnorb-small", **TINY).eval()
    batch = next(named.images("mnist-mini", "test").batches(2))
    found = vote_distances(model, batch.images)
    assert found.distances.shape == (3, 2, 3 * 3 * 3, 10)
    torch.testing.assert_close(found.assignments.sum(3), torch.ones(3, 2, 27), rtol=0, atol=1e-5)
    torch.testing.assert_close(found.lengths, model(batch.images).lengths, rtol=0, atol=1e-5)
    weighted = (found.distances * found.assignments).sum((2, 3)) / found.assignments.sum((2, 3))
    assert (weighted < found.distances.mean((2, 3))).all()
    with style():
        drawn = (batch.images, *found, batch.labels[:, 0], tuple("0123456789"))
        figure, whole = vote_histograms(*drawn), vote_histograms(*drawn, shown=1.0)
    bars, all_bars = (
        [bar.get_height() for ax in one.subfigs[0].axes[1:] for bar in ax.patches] for one in (figure, whole)
    )
    assert 0 < np.sum(bars) <= 3 * 27 + 1e-3
    assert np.sum(all_bars) == pytest.approx(3 * 27, abs=1e-3)
    assert to_png(figure).startswith(b"\x89PNG")
