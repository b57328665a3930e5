"""What the experiments measure, on cases whose answer is known."""

import pytest
import torch
from torch import nn

from torchcaps.core.functional import squash
from torchcaps.core.types import Capsules, ModelOutput
from torchcaps.data import images, load_test_set
from torchcaps.data.synthetic import faces, ships
from torchcaps.experiments import ablations, explaining_away, few_dimensions, fig4
from torchcaps.experiments.equivariance import moved, path_linearity, readout
from torchcaps.experiments.fig4 import width
from torchcaps.experiments.fig_a1 import routing_changes
from torchcaps.experiments.parse_tree import tree_score
from torchcaps.experiments.protocols import SMOKE
from torchcaps.models.registry import create_model
from torchcaps.routing import VoteShape
from torchcaps.training.config import defaults_for
from torchcaps.training.runs import load_run
from torchcaps.training.train import train


def test_tree_score_is_one_for_a_tree_and_zero_for_none() -> None:
    chosen = torch.eye(10)[torch.arange(12) % 10][None]
    uniform = torch.full((1, 12, 10), 0.1)
    assert torch.allclose(tree_score(chosen, torch.rand(1, 12)), torch.ones(1))
    assert torch.allclose(tree_score(uniform, torch.rand(1, 12)), torch.zeros(1), atol=1e-6)
    half = torch.cat([chosen[:, :6], uniform[:, 6:]], 1)
    active = torch.cat([torch.ones(1, 6), torch.zeros(1, 6)], 1)
    assert torch.allclose(tree_score(half, active), torch.ones(1)), "children that are not active do not count"


def test_straight_paths_are_linear_and_circles_are_not() -> None:
    values = torch.linspace(-1, 1, 13)
    direction, start = torch.randn(5, 4), torch.randn(5, 4)
    straight = start + values[:, None, None] * direction
    assert path_linearity(values, straight) > 0.9999
    angle = values * torch.pi
    circle = torch.stack([angle.cos(), angle.sin()], 1)[:, None].repeat(1, 5, 1)
    assert path_linearity(values, circle) < 0.6
    labels = torch.zeros(40, dtype=torch.int64)
    same_way = torch.randn(40, 4) * 0.01 + values[:, None, None] * torch.randn(4)
    assert readout(values, same_way, labels) > 0.95
    assert readout(values, torch.randn(13, 40, 4), labels) < 0.2


def test_digits_are_moved_by_what_is_said() -> None:
    picture = torch.zeros(1, 1, 28, 28)
    picture[0, 0, 13:15, 13:15] = 1
    values, frames = moved(picture, "shift")
    columns = (frames[:, 0, 0].sum(1) * torch.arange(28)).sum(1) / 4
    assert torch.allclose(columns - 13.5, values, atol=0.02)
    _, grown = moved(picture, "scale")
    assert grown[-1].sum() > grown[0].sum()


def test_width_is_that_of_the_ink() -> None:
    narrow, wide = torch.zeros(2, 28, 28)
    narrow[5:20, 14], wide[5:20, [4, 24]] = 1, 1
    assert width(narrow) == 0
    assert torch.isclose(width(wide), torch.tensor(10.0))


def test_changes_of_the_logits_are_those_of_the_trace() -> None:
    model = create_model("capsnet-mnist-small", pretrained=True)
    pictures = images("mnist-mini", "test").images[:4] / 255
    found = routing_changes(model, pictures)
    with torch.no_grad():
        trace = model.eval()(pictures, trace=True).trace
    for r in (1, 2):
        changed = (trace.logits[r] - trace.logits[r - 1]).abs().mean().item()
        assert abs(found[f"accumulated_logits_{r}"] - changed) < 1e-6
        moved_ = (trace.couplings[r] - trace.couplings[r - 1]).abs().mean().item()
        assert abs(found[f"accumulated_couplings_{r}"] - moved_) < 1e-6
    assert model.training is False


def test_added_to_the_initial_logit_changes_die_away() -> None:
    """As in the paper's figure; accumulated they do not."""
    model = create_model("capsnet-mnist-small", pretrained=True)
    found = routing_changes(model, images("mnist-mini", "test").images[:16] / 255)
    # Equal but for rounding: a kernel that is measured meanwhile may add in another order.
    assert found["initial_logits_1"] == pytest.approx(found["accumulated_logits_1"], rel=1e-6), "both begin at zero"
    assert found["initial_logits_5"] < 0.05 * found["initial_logits_2"]
    assert found["accumulated_logits_5"] > 0.9 * found["accumulated_logits_2"]


def test_swapped_faces_have_a_faces_parts_in_other_places() -> None:
    assert len(faces.SWAPPED) == 11
    assert all(sorted(parts) == sorted(faces.FACE) and parts != faces.FACE for parts in faces.SWAPPED)
    pixels, labels = faces.arrays("test")
    assert pixels.shape == (2000, 1, 28, 28)
    assert 0.45 < labels.mean() < 0.55
    assert torch.equal(faces.swapped(5), faces.swapped(5))
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    ordinary, other = (
        faces.draw(torch.tensor([parts]), g)
        for parts, g in zip((faces.FACE, faces.SWAPPED[0]), generators, strict=True)
    )
    differing = (ordinary != other)[0, 0].nonzero()
    assert len(differing) > 20
    assert differing.min() >= 4, "the same head around it"


def test_disfigured_ships_have_no_part_in_its_place() -> None:
    assert len(ships.DISFIGURED) == 44
    assert all(sorted(parts) == list(ships.SHIP) for parts in ships.DISFIGURED)
    assert torch.equal(ships.disfigured(5), ships.disfigured(5))
    tall, _, narrow, _ = (part.float() for part in ships.stretched(80).split(20))
    generator = torch.Generator().manual_seed(0)
    whole = faces.draw(torch.tensor(ships.SHIP).expand(20, -1), generator, ships.SCENE).float()

    def extent(pictures: torch.Tensor, axis: int) -> float:
        return (pictures.amax((1, axis)) > 0).sum(1).float().mean().item()

    assert extent(tall, 3) > 1.2 * extent(whole, 3)
    assert extent(narrow, 2) < 0.85 * extent(whole, 2)


def test_training_stops_when_it_is_good_enough(tmp_path) -> None:
    config = defaults_for("cnn-mnist-small", data="mnist-mini", **{**SMOKE, "epochs": 60.0, "stop_at": 0.05})
    result = train(config, tmp_path / "run", probe=lambda model: {"weights": 1.0})
    assert result["steps"] == 50
    assert result["selection"] == "5.00% on validation"
    assert ",weights" in (tmp_path / "run" / "metrics.csv").read_text().splitlines()[0]
    assert load_run(tmp_path / "run")[1]["train"]["stop_at"] == 0.05


def test_some_of_each_class() -> None:
    data = images("mnist-mini", "train")
    few = data.some_of_each(7, seed=3)
    assert torch.equal(few.labels.bincount(), torch.full((10,), 7))
    assert torch.equal(few.images, data.some_of_each(7, seed=3).images)
    assert not torch.equal(few.images, data.some_of_each(7, seed=4).images)


def test_max_pooling_takes_the_longest_vote_alone() -> None:
    votes = torch.randn(3, 7, 4, 5, generator=torch.Generator().manual_seed(0))
    children = Capsules(torch.zeros(3, 7, 2), torch.ones(3, 7))
    output = ablations.MaxPooling(VoteShape(7, 4, 5))(votes, children, trace=True)
    longest = votes.norm(dim=-1).argmax(1)
    for b in range(3):
        for j in range(4):
            torch.testing.assert_close(output.poses[b, j], squash(votes[b, longest[b, j], j]))
    assert output.trace is not None
    assert torch.equal(output.trace.couplings[0].sum(1), torch.ones(3, 4))


def test_claims_on_shared_pixels_are_those_that_were_drawn() -> None:
    """A network that draws the first digit in full alone, and half of it where another is."""
    pairs = load_test_set("multimnist-mini", 50)

    class Draws(nn.Module):
        def forward(self, images: torch.Tensor, labels: torch.Tensor | None = None) -> ModelOutput:
            batch = next(pairs.batches(50))
            first, other = batch.targets.unbind(1)
            alone = torch.equal(images, first)
            picture = first if alone else torch.where(other > 0.5, 0.5 * first, first)
            return ModelOutput(torch.zeros(50, 10), reconstruction=picture[:, None])

    found = explaining_away.claims(Draws(), pairs)
    assert found["shared"] == pytest.approx(0.5 * found["shared_alone"], rel=1e-5)
    assert found["own"] == pytest.approx(found["own_alone"])


def test_a_direction_that_passes_half_a_turn_has_no_jump() -> None:
    values = torch.linspace(-30, 30, 13)
    angle = 3.0 + values.deg2rad()
    vectors = torch.stack([angle.cos(), angle.sin()], -1)[:, None]
    found = few_dimensions.directions(vectors)[:, 0]
    torch.testing.assert_close(found - found[0], angle - angle[0], atol=1e-5, rtol=0)
    assert few_dimensions.straightness(values, found[:, None]) > 0.9999


def test_a_dimension_is_named_by_what_it_changes() -> None:
    pictures = torch.zeros(2, 3, 28, 28)
    for step in range(3):
        pictures[0, step, 10:18, 8 + 3 * step : 12 + 3 * step] = 1
        pictures[1, step, 10:18, 13 - step : 15 + step] = 1
    usual = {"width": 0.5, "height": 0.5, "slant": 0.5, "thickness": 1.0, "right": 1.0, "down": 1.0}
    first, second = fig4.names_of(pictures, usual)
    assert first == "right +6.0"
    assert second.startswith("width +")
