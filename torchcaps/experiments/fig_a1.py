"""Figure A.1: how much the routing logits still change with each iteration, from the start of training on.

Procedure 1 adds the agreement û·v to a logit in every iteration, so a logit of a capsule that is sure changes by the
same amount again and again; what comes to rest are the couplings. Both are measured.
"""

import torch
from torch import Tensor, nn

from torchcaps.data import resolve
from torchcaps.experiments import protocols
from torchcaps.experiments.base import Study, Trial, Verdict, judged
from torchcaps.viz.figures import Curve, curves, style

PAPER = "Sabour, Frosst and Hinton 2017, Figure A.1"
CUT = "the small network, 500 steps of training instead of 500 epochs"
ITERATIONS = 5
PROBED = 64


def plan(study: Study) -> list[Trial]:
    model = study.pick(quick="capsnet-mnist-small", paper="capsnet-mnist", smoke="capsnet-mnist-small")
    data = study.pick(quick="mnist", paper="mnist", smoke="mnist-mini")
    training = study.pick(
        quick={"steps": 500},
        paper={**protocols.MNIST, "epochs": 500.0},
        smoke=protocols.SMOKE,
    )
    return [Trial("capsnet", model, data, 0, {"routing_options": {"iterations": ITERATIONS}}, training)]


def routing_changes(model: nn.Module, pictures: Tensor) -> dict[str, float]:
    """The mean absolute change of logits and of couplings after each iteration."""
    was_training = model.training
    with torch.no_grad():
        trace = model.eval()(pictures, trace=True).trace
    model.train(was_training)
    after = (trace.logits[-1] + trace.agreement[-1]).softmax(-1)
    couplings = torch.cat([trace.couplings, after[None]])
    logits, moved = trace.agreement.abs().mean((1, 2, 3)), couplings.diff(dim=0).abs().mean((1, 2, 3))
    return {f"logits_{r + 1}": x for r, x in enumerate(logits.tolist())} | {
        f"couplings_{r + 1}": x for r, x in enumerate(moved.tolist())
    }


def run(study: Study) -> list[Verdict]:
    (trial,) = plan(study)
    held = resolve(trial.data).scored(resolve(trial.data).images("test").take(torch.arange(PROBED)))
    pictures = next(held.batches(PROBED)).images
    study.train(trial, probe=lambda model: routing_changes(model, pictures))
    rows = [row for row in study.metrics(trial) if "logits_1" in row]
    epochs = [row["epoch"] for row in rows]

    def lines(kind: str) -> dict[str, Curve]:
        return {f"iteration {r}": Curve(epochs, [[x[f"{kind}_{r}"] for x in rows]]) for r in range(1, ITERATIONS + 1)}

    titles = {"change of the logits": "logits", "change of the couplings": "couplings"}
    with style():
        linear = {title: lines(kind) for title, kind in titles.items()}
        logarithmic = {f"{title}, log": lines(kind) for title, kind in titles.items()}
        both = {
            title: lines_ for pair in zip(linear.items(), logarithmic.items(), strict=True) for title, lines_ in pair
        }
        study.figure("figA1", curves(both, "epoch", log_y=[False, True, False, True], marks=len(rows) < 40))
    last, first = rows[-1], rows[0]
    return [
        judged("logits: change in the 2nd iteration", [last["logits_2"]], 0.007, at_most=True, unit=""),
        judged("logits: change in the 5th iteration", [last["logits_5"]], 1e-5, at_most=True, unit=""),
        _falls("logits: the 5th iteration changes less than a tenth of the 2nd", first, last, "logits"),
        _falls("couplings: the 5th iteration changes less than a tenth of the 2nd", first, last, "couplings"),
    ]  # fmt: skip


def _falls(claim: str, first: dict[str, float], last: dict[str, float], kind: str) -> Verdict:
    ratio, early = (row[f"{kind}_5"] / max(row[f"{kind}_2"], 1e-12) for row in (last, first))
    note = f"5th over 2nd; at the start of training {early:.2g}"
    return Verdict(claim, 1e-5 / 0.007 if kind == "logits" else None, ratio, None, 1, ratio < 0.1, note, unit="")
