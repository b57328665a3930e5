"""One algorithm, one paper, one file. A new routing is a file here and a line in the table."""

from torchcaps.routing.base import Competition, Routing, VoteShape, couplings
from torchcaps.routing.dynamic import Dynamic

ROUTINGS: dict[str, type[Routing]] = {
    "dynamic": Dynamic,
}

__all__ = ["ROUTINGS", "Competition", "Dynamic", "Routing", "VoteShape", "couplings"]
