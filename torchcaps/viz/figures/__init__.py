"""One function for each figure: plain data in, a matplotlib figure out. `analysis/probes.py` computes the data.

>>> with style("dark"):
...     png = to_png(training_curves([{"step": 50, "total": 0.2, "train_accuracy": 0.9}]))
"""

from torchcaps.viz.figures.animation import Animation, learning_gif
from torchcaps.viz.figures.charts import capsule_lengths, class_misses, pair_breakdown, training_curves
from torchcaps.viz.figures.comparisons import Curve, Measured, curves, dots
from torchcaps.viz.figures.pictures import (
    example_pairs,
    mistakes,
    perturbations,
    reconstructions,
    segmentations,
    separations,
    titled_rows,
)
from torchcaps.viz.figures.scores import confusion_matrix, reliability
from torchcaps.viz.figures.style import style, to_png
from torchcaps.viz.figures.votes import vote_histograms

__all__ = [
    "Animation", "Curve", "Measured", "capsule_lengths", "class_misses", "confusion_matrix", "curves", "dots",
    "example_pairs", "learning_gif", "mistakes", "pair_breakdown", "perturbations", "reconstructions", "reliability",
    "segmentations", "separations", "style", "titled_rows", "to_png", "training_curves", "vote_histograms",
]  # fmt: skip
