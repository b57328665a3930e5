"""A trained model as one file that runs without torchcaps: ONNX, or a `torch.export` program.

The file also holds what a caller has to know: how to prepare an image, the names of the classes, when an answer counts.
In an ONNX file this is the entry "torchcaps" of its metadata, in a program the extra file "torchcaps.json". Nothing is
written until the answers of the file have been compared with those of the model.
"""

import io
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from copy import deepcopy
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps import __version__
from torchcaps.core.errors import UserError
from torchcaps.core.files import write_bytes
from torchcaps.data.transforms import place

Format = Literal["onnx", "torch"]
SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "torch": ".pt2"}
RECORD = "torchcaps"
NEEDED = ("onnx", "onnxscript", "onnxruntime")
BATCHES = (1, 7, 64)
TOLERANCE = 1e-5

Answers = dict[str, Tensor]
Runner = Callable[[Tensor], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Record:
    """What goes with the weights. Pixels are `value / 255`, channels first, grey or red, green, blue."""

    model: str
    data: str
    image: tuple[int, int, int]
    classes: tuple[str, ...]
    answers: int
    """How many classes one image shows: the longest capsules are the answer."""
    threshold: float
    """Below it, the answer is none of the classes."""
    preparation: Literal["resize", "digit"]
    """`resize` to the image's size (bilinear), or as MNIST was made: light ink on dark, centred by its mass."""
    scale: str = "value / 255"
    version: str = __version__

    def to_json(self) -> str:
        channels = {1: "grey", 3: "RGB"}.get(self.image[0], f"{self.image[0]} channels")
        return json.dumps({**asdict(self), "channels": channels, "layout": "batch, channel, height, width"})


class Answering(nn.Module):
    """A model as a function from images to named outputs. While it is traced, plain code runs instead of kernels."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Float[Tensor, "b c h w"]) -> Answers:
        output = self.model(images)
        found = {name: getattr(output, name) for name in ("lengths", "capsules", "reconstruction")}
        return {name: value for name, value in found.items() if value is not None}


def export(model: nn.Module, record: Record, kind: Format, out: Path) -> dict[str, Any]:
    """Write the file, and return what is in it and the error of its lengths against the model's.

    The error is relative to the longest capsule of its image.
    """
    answering = Answering(deepcopy(model).cpu().eval())
    with quiet(), torch.no_grad():
        content, outputs = _onnx(answering, record) if kind == "onnx" else _program(answering, record)
        run = _runner(kind, content)
        errors = {batch: _error(answering, run, _example(record.image, batch)) for batch in BATCHES}
    worst = max(errors.values())
    if not worst <= TOLERANCE:
        raise UserError(f"the exported lengths are off by {worst:.1e} of the longest: nothing was written")
    write_bytes(out, content)
    return {
        "file": str(out),
        "format": kind,
        "model": record.model,
        "bytes": len(content),
        "outputs": outputs,
        "parity": {str(batch): error for batch, error in errors.items()},
    }


def _example(image: tuple[int, int, int], batch: int) -> Float[Tensor, "b c h w"]:
    """Images of noise, shifted by up to a third of their size in each direction."""
    generator = torch.Generator().manual_seed(batch)
    noise = torch.rand(batch, *image, generator=generator)
    thirds = torch.tensor(image[1:]) // 3
    pushed = (torch.rand(batch, 2, generator=generator) * (2 * thirds + 1)).long() - thirds
    return place(noise, pushed, *image[1:])


def _outputs(answering: Answering, record: Record) -> dict[str, list[int]]:
    """The shape of each output for one image."""
    return {name: list(value.shape[1:]) for name, value in answering(_example(record.image, 2)).items()}


def _onnx(answering: Answering, record: Record) -> tuple[bytes, dict[str, list[int]]]:
    outputs = _outputs(answering, record)
    example = {"images": _example(record.image, 2)}
    program = to_onnx(answering, example, list(outputs), {"images": {0: "batch"}})
    program.model.metadata_props[RECORD] = record.to_json()
    return program.model_proto.SerializeToString(), outputs


def to_onnx(
    module: nn.Module, example: Mapping[str, Tensor], outputs: list[str], dynamic: dict[str, Any] | None = None
) -> "torch.onnx.ONNXProgram":
    """A module that gives a dictionary of tensors as an ONNX program; call it inside `quiet` and `no_grad`."""
    check_installed()
    program = torch.onnx.export(
        module,
        tuple(example.values()),
        dynamo=True,
        dynamic_shapes=dynamic,
        input_names=list(example),
        output_names=outputs,
        verbose=False,
    )
    assert program is not None
    return program


def check_installed() -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UserError(f"ONNX needs {', '.join(missing)}: pip install 'torchcaps[export]'")


def _program(answering: Answering, record: Record) -> tuple[bytes, dict[str, list[int]]]:
    shapes = {"images": {0: torch.export.Dim("batch")}}
    program = torch.export.export(answering, (_example(record.image, 2),), dynamic_shapes=shapes)
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={f"{RECORD}.json": record.to_json()})
    return file.getvalue(), _outputs(answering, record)


def _runner(kind: Format, content: bytes) -> Runner:
    """A function that runs the exported file."""
    if kind == "torch":
        return torch.export.load(io.BytesIO(content)).module()
    run = onnx_runner(content)
    return lambda images: run(images=images)


def onnx_runner(content: bytes) -> Callable[..., dict[str, Tensor]]:
    """A function from the inputs of an ONNX graph, by name, to its outputs, by name."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(**inputs: Tensor) -> dict[str, Tensor]:
        answers = session.run(names, {name: value.numpy() for name, value in inputs.items()})
        return dict(zip(names, map(torch.from_numpy, answers), strict=True))

    return run


def _error(answering: Answering, run: Runner, images: Float[Tensor, "b c h w"]) -> float:
    expected, found = answering(images)["lengths"], run(images)["lengths"]
    return ((found - expected).abs().amax(1) / expected.amax(1).clamp(min=1e-12)).max().item()


@contextmanager
def quiet() -> Iterator[None]:
    """Hides messages of the exporter for its own developers: deprecations inside torch, optional packages."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
