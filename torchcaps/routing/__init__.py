"""One algorithm, one paper, one file. A new routing is a file here and a line in the table, or `register_routing`."""

import inspect
from collections.abc import Iterable

from torchcaps.core.errors import UserError
from torchcaps.routing.base import Competition, Recorder, Routing, VoteShape, couplings, positive
from torchcaps.routing.dynamic import Dynamic
from torchcaps.routing.em import EM
from torchcaps.routing.heinsen import Heinsen
from torchcaps.routing.heinsen_2022 import Heinsen2022
from torchcaps.routing.inverted_dot_product import InvertedDotProduct
from torchcaps.routing.random import Random
from torchcaps.routing.self_attention import SelfAttention
from torchcaps.routing.self_routing import SelfRouting
from torchcaps.routing.uniform import Uniform
from torchcaps.routing.variational_bayes import VariationalBayes

ROUTINGS: dict[str, type[Routing]] = {
    "dynamic": Dynamic,
    "em": EM,
    "self-attention": SelfAttention,
    "inverted-dot-product": InvertedDotProduct,
    "variational-bayes": VariationalBayes,
    "self-routing": SelfRouting,
    "heinsen": Heinsen,
    "heinsen-2022": Heinsen2022,
    "uniform": Uniform,
    "random": Random,
}


RoutingChoice = str | type[Routing] | Routing
"""A routing by its name in `ROUTINGS`, by its class, or as an instance."""


def register_routing(name: str, routing: type[Routing]) -> None:
    """Give a routing a name, for layers, models and the command line of the program that registers it."""
    if not (isinstance(routing, type) and issubclass(routing, Routing)):
        raise UserError(f"a routing is a class derived from torchcaps.routing.Routing, not {routing!r}")
    if ROUTINGS.get(name, routing) is not routing:
        raise UserError(f"there is a routing '{name}' already, {ROUTINGS[name].__name__}: choose another name")
    ROUTINGS[name] = routing


def routing_class(routing: RoutingChoice) -> type[Routing]:
    if isinstance(routing, str):
        if routing not in ROUTINGS:
            raise UserError(f"unknown routing '{routing}'; there are {', '.join(ROUTINGS)}")
        return ROUTINGS[routing]
    if isinstance(routing, type) and issubclass(routing, Routing):
        return routing
    if isinstance(routing, Routing):
        return type(routing)
    raise UserError(f"a routing is a name, a class derived from Routing, or an instance of one, not {routing!r}")


def routing_name(routing: RoutingChoice) -> str:
    """Its name in the table, else the name of its class."""
    kind = routing_class(routing)
    return next((name for name, known in ROUTINGS.items() if known is kind), kind.__name__)


def options_of(routing: RoutingChoice) -> tuple[str, ...]:
    """The names of a routing's options: what its `__init__` takes after the `VoteShape`.

    >>> options_of("heinsen")
    ('iterations', 'density_scale')
    """
    parameters = list(inspect.signature(routing_class(routing)).parameters.values())[1:]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(parameter.name for parameter in parameters if parameter.kind in named)


def check_options(routing: RoutingChoice, options: Iterable[str]) -> None:
    """Raise an error that names a routing that does not exist, or an option that it does not have."""
    known, given = options_of(routing), sorted(options)
    name = routing_name(routing)
    if isinstance(routing, Routing) and given:
        raise UserError(
            f"the {name} routing is an instance already: set {', '.join(given)} where it is made, or give its class"
        )
    unknown = sorted(set(given) - set(known))
    if unknown:
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise UserError(f"{name} routing has no option {', '.join(unknown)}; {has}")


def make_routing(routing: RoutingChoice, shape: VoteShape, **options: object) -> Routing:
    """A routing for votes of that shape. An instance is used as it is, if it was made for the same sizes."""
    check_options(routing, options)
    if isinstance(routing, Routing):
        if routing.shape is not None and routing.shape[:3] != shape[:3]:
            made_for = f"the {routing_name(routing)} routing was made for {_sizes(routing.shape)}"
            raise UserError(f"{made_for}, the layer has {_sizes(shape)}")
        return routing
    kind = routing_class(routing)
    try:
        inspect.signature(kind).bind(shape, **options)
    except TypeError as error:
        raise UserError(
            f"{kind.__name__}(shape, ...) does not work: {error}; a VoteShape is its first argument"
        ) from None
    return kind(shape, **options)  # pyright: ignore[reportCallIssue]


def _sizes(shape: VoteShape) -> str:
    return f"{shape.children} children and {shape.parents} parents of {shape.dim} numbers"


__all__ = [
    "EM", "ROUTINGS", "Competition", "Dynamic", "Heinsen", "Heinsen2022", "InvertedDotProduct", "Random", "Recorder",
    "Routing", "RoutingChoice", "SelfAttention", "SelfRouting", "Uniform", "VariationalBayes", "VoteShape",
    "check_options", "couplings", "make_routing", "options_of", "positive", "register_routing", "routing_class",
    "routing_name",
]  # fmt: skip
