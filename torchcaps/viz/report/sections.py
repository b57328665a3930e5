"""Which figures a report shows for a run, in their order on the page, each with its caption."""

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

from torchcaps.analysis import corruptions, metrics, probes
from torchcaps.analysis.probes import Answers
from torchcaps.analysis.segmentation import RULES, segmentation
from torchcaps.core.errors import UserError
from torchcaps.core.files import read_record
from torchcaps.core.types import ModelOutput
from torchcaps.data import TEST_PAIRS, resolve
from torchcaps.data.corruptions import CORRUPTIONS, corrupt
from torchcaps.data.folder.listing import readable
from torchcaps.data.sets import ScoredSet
from torchcaps.models.capsnet import CapsNet
from torchcaps.training.loop import FRAMES
from torchcaps.training.records import Rows, loaded, read_manifest, read_metrics, read_result
from torchcaps.training.runs import load_run, read_answers, run_data, run_test_set
from torchcaps.viz import figures
from torchcaps.viz.figures.scores import FEW
from torchcaps.viz.report.page import Table

PAIRS, SEPARATIONS, WORST, SPOILT = 7, 6, 12, 5
MASKS = 1000
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
    rows: Rows
    watched: dict[str, torch.Tensor] | None
    """A few images, their labels and targets, and the frames of what was redrawn of them."""
    model: nn.Module
    data: ScoredSet
    classes: tuple[str, ...]
    answers: Answers
    capsules: bool
    """Whether the classes are capsules; a CNN has none."""
    spoilt: dict[str, Any] | None = None
    """The scores on spoilt images, if they were asked for (`torchcaps evaluate RUN --corruptions`)."""

    @property
    def margins(self) -> bool:
        """Whether the loss asks for lengths above or below fixed margins; other losses compare the classes."""
        return isinstance(self.model, CapsNet)

    @property
    def names(self) -> tuple[str, ...]:
        """The classes for matplotlib, which reads text between two dollar signs as a formula."""
        return tuple(readable(name).replace("$", r"\$") for name in self.classes)


def read_run(run: Path, model: nn.Module | None = None, data: Any = None, test: Any = None) -> FinishedRun:
    """A network and tensors of one's own, which a run cannot hold, are handed over as they were to `fit`."""
    network, config = load_run(run, model=model)
    frames = run / "frames.safetensors"
    known = run_data(run, config) if data is None else resolve(data, test=test)
    tested = run_test_set(run, config, known, most=TEST_PAIRS)
    kept = read_answers(run)
    answers = Answers(*(x[: len(tested)] for x in kept)) if kept and len(kept[0]) >= len(tested) else None
    with torch.no_grad():
        example = network(next(tested.batches(1)).images)
    return FinishedRun(
        config,
        read_result(run),
        read_manifest(run),
        read_metrics(run),
        _watched(frames) if frames.exists() else None,
        network,
        tested,
        tuple(config.get("classes", known.classes)),
        answers or probes.answer(network, tested),
        isinstance(example, ModelOutput) and example.capsules is not None,
        _spoilt_scores(run),
    )


def _spoilt_scores(run: Path) -> dict[str, Any] | None:
    """Those of the weights that the run has now: a run that was prolonged has others."""
    path = run / corruptions.FILE
    scores = read_record(path) if path.exists() else None
    same = scores and scores.get("weights_sha256") == read_result(run)["weights_sha256"]
    return scores if same else None


def _watched(path: Path) -> dict[str, torch.Tensor]:
    try:
        found = safetensors.torch.load_file(path)
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read: {str(error).splitlines()[0][:200]}") from None
    frames, images, targets, labels = loaded(path, found, ("frames", "images", "targets", "labels"))
    whole = frames.ndim == 6 and images.ndim == 4 and labels.ndim == 2 and not labels.is_floating_point()
    if (
        not whole
        or frames.shape[1:] != targets.shape
        or targets.shape[:2] != labels.shape
        or len(images) != len(labels)
    ):
        raise UserError(f"{path} is damaged: its frames, images and labels do not fit")
    return found


def sections(run: FinishedRun) -> Iterator[Section | Table]:
    several = run.data.objects == 2
    if several:
        yield _pairs(run)
    if probes.reconstructs(run.model):
        yield _redrawn(run)
        yield from _animation(run)
        if several:
            yield _separations(run)
            yield _masks(run)
    yield _lengths(run)
    if several:
        yield _breakdown(run)
        about = "Of the test images that show a class, the share in which the network did not find it."
        draw = partial(figures.class_misses, *probes.class_misses(run.answers), run.names)
        yield Section("class-rates", "Miss rate of each class", about, draw)
    else:
        yield _confusion(run)
        yield _per_class(run)
        yield from _worst(run)
        yield _reliability(run)
    if run.spoilt:
        yield from _robustness(run, run.spoilt)
    if probes.reconstructs(run.model):
        yield _perturbations(run, run.model)
    if len(run.rows) > 1:
        about = "Losses and accuracy during training. Validation images are taken out of the training set."
        yield Section("training-curves", "Training curves", about, partial(figures.training_curves, run.rows))


def _redrawn(run: FinishedRun) -> Section:
    several = run.data.objects == 2
    counts = (RIGHT, ABSENT, WRONG) if several else (2 * RIGHT - 2 * WRONG, 0, WRONG)
    items = probes.redraw(run.model, run.data, run.answers, probes.samples(run.answers, *counts))
    if several:
        about = (
            "Upper rows: the input. Lower rows: two capsules decoded one at a time, in red and green; pixels of both"
            " are yellow. L are the labels, R the decoded capsules. R:P marks a wrong prediction, * a digit that is"
            " neither label nor prediction, so that its capsule should draw nothing. The first test pairs of each kind."
        )
        draw = partial(figures.segmentations, items, run.names)
        return Section("segmentation", "Segmentation of overlapping digits", about, draw)
    about = (
        "Upper rows: the input. Lower rows: what one capsule redraws of it. The numbers are (label, prediction, decoded"
        " capsule). The first test images that are right, then the first that are wrong, decoded from the capsule of"
        " the label and from the capsule of the prediction."
    )
    return Section("reconstructions", "Reconstructions", about, partial(figures.reconstructions, items, run.names))


def _animation(run: FinishedRun) -> Iterator[Section]:
    """Of the watched images, the one with the best reconstruction at the end of training."""
    if run.watched is None or len(run.watched["frames"]) < 2:
        return
    frames = run.watched["frames"].float() / 255
    best = int((frames[-1] - run.watched["targets"]).square().flatten(1).mean(1).argmin())
    names = [readable(run.classes[int(k)]) for k in run.watched["labels"][best]]
    steps, seconds = run.result["steps"], run.result["seconds"]
    # The training loop keeps frames at growing intervals, at most one a step.
    parts = [min(1.0, max((t / FRAMES) ** 2, t / max(steps, 1))) for t in range(len(frames))]
    moments = [(part, f"{part * seconds:,.0f} s of training, step {round(part * steps):,}") for part in parts]
    animation = figures.learning_gif(run.watched["images"][best], frames[:, best], moments, names)
    kind = "validation" if run.config["train"]["validation"] else "training"
    about = (
        f"What the capsules redraw of one {kind} image, from the first training step to the last. Of the eight images"
        " that are recorded, the one with the best reconstruction."
    )
    yield Section("learning", "Reconstruction during training", about, animation)


def _separations(run: FinishedRun) -> Section:
    batch = probes.pick(run.data, range(min(SEPARATIONS, len(run.data))))
    pictures = probes.decode(run.model, batch.images, batch.labels)
    about = (
        "The first test pairs. The network is given only the input. The capsule of each label, decoded on its own,"
        " should reproduce the digit to its left."
    )
    draw = partial(figures.separations, batch.images, batch.targets, pictures)
    return Section("separation", "Each digit reconstructed separately", about, draw)


def _masks(run: FinishedRun) -> Table:
    found = segmentation(run.model, run.data, most=MASKS)
    about = (
        f"The two longest capsules of {min(MASKS, len(run.data)):,} test pairs, decoded one at a time. Overlap:"
        " intersection over union of a digit and the pixels given to it. Claimed: the share of the ink that is given to"
        " a digit; of ink that belongs to both digits, the share that is given to both."
    )
    rows = [
        (RULES[name].title, *(f"{row[key]:.1%}" for key in ("iou", "covered", "shared"))) for name, row in found.items()
    ]
    return Table("Pixels of each digit", about, ("given to a digit", "overlap", "claimed", "shared, by both"), rows)


def _lengths(run: FinishedRun) -> Section:
    mistakes = probes.worst(run.answers, WORST_LENGTHS)
    numbers = list(dict.fromkeys([*range(min(FIRST_LENGTHS, len(run.data))), *mistakes]))
    batch = probes.pick(run.data, numbers)
    what = "The length of every class capsule" if run.capsules else "The output of the network for every class"
    about = (
        f"{what}. Blue: the class is in the image. A dot marks the answer of the network."
        f" The first test images{f', and the {len(mistakes)} most confident mistakes' if mistakes else ''}."
    )
    lengths = run.answers.lengths[numbers]
    draw = partial(figures.capsule_lengths, batch.images, lengths, batch.labels, run.names, margins=run.margins)
    return Section("capsule-lengths", "Capsule lengths" if run.capsules else "Class scores", about, draw)


def _breakdown(run: FinishedRun) -> Section:
    about = (
        "An image counts as right only if both digits are found. The two lower bars say how often the first and the"
        " second answer are in the image."
    )
    draw = partial(figures.pair_breakdown, probes.breakdown(run.answers))
    return Section("breakdown", "Images with both, one or no digit right", about, draw)


def _confusion(run: FinishedRun) -> Section:
    about = (
        "Rows are labels, columns are answers, in percent of the images with that label. Darker mistakes are more"
        " frequent. A dot is a share that rounds to zero."
    )
    counts = metrics.confusion(*run.answers)
    return Section("confusion", "Confusion matrix", about, partial(figures.confusion_matrix, counts, run.names))


def _per_class(run: FinishedRun) -> Table:
    rows = sorted(metrics.per_class(*run.answers).rows(run.classes), key=lambda row: (row["f1"], row["class"]))
    about = (
        "Precision is the share of a class's answers that are right, recall the share of its images that were found, F1"
        " their harmonic mean. The class with the lowest F1 is first. Images are those of the test set."
    )
    cells = [
        (str(row["class"]), *(f"{row[name]:.1%}" for name in ("precision", "recall", "f1")), f"{row['support']:,}")
        for row in rows
    ]
    return Table("Precision and recall of each class", about, ("", "precision", "recall", "F1", "images"), cells)


def _reliability(run: FinishedRun) -> Section:
    bins = metrics.reliability(*run.answers)
    what = "The outputs of the network were trained as probabilities."
    if run.margins:
        what = (
            "Lengths are not probabilities: the loss asks for more than 0.9 for a class in the image, else below 0.1."
        )
    elif run.capsules:
        what = "Activations are not probabilities: the loss only asks that the right one is larger by a margin."
    about = (
        f"{what} Read as probabilities, they are wrong by {bins.ece:.3f} on average (expected calibration error,"
        f" {metrics.BINS} bins). A bar is the share of right answers among all answers of similar length (pale: fewer"
        f" than {FEW} answers), a dot their mean length. Bars above the dotted line: right more often than the length"
        " says."
    )
    return Section("reliability", "Calibration of the answers", about, partial(figures.reliability, bins))


def _worst(run: FinishedRun) -> Iterator[Section]:
    numbers = probes.worst(run.answers, WORST)
    if not numbers:
        return
    batch, predicted = probes.pick(run.data, numbers), run.answers.predicted[numbers]
    decoded = (batch.labels, predicted) if probes.reconstructs(run.model) else ()
    redrawn = [probes.decode(run.model, batch.images, classes)[:, 0] for classes in decoded]
    names = [[run.names[int(k)] for k in column[:, 0]] for column in (batch.labels, predicted)]
    about = "The mistakes in which the network was most sure. Above each: label → prediction."
    about += " Below: what the capsule of the label and the capsule of the prediction redraw." if redrawn else ""
    draw = partial(figures.mistakes, batch.images, *names, *redrawn)
    yield Section("worst-mistakes", "Most confident mistakes", about, draw)


def _robustness(run: FinishedRun, spoilt: dict[str, Any]) -> Iterator[Section | Table]:
    tables = [("this run", spoilt["robustness"])]
    tables += [(found["model"], found) for found in [spoilt.get("beside")] if found]
    about = (
        f"Accuracy on {spoilt['robustness']['images']:,} test images as they are and spoilt in each way, and how many"
        " percentage points are lost. The same images are spoilt in the same way for every network."
    )
    yield Table("Accuracy on spoilt images", about, *corruptions.lines(tables))
    images = probes.pick(run.data, range(min(SPOILT, len(run.data)))).images
    shown = [(known.title, corrupt(name, images)) for name, known in CORRUPTIONS.items()]
    draw = partial(figures.titled_rows, [("clean", images), *shown])
    yield Section("spoilt", "How the images were spoilt", "The first test images, spoilt in each way.", draw)


def _perturbations(run: FinishedRun, model: CapsNet) -> Section:
    number = run.answers.right.tolist()[0] if len(run.answers.right) else 0
    label = int(run.answers.labels[number, 0])
    image = probes.pick(run.data, [number]).images[0]
    draw = partial(figures.perturbations, probes.perturb(model, image, label), probes.TWEAKS)
    about = (
        f"The capsule of a “{run.classes[label]}”, decoded while one of its dimensions is changed by the amount above"
        " and all others stay the same. The dimensions with the strongest effect come first."
    )
    return Section("perturbations", "Effect of each capsule dimension", about, draw)


def _pairs(run: FinishedRun) -> Section:
    batch = probes.pick(run.data, range(min(PAIRS, len(run.data))))
    about = "The first test pairs: the input, and the two digits it was made of. The network is given only the input."
    draw = partial(figures.example_pairs, batch.images, batch.targets, batch.labels, run.names)
    return Section("example-pairs", "Example images", about, draw)
