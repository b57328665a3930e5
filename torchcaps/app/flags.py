"""The flags of `torchcaps train`, in groups, and the kinds of values that flags take.

Defaults that a help text names are read from the listings, so that they are those of the tables.
"""

import argparse
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from torchcaps.app import listings


def checked(kind: type[int] | type[float], holds: Callable[[Any], bool], what: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        value = kind(text)
        if not holds(value):
            raise argparse.ArgumentTypeError(f"must be {what}, not {text}")
        return value

    parse.__name__ = kind.__name__  # argparse names it where the text is no number at all
    return parse


_MORE_THAN_ZERO = (lambda value: 0 < value < math.inf, "more than 0")
_ZERO_OR_MORE = (lambda value: 0 <= value < 2**63, "0 or more")
COUNT: dict[str, Any] = {"type": checked(int, *_MORE_THAN_ZERO), "metavar": "N"}
NUMBER: dict[str, Any] = {"type": checked(int, *_ZERO_OR_MORE), "metavar": "N"}
AMOUNT: dict[str, Any] = {"type": checked(float, *_MORE_THAN_ZERO)}
SHARE = checked(float, lambda value: 0 <= value < 1, "0 or more and less than 1")
PORT = checked(int, lambda value: 0 <= value < 2**16, "from 0 to 65535")
Add = Callable[..., None]


def adder(target: argparse._ActionsContainer) -> Add:
    """Its `add_argument`, help text second; a shell completes values to `names` (argcomplete looks for `completer`)."""

    def add(flag: str, about: str, names: Callable[[], list[str]] | None = None, **options: Any) -> None:
        action = target.add_argument(flag, help=about, **options)
        if names is not None:
            action.completer = lambda **_: names()  # pyright: ignore[reportAttributeAccessIssue]

    return add


def json_flag(add: Add) -> None:
    add("--json", "print JSON, and nothing else, to standard output", action="store_true")


def device_flag(add: Add) -> None:
    add("--device", "cpu, cuda, cuda:1, ... (default: auto, a GPU if there is one, else the CPU)", default="auto")


def own_default(field: str) -> str:
    """What the models have for a field of the training, the most common first.

    >>> own_default("batch")
    "(default: the model's own, 128, 64 or 32)"
    """
    usual = listings.kept()["training"][field]
    counts = Counter(row["training"].get(field, usual) for row in listings.kept()["models"])
    *most, last = (_number(value) for value, _ in counts.most_common())
    return f"(default: the model's own, {', '.join(most)} or {last})" if most else f"(default: {last})"


def own_trainings() -> str:
    """Which models share which training, in one sentence for each training."""
    usual = listings.kept()["training"]
    groups: dict[tuple[Any, ...], list[str]] = {}
    for row in listings.kept()["models"]:
        values = tuple(row["training"].get(field, usual[field]) for field in listings.TRAINING)
        groups.setdefault(values, []).append(row["name"])
    most = max(groups.values(), key=len)
    lines = []
    for (optimiser, lr, factor, schedule, warmup, batch), names in groups.items():
        who = "Most models" if names is most else ", ".join(names)
        inner = f" (muon's {_number(factor)} times that)" if factor != usual["muon_factor"] else ""
        lines.append(
            f"{who}: {optimiser}, learning rate {_number(lr)}{inner}, schedule {schedule}, warm-up {_number(warmup)}, "
            f"batches of {batch}."
        )
    return " ".join(sorted(lines, key=lambda line: not line.startswith("Most")))


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def train_flags(train: argparse.ArgumentParser) -> None:
    """Train a model. Ctrl-C or a crash loses at most half a minute: the same command with --resume goes on."""
    usual = listings.kept()["training"]

    def group(title: str, about: str | None = None) -> Add:
        return adder(train.add_argument_group(title, about))

    models = "a name from 'torchcaps models' (not needed with --resume)"
    adder(train)("model", models, partial(listings.names, "models"), nargs="?")

    add = group("budget", "At least one is needed; of several, the one that ends first.")
    add("--epochs", "passes over the training set", **AMOUNT, metavar="N")
    add("--steps", "updates of the weights", **COUNT)
    add("--max-seconds", "seconds; the schedule fits itself to them", **AMOUNT, metavar="S")

    add = group("data")
    add(
        "--data",
        "a data set by name (default: the one the model is meant for); or your own images: a folder with one "
        "sub-folder per class, perhaps below train/, val/ and test/, or a .csv of path, label and perhaps split",
        partial(listings.names, "data"),
        metavar="NAME|DIR|CSV",
    )
    held_out = f"training images held out to watch progress, at most a tenth (default: {usual['validation']})"
    add("--validation", held_out, **NUMBER)
    add(
        "--pairs", "MultiMNIST: a fixed pool of so many pairs (default: pairs are drawn anew and never repeat)", **COUNT
    )

    add = group(
        "optimisation",
        f"What is not given is the model's own. {own_trainings()} capsnet and cnn on other data than mnist train as "
        "capsnet-mnist-small does (photographs with a muon factor of 8), with smaller batches where there are fewer "
        "than 1,280 images to train on.",
    )
    add("--batch", f"images in a step, over all processes {own_default('batch')}", **COUNT)
    add("--lr", f"learning rate {own_default('lr')}", **AMOUNT, metavar="RATE")
    add("--optimiser", own_default("optimiser"), choices=["adam", "muon"])
    muon = f"muon's learning rate, for the inner convolutions, as a multiple of the other {own_default('muon_factor')}"
    add("--muon-factor", muon, **AMOUNT)
    schedules = ["decay", "cosine", "linear", "exponential", "constant"]
    add("--schedule", f"how the learning rate falls {own_default('schedule')}", choices=schedules)
    rises = f"share of the budget in which the learning rate rises from 0 {own_default('warmup')}"
    add("--warmup", rises, type=SHARE, metavar="SHARE")
    average = f"such as 0.999 (default: {usual['average'] or '0, no average'})"
    add("--average", f"decay of an exponential average of the weights, {average}", type=SHARE, metavar="DECAY")
    shortened = "shorten a step's gradient to this norm if it is longer (default: never, 5 for matrix-smallnorb-stem)"
    add("--clip", shortened, **AMOUNT, metavar="NORM")
    add("--seed", f"decides initial weights, order and augmentation (default: {usual['seed']})", **NUMBER)
    device_flag(add)

    add = group("network", "Changes to the model; what is not given stays as it is.")
    routings = f"{', '.join(listings.names('routings'))}; see 'torchcaps routings'"
    add("--routing", routings, partial(listings.names, "routings"), metavar="NAME")
    usually = "the model's own, or the routing's, see 'torchcaps routings'"
    add("--iterations", f"of the routing (default: {usually})", **COUNT)
    below = "timm:NAME, any network of timm with its weights; timm:NAME:frozen leaves them as they are, "
    add("--backbone", f"{below}timm:NAME:random begins without them (for capsnet)", metavar="NAME")
    through = "through all iterations of dynamic routing, or the last only (default: full)"
    add("--gradient", through, choices=["full", "last"])
    add("--recipe", "the paper's text, or the authors' released code (default: paper)", choices=["paper", "official"])
    add("--no-reconstruction", "train without the decoder", action="store_true")
    fits = "begin with the weights that come with the package ('torchcaps models' says for which); classes may differ"
    add("--pretrained", fits, action="store_true")

    add = group(
        "your own images", "All but --size also work with data sets by name, but --balance not with pairs of digits."
    )
    add("--size", "scale to so many pixels (default: what suits the images, up to 128)", metavar="N|HxW")
    rare = "show rare classes more often (default: auto, if one has over ten times the images of another)"
    add("--balance", rare, choices=["auto", "none", "classes"])
    presets = "none, shift, digits or natural (default: what the data is meant for); single amounts change a preset:"
    add("--augment", presets, metavar="PRESET")
    add("--shift", "move by up to so many pixels", type=int, metavar="PIXELS")
    add("--rotate", "turn by up to so much", type=float, dest="rotation", metavar="DEGREES")
    for name, about in (
        ("scale", "stretch each side by up to this share, such as 0.1"),
        ("shear", "slant by up to this share"),
        ("crop", "show a window with sides smaller by up to this share"),
        ("colour", "vary brightness, contrast and saturation by up to this share"),
        ("cutout", "hide a square with sides of this share"),
        ("strokes", "make bright strokes wider or narrower in this share of the images"),
        ("noise", "add normal noise of up to this deviation, 1 being from black to white"),
        ("brightness", "add up to this, or take it away, 1 being from black to white"),
        ("contrast", "stretch or shrink the distance from the mean by up to this share"),
        ("part", "change this share of the images, and leave the others as they are"),
    ):
        add(f"--{name}", about, type=float, metavar="SHARE")
    add("--bend", "bend smoothly, by up to so many pixels", type=float, metavar="PIXELS")
    add("--flip", "mirror half of the images, or none", action=argparse.BooleanOptionalAction)

    add = group("output")
    add("--out", "the run folder (default: runs/MODEL-seedN)", metavar="DIR")
    add("--resume", "go on with the run in --out; a larger budget prolongs it", action="store_true")
    often = f"how often to save (default: {usual['checkpoint_seconds']:g})"
    add("--checkpoint-seconds", often, type=checked(float, *_ZERO_OR_MORE), metavar="S")
    add("--tensorboard", "also write TensorBoard files into the run folder", action="store_true")
    add("--quiet", "no progress on standard error, only what goes wrong", action="store_true")
    json_flag(add)
