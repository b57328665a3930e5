"""The routings beside Procedure 1: against the slow transcriptions of their papers, and where each is special."""

from collections.abc import Callable

import numpy as np
import pytest
import reference as ref
import torch
from hypothesis import given
from hypothesis import strategies as st
from mistakes import Procedure1
from support import children_of
from torch import Tensor
from torch.nn.functional import layer_norm

from torchcaps.app.web.engine import Engine, Question
from torchcaps.core.errors import UserError
from torchcaps.core.functional import squash
from torchcaps.core.types import Capsules, RoutingOutput
from torchcaps.models.config import model_config, model_from_config
from torchcaps.models.registry import create_model
from torchcaps.routing import ROUTINGS, Heinsen2022, Routing, SelfRouting, VoteShape, make_routing, options_of
from torchcaps.routing.self_attention import exponential_squash
from torchcaps.testing import ConformanceError, check_model, check_routing
from torchcaps.testing.routing_case import RoutingCase, routed
from torchcaps.testing.routing_properties import output_follows_from_last_couplings

# Square roots and denominators have 1e-12 in the package and nothing in the papers.
EXACT = {"rtol": 0, "atol": 1e-6}


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy()


Transcription = Callable[[Routing, np.ndarray, np.ndarray, np.ndarray], ref.Routed]
TRANSCRIPTIONS: dict[str, Transcription] = {
    "self-attention": lambda r, u_hat, a, u: ref.self_attention(u_hat, array(r.log_priors)),
    "inverted-dot-product": lambda r, u_hat, a, u: ref.inverted_dot_product(
        u_hat,
        r.iterations,
        array(r.norm.weight),
        array(r.norm.bias),
        *map(array, (r.presence.weight[0], r.presence.bias[0])),
    ),
    "variational-bayes": lambda r, u_hat, a, u: ref.variational_bayes(
        u_hat, a, r.iterations, array(r.offset), array(r.gain)
    ),
    "self-routing": lambda r, u_hat, a, u: ref.self_routing(u, a, u_hat, array(r.weight)),
    "heinsen": lambda r, u_hat, a, u: ref.heinsen(
        u_hat, a, r.iterations, array(r.beta_use), array(r.beta_ign), r.density_scale
    ),
    "heinsen-2022": lambda r, u_hat, a, u: ref.heinsen_2022(
        u, a, u_hat, r.iterations, array(r.use), array(r.ignore), **{n: array(p) for n, p in r.named_parameters()}
    ),
    "uniform": lambda r, u_hat, a, u: ref.fixed_couplings(u_hat, np.zeros(u_hat.shape[:2])),
    "random": lambda r, u_hat, a, u: ref.fixed_couplings(u_hat, array(r.logits)),
}


def test_every_routing_is_held_against_a_transcription() -> None:
    elsewhere = {"dynamic", "em"}
    assert set(TRANSCRIPTIONS) == set(ROUTINGS) - elsewhere


shapes = st.builds(VoteShape, st.integers(1, 5), st.integers(1, 4), st.integers(2, 4), st.integers(1, 3))


@pytest.mark.parametrize("name", TRANSCRIPTIONS)
@given(shape=shapes, batch=st.integers(1, 2), iterations=st.integers(1, 4), seed=st.integers(0, 9))
def test_matches_its_transcription(name: str, shape: VoteShape, batch: int, iterations: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    options = {"iterations": iterations} if "iterations" in options_of(name) else {}
    routing = make_routing(name, shape, **options).double()
    for parameter in routing.parameters():
        parameter.data.normal_(generator=random)
    votes = torch.randn(batch, *shape[:3], dtype=torch.float64, generator=random)
    activations = torch.rand(batch, shape.children, dtype=torch.float64, generator=random) + 0.01
    poses = torch.randn(batch, shape.children, shape.child_dim, dtype=torch.float64, generator=random)
    output = routed(routing, votes, activations, poses, trace=True)
    assert output.trace is not None
    for row in range(batch):
        expected = TRANSCRIPTIONS[name](routing, array(votes[row]), array(activations[row]), array(poses[row]))
        np.testing.assert_allclose(array(output.poses[row]), expected.poses, **EXACT)
        np.testing.assert_allclose(array(output.activations[row]), expected.activations, **EXACT)
        logits, couplings, agreement = (np.stack(column) for column in zip(*expected.passes, strict=True))
        np.testing.assert_allclose(array(output.trace.couplings[:, row]), couplings, **EXACT)
        np.testing.assert_allclose(array(output.trace.logits[:, row]), logits, **EXACT)
        np.testing.assert_allclose(array(output.trace.agreement[:, row]), agreement, **EXACT)


def test_heinsen_as_in_his_paper() -> None:
    random = torch.Generator().manual_seed(0)
    shape = VoteShape(5, 4, 3)
    routing = make_routing("heinsen", shape, density_scale=1.0).double()
    votes = torch.randn(1, *shape[:3], dtype=torch.float64, generator=random)
    found = routing(votes, children_of(votes))
    betas = map(array, (routing.beta_use, routing.beta_ign))
    expected = ref.heinsen(array(votes[0]), np.ones(5), 3, *betas)
    np.testing.assert_allclose(array(found.poses[0]), expected.poses, **EXACT)
    np.testing.assert_allclose(array(found.activations[0]), expected.activations, **EXACT)


def test_reference_digamma_at_known_points() -> None:
    assert ref.digamma(1) == pytest.approx(-0.5772156649015329, abs=1e-14)
    assert ref.digamma(0.5) == pytest.approx(-1.9635100260214235, abs=1e-14)


def weighted(votes: Tensor, weights: Tensor) -> Tensor:
    return torch.einsum("bij,bijd->bjd", weights, votes)


COMBINE = {
    "self-attention": lambda r, votes, c: exponential_squash(weighted(votes, c + r.log_priors)),
    "inverted-dot-product": lambda r, votes, c: r.norm(weighted(votes, c)),
    "uniform": lambda r, votes, c: squash(weighted(votes, c)),
    "random": lambda r, votes, c: squash(weighted(votes, c)),
}


@pytest.mark.parametrize("name", COMBINE)
def test_the_couplings_shown_are_those_that_were_used(name: str) -> None:
    check_routing(ROUTINGS[name], combine=COMBINE[name], properties=[output_follows_from_last_couplings])


@pytest.mark.parametrize("name", ROUTINGS)
def test_equal_seeds_give_equal_bytes(name: str) -> None:
    def answer(seed: int) -> RoutingOutput:
        torch.manual_seed(seed)
        routing = make_routing(name, VoteShape(6, 4, 3, 2))
        return routed(routing, torch.randn(2, 6, 4, 3), torch.rand(2, 6), torch.randn(2, 6, 2))

    first, again, other = answer(0), answer(0), answer(1)
    assert torch.equal(first.poses, again.poses)
    assert torch.equal(first.activations, again.activations)
    assert not torch.equal(first.poses, other.poses)


def test_the_random_couplings_of_a_seed_are_always_the_same() -> None:
    shape = VoteShape(6, 4, 3)
    one, same, other = (make_routing("random", shape, seed=seed).state_dict()["logits"] for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert not list(make_routing("random", shape).parameters())


def test_self_routing_looks_at_no_vote() -> None:
    case = RoutingCase(SelfRouting)
    routing, (votes, activations, poses) = case.routing(), case.inputs()
    couplings = [routed(routing, v, activations, poses, trace=True).trace.couplings for v in (votes, votes.flip(0))]
    assert torch.equal(*couplings)
    with pytest.raises(ValueError, match="child_dim"):
        SelfRouting(VoteShape(6, 4, 3))


def test_heinsen_2022_credits_add_up_to_the_parents() -> None:
    case = RoutingCase(Heinsen2022)
    routing, (votes, activations, poses) = case.routing(), case.inputs()
    credit = routing.credit(votes, Capsules(poses, activations))
    parents = torch.einsum("bij,bijd->bjd", credit, votes)
    torch.testing.assert_close(layer_norm(parents, votes.shape[-1:]), routed(routing, *case.inputs()).poses)
    assert (credit < 0).any()
    assert (credit > 0).any()
    with pytest.raises(ValueError, match="child_dim"):
        Heinsen2022(VoteShape(6, 4, 3))


def test_heinsen_2022_routes_any_number_of_children() -> None:
    """One set of parameters for sequences of any length; a child without activation is as if it were not there."""
    torch.manual_seed(0)
    routing = Heinsen2022(VoteShape(7, 5, 4, 3), any_children=True).double()
    check_routing(lambda shape: Heinsen2022(shape, any_children=True))
    votes, poses = torch.randn(2, 11, 5, 4, dtype=torch.float64), torch.randn(2, 11, 3, dtype=torch.float64)
    there = (torch.arange(11) < 8).double().expand(2, -1)
    few = routed(routing, votes[:, :8], there[:, :8], poses[:, :8])
    torch.testing.assert_close(routed(routing, votes, there, poses).poses, few.poses)


@pytest.mark.parametrize("name", ["inverted-dot-product", "variational-bayes", "heinsen", "heinsen-2022"])
def test_iterations_below_one_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        make_routing(name, VoteShape(2, 3, 4, 5), iterations=0)


@pytest.mark.parametrize("name", ["variational-bayes", "heinsen"])
def test_a_gaussian_routing_finds_the_cluster(name: str) -> None:
    """Six of eight children agree about parent 0 and scatter about parent 1: they come to belong to parent 0."""
    random = torch.Generator().manual_seed(0)
    votes = 2 * torch.randn(1, 8, 2, 4, generator=random)
    votes[:, :6, 0] = 0.5 + 0.05 * torch.randn(1, 6, 4, generator=random)
    options = {"density_scale": 1.0} if "density_scale" in options_of(name) else {}
    trace = make_routing(name, VoteShape(8, 2, 4), **options)(votes, children_of(votes), trace=True).trace
    assert trace is not None
    assert (trace.couplings[-1, 0, :6, 0] > 0.9).all()
    assert (trace.couplings[0] == 0.5).all()


class OutOfRange(Procedure1):
    """Poses left as long as they are, and their length called a probability."""

    def squash(self, s: Tensor) -> Tensor:
        return 3 * s


def test_activations_outside_zero_to_one_are_caught() -> None:
    with pytest.raises(ConformanceError, match=r"outside 0 \.\. 1"):
        check_routing(OutOfRange)


SMALL = {"channels": 16, "primary_types": 2, "decoder": (8,)}


@pytest.mark.parametrize("name", ROUTINGS)
def test_any_capsule_network_takes_it(name: str) -> None:
    """The model's contract, its way through a run folder, and the playground's view of its routing."""
    torch.manual_seed(0)
    model = create_model("capsnet-mnist-small", routing=name, **SMALL).eval()
    check_model(model, model.config.image)
    again = model_from_config(model_config(model))
    again.load_state_dict(model.state_dict())
    images = torch.rand(2, 1, 28, 28)
    assert torch.equal(again.eval()(images).lengths, model(images).lengths)
    answers = Engine(model, "mine", "mnist-mini").route([Question(image, None) for image in images])
    for answer, lengths in zip(answers, model(images).lengths, strict=True):
        shown = answer["iterations"][min(model.classes.routing.iterations, 5) - 1]
        np.testing.assert_allclose(shown["lengths"], lengths.detach(), atol=1e-4)
        assert len(answer["iterations"]) == (5 if "iterations" in options_of(name) else 1)


def test_another_routing_does_not_inherit_options() -> None:
    def routing(**overrides: object) -> Routing:
        return create_model("capsnet-cifar10", channels=16, primary_types=2, **overrides).classes.routing

    assert (routing().iterations, routing().leaky) == (3, True)
    assert routing(routing="inverted-dot-product").iterations == 2
    assert routing(routing="heinsen", routing_options={"iterations": 4}).iterations == 4
    assert routing(routing="dynamic").leaky


def test_votes_that_shape_poses_only_take_part() -> None:
    model = create_model("capsnet-mnist-small", routing="self-routing", **{**SMALL, "decoder": None})
    check_model(model, (1, 28, 28), classes=10)


def test_the_official_recipe_adds_its_bias_where_there_is_one() -> None:
    assert create_model("capsnet-mnist-small", routing="heinsen", recipe="official", **SMALL)


def test_wrong_names_and_options_are_user_errors() -> None:
    with pytest.raises(UserError, match="unknown routing 'agreement'; there are dynamic, "):
        create_model("capsnet-mnist-small", routing="agreement")
    with pytest.raises(UserError, match="uniform routing has no option iterations; it has none"):
        create_model("capsnet-mnist-small", routing="uniform", routing_options={"iterations": 3})
    with pytest.raises(UserError, match="heinsen routing has no option leaky; it has iterations, density_scale"):
        create_model("capsnet-mnist-small", routing="heinsen", routing_options={"leaky": True})
    with pytest.raises(UserError, match="no option routing"):
        create_model("cnn-mnist", routing="uniform")
