"""Every routing in the table through the conformance suite; Procedure 1 against the reference as well."""

import inspect
from functools import partial

import numpy as np
import pytest
import reference as ref
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import children_of
from torch import Tensor

from torchcaps.core.functional import squash
from torchcaps.routing import ROUTINGS, Dynamic, Routing, VoteShape, couplings
from torchcaps.testing import ROUTING_PROPERTIES, check_iterations, check_routing
from torchcaps.testing.routing_properties import exports_with_any_batch

# The package has 1e-12 inside its square roots and the paper has not: a capsule of length 0.001 differs by 5e-10.
EXACT = {"rtol": 0, "atol": 1e-9}

DYNAMIC_OPTIONS = {
    "plain": {},
    "one-iteration": {"iterations": 1},
    "leaky": {"leaky": True},
    "priors-and-bias": {"learn_priors": True, "bias": True},
    "sharp": {"sharpness": 5.0},
    "last": {"gradient": "last"},
    "last-leaky-priors-and-bias": {"gradient": "last", "leaky": True, "learn_priors": True, "bias": True},
}


def squashed_sum(routing: Routing, votes: Tensor, couplings: Tensor) -> Tensor:
    s = torch.einsum("bij,bijd->bjd", couplings, votes)
    bias = getattr(routing, "bias", None)
    return squash(s if bias is None else s + bias)


@pytest.mark.parametrize("holds", ROUTING_PROPERTIES, ids=lambda holds: holds.__name__)
@pytest.mark.parametrize("name", ROUTINGS)
def test_routing_conforms(name: str, holds) -> None:
    check_routing(ROUTINGS[name], properties=[holds])


ITERATIVE = [name for name, routing in ROUTINGS.items() if "iterations" in inspect.signature(routing).parameters]


@pytest.mark.parametrize("name", ITERATIVE)
def test_iterations_are_what_was_asked_for(name: str) -> None:
    check_iterations(lambda shape, n: ROUTINGS[name](shape, iterations=n))


@pytest.mark.parametrize("options", DYNAMIC_OPTIONS.values(), ids=DYNAMIC_OPTIONS)
def test_dynamic_conforms_with_options(options: dict) -> None:
    properties = [holds for holds in ROUTING_PROPERTIES if holds is not exports_with_any_batch]
    check_routing(partial(Dynamic, **options), combine=squashed_sum, properties=properties)


def test_sharpness_multiplies_the_agreement() -> None:
    votes = torch.randn(2, 7, 3, 4, generator=torch.Generator().manual_seed(0))
    plain, sharp = (
        Dynamic(VoteShape(7, 3, 4), sharpness=factor)(votes, children_of(votes), trace=True).trace
        for factor in (1.0, 4.0)
    )
    assert plain is not None
    assert sharp is not None
    torch.testing.assert_close(sharp.logits[1], 4 * plain.logits[1])
    torch.testing.assert_close(sharp.logits[2] - sharp.logits[1], 4 * sharp.agreement[1])
    for wrong in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="sharpness"):
            Dynamic(VoteShape(7, 3, 4), sharpness=wrong)


def test_dynamic_starts_from_its_priors_and_hides_no_pass() -> None:
    for options in ({}, {"learn_priors": True, "bias": True, "leaky": True}):
        check_iterations(
            lambda shape, n, options=options: Dynamic(shape, iterations=n, **options),
            combine=squashed_sum,
            starts_from_priors=True,
        )


cases = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 2),
        "shape": st.builds(VoteShape, st.integers(1, 4), st.integers(1, 3), st.integers(2, 3), st.just(0)),
        "iterations": st.integers(1, 4),
        "leaky": st.booleans(),
        "priors": st.booleans(),
        "bias": st.booleans(),
        "gradient": st.sampled_from(["full", "last"]),
    }
)


def build(case: dict) -> tuple[Dynamic, Tensor, Tensor]:
    """A routing with parameters at random, votes, and the gradient of a loss with respect to the parents."""
    random = torch.Generator().manual_seed(sum(case["shape"]))
    routing = Dynamic(
        case["shape"],
        iterations=case["iterations"],
        gradient=case["gradient"],
        leaky=case["leaky"],
        learn_priors=case["priors"],
        bias=case["bias"],
    ).double()
    for parameter in routing.parameters():
        parameter.data.normal_(generator=random)
    votes = torch.randn(case["batch"], *case["shape"][:3], dtype=torch.float64, generator=random)
    dv = torch.randn(case["batch"], *case["shape"][1:3], dtype=torch.float64, generator=random)
    return routing, votes.requires_grad_(), dv


@settings(max_examples=60)
@given(cases)
def test_dynamic_matches_reference(case: dict) -> None:
    routing, votes, dv = build(case)
    output = routing(votes, children_of(votes), trace=True)
    gradients = torch.autograd.grad(output.poses, [votes, *routing.parameters()], dv)
    found = dict(zip(["u_hat", *dict(routing.named_parameters())], gradients, strict=True))

    def plain(tensor: Tensor | None) -> np.ndarray | None:
        return None if tensor is None else tensor.detach().numpy()

    backward = ref.route_backward_full if case["gradient"] == "full" else ref.route_backward_last
    sums = {"log_priors": 0.0, "bias": 0.0}
    for row, u_hat in enumerate(votes.detach().numpy()):
        passes = ref.route(u_hat, case["iterations"], plain(routing.log_priors), case["leaky"], plain(routing.bias))
        np.testing.assert_allclose(output.poses[row].detach(), passes[-1].v, **EXACT)
        lengths = [ref.length(v) for v in passes[-1].v]
        np.testing.assert_allclose(output.activations[row].detach(), lengths, **EXACT)
        for column, symbol in {"couplings": "c", "logits": "b", "agreement": "agreement"}.items():
            traced = getattr(output.trace, column)[:, row].detach()
            np.testing.assert_allclose(traced, [getattr(now, symbol) for now in passes], **EXACT)
        expected = backward(u_hat, passes, dv[row].numpy())
        np.testing.assert_allclose(found["u_hat"][row], expected.u_hat, **EXACT)
        sums = {name: total + getattr(expected, name) for name, total in sums.items()}
    for name in sums.keys() & found.keys():
        np.testing.assert_allclose(found[name], sums[name], **EXACT)


@given(cases.map(lambda case: case | {"gradient": "full"}))
def test_dynamic_in_full_mode_passes_gradcheck(case: dict) -> None:
    routing, votes, _ = build(case)
    names = [name for name, _ in routing.named_parameters()]

    def function(votes: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        output = torch.func.functional_call(
            routing, dict(zip(names, parameters, strict=True)), (votes, children_of(votes))
        )
        return output.poses, output.activations

    assert torch.autograd.gradcheck(function, (votes, *routing.parameters()))


def test_the_two_gradients_differ_and_agree_on_one_iteration() -> None:
    votes = torch.randn(2, 7, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def gradient(mode: str, iterations: int) -> Tensor:
        routing = Dynamic(VoteShape(7, 5, 4), iterations=iterations, gradient=mode)
        return torch.autograd.grad(routing(votes, children_of(votes)).poses.square().sum(), votes)[0]

    assert torch.equal(gradient("full", 1), gradient("last", 1))
    assert (gradient("full", 3) - gradient("last", 3)).abs().max() > 1e-3


def test_competition_widens_the_softmax() -> None:
    """A child that also reaches other parents elsewhere shares itself out among all of them."""
    logits = torch.randn(2, 3, 8, dtype=torch.float64)
    whole = couplings(logits)
    here = logits[..., :4]
    part = couplings(here, competition=lambda b: torch.cat([b, logits[..., 4:]], -1).logsumexp(-1, keepdim=True))
    torch.testing.assert_close(part, whole[..., :4])


def test_leaky_couplings_leave_room_for_none_of_the_above() -> None:
    totals = couplings(torch.zeros(1, 1, 4), leaky=True).sum(-1)
    assert totals.item() == pytest.approx(4 / 5)


@pytest.mark.parametrize("options", [{"iterations": 0}, {"gradient": "both"}])
def test_dynamic_refuses_nonsense(options: dict) -> None:
    with pytest.raises(Exception, match=r"iterations must be at least 1|gradient"):
        Dynamic(VoteShape(2, 3, 4), **options)
