"""Why a capsule network gave an answer: reconstruction, routed parts, effect of each dimension, similar images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from torchcaps.analysis import probes
from torchcaps.analysis.answers import NONE_OF_THESE, answer
from torchcaps.analysis.attribution import couplings_to_classes, grid_of, heat, receptive_fields, sent
from torchcaps.analysis.neighbours import Neighbour, PoseIndex
from torchcaps.core.errors import UserError
from torchcaps.models.capsnet import CapsNet
from torchcaps.models.matrix import MatrixCaps

NEIGHBOURS = 8
RUNNERS_UP = 1


@dataclass(frozen=True, eq=False)
class ClassView:
    """One class capsule on one image. What only an answer gets is None for a runner-up."""

    label: int
    length: float
    heat: Float[Tensor, "h w"]
    """What was routed to the class, over the pixels it came from; on the same scale for all classes of an image."""
    picture: Float[Tensor, "c h w"] | None
    """What the decoder redraws of this capsule alone."""
    moved: Float[Tensor, "d s c h w"] | None
    """The same with each of its dimensions moved by each of `probes.TWEAKS`."""
    neighbours: Sequence[Neighbour] | None


@dataclass(frozen=True, eq=False)
class Explanation:
    name: str
    original: Image.Image
    pixels: Float[Tensor, "c h w"]
    """The image as the network is given it."""
    lengths: Float[Tensor, "j"]
    answers: Sequence[ClassView]
    runners_up: Sequence[ClassView]
    hidden: bool = False
    """Whether there are layers between the primary capsules and the classes."""

    @property
    def found(self) -> list[int]:
        """The answers that are long enough to count."""
        return [view.label for view in self.answers if view.length >= NONE_OF_THESE]


class Explainer:
    """Explains the answers of one model to any number of images.

    Matrix capsules have no decoder, so that nothing is redrawn; what was routed to a class is that of the last
    convolutional capsules.
    """

    def __init__(self, model: nn.Module, index: PoseIndex | None = None) -> None:
        if not isinstance(model, CapsNet | MatrixCaps):
            kind = type(model).__name__
            raise UserError(f"'explain' shows the routing of capsules, which {kind} has not; 'predict' takes any model")
        self.model, self.index = model.eval(), index
        self.device = next(model.parameters()).device
        self.fields = receptive_fields(self.model)

    @torch.no_grad()
    def explain(self, name: str, original: Image.Image, pixels: Float[Tensor, "c h w"]) -> Explanation:
        """Computed where the model is; what comes back is in main memory."""
        model, images = self.model, pixels[None].to(self.device)
        drawing = model if isinstance(model, CapsNet) else None
        corner, output = drawing and drawing.corner(images), model(images, trace=True)
        lengths, capsules = output.lengths[0].cpu(), output.capsules[0].cpu()
        heats = heat(sent(*couplings_to_classes(model, images, output, corner), grid_of(model)), self.fields)
        if drawing:
            heats = drawing.put_back(heats[None, :, None], corner)[0, :, 0]
        heats = heats.cpu()
        count = model.config.objects
        labels = lengths.topk(min(count + RUNNERS_UP, len(lengths))).indices.tolist()
        wanted = torch.tensor([labels], device=self.device)
        pictures = drawing and drawing.reconstruct(output.capsules, output.lengths, wanted, corner)
        views = [
            ClassView(
                label,
                float(lengths[label]),
                heats[label],
                None if pictures is None else pictures[0, n].cpu(),
                probes.perturb(drawing, images[0], label).cpu()
                if drawing and drawing.decoder is not None and n < count
                else None,
                self.index.nearest(label, capsules[label], NEIGHBOURS)
                if self.index is not None and n < count
                else None,
            )
            for n, label in enumerate(labels)
        ]
        hidden = drawing is not None and len(drawing.hidden) > 0
        return Explanation(name, original, pixels, lengths, views[:count], views[count:], hidden)


def to_json(explanation: Explanation, classes: Sequence[str]) -> dict[str, Any]:
    """The numbers, with the keys of `predict` and what goes beyond it."""
    row = answer(explanation.name, explanation.lengths, tuple(classes), len(explanation.answers))
    return {**row, "answers": [_answer(explanation, view, classes) for view in explanation.answers]}


def _answer(explanation: Explanation, view: ClassView, classes: Sequence[str]) -> dict[str, Any]:
    about: dict[str, Any] = {"class": classes[view.label], "length": round(view.length, 6)}
    y, x = divmod(int(view.heat.argmax()), view.heat.shape[1])
    about["hottest"] = {"x": x, "y": y}
    if view.picture is not None and len(explanation.answers) == 1:
        about["reconstruction_mse"] = round(float((view.picture - explanation.pixels).square().mean()), 6)
    if view.moved is not None:
        about["effects"] = [round(value, 6) for value in probes.effects(view.moved).tolist()]
    if view.neighbours is not None:
        about["neighbours"] = [
            {"labels": [classes[k] for k in near.labels], "distance": round(near.distance, 6)}
            for near in view.neighbours
        ]
    return about
