"""Properties of every routing; each is a function of a `RoutingCase`."""

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchcaps.routing import Routing
from torchcaps.testing import modules
from torchcaps.testing.core import must_run, require, require_close, same_bytes
from torchcaps.testing.routing_case import RoutingCase, routed, runner


def output_shapes(case: RoutingCase) -> None:
    with must_run("routing"):
        output = routed(case.routing(), *case.inputs())
    b, j, d = case.batch, case.shape.parents, case.shape.dim
    require(output.poses.shape == (b, j, d), f"poses are {list(output.poses.shape)} instead of {[b, j, d]}")
    require(output.activations.shape == (b, j), f"activations are {list(output.activations.shape)} instead of {[b, j]}")
    require(output.trace is None, "a trace is returned although nobody asked for it")


def activations_are_probabilities(case: RoutingCase) -> None:
    with must_run("routing"):
        activations = routed(case.routing(), *case.inputs()).activations
    low, high = activations.min().item(), activations.max().item()
    require(low >= 0 and high <= 1, f"the parents' activations run from {low:.3g} to {high:.3g}, outside 0 .. 1")


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


def competitors_elsewhere_take_their_share(case: RoutingCase) -> None:
    """In a convolutional layer parents at other positions compete for a child: `competition` adds them."""
    routing, inputs = case.routing(), case.inputs()

    def alone(logits: Tensor) -> Tensor:
        return logits.logsumexp(-1, keepdim=True)

    def among_twins(logits: Tensor) -> Tensor:
        return alone(logits) + math.log(2)

    with must_run("routing with a competition"):
        plain, same = routed(routing, *inputs), routed(routing, *inputs, competition=alone)
        trace = routed(routing, *inputs, trace=True, competition=among_twins).trace
    assert trace is not None
    shared = trace.couplings.sum(-1).max().item()
    if getattr(routing, "deterministic", True):
        require_close(same.poses, plain.poses, "a competition over the parents themselves changes the poses")
    require(
        shared <= 0.5 + 1e-9,
        f"with as many parents again elsewhere, the couplings of one child still sum to {shared:.4g} here",
    )


def every_iteration_is_traced(case: RoutingCase) -> None:
    routing = case.routing()
    rows = [routing.iterations, case.batch, case.shape.children, case.shape.parents]
    for name, column in case.traced(routing)[1]._asdict().items():
        require(list(column.shape) == rows, f"the trace's {name} are {list(column.shape)} instead of {rows}")


def trace_changes_nothing(case: RoutingCase) -> None:
    routing = case.routing()
    with must_run("routing"):
        plain = routed(routing, *case.inputs())
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
    votes, activations, poses = case.inputs()
    order = torch.arange(case.shape.children).roll(1).flip(0)
    with must_run("routing with its children in another order"):
        plain = routed(case.routing(), votes, activations, poses)
        moved = _reordered(case.routing(), order)
        permuted = routed(moved, votes[:, order], activations[:, order], poses[:, order])
    require_close(permuted.poses, plain.poses, "permuting the children changes the parents' poses")
    require_close(permuted.activations, plain.activations, "permuting the children changes the parents' activations")


def parents_permute_with_their_votes(case: RoutingCase) -> None:
    votes, activations, poses = case.inputs()
    order = torch.arange(case.shape.parents).roll(1).flip(0)
    with must_run("routing with its parents in another order"):
        plain = routed(case.routing(), votes, activations, poses)
        permuted = routed(_reordered(case.routing(), order), votes[:, :, order], activations, poses)
    require_close(permuted.poses, plain.poses[:, order], "permuting the parents does not permute their poses")
    require_close(
        permuted.activations, plain.activations[:, order], "permuting the parents does not permute their activations"
    )


def _reordered(routing: Routing, order: Tensor) -> Routing:
    """The routing with permuted parameters: each axis of the length of `order` is permuted by it."""
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
        modules.require_independent_images("routing", runner(routing), case.inputs())


def gradients_are_finite_at_zero(case: RoutingCase) -> None:
    for dtype in (torch.float64, torch.float32):
        routing, (votes, activations, poses) = case.routing(dtype), case.inputs(dtype)
        nothing, one_child, one_parent, no_child = (votes.clone() for _ in range(4))
        nothing[:], one_child[:, 0], one_parent[:, :, 0] = 0, 0, 0
        inputs = {
            "routing of all-zero votes": (nothing, activations, torch.zeros_like(poses)),
            "routing of an all-zero child": (one_child, activations, poses),
            "routing to an all-zero parent": (one_parent, activations, poses),
            "routing of children that are all absent": (no_child, torch.zeros_like(activations), poses),
        }
        for what, given in inputs.items():
            modules.require_finite_gradients(what, routing, runner(routing), given)


def gradient_is_that_of_the_function(case: RoutingCase) -> None:
    routing, given = case.routing(), case.inputs(batch=2)
    if getattr(routing, "gradient", "full") == "last":
        return
    names = [name for name, _ in routing.named_parameters()]

    def function(votes: Tensor, activations: Tensor, poses: Tensor, *parameters: Tensor) -> Sequence[Tensor]:
        replaced = {f"routing.{name}": value for name, value in zip(names, parameters, strict=True)}
        return torch.func.functional_call(_PlainOutputs(routing), replaced, (votes, activations, poses))

    inputs = [tensor.detach().clone().requires_grad_() for tensor in (*given, *routing.parameters())]
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
            modules.require_stateless(f"routing with trace={trace}", routing, runner(routing, trace), case.inputs())
        if getattr(routing, "deterministic", True):
            modules.require_repeatable("routing", runner(routing), case.inputs())


def runs_on_any_device(case: RoutingCase) -> None:
    modules.require_any_device("routing", case.routing(), runner, case.inputs())


class _PlainOutputs(nn.Module):
    """A routing with tensors as inputs and outputs, for `torch.export` and `torch.func`."""

    def __init__(self, routing: Routing) -> None:
        super().__init__()
        self.routing = routing

    def forward(self, votes: Tensor, activations: Tensor, poses: Tensor) -> tuple[Tensor, Tensor]:
        output = routed(self.routing, votes, activations, poses)
        return output.poses, output.activations


def exports_with_any_batch(case: RoutingCase) -> None:
    routing = case.routing(torch.float32)
    batch = {0: torch.export.Dim("batch", min=1, max=1024)}
    with must_run("torch.export with a batch of any size"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = case.inputs(torch.float32)
        program = torch.export.export(_PlainOutputs(routing), inputs, dynamic_shapes=(batch,) * 3).module()
        for size in (1, case.batch + 2):
            inputs = case.inputs(torch.float32, size)
            for exported, eager in zip(program(*inputs), runner(routing)(*inputs), strict=True):
                require_close(exported, eager, f"the exported routing differs at a batch of {size}", 1e-5)
