"""Properties of a routing algorithm.

    check_routing(MyRouting)                                          # MyRouting(VoteShape(...)) -> Routing
    check_iterations(lambda shape, n: MyRouting(shape, iterations=n))

What is not true of every right algorithm is declared by the routing itself: `leaky = True` (couplings of a child may
sum to less than one), `gradient = "last"` (the backward pass holds the couplings constant, so it is not the gradient of
the forward pass), `deterministic = False` (random by design; what compares two calls is left out).
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from torchcaps.routing import Routing, VoteShape
from torchcaps.testing.core import (
    Run,
    must_run,
    require,
    require_any_device,
    require_close,
    require_finite_gradients,
    require_independent_images,
    require_repeatable,
    require_stateless,
    same_bytes,
    seeded,
)
from torchcaps.types import RoutingOutput, RoutingTrace

MakeRouting = Callable[[VoteShape], Routing]
# The parents' poses that a weighted mean of the votes gives: combine(routing, votes, couplings).
Combine = Callable[[Routing, Tensor, Tensor], Tensor]

# Three different sizes, so that an axis of a parameter is known by its size.
SHAPE = VoteShape(children=7, parents=5, dim=4)


@dataclass(frozen=True)
class RoutingCase:
    """A routing whose parameters have left their initial values (zeros would hide much), and inputs for it."""

    make: MakeRouting
    shape: VoteShape = SHAPE
    batch: int = 3
    combine: Combine | None = None

    def routing(self, dtype: torch.dtype = torch.float64) -> Routing:
        with seeded(1), torch.no_grad():
            routing = self.make(self.shape)
            for parameter in routing.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        return routing.to(dtype).eval()

    def inputs(self, dtype: torch.dtype = torch.float64, batch: int | None = None) -> tuple[Tensor, Tensor]:
        batch = batch or self.batch
        with seeded(2):
            votes = torch.randn(batch, *self.shape, dtype=torch.float64)
            activations = torch.rand(batch, self.shape.children, dtype=torch.float64) * 0.8 + 0.1
        return votes.to(dtype), activations.to(dtype)

    def traced(self, routing: Routing | None = None) -> tuple[RoutingOutput, RoutingTrace]:
        with must_run("routing with trace=True"):
            output = (routing or self.routing())(*self.inputs(), trace=True)
        require(output.trace is not None, "trace=True gives no trace")
        assert output.trace is not None
        return output, output.trace

    def __post_init__(self) -> None:
        if len({*self.shape}) < len(self.shape):
            raise ValueError(f"children, parents and dim must be three different numbers, not {tuple(self.shape)}")


def runner(routing: nn.Module) -> Run:
    def run(votes: Tensor, activations: Tensor) -> Sequence[Tensor]:
        output = routing(votes, activations)
        return output.poses, output.activations

    return run


def output_shapes(case: RoutingCase) -> None:
    with must_run("routing"):
        output = case.routing()(*case.inputs())
    b, j, d = case.batch, case.shape.parents, case.shape.dim
    require(output.poses.shape == (b, j, d), f"poses are {list(output.poses.shape)} instead of {[b, j, d]}")
    require(output.activations.shape == (b, j), f"activations are {list(output.activations.shape)} instead of {[b, j]}")
    require(output.trace is None, "a trace is returned although nobody asked for it")


def couplings_sum_to_one_over_parents(case: RoutingCase) -> None:
    routing = case.routing()
    couplings = case.traced(routing)[1].couplings
    require(bool((couplings >= 0).all()), f"a coupling is negative: {couplings.min():.3g}")
    totals = couplings.sum(-1)
    low, high = totals.min().item(), totals.max().item()
    if getattr(routing, "leaky", False):
        require(high <= 1 + 1e-9, f"the couplings of one child sum to up to {high:.4g} over its parents, more than 1")
    else:
        require(
            max(1 - low, high - 1) <= 1e-9,
            f"the couplings of one child do not sum to 1 over its parents, but to {low:.4g} .. {high:.4g}",
        )


def every_iteration_is_traced(case: RoutingCase) -> None:
    routing = case.routing()
    rows = [routing.iterations, case.batch, case.shape.children, case.shape.parents]
    for name, column in case.traced(routing)[1]._asdict().items():
        require(list(column.shape) == rows, f"the trace's {name} are {list(column.shape)} instead of {rows}")


def trace_changes_nothing(case: RoutingCase) -> None:
    routing = case.routing()
    with must_run("routing"):
        plain = routing(*case.inputs())
    traced = case.traced(routing)[0]
    for name in ("poses", "activations"):
        require(same_bytes(getattr(plain, name), getattr(traced, name)), f"trace=True changes the {name}")


def output_follows_from_last_couplings(case: RoutingCase) -> None:
    if case.combine is None:
        return
    routing = case.routing()
    output, trace = case.traced(routing)
    implied = case.combine(routing, case.inputs()[0], trace.couplings[-1])
    require_close(output.poses, implied, "the output is not what the last couplings of the trace imply")


def order_of_children_is_irrelevant(case: RoutingCase) -> None:
    votes, activations = case.inputs()
    order = torch.arange(case.shape.children).roll(1).flip(0)
    with must_run("routing with its children in another order"):
        plain = case.routing()(votes, activations)
        permuted = _reordered(case.routing(), order)(votes[:, order], activations[:, order])
    require_close(permuted.poses, plain.poses, "permuting the children changes the parents' poses")
    require_close(permuted.activations, plain.activations, "permuting the children changes the parents' activations")


def parents_permute_with_their_votes(case: RoutingCase) -> None:
    votes, activations = case.inputs()
    order = torch.arange(case.shape.parents).roll(1).flip(0)
    with must_run("routing with its parents in another order"):
        plain = case.routing()(votes, activations)
        permuted = _reordered(case.routing(), order)(votes[:, :, order], activations)
    require_close(permuted.poses, plain.poses[:, order], "permuting the parents does not permute their poses")
    require_close(
        permuted.activations, plain.activations[:, order], "permuting the parents does not permute their activations"
    )


def _reordered(routing: Routing, order: Tensor) -> Routing:
    """The routing whose parameters belong to capsules in another order: each axis as long as `order` is permuted."""
    state = routing.state_dict()
    for name, tensor in state.items():
        for axis, size in enumerate(tensor.shape):
            if size == len(order):
                tensor = tensor.index_select(axis, order)
        state[name] = tensor
    routing.load_state_dict(state)
    return routing


def images_are_independent(case: RoutingCase) -> None:
    for training in (False, True):
        routing = case.routing().train(training)
        require_independent_images("routing", runner(routing), case.inputs())


def gradients_are_finite_at_zero(case: RoutingCase) -> None:
    for dtype in (torch.float64, torch.float32):
        routing, (votes, activations) = case.routing(dtype), case.inputs(dtype)
        nothing = torch.zeros_like(votes)
        require_finite_gradients("routing of all-zero votes", routing, runner(routing), (nothing, activations))
        one_child, one_parent = votes.clone(), votes.clone()
        one_child[:, 0], one_parent[:, :, 0] = 0, 0
        require_finite_gradients("routing of an all-zero child", routing, runner(routing), (one_child, activations))
        require_finite_gradients("routing to an all-zero parent", routing, runner(routing), (one_parent, activations))


def gradient_is_that_of_the_function(case: RoutingCase) -> None:
    routing, (votes, activations) = case.routing(), case.inputs(batch=2)
    if getattr(routing, "gradient", "full") == "last":
        return
    names = [name for name, _ in routing.named_parameters()]

    def function(votes: Tensor, activations: Tensor, *parameters: Tensor) -> Sequence[Tensor]:
        replaced = dict(zip(names, parameters, strict=True))
        output = torch.func.functional_call(routing, replaced, (votes, activations))
        return output.poses, output.activations

    inputs = [tensor.detach().clone().requires_grad_() for tensor in (votes, activations, *routing.parameters())]
    with must_run("the backward pass does not match finite differences in float64"):
        torch.autograd.gradcheck(function, inputs, atol=1e-6, fast_mode=True)


def float32_agrees_with_float64(case: RoutingCase) -> None:
    with must_run("routing"):
        outputs = {dtype: runner(case.routing(dtype))(*case.inputs(dtype)) for dtype in (torch.float32, torch.float64)}
    for dtype, pair in outputs.items():
        for output in pair:
            require(output.dtype == dtype, f"routing in {dtype} answers in {output.dtype}")
    for low, high in zip(outputs[torch.float32], outputs[torch.float64], strict=True):
        require_close(low, high, "float32 disagrees with float64", 1e-4)


def forward_is_pure(case: RoutingCase) -> None:
    for training in (False, True):
        routing = case.routing().train(training)
        for trace in (False, True):
            run = partial(routing, trace=trace)
            require_stateless(f"routing with trace={trace}", routing, run, case.inputs())
        if getattr(routing, "deterministic", True):
            require_repeatable("routing", runner(routing), case.inputs())


def runs_on_any_device(case: RoutingCase) -> None:
    require_any_device("routing", case.routing(), runner, case.inputs())


class _PlainOutputs(nn.Module):
    """A routing as `torch.export` likes it: tensors in, tensors out."""

    def __init__(self, routing: Routing) -> None:
        super().__init__()
        self.routing = routing

    def forward(self, votes: Tensor, activations: Tensor) -> tuple[Tensor, Tensor]:
        output = self.routing(votes, activations)
        return output.poses, output.activations


def exports_with_any_batch(case: RoutingCase) -> None:
    routing = case.routing(torch.float32)
    batch = {0: torch.export.Dim("batch", min=1, max=1024)}
    with must_run("torch.export with a batch of any size"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = case.inputs(torch.float32)
        program = torch.export.export(_PlainOutputs(routing), inputs, dynamic_shapes=(batch, batch)).module()
        for size in (1, case.batch + 2):
            inputs = case.inputs(torch.float32, size)
            for exported, eager in zip(program(*inputs), runner(routing)(*inputs), strict=True):
                require_close(exported, eager, f"the exported routing differs at a batch of {size}", 1e-5)


_COMPARE_TWO_CALLS = (
    trace_changes_nothing,
    order_of_children_is_irrelevant,
    parents_permute_with_their_votes,
    images_are_independent,
    gradient_is_that_of_the_function,
    float32_agrees_with_float64,
    exports_with_any_batch,
)
ROUTING_PROPERTIES: tuple[Callable[[RoutingCase], None], ...] = (
    output_shapes,
    couplings_sum_to_one_over_parents,
    every_iteration_is_traced,
    output_follows_from_last_couplings,
    gradients_are_finite_at_zero,
    forward_is_pure,
    runs_on_any_device,
    *_COMPARE_TWO_CALLS,
)


def check_routing(
    make: MakeRouting,
    *,
    shape: VoteShape = SHAPE,
    combine: Combine | None = None,
    properties: Iterable[Callable[[RoutingCase], None]] = ROUTING_PROPERTIES,
) -> None:
    """Put a routing through every property above, or through those in `properties`.

    Give `combine` where the output is a function of the last couplings, such as `squash(Σ_i c[i,j] û[j|i])`: then it is
    also checked that the couplings shown in the trace are those that were used.
    """
    case = RoutingCase(make, shape, combine=combine)
    deterministic = getattr(case.routing(), "deterministic", True)
    for holds in properties:
        if deterministic or holds not in _COMPARE_TWO_CALLS:
            holds(case)


def check_iterations(
    make: Callable[[VoteShape, int], Routing],
    *,
    shape: VoteShape = SHAPE,
    combine: Combine | None = None,
    starts_from_priors: bool = False,
    most: int = 4,
) -> None:
    """`iterations=n` makes n passes: neither n + 1 nor always the same number.

    More iterations continue the same procedure, so the trace of n is the beginning of the trace of n + 1. With
    `starts_from_priors`, the first pass must not have looked at the votes yet, as in Procedure 1 of Sabour et al. 2017;
    with that and `combine`, a pass that is hidden from the trace has no place left to hide.
    """
    previous: tuple[RoutingOutput, RoutingTrace] | None = None
    for n in range(1, most + 1):
        case = RoutingCase(lambda shape, n=n: make(shape, n), shape, combine=combine)
        routing = case.routing()
        require(routing.iterations == n, f"asked for {n} iterations, the routing says {routing.iterations}")
        every_iteration_is_traced(case)
        output_follows_from_last_couplings(case)
        output, trace = case.traced(routing)
        if previous is not None:
            change = (output.poses - previous[0].poses).abs().max().item()
            require(
                change > 1e-9, f"{n} iterations give what {n - 1} give (a difference of {change:.1g}): not an option"
            )
            require_close(
                trace.couplings[:-1],
                previous[1].couplings,
                f"the first {n - 1} of {n} iterations are not those of a routing with {n - 1}",
            )
        if starts_from_priors:
            votes, activations = case.inputs()
            other = routing(votes.flip(2) - 1, activations, trace=True).trace
            require_close(
                other.couplings[0], trace.couplings[0], "the first pass's couplings depend on the votes already"
            )
        previous = output, trace
