"""One algorithm, one paper, one file. A new routing is a file here and a line in the table."""

import inspect
from collections.abc import Iterable

from torchcaps.errors import UserError
from torchcaps.routing.base import Competition, Routing, VoteShape, couplings, route
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


def options_of(name: str) -> tuple[str, ...]:
    """The names of a routing's options.

    >>> options_of("heinsen")
    ('iterations',)
    """
    if name not in ROUTINGS:
        raise UserError(f"unknown routing '{name}'; there are {', '.join(ROUTINGS)}")
    parameters = inspect.signature(ROUTINGS[name]).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)


def check_options(name: str, options: Iterable[str]) -> None:
    """Refuse a routing that does not exist, and options that it does not have, by name."""
    known = options_of(name)
    unknown = sorted(set(options) - set(known))
    if unknown:
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise UserError(f"{name} routing has no option {', '.join(unknown)}; {has}")


def make_routing(name: str, shape: VoteShape, **options: object) -> Routing:
    check_options(name, options)
    return ROUTINGS[name](shape, **options)  # pyright: ignore[reportCallIssue]


__all__ = [
    "EM",
    "ROUTINGS",
    "Competition",
    "Dynamic",
    "Heinsen",
    "InvertedDotProduct",
    "Random",
    "Routing",
    "SelfAttention",
    "SelfRouting",
    "Uniform",
    "VariationalBayes",
    "VoteShape",
    "check_options",
    "couplings",
    "make_routing",
    "options_of",
    "route",
]
