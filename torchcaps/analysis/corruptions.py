"""How much accuracy a network loses when its images are spoilt; `data/corruptions.py` says how they are."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.core.progress import say
from torchcaps.data.corruptions import CORRUPTIONS, SEED, Corrupted
from torchcaps.data.sets import ImageSet, ScoredSet
from torchcaps.training.scoring import score

FILE = "corruptions.json"
"""What a run folder keeps of it."""
Scores = dict[str, Any]


def robustness(model: nn.Module, data: ScoredSet, names: Sequence[str] | None = None) -> Scores:
    """The accuracy on a test set as it is (`clean`) and spoilt in each way, with the share that is `lost`."""
    clean = score(model, data)
    rows = {}
    for name in CORRUPTIONS if names is None else names:
        accuracy = score(model, Corrupted(data, name))["accuracy"]
        rows[name] = {"accuracy": accuracy, "lost": clean["accuracy"] - accuracy}
        say(f"{CORRUPTIONS[name].title}: {accuracy:.2%}, clean {clean['accuracy']:.2%}")
    return {
        "clean": clean["accuracy"],
        "metric": clean["metric"],
        "images": clean["images"],
        "data": clean["data"],
        "corruption_seed": SEED,
        "corruptions": rows,
    }


def corruption_table(
    model: nn.Module,
    images: Float[Tensor, "n c h w"],
    labels: Int64[Tensor, "n *k"],
    names: Sequence[str] | None = None,
) -> Scores:
    """The same of images and labels in memory; an image with several labels is right if all of them are found."""
    classes = tuple(map(str, range(int(labels.max()) + 1)))
    return robustness(model, ImageSet("images", images, labels, classes), names)


def lines(tables: Sequence[tuple[str, Scores]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows to read: of each network the accuracy, and for spoilt images the points that are lost."""
    header = ("", *(cell for name, _ in tables for cell in (name, "points lost")))
    found = [("clean", *(cell for _, scores in tables for cell in (f"{scores['clean']:.2%}", "")))]
    for name in tables[0][1]["corruptions"]:
        scored = [scores["corruptions"][name] for _, scores in tables]
        cells = (cell for row in scored for cell in (f"{row['accuracy']:.2%}", f"{100 * row['lost']:.2f}"))
        found.append((CORRUPTIONS[name].title, *cells))
    return header, found
