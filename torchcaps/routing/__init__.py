"""One algorithm, one paper, one file. A new routing is a file here and a line in the table, or `register_routing`."""

import inspect
from collections.abc import Iterable

from torchcaps.core.errors import UserError
from torchcaps.routing.base import Competition, Recorder, Routing, VoteShape, couplings, positive
from torchcaps.routing.dynamic import Dynamic
from torchcaps.routing.em import EM
from torchcaps.routing.heinsen import Heinsen
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
    "uniform": Uniform,
    "random": Random,
}


RoutingChoice = str | type[Routing] | Routing
"""A routing by its name in `ROUTINGS`, by its class, or made by hand."""


def register_routing(name: str, routing: type[Routing]) -> None:
    """Add a routing to the table: from then on it has a name everywhere, on the command line's `--routing` too."""
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
    """What a person calls it: its name in the table, else the name of its class."""
    kind = routing_class(routing)
    return next((name for name, known in ROUTINGS.items() if known is kind), kind.__name__)


def options_of(routing: RoutingChoice) -> tuple[str, ...]:
    """The names of a routing's options.

    >>> options_of("heinsen")
    ('iterations',)
    """
    parameters = inspect.signature(routing_class(routing)).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)


def check_options(routing: RoutingChoice, options: Iterable[str]) -> None:
    """Refuse a routing that does not exist, and options that it does not have, by name."""
    known, given = options_of(routing), sorted(options)
    name = routing_name(routing)
    if isinstance(routing, Routing) and given:
        raise UserError(f"{name} routing was made by hand: give it {', '.join(given)} there, or hand over its class")
    unknown = sorted(set(given) - set(known))
    if unknown:
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise UserError(f"{name} routing has no option {', '.join(unknown)}; {has}")


def make_routing(routing: RoutingChoice, shape: VoteShape, **options: object) -> Routing:
    """A routing for votes of that shape; one that was made by hand is taken as it is."""
    check_options(routing, options)
    return routing if isinstance(routing, Routing) else routing_class(routing)(shape, **options)  # pyright: ignore[reportCallIssue]


__all__ = [
    "EM",
    "ROUTINGS",
    "Competition",
    "Dynamic",
    "Heinsen",
    "InvertedDotProduct",
    "Random",
    "Recorder",
    "Routing",
    "RoutingChoice",
    "SelfAttention",
    "SelfRouting",
    "Uniform",
    "VariationalBayes",
    "VoteShape",
    "check_options",
    "couplings",
    "make_routing",
    "options_of",
    "positive",
    "register_routing",
    "routing_class",
    "routing_name",
]
