"""The conformance suite: checks for your own routing, layer, loss, model, data or evaluation, which ours pass.

    from torchcaps.testing import check_routing

    def test_my_routing():
        check_routing(MyRouting)          # MyRouting(VoteShape(children, parents, dim)) -> Routing

Each check returns nothing, or raises `ConformanceError` with the property that failed and by how much.
Together they find mistakes of public capsule code that accuracy on MNIST does not show.
"""

from torchcaps.testing.core import ConformanceError
from torchcaps.testing.data import check_augmentation, check_pairs, check_reconstruction_targets
from torchcaps.testing.evaluation import check_evaluation, check_pair_metric, check_selection, check_test_set
from torchcaps.testing.layers import check_layer, check_primary_caps, check_squash
from torchcaps.testing.learning import check_learning, first_step
from torchcaps.testing.losses import check_losses, check_margin_loss, check_reconstruction_loss
from torchcaps.testing.model import check_model
from torchcaps.testing.routing import ROUTING_PROPERTIES, check_iterations, check_routing
from torchcaps.testing.routing_case import RoutingCase

__all__ = [
    "ROUTING_PROPERTIES", "ConformanceError", "RoutingCase", "check_augmentation", "check_evaluation",
    "check_iterations", "check_layer", "check_learning", "check_losses", "check_margin_loss", "check_model",
    "check_pair_metric", "check_pairs", "check_primary_caps", "check_reconstruction_loss",
    "check_reconstruction_targets", "check_routing", "check_selection", "check_squash", "check_test_set", "first_step",
]  # fmt: skip
