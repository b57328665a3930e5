"""The lecture's Picasso: "mouth and nose have switched places but the CNN still classifies it as a face".

Both networks learn faces against heads with other parts, never a face with its parts in the wrong places; then they
are asked about those. Taking them for something else would need the places; taking them for faces needs the parts only.
"""

import torch

from torchcaps.analysis import probes
from torchcaps.data import ImageSet
from torchcaps.data.synthetic import faces
from torchcaps.experiments import protocols
from torchcaps.experiments.base import Study, Trial, Verdict, compared, judged
from torchcaps.viz.figures import Measured, dots, style
from torchcaps.viz.figures.style import SMALL, Sheet, rgb

PAPER = "Srihari, Capsule Networks (lecture), 'Example of CNN limitation' and 'Solution offered by capsnets'"
CUT = "the small networks, 200 steps a training, 2 seeds"
MODELS = {"CapsNet": "capsnet-mnist", "CNN": "cnn-mnist"}
ASKED = 1000


def _trials(study: Study, kind: str) -> list[Trial]:
    model = MODELS[kind] + study.pick(quick="-small", paper="", smoke="-small")
    training = study.pick(quick={"steps": 200}, paper={"epochs": 50.0}, smoke=protocols.SMOKE)
    overrides = {"classes": len(faces.CLASSES)}
    seeds = study.seeds_or(study.pick(quick=2, paper=5, smoke=1))
    return [Trial(f"{kind.lower()}-{s}", model, "faces", s, overrides, dict(training)) for s in seeds]


def plan(study: Study) -> list[Trial]:
    return [trial for kind in MODELS for trial in _trials(study, kind)]


def _called_faces(study: Study, trial: Trial) -> dict[str, float]:
    """The share of swapped faces that are classified as faces, and the mean length of the answer."""
    pictures = faces.swapped(ASKED)
    asked = ImageSet("swapped", pictures, torch.zeros(len(pictures), dtype=torch.int64), faces.CLASSES)
    answers = probes.answer(study.model(trial), asked)
    return {"called": len(answers.right) / ASKED, "sure": answers.lengths[:, 0].mean().item()}


def run(study: Study) -> list[Verdict]:
    accuracy: dict[str, list[float]] = {}
    called: dict[str, list[float]] = {}
    study.train_all(plan(study))
    for kind in MODELS:
        accuracy[kind], called[kind] = [], []
        for trial in _trials(study, kind):
            result = study.train(trial)
            row = study.row(
                f"{trial.name}-swapped",
                lambda trial=trial: _called_faces(study, trial),
                trial.seed,
                weights=result["weights_sha256"],
            )
            accuracy[kind].append(result["accuracy"])
            called[kind].append(row["called"])
    with style():
        _sheet(study)
        groups = {
            "faces and others, told apart": [Measured(kind, accuracy[kind]) for kind in MODELS],
            "swapped faces, taken for faces": [Measured(kind, called[kind]) for kind in MODELS],
        }
        study.figure("picasso", dots(groups, "share of images"))
    rejects = [1 - share for share in called["CapsNet"]]
    return [
        *(judged(f"{kind}: accuracy on faces and others", accuracy[kind], None, False) for kind in MODELS),
        judged("the CNN takes at least half of the swapped faces for faces", called["CNN"], None, False, limit=0.5),
        judged("the CapsNet takes at least half of them for something else", rejects, None, False, limit=0.5),
        compared("the CapsNet is fooled less often than the CNN, by", called["CNN"], called["CapsNet"], None),
    ]


def _sheet(study: Study) -> None:
    """Training images and test images."""
    pixels, labels = faces.arrays("test")
    pictures, kinds = torch.from_numpy(pixels) / 255, torch.from_numpy(labels)
    rows = {
        "face": pictures[kinds == 0],
        "other": pictures[kinds == 1],
        "swapped": faces.swapped(8) / 255,
    }
    left, gap, columns = 1.3, 0.1, 7
    width = left + columns * (1 + gap)
    sheet = Sheet(width, len(rows) * (1 + gap))
    for n, (name, shown) in enumerate(rows.items()):
        sheet.words(left - 0.15, n * (1 + gap) + 0.5, name, SMALL, ha="right", va="center")
        for column in range(columns):
            sheet.picture(left + column * (1 + gap), n * (1 + gap), rgb(shown[column]))
    study.figure("faces", sheet.figure)
