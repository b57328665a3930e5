"""How well a network tells images of its own classes from images of something else.

Two measures of an image: the length of its longest capsule (of several objects, the shortest of those that count), and
how far the picture that the decoder draws of the answer is from the image. Each is judged by the area under the ROC
curve: the probability that an image of the known classes gets the better value of a pair; 0.5 is chance.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import mannwhitneyu
from torch import Tensor, nn

from torchcaps.core.errors import UserError
from torchcaps.data import DATA
from torchcaps.data.folder.decode import decoded
from torchcaps.data.folder.listing import files_below, is_image
from torchcaps.data.sets import ImageSet, ScoredSet
from torchcaps.training.networks import as_output
from torchcaps.training.scoring import scored_at_once


def novelty(model: nn.Module, known: ScoredSet, other: ScoredSet) -> dict[str, Any]:
    """The two areas under the curve; `auroc_reconstruction` is missing where the network draws nothing."""
    objects = next(iter(known.batches(1))).labels.shape[1]
    own, strange = (_measured(model, data, objects) for data in (known, other))
    found = {"other": other.name, "images": len(own["length"]), "other_images": len(strange["length"])}
    found["auroc_length"] = auroc(own["length"], strange["length"])
    if "error" in own:
        found["auroc_reconstruction"] = auroc(-own["error"], -strange["error"])
    return found


def strange_images(name: str, image: tuple[int, int, int], handwritten: bool = False) -> ScoredSet:
    """Images of something else: the test images of a set by name, or all pictures in a folder, brought to that size."""
    if name in DATA:
        if (found := DATA[name]).image != image:
            raise UserError(f"this network takes images of {image}, {name} has {found.image}")
        return found.test()
    if not Path(name).is_dir():
        raise UserError(f"'{name}' is neither a data set nor a folder of pictures")
    paths = [path for path in files_below(name) if is_image(path)]
    pictures = [p for p in decoded(paths, image, handwritten) if not isinstance(p, UserError)]
    if not pictures:
        raise UserError(f"{name} has no picture in it that can be read")
    labels = torch.zeros(len(pictures), dtype=torch.int64)
    return ImageSet(Path(name).name, torch.from_numpy(np.stack(pictures)), labels, ("something else",))


def auroc(known: Float[Tensor, " n"], other: Float[Tensor, " m"]) -> float:
    """The probability that a value of `known` is larger than one of `other`; equal ones count half.

    >>> auroc(torch.tensor([0.9, 0.8]), torch.tensor([0.1, 0.8]))
    0.875
    """
    return float(mannwhitneyu(known.numpy(), other.numpy()).statistic) / (len(known) * len(other))


@torch.no_grad()
def _measured(model: nn.Module, data: ScoredSet, objects: int) -> dict[str, Tensor]:
    """Of every image the length that its answer rests on and, if there is a decoder, the squared error per pixel."""
    device = next(model.parameters()).device
    lengths, errors = [], []
    model.eval()
    for batch in data.batches(scored_at_once(data)):
        images = batch.images.to(device)
        output = as_output(model(images), objects)
        lengths.append(output.lengths.topk(objects, dim=1).values[:, -1].cpu())
        if output.reconstruction is not None:
            drawn = output.reconstruction.amax(1) if objects > 1 else output.reconstruction
            errors.append((drawn - images).square().flatten(1).mean(1).cpu())
    found = {"length": torch.cat(lengths)}
    return found | ({"error": torch.cat(errors)} if errors else {})
