"""Table 1: the effect of routing and of reconstruction, on single and on overlapping digits."""

from typing import Any, NamedTuple

from torchcaps.experiments import protocols
from torchcaps.experiments.base import Study, Trial, Verdict, compared, judged
from torchcaps.viz.figures import Measured, dots, style

PAPER = "Sabour, Frosst and Hinton 2017, Table 1"
CUT = "the small networks and a CNN of their cost, 400 steps a training; 10,000 instead of 10 M test pairs"


class Cell(NamedTuple):
    """A line of the table; `iterations` is None for the baseline, `paper` its error."""

    task: str
    iterations: int | None
    reconstruction: bool
    paper: float

    @property
    def name(self) -> str:
        if self.iterations is None:
            return "baseline CNN"
        plural = "s" if self.iterations > 1 else ""
        return f"{self.iterations} iteration{plural}, {'with' if self.reconstruction else 'no'} reconstruction"


CELLS = (
    Cell("mnist", None, False, 0.0039),
    Cell("mnist", 1, False, 0.0034),
    Cell("mnist", 1, True, 0.0029),
    Cell("mnist", 3, False, 0.0035),
    Cell("mnist", 3, True, 0.0025),
    Cell("multimnist", None, False, 0.081),
    Cell("multimnist", 1, True, 0.075),
    Cell("multimnist", 3, True, 0.052),
)


def _trials(study: Study, cell: Cell) -> list[Trial]:
    kind = "cnn" if cell.iterations is None else "capsnet"
    model = f"{kind}-{cell.task}{study.pick(quick='-small', paper='', smoke='-small')}"
    data = cell.task + study.pick(quick="", paper="", smoke="-mini")
    published = protocols.MNIST if cell.task == "mnist" else protocols.MULTIMNIST
    training = study.pick(quick={"steps": 400}, paper=published, smoke=protocols.SMOKE)
    overrides: dict[str, Any] = {}
    if cell.iterations is not None:
        overrides["routing_options"] = {"iterations": cell.iterations}
        if not cell.reconstruction:
            overrides["decoder"] = None
    # The paper repeats MNIST three times and MultiMNIST not at all.
    repeats = study.pick(quick=2, paper=3 if cell.task == "mnist" else 1, smoke=1)
    name = f"{cell.task}-{kind}" + ("" if cell.iterations is None else f"-r{cell.iterations}")
    name += "-decoder" if cell.reconstruction else ""
    return [Trial(f"{name}-{s}", model, data, s, overrides, dict(training)) for s in study.seeds_or(repeats)]


def plan(study: Study) -> list[Trial]:
    return [trial for cell in CELLS for trial in _trials(study, cell)]


def run(study: Study) -> list[Verdict]:
    study.train_all(plan(study))
    errors = {cell: [1 - study.train(trial)["accuracy"] for trial in _trials(study, cell)] for cell in CELLS}
    titles = {"mnist": "MNIST", "multimnist": "MultiMNIST, both digits right"}
    with style():
        groups = {
            title: [Measured(cell.name, errors[cell], cell.paper) for cell in CELLS if cell.task == task]
            for task, title in titles.items()
        }
        study.figure("table1", dots(groups, "test error"))
    cells = [judged(f"{titles[c.task].split(',')[0]} error, {c.name}", errors[c], c.paper, at_most=True) for c in CELLS]
    return [*cells, *_comparisons(errors)]


def _comparisons(errors: dict[Cell, list[float]]) -> list[Verdict]:
    """The differences between the lines of the table."""
    mnist_cnn, _, mnist_1, mnist_plain, mnist_3, multi_cnn, multi_1, multi_3 = CELLS
    claims = (
        ("MNIST: CapsNet errs less than the CNN, by", mnist_cnn, mnist_3),
        ("MNIST: 3 iterations err less than 1, by", mnist_1, mnist_3),
        ("MNIST: reconstruction lowers the error, by", mnist_plain, mnist_3),
        ("MultiMNIST: CapsNet errs less than the CNN, by", multi_cnn, multi_3),
        ("MultiMNIST: 3 iterations err less than 1, by", multi_1, multi_3),
    )
    return [compared(claim, errors[more], errors[less], more.paper - less.paper) for claim, more, less in claims]
