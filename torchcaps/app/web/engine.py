"""What the page asks of a model, in batches: classify images, redraw capsules, trace a routing.

Nothing here changes the model, so that one model serves all clients.
"""

import base64
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.app.web.receptive import grid_of, placement
from torchcaps.app.web.rounds import can_be_shown, rounds, spread, voting
from torchcaps.core.types import Capsules, RoutingOutput
from torchcaps.data import DataSet, resolve
from torchcaps.data.folder.listing import readable
from torchcaps.models.capsnet import CapsNet
from torchcaps.models.matrix import MatrixCaps
from torchcaps.models.registry import count_parameters
from torchcaps.models.window import Window
from torchcaps.routing import EM, Heinsen, Heinsen2022, VariationalBayes, routing_name

DIGITS = 4
LOG_DENSITIES = (EM, Heinsen, Heinsen2022, VariationalBayes)
"""Routings whose agreement is a logarithm of a density, not a product that is positive where both agree."""


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
    """Nested lists of rounded numbers, so that answers are short."""
    return _round(values.tolist())


def _round(value: Any) -> Any:
    return [_round(item) for item in value] if isinstance(value, list) else round(value, DIGITS)


class Engine:
    """A model, the data it was trained on, and what the page can ask of it."""

    def __init__(self, model: nn.Module, name: str, data: str | DataSet, accuracy: float | None = None) -> None:
        self.model, self.name, self.data, self.accuracy = model.eval(), name, resolve(data), accuracy
        self.device = next(model.parameters()).device
        config: Any = model.config
        self.image: tuple[int, int, int] = config.image
        self.objects: int = config.objects
        self.labels = [readable(name) for name in self.data.classes]
        with torch.inference_mode():
            example = model(torch.zeros(1, *self.image, device=self.device))
        self.dim = None if example.capsules is None else example.capsules.shape[2]
        self.decoder: nn.Module | None = getattr(model, "decoder", None)
        self.window = next((layer for layer in model.modules() if isinstance(layer, Window)), None)

    @property
    def hidden(self) -> int:
        """How many routed layers there are between the primary capsules and the classes."""
        return len(self.model.hidden) if isinstance(self.model, CapsNet) else 0

    @property
    def traces(self) -> bool:
        """Whether it can be shown what each place in the image votes for."""
        return can_be_shown(self.model)

    def about(self) -> dict[str, Any]:
        routing = None
        if isinstance(self.model, CapsNet | MatrixCaps) and self.traces:
            types, rows, columns = grid_of(self.model)
            place = placement(self.model, rows)
            used = self.model.classes.routing
            routing = {
                "name": routing_name(used),
                "iterations": used.iterations,
                "agreement": "log density" if isinstance(used, LOG_DENSITIES) else "product",
                "grid": {"types": types, "rows": rows, "columns": columns, "start": place.start, "step": place.step},
            }
        return {
            "name": self.name,
            "data": self.data.title,
            "accuracy": self.accuracy,
            "parameters": count_parameters(self.model),
            "image": list(self.image),
            "classes": self.labels,
            "handwritten": self.data.handwritten,
            "objects": self.objects,
            "overlay": self.data.overlay,
            "dimensions": self.dim,
            "matrices": isinstance(self.model, MatrixCaps),
            "decoder": self.decoder is not None,
            "hidden": self.hidden,
            "routing": routing,
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
        model = self.model
        assert isinstance(model, CapsNet | MatrixCaps)
        images = [question.image for question in questions]
        children, made = voting(model, self._stacked(images))
        steps = rounds(model.classes.routing, made, children)
        usual = steps[min(model.classes.routing.iterations, len(steps)) - 1].activations
        corners = self._corners(images)
        return [
            _explain(n, question.parents or usual[n].topk(self.objects).indices.tolist(), children, steps)
            | {"corner": corners[n]}
            for n, question in enumerate(questions)
        ]


def _explain(n: int, parents: list[int], children: Capsules, steps: list[RoutingOutput]) -> dict[str, Any]:
    present = children.activations[n : n + 1]
    rows = []
    for step in steps:
        assert step.trace is not None
        couplings, agreement = step.trace.couplings[-1, n], step.trace.agreement[-1, n]
        rows.append(
            {
                "lengths": rounded(step.activations[n]),
                "spread": round(float(spread(couplings[None], present)), DIGITS),
                "couplings": rounded(couplings[:, parents].T),
                "agreement": rounded(agreement[:, parents].T),
            }
        )
    return {"parents": parents, "activations": rounded(present[0]), "iterations": rows}
