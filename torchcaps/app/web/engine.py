"""What the page asks of a model: look at images, redraw capsules, trace a routing. Always many at a time.

Nothing here changes the model, so that one model serves everybody.
"""

import base64
import copy
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.app.web.receptive import Placement, placement
from torchcaps.core.functional import coupling_entropy, votes
from torchcaps.core.types import Capsules, RoutingOutput
from torchcaps.data import DataSet, resolve
from torchcaps.data.folder.listing import readable
from torchcaps.models.capsnet import CapsNet
from torchcaps.models.pretrained import PRETRAINED
from torchcaps.models.registry import MODELS, count_parameters, create_model
from torchcaps.models.window import Window
from torchcaps.routing import routing_name

ITERATIONS = 5
DIGITS = 4


class Vectors(NamedTuple):
    """Poses to redraw as capsules of one class."""

    label: int
    poses: Float[Tensor, "n d"]
    corner: tuple[int, int] | None = None
    """Of the window in the image that they come from; the one in the middle unless given."""


class Question(NamedTuple):
    """Whose routing to trace; None for the longest capsules."""

    image: Float[Tensor, "c h w"]
    parents: list[int] | None


def encode(picture: Float[Tensor, "c h w"]) -> str:
    """Base64 of one byte a value, in the order of the axes."""
    pixels = picture.clamp(0, 1).mul(255).round().to(torch.uint8)
    return base64.b64encode(pixels.cpu().contiguous().numpy().tobytes()).decode("ascii")


def rounded(values: Tensor) -> Any:
    """Nested lists of numbers with as many digits as a reader has use for."""
    return _round(values.tolist())


def _round(value: Any) -> Any:
    return [_round(item) for item in value] if isinstance(value, list) else round(value, DIGITS)


class Engine:
    """A model, and beside it the baseline whose weights fit the same images, if there is one."""

    def __init__(self, model: nn.Module, name: str, data: str | DataSet, accuracy: float | None = None) -> None:
        self.model, self.name, self.data, self.accuracy = model.eval(), name, resolve(data), accuracy
        self.device = next(model.parameters()).device
        config: Any = model.config
        self.image: tuple[int, int, int] = config.image
        self.objects: int = config.objects
        self.labels = [readable(name) for name in self.data.classes]
        self.baseline_name = self._find_baseline()
        self.baseline: nn.Module | None = None
        if self.baseline_name:
            self.baseline = create_model(self.baseline_name, pretrained=True).eval().to(self.device)
        with torch.inference_mode():
            example = model(torch.zeros(1, *self.image, device=self.device))
        self.dim = None if example.capsules is None else example.capsules.shape[2]
        self.decoder: nn.Module | None = getattr(model, "decoder", None)
        self.window = next((layer for layer in model.modules() if isinstance(layer, Window)), None)

    def _find_baseline(self) -> str | None:
        if not isinstance(self.model, CapsNet):
            return None
        config = self.model.config
        wanted = (config.image, config.objects, config.classes)
        for name in PRETRAINED:
            other = MODELS[name].config if name in MODELS else None
            if name.startswith("cnn-") and other and (other.image, other.objects, other.classes) == wanted:
                return name
        return None

    @property
    def traces(self) -> bool:
        return isinstance(self.model, CapsNet)

    def about(self) -> dict[str, Any]:
        routing = None
        if isinstance(self.model, CapsNet):
            types, rows, columns = self.model.grid
            place: Placement = placement(self.model, rows)
            routing = {
                "name": routing_name(self.model.config.routing),
                "iterations": self.model.classes.routing.iterations,
                "grid": {"types": types, "rows": rows, "columns": columns, "start": place.start, "step": place.step},
            }
        return {
            "name": self.name,
            "data": self.data.title,
            "accuracy": self.accuracy,
            "parameters": count_parameters(self.model),
            "image": list(self.image),
            "classes": self.labels,
            "objects": self.objects,
            "overlay": self.data.overlay,
            "dimensions": self.dim,
            "decoder": self.decoder is not None,
            "routing": routing,
            "baseline": self.baseline_name,
        }

    @torch.inference_mode()
    def look(self, images: list[Float[Tensor, "c h w"]]) -> list[dict[str, Any]]:
        output = self.model(self._stacked(images))
        corners = self._corners(images)
        longest = output.lengths.topk(self.objects, dim=1).indices
        pictures = output.reconstruction
        if pictures is not None and pictures.ndim == 4:
            pictures = pictures[:, None]
        return [
            {
                "lengths": rounded(output.lengths[n]),
                "longest": longest[n].tolist(),
                "capsules": None if output.capsules is None else rounded(output.capsules[n]),
                "pictures": None if pictures is None else [encode(picture) for picture in pictures[n]],
                "corner": corners[n],
            }
            for n in range(len(images))
        ]

    def _stacked(self, images: list[Float[Tensor, "c h w"]]) -> Float[Tensor, "b c h w"]:
        return torch.stack(images).to(self.device)

    def _corners(self, images: list[Float[Tensor, "c h w"]]) -> list[list[int]]:
        """Top and left of what the network sees of each image."""
        return [[0, 0]] * len(images) if self.window is None else self.window.corner(self._stacked(images)).tolist()

    @torch.inference_mode()
    def compare(self, images: list[Float[Tensor, "c h w"]]) -> list[dict[str, Any]]:
        assert self.baseline is not None
        lengths = self.baseline(self._stacked(images)).lengths.cpu()
        longest = lengths.topk(self.objects, dim=1).indices
        return [{"lengths": rounded(row), "longest": best.tolist()} for row, best in zip(lengths, longest, strict=True)]

    @torch.inference_mode()
    def decode(self, requests: list[Vectors]) -> list[dict[str, Any]]:
        assert self.decoder is not None
        counts = [len(request.poses) for request in requests]
        labels = torch.tensor([request.label for request in requests]).repeat_interleave(torch.tensor(counts))
        layer = torch.zeros(sum(counts), len(self.labels), self.dim or 0)
        layer[torch.arange(len(layer)), labels] = torch.cat([request.poses for request in requests])
        pictures = self.decoder(layer.flatten(1)[:, None].to(self.device)).cpu()
        if self.window is not None:
            middle = self.window.middle()
            corners = torch.tensor([request.corner or middle for request in requests])
            pictures = self.window.put_back(pictures, corners.repeat_interleave(torch.tensor(counts), 0))
        pictures = pictures[:, 0]
        return [{"pictures": [encode(picture) for picture in part]} for part in pictures.split(counts)]

    @torch.inference_mode()
    def route(self, questions: list[Question]) -> list[dict[str, Any]]:
        """The first iterations of a routing do not depend on how many follow: each is shown as a routing of its own."""
        model = self.model
        assert isinstance(model, CapsNet)
        images = [question.image for question in questions]
        children = model.features(self._stacked(images))
        predictions = votes(children.poses, model.classes.weight)
        steps: list[RoutingOutput] = []
        for iterations in range(1, ITERATIONS + 1):
            routing = copy.copy(model.classes.routing)
            routing.iterations = iterations
            output = routing(predictions, children, trace=True)
            if output.trace is None or len(output.trace.couplings) != iterations:
                steps = steps or [output]
                break
            steps.append(output)
        usual = steps[min(model.classes.routing.iterations, len(steps)) - 1].activations
        corners = self._corners(images)
        return [
            _explain(n, question.parents or usual[n].topk(self.objects).indices.tolist(), children, steps)
            | {"corner": corners[n]}
            for n, question in enumerate(questions)
        ]


def _explain(n: int, parents: list[int], children: Capsules, steps: list[RoutingOutput]) -> dict[str, Any]:
    present = children.activations[n]
    rows = []
    for step in steps:
        assert step.trace is not None
        couplings, agreement = step.trace.couplings[-1, n], step.trace.agreement[-1, n]
        rows.append(
            {
                "lengths": rounded(step.activations[n]),
                "spread": round(float(coupling_entropy(couplings).exp() @ present / present.sum()), DIGITS),
                "couplings": rounded(couplings[:, parents].T),
                "agreement": rounded(agreement[:, parents].T),
            }
        )
    return {"parents": parents, "activations": rounded(present), "iterations": rows}
