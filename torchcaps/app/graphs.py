"""A model as the ONNX graphs that the static page runs in the browser.

    encoder   images [1 c h w] -> lengths, capsules, corner; if its routing can be shown also votes, poses, activations
    routing   votes, poses, activations -> lengths, spread, couplings, agreement of routings of 1, 2, ... rounds
    decoder   capsules [n jd], all but one set to zero -> pictures [n c y x] of what the network sees

They are separate because the page asks for them at different times: the encoder and the decoder for every step of a
drag, the decoder alone while a capsule is tweaked. The routing graph has no weights of its own but the routing's.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.app.export import onnx_runner, quiet, to_onnx
from torchcaps.app.web.rounds import can_be_shown, rounds, spread, voting
from torchcaps.core.errors import UserError
from torchcaps.core.types import Capsules
from torchcaps.models.window import FAINT, INK, Window

if TYPE_CHECKING:
    from onnx import ModelProto

TOLERANCE = 1e-4
SMALL = 256
"""Numbers of a tensor below which its size does not matter."""

Named = dict[str, Tensor]


class FloatWindow(Window):
    """The twin of a window for graphs: the same window, without integers and truth values.

    WebGPU has no integers of 64 bits. ONNX Runtime Web 1.22 computes those on the processor instead, in the midst of a
    graph, and then cuts the columns with the matrix of the rows.
    """

    def places(self, images: Float[Tensor, "b c h w"]) -> list[Float[Tensor, "b 1"]]:
        """Tops and lefts, whole numbers."""
        pixels = images.amax(1)
        mean = pixels.mean((1, 2), keepdim=True)
        ink = (pixels - mean - INK * (pixels.amax((1, 2), keepdim=True) - mean)).clamp(min=0) + FAINT
        found = []
        for axis, size in ((2, self.image[1]), (1, self.image[2])):
            line = ink.sum(axis)
            centre = (line * torch.arange(size, dtype=line.dtype)).sum(1, keepdim=True) / line.sum(1, keepdim=True)
            found.append((centre - (self.side - 1) / 2).round().clamp(0, size - self.side))
        return found

    def forward(self, images: Float[Tensor, "b c h w"], corner: Tensor | None = None) -> Float[Tensor, "b c s s"]:
        top, left = self.places(images)
        rows, columns = self._ones(top, self.image[1]), self._ones(left, self.image[2])
        return rows.unsqueeze(1) @ images @ columns.unsqueeze(1).mT

    def _ones(self, place: Float[Tensor, "b 1"], size: int) -> Float[Tensor, "b s n"]:
        """`Window._chosen` of one axis: 1 at a distance of 0, and 0 at a distance of 1 or more."""
        inside = place + torch.arange(self.side, dtype=place.dtype)
        return (1 - (inside.unsqueeze(2) - torch.arange(size, dtype=place.dtype)).abs()).relu()


class Encoder(nn.Module):
    """Images to the class capsules. The votes are outputs too, so that the rounds of routing need no second look."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.window = next((layer for layer in model.modules() if isinstance(layer, FloatWindow)), None)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Named:
        found: Named = {}
        if self.window is not None:
            found["corner"] = torch.cat(self.window.places(images), 1)
        if not can_be_shown(self.model):
            output = self.model(images)
            found["lengths"] = output.lengths
            return found if output.capsules is None else {**found, "capsules": output.capsules}
        model: Any = self.model
        children, made = voting(model, images)
        output = model.classes.routing(made, children)
        found |= {"lengths": output.activations, "capsules": output.poses}
        return {**found, "votes": made, "poses": children.poses, "activations": children.activations}


class Rounds(nn.Module):
    """Votes to what each number of rounds would answer; the first axis of every output is the rounds."""

    def __init__(self, routing: nn.Module) -> None:
        super().__init__()
        self.routing = routing

    def forward(
        self, votes: Float[Tensor, "1 i j d"], poses: Float[Tensor, "1 i p"], activations: Float[Tensor, "1 i"]
    ) -> Named:
        routing: Any = self.routing
        steps = rounds(routing, votes, Capsules(poses, activations))
        traces = [step.trace for step in steps if step.trace is not None]
        return {
            "lengths": torch.cat([step.activations for step in steps]),
            "spread": torch.cat([spread(trace.couplings[-1], activations) for trace in traces]),
            "couplings": torch.cat([trace.couplings[-1] for trace in traces]),
            "agreement": torch.cat([trace.agreement[-1] for trace in traces]),
        }


class Decoder(nn.Module):
    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, capsules: Float[Tensor, "n jd"]) -> Named:
        return {"pictures": self.decoder(capsules.unsqueeze(1)).squeeze(1)}


def graphs(model: nn.Module) -> dict[str, bytes]:
    """The graphs by name. Their answers to an image have been compared with the model's."""
    model = deepcopy(model).cpu().eval()
    config: Any = model.config
    images = torch.rand(1, *config.image, generator=torch.Generator().manual_seed(0))
    with quiet(), torch.no_grad():
        expected = model(images)
        for name, layer in list(model.named_modules()):
            if isinstance(layer, Window):
                model.set_submodule(name, FloatWindow(layer.image, layer.side))
        content, found = _graph(Encoder(model), {"images": images})
        _compare("lengths", found["lengths"], expected.lengths)
        made = {"encoder": content}
        if "votes" in found:
            inputs = {name: found[name] for name in ("votes", "poses", "activations")}
            routing: Any = model.get_submodule("classes.routing")
            made["routing"], steps = _graph(Rounds(routing), inputs)
            usual = routing.iterations
            if usual <= len(steps["lengths"]):
                _compare("lengths after routing", steps["lengths"][usual - 1 : usual], expected.lengths)
        if getattr(model, "decoder", None) is not None:
            capsules = torch.zeros(2, config.classes, found["capsules"].shape[2])
            capsules[:, 0] = found["capsules"][:, 0]
            made["decoder"], _ = _graph(
                Decoder(model.get_submodule("decoder")), {"capsules": capsules.flatten(1)}, {"capsules": {0: "n"}}
            )
    return made


def _graph(
    module: nn.Module, inputs: Mapping[str, Tensor], dynamic: dict[str, Any] | None = None
) -> tuple[bytes, Named]:
    """The bytes of a graph, and what it answers to the inputs that it was traced with, if that is right."""
    expected = module(*inputs.values())
    program = to_onnx(module, inputs, list(expected), dynamic)
    content = _halved(program.model_proto).SerializeToString()
    found = onnx_runner(content)(**inputs)
    for name, value in expected.items():
        _compare(name, found[name], value)
    return content, found


def _compare(name: str, found: Tensor, expected: Tensor) -> None:
    off = ((found - expected).abs().max() / expected.abs().max().clamp(min=1)).item()
    if not off <= TOLERANCE:
        raise UserError(f"the exported {name} are off by {off:.1e}: nothing was written")


def _halved(proto: "ModelProto") -> "ModelProto":
    """Weights that are exact in half precision are stored in it: half the bytes, and the same numbers after a cast."""
    import onnx
    from onnx import numpy_helper

    casts = []
    for tensor in proto.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype != np.float32 or values.size < SMALL:
            continue
        with np.errstate(over="ignore"):
            half = values.astype(np.float16)
        if not np.array_equal(half.astype(np.float32), values):
            continue
        name, stored = tensor.name, f"{tensor.name}.half"
        tensor.CopyFrom(numpy_helper.from_array(half, stored))
        casts.append(onnx.helper.make_node("Cast", [stored], [name], to=onnx.TensorProto.FLOAT))
    for at, node in enumerate(casts):
        proto.graph.node.insert(at, node)
    return proto
