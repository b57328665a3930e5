"""Division into training, validation and test images: the same proportion of each class, identical files together."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from torchcaps.core.errors import UserError
from torchcaps.core.files import open_regular
from torchcaps.data.folder.listing import Labelled

TEST_SHARE, VALIDATION_SHARE = 0.15, 0.10
FEWEST = 3
"""Images of a class that can be shared out among three splits."""
SEED = 2017
"""Of the division, whatever the seed of a training: runs of different seeds are scored on the same test images."""


def divide(files: Sequence[Labelled], copies: Mapping[str, str], shares: Mapping[str, float]) -> list[Labelled]:
    """Give every file without a split one; `shares` says how much of a class goes where, the rest is for training.

    A class gives at least one image to each split, unless it has too few for that. Files with the same entry in
    `copies` go to the same split.
    """
    groups: dict[str, list[Labelled]] = defaultdict(list)
    for file in files:
        groups[copies.get(file.path, file.path)].append(file)
    classes: dict[str, list[list[Labelled]]] = defaultdict(list)
    for group in groups.values():
        classes[group[0].label].append(group)
    chosen: dict[str, str] = {}
    for label in sorted(classes):
        members = classes[label]
        count = sum(map(len, members))
        seed = int.from_bytes(hashlib.sha256(label.encode(errors="surrogateescape")).digest()[:4])
        order = np.random.RandomState([SEED, seed]).permutation(len(members))
        left = [members[index] for index in order]
        for split, share in shares.items():
            wanted = max(1, round(share * count)) if len(members) >= FEWEST else 0
            while wanted > 0 and len(left) > 1:
                group = left.pop()
                wanted -= len(group)
                chosen |= {file.path: split for file in group}
        chosen |= {file.path: "train" for group in left for file in group}
    return [file._replace(split=chosen[file.path]) for file in files]


def find_copies(root: Path, files: Sequence[Labelled]) -> dict[str, str]:
    """Files whose bytes another file has too, each with the hash they share. Only files of equal size are read."""
    sizes: dict[int, list[str]] = defaultdict(list)
    for file in files:
        try:
            sizes[(root / file.path).stat().st_size].append(file.path)
        except OSError:
            continue
    hashes: dict[str, list[str]] = defaultdict(list)
    for paths in sizes.values():
        for path in paths if len(paths) > 1 else ():
            try:
                with open_regular(root / path) as content:
                    hashes[hashlib.file_digest(content, "sha256").hexdigest()].append(path)
            except (OSError, UserError):
                continue
    return {path: digest for digest, paths in hashes.items() if len(paths) > 1 for path in paths}
