"""Layers compose in `nn.Sequential`, and a pair that does not fit is one sentence with the sizes."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from support import as_installed
from torch import Tensor, nn

from torchcaps import nn as caps
from torchcaps.core.errors import UserError
from torchcaps.core.types import Capsules, RoutingOutput
from torchcaps.routing import EM, ROUTINGS, Dynamic, Routing, VoteShape, make_routing, options_of, register_routing

IMAGES = torch.rand(2, 1, 20, 20, generator=torch.Generator().manual_seed(0))


def front() -> list[nn.Module]:
    """Feature maps of 8 channels, 8x8."""
    return [nn.Conv2d(1, 8, 5, 2), nn.ReLU()]


def vectors() -> list[nn.Module]:
    return [*front(), caps.PrimaryCaps(8, types=4, dim=6, kernel=3)]


def matrices() -> list[nn.Module]:
    return [*front(), caps.PrimaryPoses(8, types=4, dim=9, kernel=3)]


STACKS: dict[str, Callable[[], list[nn.Module]]] = {
    "primary-dense": lambda: [*vectors(), caps.DenseCaps(4 * 6 * 6, 6, 5, 8)],
    "primary-conv-dense": lambda: [*vectors(), caps.ConvCaps(4, 6, 3, 8, 3), caps.DenseCaps(3 * 4 * 4, 8, 5, 8)],
    "primary-conv-conv-dense": lambda: [
        *vectors(), caps.ConvCaps(4, 6, 3, 8, 2, 2), caps.ConvCaps(3, 8, 4, 6, 3), caps.DenseCaps(4, 6, 5, 8),
    ],
    "primary-conv-class-dense": lambda: [
        *vectors(), caps.ConvCaps(4, 6, 3, 8, 3), caps.ClassCaps((3, 4, 4), 8, 7, 8), caps.DenseCaps(7, 8, 5, 8),
    ],
    "primary-dense-dense": lambda: [*vectors(), caps.DenseCaps(144, 6, 9, 4, "em"), caps.DenseCaps(9, 4, 5, 8)],
    "poses-conv-class": lambda: [
        *matrices(), caps.ConvCaps(4, 9, 3, 9, 3, matrix=True), caps.ClassCaps((3, 4, 4), 9, 5, 9, matrix=True),
    ],
    "poses-conv-dense": lambda: [
        *matrices(), caps.ConvCaps(4, 9, 3, 9, 3, routing="em", matrix=True), caps.DenseCaps(3 * 4 * 4, 9, 5, 8, "em"),
    ],
    "poses-as-vectors": lambda: [*matrices(), caps.ConvCaps(4, 9, 3, 7, 3), caps.ClassCaps((3, 4, 4), 7, 5, 8)],
    "tensor-dense": lambda: [nn.Flatten(), nn.Linear(400, 36), nn.Unflatten(1, (6, 6)), caps.DenseCaps(6, 6, 5, 8)],
    "tensor-conv-dense": lambda: [
        nn.Unflatten(2, (5, 4)), nn.Flatten(1, 2), nn.Unflatten(3, (4, 5)),
        caps.ConvCaps(5, 5, 3, 8, 4), caps.DenseCaps(3, 8, 5, 8),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", STACKS)
def test_layers_compose(name: str) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(*STACKS[name]())
    output = network(IMAGES)
    assert isinstance(output, RoutingOutput)
    assert output.poses.shape[:2] == output.activations.shape == (2, 5)
    assert 0 <= output.activations.min() <= output.activations.max() <= 1
    output.poses.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for n, p in network.named_parameters() if "beta" not in n)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_routing_serves_every_layer(routing: str) -> None:
    network = nn.Sequential(
        *vectors(),
        caps.ConvCaps(4, 6, 3, 8, 3, routing=routing),
        caps.ClassCaps((3, 4, 4), 8, 7, 8, routing),
        caps.DenseCaps(7, 8, 5, 8, routing),
    )
    assert network(IMAGES).poses.shape == (2, 5, 8)


def listed() -> Capsules:
    return Capsules(torch.rand(2, 12, 6), torch.rand(2, 12))


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "dense": (lambda: caps.DenseCaps(12, 8, 5, 8)(listed()), r"12 children of 8 .* given 12 of 6: DenseCaps\(12, 6"),
    "dense after map": (lambda: nn.Sequential(*vectors(), caps.DenseCaps(4, 6, 5, 8))(IMAGES), r"DenseCaps\(144, 6"),
    "conv": (lambda: caps.ConvCaps(4, 6, 3, 8, 3)(torch.rand(2, 5, 6, 6, 6)), r"ConvCaps\(5, 6"),
    "conv after list": (lambda: caps.ConvCaps(4, 6, 3, 8, 3)(listed()), r"map of capsules.*12 capsules of 6"),
    "conv on features": (lambda: caps.ConvCaps(4, 6, 3, 8, 3)(torch.rand(2, 4, 6, 6)), r"\[2, 4, 6, 6\]"),
    "conv on a small map": (
        lambda: caps.ConvCaps(4, 6, 3, 8, 7)(torch.rand(2, 4, 6, 6, 6)),
        "6x6 capsules is too small for a kernel of 7",
    ),
    "class": (lambda: caps.ClassCaps((4, 5, 5), 6, 5, 8)(torch.rand(2, 4, 6, 6, 6)), r"ClassCaps\(\(4, 6, 6\), 6"),
    "class after list": (lambda: caps.ClassCaps((4, 5, 5), 6, 5, 8)(listed()), "map of capsules"),
    "class of one number": (lambda: caps.ClassCaps((4, 5, 5), 6, 5, 1), "at least 2, not 1"),
    "primary after capsules": (lambda: caps.PrimaryCaps(4, 6, 3, 3)(listed()), "feature map.*not Capsules"),
    "poses after vectors": (lambda: caps.PrimaryPoses(4, 6)(torch.rand(2, 4)), r"4 channels.*\[2, 4\]"),
    "primary, other channels": (lambda: caps.PrimaryCaps(4, 6, 3, 3)(torch.rand(2, 5, 8, 8)), r"4 channels.*\[2, 5"),
    "not capsules": (lambda: caps.DenseCaps(4, 6, 3, 3)({"poses": 1}), "not a dict"),
    "matrix": (lambda: caps.ConvCaps(4, 8, 3, 8, 3, matrix=True), "square.*8 -> 8"),
    "no children": (lambda: caps.DenseCaps(0, 8, 3, 8), "children of at least 1, not 0"),
    "no stride": (lambda: caps.ConvCaps(4, 8, 3, 8, 3, 0), "stride of at least 1, not 0"),
    "no kernel": (lambda: caps.PrimaryCaps(4, 8, 3, 0), "kernel of at least 1, not 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_pair_that_does_not_fit_is_one_sentence_with_the_sizes(case: str) -> None:
    build, sentence = WRONG[case]
    with as_installed(), pytest.raises(ValueError, match=sentence) as caught:
        build()
    assert "\n" not in str(caught.value)


class Mean(Routing):
    """Needs no sizes, so it has no `__init__`."""

    def forward(self, votes, children, *, competition=None, trace=False):
        return RoutingOutput(votes.mean(1), votes.mean(1).norm(dim=-1).clamp(max=1))


class Scaled(Mean):
    def __init__(self, shape: VoteShape, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale


def test_a_routing_by_name_class_or_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = VoteShape(7, 5, 4, 3)
    for routing in (Mean, Mean(), Scaled, Scaled(shape, 2.0), "em", EM, EM(shape)):
        assert caps.DenseCaps(7, 3, 5, 4, routing)(torch.rand(2, 7, 3)).poses.shape == (2, 5, 4)
    monkeypatch.delitem(ROUTINGS, "scaled", raising=False)
    register_routing("scaled", Scaled)
    layer = caps.DenseCaps(7, 3, 5, 4, "scaled", scale=3.0)
    assert isinstance(layer.routing, Scaled)
    assert layer.routing.scale == 3.0
    register_routing("scaled", Scaled)
    with pytest.raises(UserError, match="'scaled' already, Scaled"):
        register_routing("scaled", Mean)
    with as_installed(), pytest.raises(UserError, match="derived from"):
        register_routing("linear", nn.Linear)  # pyright: ignore[reportArgumentType]
    del ROUTINGS["scaled"]


def test_options_of_a_routing() -> None:
    assert options_of(Mean) == ()
    assert options_of(Scaled) == ("scale",)
    with pytest.raises(UserError, match="instance already: set iterations where it is made"):
        caps.DenseCaps(7, 3, 5, 4, Dynamic(VoteShape(7, 5, 4)), iterations=7)
    with pytest.raises(UserError, match="no option size; it has scale"):
        make_routing(Scaled, VoteShape(7, 5, 4), size=2)


def test_a_routing_remembers_what_it_was_made_with() -> None:
    shape = VoteShape(7, 5, 4)
    for routing in (Scaled(shape, 2.0), Scaled(shape=shape, scale=2.0), copy.deepcopy(Scaled(shape, 2.0))):
        assert (routing.shape, routing.options) == (shape, {"scale": 2.0})
    again = pickle.loads(pickle.dumps(EM(shape, iterations=2)))
    assert (again.shape, again.options) == (shape, {"iterations": 2})


@pytest.mark.parametrize("shape", [VoteShape(8, 5, 4), VoteShape(7, 6, 4), VoteShape(7, 5, 3)], ids=str)
def test_an_instance_for_another_layer_is_refused_with_both_sizes(shape: VoteShape) -> None:
    with pytest.raises(UserError, match=r"made for .*the layer has 7 children and 5 parents of 4 numbers"):
        caps.DenseCaps(7, 3, 5, 4, EM(shape))


class OverChildren(Mean):
    def forward(self, votes, children, *, competition=None, trace=False):
        return RoutingOutput(votes.mean(2), votes.mean((2, 3)))


class PlainTensor(Mean):
    def forward(self, votes, children, *, competition=None, trace=False) -> Tensor:
        return votes.mean(1)


@pytest.mark.parametrize("layer", ["dense", "conv", "class"])
def test_a_routing_that_returns_something_else_is_named(layer: str) -> None:
    def run(routing: type[Routing]) -> None:
        if layer == "dense":
            caps.DenseCaps(7, 3, 5, 4, routing)(torch.rand(2, 7, 3))
        elif layer == "conv":
            caps.ConvCaps(2, 3, 5, 4, 2, routing=routing)(torch.rand(2, 2, 3, 3, 3))
        else:
            caps.ClassCaps((2, 3, 3), 3, 5, 4, routing)(torch.rand(2, 2, 3, 3, 3))

    with as_installed(), pytest.raises(ValueError, match=r"OverChildren returned poses \[.*are needed"):
        run(OverChildren)
    with as_installed(), pytest.raises(ValueError, match="PlainTensor returned a Tensor"):
        run(PlainTensor)
