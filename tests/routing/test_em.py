"""EM routing against the reference and at its extremes."""

import numpy as np
import pytest
import reference as ref
import torch
from support import children_of
from torch import Tensor

from torchcaps.models.registry import create_model
from torchcaps.nn.losses import spread_loss
from torchcaps.routing import EM, VoteShape
from torchcaps.testing import ROUTING_PROPERTIES, check_iterations, check_routing
from torchcaps.testing.routing_properties import exports_with_any_batch

SHAPE = VoteShape(7, 5, 16)


def make(shape: VoteShape = SHAPE, dtype: torch.dtype = torch.float64, **options: object) -> EM:
    torch.manual_seed(0)
    routing = EM(shape, **options).to(dtype)
    with torch.no_grad():
        routing.beta_u.normal_()
        routing.beta_a.normal_()
    return routing


def inputs(shape: VoteShape = SHAPE, batch: int = 3, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(batch, *shape[:3], dtype=dtype), torch.rand(batch, shape.children, dtype=dtype)


@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("shape", [SHAPE, VoteShape(1, 3, 4), VoteShape(6, 1, 9)], ids=str)
def test_em_matches_reference(iterations: int, shape: VoteShape) -> None:
    routing, (v, a) = make(shape, iterations=iterations), inputs(shape)
    output = routing(v, children_of(v, a), trace=True)
    for row in range(len(v)):
        betas = (beta.detach().numpy() for beta in (routing.beta_u, routing.beta_a))
        passes = ref.route_em(v[row].numpy(), a[row].numpy(), *betas, iterations)
        np.testing.assert_allclose(output.poses[row].detach(), passes[-1].mean, rtol=0, atol=1e-6)
        np.testing.assert_allclose(output.activations[row].detach(), passes[-1].activation, rtol=0, atol=1e-6)
        couplings = np.array([step.r for step in passes])
        np.testing.assert_allclose(output.trace.couplings[:, row].detach(), couplings, rtol=0, atol=1e-6)
        expected = np.array([np.log(step.activation) + step.log_density for step in passes])
        np.testing.assert_allclose(output.trace.agreement[:, row].detach(), expected, rtol=1e-6)


def test_em_conforms_with_options_and_starts_even() -> None:
    properties = [holds for holds in ROUTING_PROPERTIES if holds is not exports_with_any_batch]
    options = {"iterations": 2, "inverse_temperature": 0.5, "variance_floor": 1e-2}
    check_routing(lambda shape: EM(shape, **options), properties=properties)
    check_iterations(lambda shape, n: EM(shape, iterations=n), starts_from_priors=True)


def test_activations_of_children_do_not_cancel() -> None:
    """Children that are less sure bring less data: poses stay where they are, the parents' activations do not."""
    routing, (v, _) = make(iterations=1), inputs()
    sure, unsure = (routing(v, children_of(v, torch.full((3, 7), level, dtype=torch.float64))) for level in (0.9, 0.3))
    torch.testing.assert_close(sure.poses, unsure.poses, rtol=0, atol=1e-6)
    assert (sure.activations - unsure.activations).abs().min() > 1e-3


def test_number_of_children_does_not_decide_how_active_a_parent_is() -> None:
    """The same children twice are the same evidence for every parent: the amount of data is a share."""
    routing, (v, a) = make(), inputs()
    doubled = torch.cat([v, v], 1)
    once, twice = routing(v, children_of(v, a)), routing(doubled, children_of(doubled, torch.cat([a, a], 1)))
    torch.testing.assert_close(once.activations, twice.activations, rtol=0, atol=1e-7)


EXTREMES = {
    "zero votes": lambda v, a: (v * 0, a),
    "identical votes": lambda v, a: (v[:, :1].expand_as(v), a),
    "one child": lambda v, a: (v[:, :1], a[:, :1]),
    "huge votes": lambda v, a: (v * 1e9, a),
    "votes far from zero": lambda v, a: (v + 1e4, a),
    "tiny votes": lambda v, a: (v * 1e-30, a),
    "nobody is there": lambda v, a: (v, a * 0),
    "one faint child": lambda v, a: (v[:, :1], a[:, :1] * 1e-30),
    "one child far off": lambda v, a: (torch.cat([v[:, :1] * 1e6, v[:, 1:]], 1), a),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("extreme", EXTREMES.values(), ids=EXTREMES)
def test_em_is_finite_at_extremes(extreme, dtype: torch.dtype) -> None:
    routing = make(dtype=dtype)
    v, a = (tensor.detach().requires_grad_() for tensor in extreme(*inputs(dtype=dtype)))
    output = routing(v, children_of(v, a))
    gradients = torch.autograd.grad(output.poses.sum() + output.activations.sum(), (v, a, *routing.parameters()))
    for tensor in (*output[:2], *gradients):
        assert tensor.isfinite().all()
    assert ((output.activations >= 0) & (output.activations <= 1)).all()


def test_far_from_zero_float32_is_as_good_as_near() -> None:
    """No difference of large squares: with all votes moved by 300, only the votes' own rounding is left."""
    v, a = inputs(dtype=torch.float32)
    moved = v + 300
    low = make(dtype=torch.float32)(moved, children_of(moved, a))
    high = make()(moved.double(), children_of(moved.double(), a.double()))
    torch.testing.assert_close(low.activations.double(), high.activations, rtol=0, atol=1e-4)


def test_em_refuses_nonsense() -> None:
    for options in ({"iterations": 0}, {"inverse_temperature": 0.0}, {"variance_floor": -1.0}, {"density_scale": 0.0}):
        with pytest.raises(ValueError, match="must be"):
            EM(SHAPE, **options)


def test_density_scale_softens_the_assignments() -> None:
    v, a = inputs()
    sharp, soft = (make(density_scale=scale)(v, children_of(v, a), trace=True).trace for scale in (1.0, 0.1))
    assert torch.equal(sharp.couplings[0], soft.couplings[0])
    assert soft.couplings[1].max() < sharp.couplings[1].max()
    log_density = sharp.agreement[0] - soft.agreement[0]
    again = make(density_scale=0.55)(v, children_of(v, a), trace=True).trace.agreement[0]
    torch.testing.assert_close(again, soft.agreement[0] + log_density / 2)


def test_normalised_inverse_temperatures_end_alike() -> None:
    """So that one β suits any number of iterations: a parent without data is as active after one as after five."""
    none = torch.zeros(3, SHAPE.children, dtype=torch.float64)
    v, _ = inputs()
    empty = []
    for iterations in (1, 3, 5):
        temperatures = make(iterations=iterations, normalised=True, inverse_temperature=0.2).inverse_temperatures()
        assert temperatures == sorted(temperatures)
        assert temperatures[-1] == pytest.approx(0.2, abs=1e-15)
        routing = make(iterations=iterations, normalised=True)
        empty.append(routing(v, children_of(v, none)).activations)
    assert torch.equal(empty[0], empty[1])
    assert torch.equal(empty[1], empty[2])
    usual, same = make(), make(normalised=True, inverse_temperature=1 - 0.95**3)
    assert usual.inverse_temperatures() == [1 - 0.95 ** (t + 1) for t in range(3)]
    assert same.inverse_temperatures() == pytest.approx(usual.inverse_temperatures(), abs=1e-15)


def test_em_in_a_dense_capsule_network() -> None:
    model = create_model("capsnet-mnist-small", routing="em").eval()
    output = model(torch.rand(2, 1, 28, 28), trace=True)
    assert ((output.lengths >= 0) & (output.lengths <= 1)).all()
    assert output.reconstruction.shape == (2, 1, 28, 28)
    assert output.trace.couplings.shape[:2] == (3, 2)


def test_spread_loss_matches_reference() -> None:
    torch.manual_seed(0)
    lengths, labels = torch.rand(6, 5, dtype=torch.float64), torch.randint(0, 5, (6,))
    for margin in (0.2, 0.9):
        expected = ref.mean_over_batch(
            [ref.spread_loss(row.numpy(), int(label), margin) for row, label in zip(lengths, labels, strict=True)]
        )
        assert spread_loss(lengths, labels, margin).item() == pytest.approx(expected, abs=1e-12)
    apart = torch.tensor([[1.0, 0.0, 0.1]])
    assert spread_loss(apart, torch.tensor([0]), 0.9).item() == 0
