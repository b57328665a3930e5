"""Training images whose class capsule has a similar pose: nearest neighbours in pose space.

The network answers a sample of the training set once; poses and pictures are kept in the run folder or the cache,
together with the hash of the weights they belong to.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64, UInt8
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from torchcaps.core.errors import UserError
from torchcaps.core.files import write_bytes
from torchcaps.data import DataSet, resolve, sources
from torchcaps.data.sets import generator_for

SAMPLE = 2000
FILE = "neighbours.safetensors"


class Neighbour(NamedTuple):
    """A training image, its labels and how far its capsule's pose is away."""

    picture: Float[Tensor, "c h w"]
    labels: tuple[int, ...]
    distance: float


@dataclass(frozen=True, eq=False)
class PoseIndex:
    """Pictures, their labels, and the pose of each label's capsule."""

    pictures: UInt8[Tensor, "n c h w"]
    labels: Int64[Tensor, "n k"]
    poses: Float[Tensor, "n k d"]

    def __len__(self) -> int:
        return len(self.pictures)

    def nearest(self, label: int, pose: Float[Tensor, "d"], count: int) -> list[Neighbour]:
        """Among the images that show the class, those whose capsule of it has the nearest pose."""
        image, place = (self.labels == label).nonzero(as_tuple=True)
        distances = (self.poses[image, place] - pose).norm(dim=1)
        order = distances.argsort(stable=True)[:count].tolist()
        return [
            Neighbour(self.pictures[image[n]].float() / 255, tuple(self.labels[image[n]].tolist()), float(distances[n]))
            for n in order
        ]

    @classmethod
    @torch.no_grad()
    def of(cls, model: nn.Module, data: str | DataSet, held_out: int, sample: int = SAMPLE) -> "PoseIndex":
        """Look at `sample` training images, laid out as for testing; those held out for validation are left out.

        Nothing is fetched: data that is not on this machine raises UserError.
        """
        known = resolve(data)
        with sources.offline():
            training, _ = known.training_and_validation(held_out)
        order = torch.randperm(len(training), generator=generator_for(0, len(training)))
        shown = known.scored(training.take(order[:sample].sort().values), sample)
        device = next(model.parameters()).device
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        for batch in shown.batches(250):
            capsules = model(batch.images.to(device)).capsules.cpu()
            poses = capsules.gather(1, batch.labels.unsqueeze(2).expand(-1, -1, capsules.shape[2]))
            found.append((batch.images.mul(255).round().to(torch.uint8), batch.labels, poses))
        return cls(*(torch.cat(column) for column in zip(*found, strict=True)))


def pose_index(model: nn.Module, data: str | DataSet, weights: str, path: Path, held_out: int = 2000) -> PoseIndex:
    """The index kept at `path` if it is of these `weights` (their SHA-256), else a new one, kept there if possible."""
    known = _read(path, weights)
    if known is not None:
        return known
    index = PoseIndex.of(model, data, held_out)
    tensors = {"pictures": index.pictures, "labels": index.labels, "poses": index.poses}
    with suppress(UserError):  # a place that cannot be written to only means looking again next time
        write_bytes(path, save({name: x.contiguous() for name, x in tensors.items()}, {"weights": weights}))
    return index


def _read(path: Path, weights: str) -> PoseIndex | None:
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("weights") != weights:
                return None
            return PoseIndex(*(file.get_tensor(name) for name in ("pictures", "labels", "poses")))
    except (OSError, SafetensorError):
        return None
