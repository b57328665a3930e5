"""The flags of `torchcaps train`, in groups, and the kinds of values that flags take.

Defaults that a help text names are read from the listings, so that they are those of the tables.
"""

import argparse
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from torchcaps.app import listings


def more_than_zero(kind: type[int] | type[float]) -> Callable[[str], Any]:
    return _checked(kind, lambda value: 0 < value < math.inf, "more than 0")


def zero_or_more(kind: type[int] | type[float]) -> Callable[[str], Any]:
    return _checked(kind, lambda value: 0 <= value < 2**63, "0 or more")


SHARE = "0 or more and less than 1"


def share(text: str) -> float:
    return _checked(float, lambda value: 0 <= value < 1, SHARE)(text)


def port(text: str) -> int:
    return _checked(int, lambda value: 0 <= value < 2**16, "from 0 to 65535")(text)


def _checked(kind: type[int] | type[float], holds: Callable[[Any], bool], what: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        value = kind(text)
        if not holds(value):
            raise argparse.ArgumentTypeError(f"must be {what}, not {text}")
        return value

    parse.__name__ = kind.__name__  # argparse names it where the text is no number at all
    return parse


def json_flag(target: argparse._ActionsContainer) -> None:
    target.add_argument("--json", action="store_true", help="print JSON, and nothing else, to standard output")


def device_flag(target: argparse._ActionsContainer) -> None:
    target.add_argument(
        "--device", default="auto", help="cpu, cuda, cuda:1, ... (default: auto, a GPU if there is one, else the CPU)"
    )


def completed(action: argparse.Action, names: Callable[[], list[str]]) -> None:
    """What a shell may complete the value to; argcomplete looks for this attribute."""
    action.completer = lambda **_: names()  # pyright: ignore[reportAttributeAccessIssue]


def model_names() -> list[str]:
    return [row["name"] for row in listings.models()]


def data_names() -> list[str]:
    return [row["name"] for row in listings.data()]


def routing_names() -> list[str]:
    return [row["name"] for row in listings.routings()]


def own_default(field: str) -> str:
    """What the models have for a field of the training, the most common first.

    >>> own_default("batch")
    "(default: the model's own, 128 or 64)"
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
    for (optimiser, lr, schedule, warmup, batch), names in groups.items():
        who = "Most models" if names is most else ", ".join(names)
        lines.append(
            f"{who}: {optimiser}, learning rate {_number(lr)}, schedule {schedule}, warm-up {_number(warmup)}, "
            f"batches of {batch}."
        )
    return " ".join(sorted(lines, key=lambda line: not line.startswith("Most")))


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def train_flags(train: argparse.ArgumentParser) -> None:
    usual = listings.kept()["training"]
    model = train.add_argument("model", nargs="?", help="a name from 'torchcaps models' (not needed with --resume)")
    completed(model, model_names)
    _budget(train)
    _data(train, usual)
    _optimisation(train, usual)
    _network(train)
    _own_images(train)
    _output(train, usual)


def _budget(train: argparse.ArgumentParser) -> None:
    group = train.add_argument_group("budget", "At least one is needed; of several, the one that ends first.")
    group.add_argument("--epochs", type=more_than_zero(float), metavar="N", help="passes over the training set")
    group.add_argument("--steps", type=more_than_zero(int), metavar="N", help="updates of the weights")
    group.add_argument(
        "--max-seconds", type=more_than_zero(float), metavar="S", help="seconds; the schedule fits itself to them"
    )


def _data(train: argparse.ArgumentParser, usual: dict[str, Any]) -> None:
    group = train.add_argument_group("data")
    name = group.add_argument(
        "--data",
        metavar="NAME|DIR|CSV",
        help="a data set by name (default: the one the model is meant for); or your own images: a folder with one "
        "sub-folder per class, perhaps below train/, val/ and test/, or a .csv of path, label and perhaps split",
    )
    completed(name, data_names)
    group.add_argument(
        "--validation",
        type=zero_or_more(int),
        metavar="N",
        help=f"training images held out to watch progress, at most a tenth (default: {usual['validation']})",
    )
    group.add_argument(
        "--pairs", type=more_than_zero(int), metavar="N",
        help="MultiMNIST: a fixed pool of so many pairs (default: pairs are drawn anew and never repeat)",
    )  # fmt: skip


def _optimisation(train: argparse.ArgumentParser, usual: dict[str, Any]) -> None:
    group = train.add_argument_group(
        "optimisation",
        f"What is not given is the model's own. {own_trainings()} capsnet and cnn on other data than mnist train as "
        "capsnet-mnist-small does, with smaller batches where there are fewer than 1,280 images to train on.",
    )
    group.add_argument(
        "--batch", type=more_than_zero(int), metavar="N",
        help=f"images in a step, over all processes {own_default('batch')}",
    )  # fmt: skip
    group.add_argument("--lr", type=more_than_zero(float), metavar="RATE", help=f"learning rate {own_default('lr')}")
    group.add_argument("--optimiser", choices=["adam", "muon"], help=own_default("optimiser"))
    group.add_argument(
        "--schedule", choices=["decay", "cosine", "linear", "exponential", "constant"],
        help=f"how the learning rate falls {own_default('schedule')}",
    )  # fmt: skip
    group.add_argument(
        "--warmup", type=share, metavar="SHARE",
        help=f"share of the budget in which the learning rate rises from 0 {own_default('warmup')}",
    )  # fmt: skip
    group.add_argument(
        "--average", type=share, metavar="DECAY",
        help="decay of an exponential average of the weights, such as 0.999 "
        f"(default: {usual['average'] or '0, no average'})",
    )  # fmt: skip
    group.add_argument(
        "--clip", type=more_than_zero(float), metavar="NORM",
        help="shorten a step's gradient to this norm where it is longer (default: never)",
    )  # fmt: skip
    group.add_argument(
        "--seed", type=zero_or_more(int), metavar="N",
        help=f"decides initial weights, order and augmentation (default: {usual['seed']})",
    )  # fmt: skip
    device_flag(group)


def _network(train: argparse.ArgumentParser) -> None:
    group = train.add_argument_group("network", "Changes to the model; what is not given stays as it is.")
    routing = group.add_argument(
        "--routing", metavar="NAME", help=f"{', '.join(routing_names())}; see 'torchcaps routings'"
    )
    completed(routing, routing_names)
    group.add_argument(
        "--iterations", type=more_than_zero(int), metavar="N",
        help="of the routing (default: the model's own, or the routing's, see 'torchcaps routings')",
    )  # fmt: skip
    group.add_argument(
        "--gradient", choices=["full", "last"],
        help="through all iterations of dynamic routing, or the last only (default: full)",
    )  # fmt: skip
    group.add_argument(
        "--recipe", choices=["paper", "official"],
        help="the paper's text, or the authors' released code (default: paper)",
    )  # fmt: skip
    group.add_argument("--no-reconstruction", action="store_true", help="train without the decoder")


def _own_images(train: argparse.ArgumentParser) -> None:
    group = train.add_argument_group(
        "your own images", "All but --size also work with data sets by name that have one object in an image."
    )
    group.add_argument(
        "--size", metavar="N|HxW", help="scale to so many pixels (default: what suits the images, up to 64)"
    )
    group.add_argument(
        "--balance", choices=["auto", "none", "classes"],
        help="show rare classes more often (default: auto, if one has over ten times the images of another)",
    )  # fmt: skip
    group.add_argument(
        "--augment", metavar="PRESET",
        help="none, shift, digits or natural (default: what the data is meant for); single amounts change a preset:",
    )  # fmt: skip
    group.add_argument("--shift", type=int, metavar="PIXELS", help="move by up to so many pixels")
    group.add_argument("--rotate", type=float, dest="rotation", metavar="DEGREES", help="turn by up to so much")
    for name, about in (
        ("scale", "stretch each side by up to this share, such as 0.1"),
        ("shear", "slant by up to this share"),
        ("crop", "show a window with sides smaller by up to this share"),
        ("colour", "vary brightness, contrast and saturation by up to this share"),
        ("cutout", "hide a square with sides of this share"),
    ):
        group.add_argument(f"--{name}", type=float, metavar="SHARE", help=about)
    group.add_argument("--flip", action=argparse.BooleanOptionalAction, help="mirror half of the images, or none")


def _output(train: argparse.ArgumentParser, usual: dict[str, Any]) -> None:
    group = train.add_argument_group("output")
    group.add_argument("--out", metavar="DIR", help="the run folder (default: runs/MODEL-seedN)")
    group.add_argument("--resume", action="store_true", help="go on with the run in --out; a larger budget prolongs it")
    group.add_argument(
        "--checkpoint-seconds", type=zero_or_more(float), metavar="S",
        help=f"how often to save (default: {usual['checkpoint_seconds']:g})",
    )  # fmt: skip
    group.add_argument("--tensorboard", action="store_true", help="also write TensorBoard files into the run folder")
    group.add_argument("--quiet", action="store_true", help="no progress on standard error, only what goes wrong")
    json_flag(group)
