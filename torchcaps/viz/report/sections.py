"""Which pictures fit a run, in the order in which they tell its story, each with the sentence that goes with it."""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from matplotlib.figure import Figure
from safetensors import SafetensorError
from torch import nn

from torchcaps.analysis import metrics, probes
from torchcaps.analysis.probes import Answers
from torchcaps.core.errors import UserError
from torchcaps.core.files import read_json
from torchcaps.data import TEST_PAIRS, resolve
from torchcaps.data.folder.listing import readable
from torchcaps.data.sets import ScoredSet
from torchcaps.models.capsnet import CapsNet
from torchcaps.training.loop import FRAMES
from torchcaps.training.runs import load_run, read_answers, run_data, run_test_set
from torchcaps.viz import figures
from torchcaps.viz.figures.scores import FEW
from torchcaps.viz.report.page import Table

PAIRS, SEPARATIONS, WORST = 7, 6, 12
RIGHT, ABSENT, WRONG = 6, 2, 2
FIRST_LENGTHS, WORST_LENGTHS = 4, 2


@dataclass(frozen=True)
class Section:
    """A picture to draw, or an animation that is drawn already."""

    name: str
    title: str
    about: str
    content: Callable[[], Figure] | figures.Animation


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A run read back, and what its network says about every test image."""

    config: dict[str, Any]
    result: dict[str, Any]
    manifest: dict[str, Any]
    rows: list[dict[str, str]]
    watched: dict[str, torch.Tensor] | None
    """A few images, their labels and targets, and the frames of what was redrawn of them."""
    model: nn.Module
    data: ScoredSet
    classes: tuple[str, ...]
    answers: Answers

    @property
    def objects(self) -> int:
        return self.data.objects

    @property
    def capsules(self) -> bool:
        """A CNN has none, and of a network of one's own nobody knows."""
        return self.config["model"]["kind"] not in ("cnn", "module")

    @property
    def margins(self) -> bool:
        """Whether the loss wants lengths beyond fixed margins; that of matrix capsules compares activations."""
        return self.config["model"]["kind"] == "capsnet"

    @property
    def names(self) -> tuple[str, ...]:
        """The classes for matplotlib, which takes what is between two dollar signs for a formula."""
        return tuple(readable(name).replace("$", r"\$") for name in self.classes)


def read_run(run: Path, model: nn.Module | None = None, data: Any = None, test: Any = None) -> FinishedRun:
    """A network and tensors of one's own, which a run cannot hold, are handed over as they were to `fit`."""
    network, config = load_run(run, model=model)
    known = run_data(run, config) if data is None else resolve(data, test=test)
    tested = run_test_set(run, config, known, most=TEST_PAIRS)
    kept = read_answers(run)
    answers = Answers(*(x[: len(tested)] for x in kept)) if kept and len(kept[0]) >= len(tested) else None
    return FinishedRun(
        config,
        read_json(run / "result.json"),
        read_json(run / "manifest.json"),
        _read_rows(run / "metrics.csv"),
        _read_watched(run / "frames.safetensors"),
        network,
        tested,
        tuple(config.get("classes", known.classes)),
        answers or probes.answer(network, tested),
    )


def _read_rows(path: Path) -> list[dict[str, str]]:
    try:
        return list(csv.DictReader(path.read_text().splitlines()))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def _read_watched(path: Path) -> dict[str, torch.Tensor] | None:
    if not path.exists():
        return None
    try:
        return safetensors.torch.load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def sections(run: FinishedRun) -> Iterator[Section | Table]:
    several = run.objects == 2
    if several:
        yield _pairs(run)
    if probes.reconstructs(run.model):
        yield from _segmentations(run) if several else _reconstructions(run)
        yield from _animation(run)
        if several:
            yield _separations(run)
    yield _lengths(run)
    if several:
        yield _breakdown(run)
        yield _misses(run)
    else:
        yield _confusion(run)
        yield _per_class(run)
        yield from _worst(run)
        yield _reliability(run)
    if probes.reconstructs(run.model):
        yield _perturbations(run, run.model)
    if len(run.rows) > 1:
        about = "Losses and accuracy while training; validation images are cut from the training set."
        yield Section("training-curves", "Training", about, partial(figures.training_curves, run.rows))


def _segmentations(run: FinishedRun) -> Iterator[Section]:
    chosen = probes.samples(run.answers, RIGHT, ABSENT, WRONG)
    items = probes.redraw(run.model, run.data, run.answers, chosen)
    about = (
        "Above, what the network sees; below, two of its capsules decoded one at a time, in red and green, and yellow"
        " where both put ink. L are the labels, R the capsules decoded; R:P marks a wrong prediction, * a digit that"
        " is neither label nor prediction and should find nothing to redraw. The first test pairs of each kind."
    )
    yield Section("segmentation", "Two digits, taken apart", about, partial(figures.segmentations, items, run.names))


def _reconstructions(run: FinishedRun) -> Iterator[Section]:
    chosen = probes.samples(run.answers, 2 * RIGHT - 2 * WRONG, 0, WRONG)
    items = probes.redraw(run.model, run.data, run.answers, chosen)
    about = (
        "The input above, what one capsule redraws of it below, under (label, prediction, capsule decoded). The first"
        " test images that are right, then the first that are wrong, decoded from the label and from the prediction."
    )
    draw = partial(figures.reconstructions, items, run.names)
    yield Section("reconstructions", "What the capsules redraw", about, draw)


def _animation(run: FinishedRun) -> Iterator[Section]:
    """The one of the watched images that is redrawn best in the end."""
    if run.watched is None or len(run.watched["frames"]) < 2:
        return
    frames = run.watched["frames"].float() / 255
    best = int((frames[-1] - run.watched["targets"]).square().flatten(1).mean(1).argmin())
    names = [readable(run.classes[int(k)]) for k in run.watched["labels"][best]]
    steps, seconds = run.result["steps"], run.result["seconds"]
    # As kept by the training loop: at moments that grow apart, but no more than one a step.
    parts = [min(1.0, max((t / FRAMES) ** 2, t / max(steps, 1))) for t in range(len(frames))]
    moments = [(part, f"{part * seconds:,.0f} s of training, step {round(part * steps):,}") for part in parts]
    animation = figures.learning_gif(run.watched["images"][best], frames[:, best], moments, names)
    kind = "validation" if run.config["train"]["validation"] else "training"
    about = (
        f"One {kind} image while the network learns: what its capsules redraw of it, from the first step to the last"
        " (of the eight images that are watched, the one redrawn best)."
    )
    yield Section("learning", "Learning to see it", about, animation)


def _separations(run: FinishedRun) -> Section:
    batch = probes.pick(run.data, range(min(SEPARATIONS, len(run.data))))
    pictures = probes.decode(run.model, batch.images, batch.labels)
    about = (
        "The first test pairs. The network only ever sees the input; each label's capsule, decoded on its own, should"
        " give back the digit to its left."
    )
    draw = partial(figures.separations, batch.images, batch.targets, pictures)
    return Section("separation", "Each digit on its own", about, draw)


def _lengths(run: FinishedRun) -> Section:
    mistakes = probes.worst(run.answers, WORST_LENGTHS)
    numbers = list(range(min(FIRST_LENGTHS, len(run.data)))) + mistakes
    numbers = list(dict.fromkeys(numbers))
    batch = probes.pick(run.data, numbers)
    what = "The length of every class capsule" if run.capsules else "The network's output for every class"
    about = (
        f"{what}: blue is what is in the image, a dot marks what the network answers."
        f" The first test images{f', and the {len(mistakes)} most confident mistakes' if mistakes else ''}."
    )
    draw = partial(
        figures.capsule_lengths,
        batch.images,
        run.answers.lengths[numbers],
        batch.labels,
        run.names,
        margins=run.margins,
    )
    return Section("capsule-lengths", "How sure it is", about, draw)


def _breakdown(run: FinishedRun) -> Section:
    about = (
        "An image counts as right only if both digits are found; below, how often the first and the second answer"
        " are in the image."
    )
    shares = probes.breakdown(run.answers)
    return Section("breakdown", "Both, one or none", about, partial(figures.pair_breakdown, shares))


def _misses(run: FinishedRun) -> Section:
    shown, missed = probes.class_misses(run.answers)
    about = "Of the test images that show a class, the share in which the network did not find it."
    return Section("class-rates", "What is missed", about, partial(figures.class_misses, shown, missed, run.names))


def _confusion(run: FinishedRun) -> Section:
    about = (
        "Rows are labels, columns what they were taken for, in percent of the label's images; the stronger the shade,"
        " the more often. A dot rounds to nothing."
    )
    counts = metrics.confusion(*run.answers)
    return Section("confusion", "What is taken for what", about, partial(figures.confusion_matrix, counts, run.names))


def _per_class(run: FinishedRun) -> Table:
    rows = sorted(metrics.per_class(*run.answers).rows(run.classes), key=lambda row: (row["f1"], row["class"]))
    about = (
        "Precision is the share of a class's answers that are right, recall the share of its images that were found, F1"
        " their harmonic mean. The weakest class first; images are those of the test set."
    )
    cells = [
        (str(row["class"]), *(f"{row[name]:.1%}" for name in ("precision", "recall", "f1")), f"{row['support']:,}")
        for row in rows
    ]
    return Table("Class by class", about, ("", "precision", "recall", "F1", "images"), cells)


def _reliability(run: FinishedRun) -> Section:
    bins = metrics.reliability(*run.answers)
    what = "The network's outputs were trained as probabilities."
    if run.capsules:
        what = "Activations are no probabilities: the loss only asks that the right one exceeds all others by a margin."
    if run.margins:
        what = (
            "Lengths are no probabilities: the loss only asks for more than 0.9 where a class is there and less than"
            " 0.1 where it is not."
        )
    about = (
        f"{what} Read as probabilities they are off by {bins.ece:.3f} on average (expected calibration error,"
        f" {metrics.BINS} bins). Bars are the share of answers of some length that are right (pale: of fewer than"
        f" {FEW} answers), dots their mean length. Above the dotted line it knows more than it says."
    )
    return Section("reliability", "What a length is worth", about, partial(figures.reliability, bins))


def _worst(run: FinishedRun) -> Iterator[Section]:
    numbers = probes.worst(run.answers, WORST)
    if not numbers:
        return
    batch, predicted = probes.pick(run.data, numbers), run.answers.predicted[numbers]
    redrawn = []
    if probes.reconstructs(run.model):
        redrawn = [probes.decode(run.model, batch.images, classes)[:, 0] for classes in (batch.labels, predicted)]
    names = [[run.names[int(k)] for k in column[:, 0]] for column in (batch.labels, predicted)]
    about = "The most confident mistakes, label → prediction" + (
        ", and what the capsule of either sees in the image." if redrawn else "."
    )
    draw = partial(figures.mistakes, batch.images, *names, *redrawn)
    yield Section("worst-mistakes", "The worst mistakes", about, draw)


def _perturbations(run: FinishedRun, model: CapsNet) -> Section:
    number = run.answers.right.tolist()[0] if len(run.answers.right) else 0
    label = int(run.answers.labels[number, 0])
    image = probes.pick(run.data, [number]).images[0]
    draw = partial(figures.perturbations, probes.perturb(model, image, label), probes.TWEAKS)
    about = (
        f"The capsule of a “{run.classes[label]}”, decoded while one of its dimensions is moved by the amount above"
        " and all others stay: each row is one way in which it can vary. Strongest first."
    )
    return Section("perturbations", "What a dimension means", about, draw)


def _pairs(run: FinishedRun) -> Section:
    batch = probes.pick(run.data, range(min(PAIRS, len(run.data))))
    about = "The first test pairs: the input, and the two digits it was made of, which the network never sees alone."
    draw = partial(figures.example_pairs, batch.images, batch.targets, batch.labels, run.names)
    return Section("example-pairs", "The task", about, draw)
