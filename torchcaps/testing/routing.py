"""Properties of a routing algorithm.

    check_routing(MyRouting)                                          # MyRouting(VoteShape(...)) -> Routing
    check_iterations(lambda shape, n: MyRouting(shape, iterations=n))

Exceptions are declared by attributes of the routing: `leaky = True` (couplings of a child may sum to less than one),
`gradient = "last"` (the backward pass treats the couplings as constants, so it is not the gradient of the forward
pass), `deterministic = False` (random; checks that compare two calls are skipped).
"""

from collections.abc import Callable, Iterable

from torchcaps.core.types import RoutingOutput, RoutingTrace
from torchcaps.routing import Routing, VoteShape
from torchcaps.testing import routing_properties as prop
from torchcaps.testing.core import require, require_close
from torchcaps.testing.routing_case import SHAPE, Combine, MakeRouting, RoutingCase, routed

_COMPARE_TWO_CALLS = (
    prop.trace_changes_nothing,
    prop.order_of_children_is_irrelevant,
    prop.parents_permute_with_their_votes,
    prop.images_are_independent,
    prop.gradient_is_that_of_the_function,
    prop.float32_agrees_with_float64,
    prop.exports_with_any_batch,
)
ROUTING_PROPERTIES: tuple[Callable[[RoutingCase], None], ...] = (
    prop.output_shapes,
    prop.forward_is_pure,
    prop.couplings_sum_to_one_over_parents,
    prop.competitors_elsewhere_take_their_share,
    prop.every_iteration_is_traced,
    prop.output_follows_from_last_couplings,
    prop.activations_are_probabilities,
    prop.gradients_are_finite_at_zero,
    prop.runs_on_any_device,
    *_COMPARE_TWO_CALLS,
)


def check_routing(
    make: MakeRouting,
    *,
    shape: VoteShape = SHAPE,
    combine: Combine | None = None,
    properties: Iterable[Callable[[RoutingCase], None]] = ROUTING_PROPERTIES,
) -> None:
    """Check all properties of a routing, or those in `properties`.

    If the output is a function of the last couplings, such as `squash(Σ_i c[i,j] û[j|i])`, give it as `combine`: then
    it is also checked that the couplings in the trace are the ones that were used.
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
    together with `combine`, this detects a pass that is missing from the trace.
    """
    previous: tuple[RoutingOutput, RoutingTrace] | None = None
    for n in range(1, most + 1):
        case = RoutingCase(lambda shape, n=n: make(shape, n), shape, combine=combine)
        routing = case.routing()
        require(routing.iterations == n, f"asked for {n} iterations, the routing says {routing.iterations}")
        prop.every_iteration_is_traced(case)
        prop.output_follows_from_last_couplings(case)
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
            votes, activations, poses = case.inputs()
            other = routed(routing, votes.flip(2) - 1, activations, poses, trace=True).trace
            assert other is not None
            require_close(
                other.couplings[0], trace.couplings[0], "the first pass's couplings depend on the votes already"
            )
        previous = output, trace
