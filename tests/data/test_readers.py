"""The readers, on tiny files in the real formats, written byte by byte from the formats' descriptions."""

import gzip
import hashlib
import io
import json
import lzma
import pickle
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from PIL import Image

from torchcaps.core.errors import UserError
from torchcaps.core.files import written_whole
from torchcaps.data.readers import affnist, cifar, files, idx, matlab, norb, pickled, svhn
from torchcaps.data.readers.pictures import to_bytes
from torchcaps.data.sources.catalogue import FILES, SETS

DIGITS = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
IDX_BYTES = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, *range(24)])
NORB_BYTES = struct.pack("<5i", 0x1E3D4C54, 1, 2, 1, 1) + struct.pack("<2i", -7, 300)
SUFFIXES = ("", ".gz", ".xz")


def refused(read, path: Path, content: bytes) -> str:
    """The one line with which `read` refuses a file of this content."""
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


# idx and smallNORB


def idx_bytes(array: np.ndarray) -> bytes:
    return idx.header(array.dtype, array.shape) + array.astype(array.dtype.newbyteorder(">")).tobytes()


def test_idx_bytes_are_those_of_the_format():
    assert idx_bytes(DIGITS) == IDX_BYTES
    assert idx.size(DIGITS.shape) == len(IDX_BYTES)


def test_norb_bytes_are_those_of_the_format(tmp_path):
    """At least three sizes stand in the header, also for a vector."""
    norb.write(tmp_path / "labels", np.array([-7, 300], np.int32))
    assert (tmp_path / "labels").read_bytes() == NORB_BYTES


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.int32, np.float32, np.float64])
def test_idx_gives_back_what_was_written(tmp_path, suffix, dtype):
    pack = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix]
    (tmp_path / f"a{suffix}").write_bytes(pack(idx_bytes(DIGITS.astype(dtype) * 3)))
    back = idx.read(tmp_path / f"a{suffix}")
    assert back.dtype == dtype
    assert back.flags.writeable
    np.testing.assert_array_equal(back, DIGITS.astype(dtype) * 3)


@given(st_numpy.arrays(st.sampled_from([np.uint8, np.int32]), st_numpy.array_shapes(max_dims=5)))
def test_norb_gives_back_what_was_written(tmp_path_factory, array):
    path = tmp_path_factory.mktemp("norb") / "a.mat.gz"
    norb.write(path, array)
    path.write_bytes(gzip.compress(path.read_bytes()))
    np.testing.assert_array_equal(norb.read(path), array, strict=True)


@pytest.mark.parametrize(("read", "good"), [(idx.read, IDX_BYTES), (norb.read, NORB_BYTES)])
def test_every_truncation_is_noticed(tmp_path, read, good):
    packed = gzip.compress(good)
    for length in range(len(good)):
        refused(read, tmp_path / "file", good[:length])
    for length in range(2, len(packed)):
        refused(read, tmp_path / "file.gz", packed[:length])


@pytest.mark.parametrize(("read", "good"), [(idx.read, IDX_BYTES), (norb.read, NORB_BYTES)])
def test_wrong_content_is_refused(tmp_path, read, good):
    assert "not a" in refused(read, tmp_path / "page", b"<html>404</html>")
    assert "more follow" in refused(read, tmp_path / "long", good + b"\0")
    assert "cannot be read" in refused(read, tmp_path / "bits", gzip.compress(good)[:-8] + b"\0" * 8)
    with pytest.raises(UserError, match="No such file"):
        read(tmp_path / "absent")


def test_a_header_that_promises_too_much_allocates_nothing(tmp_path):
    huge = struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1)
    assert "no data set" in refused(idx.read, tmp_path / "idx", huge)
    assert "no data set" in refused(norb.read, tmp_path / "norb", struct.pack("<Ii3i", 0x1E3D4C55, 3, -1, 2, 2))


def test_types_without_a_code_are_refused(tmp_path):
    with pytest.raises(UserError, match="complex"):
        idx.header(np.dtype(complex), DIGITS.shape)
    with pytest.raises(UserError, match="float"):
        norb.write(tmp_path / "a", DIGITS.astype(float))
    assert not list(tmp_path.iterdir())


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(TypeError), written_whole(path) as file:
        file.writelines([b"new, but", None])
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_norb_pairs_are_channels(tmp_path):
    images = np.arange(3 * 2 * 96 * 96, dtype=np.uint8).reshape(3, 2, 96, 96)
    norb.write(tmp_path / "dat", images)
    norb.write(tmp_path / "cat", np.array([4, 0, 2], np.int32))
    pairs, labels = norb.read_pairs(tmp_path / "dat", tmp_path / "cat")
    np.testing.assert_array_equal(pairs, images)
    np.testing.assert_array_equal(labels, np.array([4, 0, 2]), strict=True)


# MATLAB


def element(kind: int, data: bytes, order: str = "<") -> bytes:
    """A data element: four bytes or fewer sit in the tag, as MATLAB writes them."""
    if 0 < len(data) <= 4:
        return struct.pack(f"{order}I", len(data) << 16 | kind) + data.ljust(4, b"\0")
    return struct.pack(f"{order}II", kind, len(data)) + data + b"\0" * (-len(data) % 8)


def array(kind: int, shape: tuple[int, ...], name: str, *content: bytes, order: str = "<", flags: int = 0) -> bytes:
    """A matrix element of MATLAB class `kind`."""
    head = element(6, struct.pack(f"{order}II", kind | flags, 0), order)
    dimensions = element(5, struct.pack(f"{order}{len(shape)}i", *shape), order)
    return element(14, head + dimensions + element(1, name.encode(), order) + b"".join(content), order)


def numeric(name: str, values: np.ndarray, kind: int, stored: int, order: str = "<") -> bytes:
    data = values.astype(values.dtype.newbyteorder(order)).tobytes(order="F")
    return array(kind, values.shape, name, element(stored, data, order), order=order)


def structure(name: str, **fields: bytes) -> bytes:
    names = b"".join(field.encode().ljust(32, b"\0") for field in fields)
    return array(2, (1, 1), name, element(5, struct.pack("<i", 32)), element(1, names), *fields.values())


def compressed(content: bytes, order: str = "<", cut: int = 0) -> bytes:
    packed = zlib.compress(content)
    packed = packed[: len(packed) - cut]
    return struct.pack(f"{order}II", 15, len(packed)) + packed


def mat(*variables: bytes, order: str = "<") -> bytes:
    version = struct.pack(f"{order}H", 0x0100) + (b"IM" if order == "<" else b"MI")
    return b"MATLAB 5.0 MAT-file".ljust(124) + version + b"".join(variables)


def street_numbers(count: int = 11, pack=compressed) -> tuple[bytes, np.ndarray]:
    images = np.random.default_rng(0).integers(0, 256, (count, 3, 32, 32), np.uint8)
    labels = (np.arange(count, dtype=np.uint8) % 10 + 1)[:, None]
    pixels = images.transpose(2, 3, 1, 0)
    if count == 1:
        pixels = pixels[..., 0]  # MATLAB drops a last axis of one
    return mat(pack(numeric("X", pixels, 9, 2)), pack(numeric("y", labels, 6, 2))), images


@pytest.mark.parametrize("pack", [compressed, bytes])
@pytest.mark.parametrize("count", [1, 11])
def test_svhn(tmp_path, pack, count):
    content, images = street_numbers(count, pack)
    (tmp_path / "x.mat").write_bytes(content)
    read, labels = svhn.read(tmp_path / "x.mat")
    np.testing.assert_array_equal(read, images, strict=True)
    assert read.flags.writeable
    assert labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1][:count]
    assert labels.dtype == np.int64


@pytest.mark.parametrize("kind", [np.uint8, np.float64])
def test_affnist(tmp_path, kind):
    """Pixels row by row down a column, whatever number type; other fields, of any size and kind, are passed over."""
    images = np.random.default_rng(0).integers(0, 256, (5, 1, 40, 40), np.uint8)
    pixels = images.reshape(5, 1600).T.astype(kind)
    record = structure(
        "affNISTdata",
        affine_matrix=array(1, (1, 2), "", numeric("", np.eye(3), 6, 9), numeric("", np.eye(3), 6, 9)),
        human_readable_transform=numeric("", np.zeros((6, 5)), 6, 9),
        comment=array(4, (1, 5), "", element(16, b"hello")),
        image=numeric("", pixels, *((9, 2) if kind is np.uint8 else (6, 9))),
        label_int=numeric("", np.array([[3, 1, 4, 1, 5]], np.uint8), 6, 2),
        nothing=element(14, b""),
    )
    (tmp_path / "x.mat").write_bytes(mat(compressed(record)))
    read, labels = affnist.read(tmp_path / "x.mat")
    np.testing.assert_array_equal(read, images, strict=True)
    assert read.flags.writeable
    np.testing.assert_array_equal(labels, np.array([3, 1, 4, 1, 5]), strict=True)


def test_matlab_values_of_every_kind(tmp_path):
    text = array(4, (1, 2), "", element(17, "hé".encode("utf-16-le")))
    cell = array(1, (1, 2), "c", numeric("", np.array([[1.5]]), 6, 9), text)
    records = array(
        2, (2, 1), "s", element(5, struct.pack("<i", 8)), element(1, b"a".ljust(8, b"\0")),
        numeric("", np.array([[1]], np.int16), 6, 3), numeric("", np.array([[2]], np.int16), 6, 3),
    )  # fmt: skip
    (tmp_path / "x.mat").write_bytes(mat(cell, records, numeric("big", np.array([[2**40]]), 14, 12)))
    read = matlab.read(tmp_path / "x.mat")
    assert read["c"] is None
    assert [record["a"].item() for record in read["s"]] == [1, 2]
    assert read["big"].item() == 2**40


def test_matlab_of_the_other_byte_order(tmp_path):
    values = np.arange(6, dtype=np.int32).reshape(2, 3)
    (tmp_path / "x.mat").write_bytes(mat(compressed(numeric("v", values, 12, 5, ">"), ">"), order=">"))
    np.testing.assert_array_equal(matlab.read(tmp_path / "x.mat")["v"], values, strict=True)


def test_matlab_refuses_what_it_cannot_read(tmp_path):
    path = tmp_path / "x.mat"
    one = element(9, struct.pack("<d", 1))
    assert "HDF5" in refused(matlab.read, path, b"MATLAB 7.3 MAT-file".ljust(512))
    assert "first 128 bytes" in refused(matlab.read, path, b"<html>not found</html>")
    assert "sparse" in refused(matlab.read, path, mat(array(5, (1, 1), "s", one)))
    assert "complex" in refused(matlab.read, path, mat(array(6, (1, 1), "z", one, one, flags=0x0800)))
    assert "damaged" in refused(matlab.read, path, mat(array(6, (2, 2), "z", one)))
    assert "damaged" in refused(matlab.read, path, mat(array(6, (-1, -1), "z", one)))
    assert "cut short" in refused(matlab.read, path, mat(compressed(numeric("v", DIGITS, 9, 2), cut=3)))
    nested = numeric("", np.ones((1, 1)), 6, 9)
    for _ in range(200):
        nested = structure("n", a=nested)
    assert "damaged" in refused(matlab.read, path, mat(nested))


def test_matlab_files_cut_anywhere_are_refused(tmp_path):
    content, _ = street_numbers(2)
    for length in (0, 64, 127, 128, 136, 200, len(content) // 2, len(content) - 30, len(content) - 1):
        refused(svhn.read, tmp_path / "x.mat", content[:length])


def test_files_of_another_data_set_are_named(tmp_path):
    content, _ = street_numbers()
    assert "affNISTdata" in refused(affnist.read, tmp_path / "x.mat", content)
    assert "'X'" in refused(svhn.read, tmp_path / "x.mat", mat(numeric("z", DIGITS, 9, 2)))
    wrong = mat(numeric("X", DIGITS, 9, 2), numeric("y", np.ones((4, 1), np.uint8), 6, 2))
    assert "should be uint8 (32, 32, 3, 4)" in refused(svhn.read, tmp_path / "x.mat", wrong)
    narrow = structure("affNISTdata", image=numeric("", DIGITS, 9, 2), label_int=numeric("", np.ones((1, 4)), 6, 9))
    assert "should be (1600, 4)" in refused(affnist.read, tmp_path / "x.mat", mat(narrow))


# CIFAR-10 and the pickled MNIST


def test_cifar_is_the_same_from_both_archives(tmp_path):
    from PIL import Image

    images = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8)
    labels = np.arange(20, dtype=np.uint8)
    for number, batch in enumerate(cifar.BATCHES["train"]):
        part = slice(4 * number, 4 * number + 4)
        Image.fromarray(images[part].reshape(4, 1024, 3)).save(tmp_path / f"{batch}.png")
        planes = images[part].transpose(0, 3, 1, 2).reshape(4, -1)
        (tmp_path / f"{batch}.bin").write_bytes(np.concatenate([labels[part, None], planes], 1).tobytes())
    (tmp_path / "train_lables.json").write_text(json.dumps(labels.tolist()))
    assert b"".join(cifar.sprite_images(tmp_path, "train")) == images.tobytes()
    assert b"".join(cifar.binary_images(tmp_path, "train")) == images.tobytes()
    assert b"".join(cifar.sprite_labels(tmp_path, "train")) == labels.tobytes()
    assert b"".join(cifar.binary_labels(tmp_path, "train")) == labels.tobytes()
    images.tofile(tmp_path / "i")
    labels.tofile(tmp_path / "l")
    read, classes = cifar.read(tmp_path / "i", tmp_path / "l")
    np.testing.assert_array_equal(read, images.transpose(0, 3, 1, 2), strict=True)
    np.testing.assert_array_equal(classes, np.arange(20), strict=True)


def pack_pickle(folder: Path, content: object) -> str:
    """Write `mnist.pkl.gz` and give its hash. Protocol 3, because 2 wraps bytes in a codec when Python 3 writes it."""
    packed = gzip.compress(pickle.dumps(content, protocol=3))
    (folder / "mnist.pkl.gz").write_bytes(packed)
    return hashlib.sha256(packed).hexdigest()


def test_pickled_digits_are_bit_exact(tmp_path):
    digits = np.random.default_rng(0).integers(0, 256, (6, 28, 28), np.uint8)
    folds = [(part.reshape(2, 784) / np.float32(256), np.array([1, 2])) for part in np.split(digits, 3)]
    assert folds[0][0].dtype == np.float32
    sha256 = pack_pickle(tmp_path, tuple(folds))
    for split, expected in (("train", digits[:4]), ("test", digits[4:])):
        (tmp_path / split).write_bytes(b"".join(pickled.idx_file(tmp_path, split, "images", sha256)))
        np.testing.assert_array_equal(idx.read(tmp_path / split), expected, strict=True)
    (tmp_path / "labels").write_bytes(b"".join(pickled.idx_file(tmp_path, "train", "labels", sha256)))
    np.testing.assert_array_equal(idx.read(tmp_path / "labels"), np.array([1, 2, 1, 2], np.uint8), strict=True)


def test_a_pickle_without_the_pinned_hash_stays_closed(tmp_path):
    pack_pickle(tmp_path, ())
    with pytest.raises(pickle.UnpicklingError, match="pinned"):
        list(pickled.idx_file(tmp_path, "train", "images"))


@pytest.mark.parametrize("content", [print, Path("x"), np.float32, io.BytesIO])
def test_the_unpickler_builds_nothing_but_arrays(content):
    with pytest.raises(pickle.UnpicklingError, match="not part of an array"):
        pickled.ArrayUnpickler(io.BytesIO(pickle.dumps(content))).load()


# the bundled sample


def test_the_bundled_digits_are_what_the_table_says():
    folder = Path(files.__file__).parents[1]
    packed = [folder / FILES[key].place for key in SETS["mnist-mini"]]
    assert sum(path.stat().st_size for path in packed) < 1_500_000
    for key, path in zip(SETS["mnist-mini"], packed, strict=True):
        assert hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest() == FILES[key].sha256
        assert path.read_bytes()[3:8] == bytes(5), "a name or a time in the gzip header"
    attribution = (folder / "mini/ATTRIBUTION.md").read_text()
    for due in ("Yann LeCun", "Corinna Cortes", "Burges", "ShareAlike 3.0"):
        assert due in attribution


def test_a_stereo_pair_is_side_by_side_or_one_picture_for_both():
    left, right = (np.random.default_rng(seed).integers(0, 256, (32, 32), np.uint8) for seed in (0, 1))
    pair = Image.fromarray(np.concatenate([left, right], 1))
    np.testing.assert_array_equal(to_bytes(pair, (2, 32, 32), False), [left, right])
    np.testing.assert_array_equal(to_bytes(Image.fromarray(left), (2, 32, 32), False), [left, left])
