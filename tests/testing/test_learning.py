"""Every routing begins to learn in its small network, and the suite says which do not."""

from typing import Any

import pytest
import torch

from torchcaps import data as named
from torchcaps.data.sets import Batch
from torchcaps.models.registry import create_model
from torchcaps.routing import ROUTINGS
from torchcaps.testing import ConformanceError, check_learning
from torchcaps.training.config import defaults_for

MATRIX: dict[str, Any] = {"image": (1, 28, 28), "classes": 10}


@pytest.fixture(scope="module")
def batches() -> list[Batch]:
    images = named.images("mnist-mini", "train").batches(64)
    return [next(images), next(images)]


def network(routing: str, **options: Any) -> Any:
    torch.manual_seed(0)
    return create_model("capsnet-mnist-small", routing=routing, **options)


def rate(model: str) -> float:
    return defaults_for(model).lr


@pytest.mark.parametrize("name", [name for name in ROUTINGS if name != "em"])
def test_every_routing_begins_to_learn(name: str, batches: list[Batch]) -> None:
    # The votes of self-routing shape poses only: what a class is worth is decided without them.
    unused = ["classes"] if ROUTINGS[name].shares else []
    check_learning(network(name), batches, rate("capsnet-mnist-small"), unused=unused)


def test_matrix_capsules_begin_to_learn(batches: list[Batch]) -> None:
    torch.manual_seed(0)
    model = create_model("matrix-smallnorb-small", **MATRIX)
    model.schedule(0.0)
    check_learning(model, batches, rate("matrix-smallnorb-small"))


def test_parameters_that_hide_what_is_below_are_found(batches: list[Batch]) -> None:
    """As the authors' code of both has it: shares, or scores, that are equal whatever the children are."""
    for name, parameters in (("self-routing", ["weight"]), ("heinsen", ["beta_use", "beta_ign"])):
        model = network(name)
        for parameter in parameters:
            torch.nn.init.zeros_(getattr(model.classes.routing, parameter))
        with pytest.raises(ConformanceError, match=r"the gradient of backbone.* vanishes"):
            check_learning(model, batches, rate("capsnet-mnist-small"), unused=["classes"])


@pytest.mark.parametrize(("name", "options"), [("em", {"density_scale": 1.0}), ("heinsen", {"density_scale": 1.0})])
def test_iterations_that_a_step_cannot_follow_are_found(name: str, options: Any, batches: list[Batch]) -> None:
    with pytest.raises(ConformanceError, match="realises"):
        check_learning(network(name, routing_options=options), batches, rate("capsnet-mnist-small"))


def test_gradients_without_a_common_direction_are_found(batches: list[Batch]) -> None:
    """Labels that have nothing to do with the images."""
    first, second = batches
    other = second._replace(labels=(second.labels + 1) % 10, images=1 - second.images)
    model = network("uniform", decoder=None)
    with pytest.raises(ConformanceError, match="no better than chance"):
        check_learning(model, [first, other], rate("capsnet-mnist-small"))
