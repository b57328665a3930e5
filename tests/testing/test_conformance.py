"""The suite can fail: each mistake that public capsule code makes is put through it, and caught.

Every case is one check, the mistake, the right thing beside it, and what the error has to say.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from mistakes import (
    TINY,
    TINY_NET,
    AlwaysThree,
    AlwaysThreeButShowsWhatWasAskedFor,
    AnyTwoDigits,
    CompetesWithNobodyElse,
    HiddenFirstPass,
    HiddenLastPass,
    KeepsItsCapsules,
    KeepsItsLogits,
    LogitsAveragedOverBatch,
    LogitsOnTheCPU,
    LogitsSharedByBatch,
    OnePassMore,
    OnTheGPU,
    PeeksAtLabels,
    Procedure1,
    RandomByDesign,
    RandomCouplings,
    SoftmaxOverChildren,
    SquashByDivision,
    SquashOverCapsules,
    Squeezed,
    WrongAxisPrimaryCaps,
    boxes,
    clouds,
    evaluate_full_batches_only,
    evaluate_half_credit,
    evaluate_in_training_mode,
    evaluate_mean_of_batches,
    evaluate_shifted,
    half_credit,
    loss_20_times_more,
    loss_78_times_less,
    loss_of_means,
    margin_loss_averaged_over_classes,
    margin_loss_summed_over_batch,
    match_in_order,
    mean_squared_error,
    pairs_from_another_split,
    pairs_of,
    paper_loss,
    shift_all_alike,
    shift_by_one,
    shift_by_two,
    shown,
    squash_by_division,
    squash_over_capsules,
    squashed_sum,
    train_linear,
    wrap_around,
    z_scored_everywhere,
)
from safetensors.torch import load_file
from torch import Tensor

from torchcaps.analysis.evaluate import evaluate
from torchcaps.core.functional import squash
from torchcaps.data import named, sources
from torchcaps.data.sets import ImageSet
from torchcaps.data.synthetic.multimnist import Digits
from torchcaps.models.baseline import CNNConfig
from torchcaps.models.registry import MODELS, create_model
from torchcaps.nn.losses import margin_loss, reconstruction_loss
from torchcaps.nn.primary import PrimaryCaps
from torchcaps.testing import (
    ConformanceError,
    check_augmentation,
    check_evaluation,
    check_iterations,
    check_losses,
    check_margin_loss,
    check_model,
    check_pair_metric,
    check_pairs,
    check_primary_caps,
    check_reconstruction_loss,
    check_reconstruction_targets,
    check_routing,
    check_selection,
    check_squash,
)
from torchcaps.training.config import defaults_for
from torchcaps.training.scoring import exact_match
from torchcaps.training.train import train

check_procedure_1 = partial(check_iterations, combine=squashed_sum, starts_from_priors=True)
check_shift = partial(check_augmentation, pixels=2)
check_small_primary = partial(check_primary_caps, channels=2, types=6, dim=4, kernel=3, stride=2)
check_tiny = partial(check_model, image_shape=TINY.image, classes=TINY.classes)
check_box_pairs = partial(check_pairs, split=boxes())
check_clouds = partial(check_selection, train_set=clouds(64, 0), test_set=clouds(40, 1))


@dataclass(frozen=True)
class Mistake:
    check: Callable[[Any], None]
    wrong: Any
    right: Any
    says: str


MISTAKES = {
    "mistake-01-softmax-over-children": Mistake(
        check_routing, SoftmaxOverChildren, Procedure1, "couplings of one child do not sum to 1"
    ),
    "mistake-01-softmax-over-the-parents-of-one-position": Mistake(
        check_routing, CompetesWithNobodyElse, Procedure1, "still sum to 1 here"
    ),
    "mistake-02-capsules-cut-from-the-wrong-axis": Mistake(
        check_small_primary,
        WrongAxisPrimaryCaps(2, 6, 4, 3, 2),
        PrimaryCaps(2, 6, 4, 3, 2),
        "from several positions",
    ),
    "mistake-03-squash-over-capsules": Mistake(check_squash, squash_over_capsules, squash, "n² / \\(1 \\+ n²\\)"),
    "mistake-03-squash-over-capsules-in-a-routing": Mistake(
        partial(check_routing, combine=squashed_sum),
        SquashOverCapsules,
        Procedure1,
        "last couplings of the trace imply",
    ),
    "mistake-04-logits-averaged-over-the-batch": Mistake(
        check_routing, LogitsAveragedOverBatch, Procedure1, "a batch of one is not row 0"
    ),
    "mistake-04-logits-shared-by-the-batch": Mistake(
        check_routing, LogitsSharedByBatch, Procedure1, "a batch of one is not row 0"
    ),
    "mistake-05-three-iterations-that-run-four-passes": Mistake(
        check_routing, OnePassMore, Procedure1, r"couplings are \[4, .*\] instead of \[3, "
    ),
    "mistake-05-hidden-first-pass": Mistake(
        check_procedure_1, HiddenFirstPass, Procedure1, "couplings depend on the votes already"
    ),
    "mistake-05-hidden-last-pass": Mistake(
        check_procedure_1, HiddenLastPass, Procedure1, "last couplings of the trace"
    ),
    "mistake-05-ignored-option": Mistake(check_iterations, AlwaysThree, Procedure1, r"\[3, .*\] instead of \[1, "),
    "mistake-05-ignored-option-with-a-trace-to-match": Mistake(
        check_iterations,
        AlwaysThreeButShowsWhatWasAskedFor,
        Procedure1,
        "2 iterations give what 1 give",
    ),
    "mistake-06-pixels-averaged": Mistake(check_losses, loss_of_means, paper_loss, "weighs 0.001276 times"),
    "mistake-06-78-times-less": Mistake(check_losses, loss_78_times_less, paper_loss, "weighs 0.01276 times"),
    "mistake-06-20-times-more": Mistake(check_losses, loss_20_times_more, paper_loss, "weighs 20 times"),
    "mistake-06-margin-averaged-over-classes": Mistake(
        check_margin_loss, margin_loss_averaged_over_classes, margin_loss, "0.27 instead of 0.81"
    ),
    "mistake-06-margin-summed-over-batch": Mistake(
        check_margin_loss, margin_loss_summed_over_batch, margin_loss, "not the mean over its images"
    ),
    "mistake-06-reconstruction-averaged": Mistake(
        check_reconstruction_loss, mean_squared_error, reconstruction_loss, "0.25 instead of 196"
    ),
    "mistake-07-square-root-at-zero": Mistake(check_squash, squash_by_division, squash, "NaN"),
    "mistake-07-square-root-at-zero-in-a-routing": Mistake(check_routing, SquashByDivision, Procedure1, "NaN"),
    "mistake-08-test-images-shifted": Mistake(check_evaluation, evaluate_shifted, evaluate, "did not reach the model"),
    "mistake-08-test-set-cut-short": Mistake(
        check_evaluation, evaluate_full_batches_only, evaluate, "was shown 98 images"
    ),
    "mistake-08-average-over-unequal-batches": Mistake(
        check_evaluation, evaluate_mean_of_batches, evaluate, "size of 7: accuracy"
    ),
    "mistake-08-scored-in-training-mode": Mistake(
        check_evaluation, evaluate_in_training_mode, evaluate, "training mode"
    ),
    "mistake-09-best-epoch-picked-on-the-test-set": Mistake(
        check_clouds,
        partial(train_linear, select=True),
        train_linear,
        "depend on the labels of the test set",
    ),
    "mistake-10-half-credit": Mistake(check_pair_metric, half_credit, exact_match, "scored 0.5, not 0"),
    "mistake-10-half-credit-in-the-score": Mistake(check_evaluation, evaluate_half_credit, evaluate, "accuracy"),
    "mistake-10-order-of-digits-matters": Mistake(check_pair_metric, match_in_order, exact_match, "scored 0, not 1"),
    "mistake-10-pairs-of-the-same-class": Mistake(
        check_box_pairs, pairs_of(AnyTwoDigits), pairs_of(Digits), "two digits of one class"
    ),
    "mistake-10-pairs-from-another-split": Mistake(
        check_box_pairs,
        pairs_from_another_split(),
        pairs_of(Digits),
        "is not an image of boxes",
    ),
    "mistake-11-cuda-in-forward": Mistake(check_tiny, OnTheGPU(TINY), TINY_NET, "raised"),
    "mistake-11-cpu-in-forward": Mistake(check_routing, LogitsOnTheCPU, Procedure1, "on another device"),
    "mistake-11-squeeze-drops-a-batch-of-one": Mistake(
        check_tiny,
        Squeezed(TINY),
        TINY_NET,
        r"batch of one .*shape is \[5\] instead of \[1, 5\]",
    ),
    "mistake-11-state-written-in-forward": Mistake(
        check_tiny,
        KeepsItsCapsules(TINY),
        TINY_NET,
        r"writes state in forward .*capsules changed",
    ),
    "mistake-11-logits-kept-between-calls": Mistake(check_routing, KeepsItsLogits, Procedure1, "writes state"),
    "mistake-11-labels-seen-in-forward": Mistake(
        check_tiny, PeeksAtLabels(TINY), TINY_NET, "lengths depend on the labels"
    ),
    "random-without-saying-so": Mistake(check_routing, RandomCouplings, RandomByDesign, "same bytes when called twice"),
    "mistake-12-target-z-scored": Mistake(
        check_reconstruction_targets,
        shown(z_scored=True),
        shown(z_scored=False),
        "cannot draw outside 0 .. 1",
    ),
    "mistake-12-image-and-target-z-scored": Mistake(
        check_reconstruction_targets,
        z_scored_everywhere(),
        shown(z_scored=False),
        "cannot draw outside 0 .. 1",
    ),
    "augmentation-wraps-around": Mistake(check_shift, wrap_around, shift_by_two, "zero padding"),
    "augmentation-moves-a-batch-as-one": Mistake(check_shift, shift_all_alike, shift_by_two, "not equally likely"),
    "augmentation-moves-too-little": Mistake(
        check_shift,
        shift_by_one,
        shift_by_two,
        "equally likely",
    ),
}
# The same right code stands beside several
RIGHT = {(mistake.check, mistake.right): name for name, mistake in reversed(MISTAKES.items())}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_is_caught(mistake: Mistake) -> None:
    with pytest.raises(ConformanceError, match=mistake.says):
        mistake.check(mistake.wrong)


@pytest.mark.parametrize(("check", "right"), RIGHT, ids=RIGHT.values())
def test_right_code_passes(check: Callable[[Any], None], right: Any) -> None:
    check(right)


def test_all_twelve_mistakes_are_made() -> None:
    numbers = {name.split("-")[1] for name in MISTAKES if name.startswith("mistake-")}
    assert numbers == {f"{number:02d}" for number in range(1, 13)}


SHRUNK = {"channels": 16, "primary_types": 4, "decoder": (8,)}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_conforms(name: str) -> None:
    """At a fraction of its size, which changes nothing about its contract."""
    config = MODELS[name].config
    if isinstance(config, CNNConfig):
        side = 28 if config.design in ("compact", "fine") else 8
        overrides = {"image": (1, side, side), "window": config.window and side - 4}
    else:
        known = {field.name for field in fields(config) if getattr(config, field.name) is not None}
        overrides = {key: value for key, value in SHRUNK.items() if key in known}
    model = create_model(name, **overrides)
    check_model(model, model.config.image, classes=model.config.classes, objects=model.config.objects)


def test_training_selects_nothing_on_the_test_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = count()
    config = defaults_for("capsnet-mnist-small", data="mnist-mini", epochs=2, batch=8, validation=6)

    def train_once(train_set: ImageSet, test_set: ImageSet) -> Mapping[str, Tensor]:
        splits = {"train": train_set, "test": test_set}
        arrays = {split: (data.images.numpy(), data.labels.numpy()) for split, data in splits.items()}
        monkeypatch.setattr(sources, "load_arrays", lambda name, split: arrays[split])
        out = tmp_path / str(next(runs))
        train(config, out, SHRUNK)
        return load_file(out / "model.safetensors")

    train_set, test_set = (named.images("mnist-mini", split).split(64)[1] for split in ("train", "test"))
    check_selection(train_once, train_set, test_set, scrambles=1)
