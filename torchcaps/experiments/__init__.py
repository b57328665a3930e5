"""One file for each table, figure or claim of a paper; `torchcaps reproduce NAME` runs it from data to verdict.

`base.py` says what an experiment is. This table only names them: nothing here imports torch.
"""

from typing import NamedTuple

from torchcaps.core.errors import UserError


class Entry(NamedTuple):
    """Where an experiment lives, and a line about it."""

    module: str
    about: str


EXPERIMENTS: dict[str, Entry] = {
    "table1": Entry("table1", "error on MNIST and MultiMNIST: baseline, 1 and 3 iterations, with and without decoder"),
    "fig3": Entry("fig3", "test digits and their reconstructions; failures from label and from prediction"),
    "fig4": Entry("fig4", "what each dimension of a digit capsule stands for"),
    "fig5": Entry("fig5", "overlapping digits taken apart"),
    "crowding": Entry("crowding", "what capsules cannot do: two of the same digit, three digits"),
    "overlap-controls": Entry(
        "overlap_controls", "overlapping digits: capsules against fewer iterations, even couplings and two CNNs"
    ),
    "seed003": Entry("seed003", "overlapping digits in NumPy's six minutes: its protocol and its four open questions"),
    "figA1": Entry("fig_a1", "how much each routing iteration still changes"),
    "figA2": Entry("fig_a2", "training loss on CIFAR-10 with 1 and with 3 iterations"),
    "affnist": Entry("affnist", "trained on translated digits, tested on affinely transformed ones, against a CNN"),
    "cifar10": Entry("cifar10", "24x24 crops, 64 primary types, none of the above, an ensemble"),
    "smallnorb": Entry("smallnorb", "stereo pairs of toys"),
    "smallnorb-em": Entry("smallnorb_em", "matrix capsules with EM routing against a CNN; where the votes go"),
    "viewpoints": Entry("viewpoints", "toys from viewpoints never shown: matrix capsules against a CNN"),
    "svhn": Entry("svhn", "house numbers with the smaller network"),
    "equivariance": Entry("equivariance", "a digit turns: does its capsule's length stay, its vector move?"),
    "few-dimensions": Entry(
        "few_dimensions", "capsules of two and of four dimensions; the margin loss of a right and a wrong capsule"
    ),
    "less-data": Entry("less_data", "accuracy against the number of training examples, against a CNN"),
    "picasso": Entry("picasso", "is a face with its parts swapped still taken for a face?"),
    "explaining-away": Entry(
        "explaining_away", "two digits share pixels: does one claim more of them once the other is gone?"
    ),
    "ablations": Entry("ablations", "the paper's choices, each changed alone: loss, decoder, sizes, max-pooling"),
    "parse-tree": Entry("parse_tree", "the tree that routing carves out of the network, and how much of a tree it is"),
    "routings": Entry(
        "routings", "every routing and two controls on equal terms: scores, costs, what the couplings do"
    ),
}


def find(name: str) -> Entry:
    if name not in EXPERIMENTS:
        raise UserError(f"unknown experiment '{name}'; there are {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]
