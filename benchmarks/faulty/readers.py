"""Files in the formats that torchcaps reads, mutated for so many seconds a format: each is read or refused in one line.

nice python benchmarks/fuzz_readers.py --seconds 60        # writes results/fuzz-readers.json
"""

import contextlib
import gzip
import hashlib
import io
import lzma
import random
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import torch
from PIL import Image
from safetensors.torch import save

from torchcaps.core.errors import UserError
from torchcaps.core.files import read_tensors
from torchcaps.data.folder.listing import list_images
from torchcaps.data.readers import affnist, idx, matlab, norb, svhn
from torchcaps.data.readers.pictures import read_bytes

Read = Callable[[Path], Any]
PIXELS = np.arange(2 * 8 * 8, dtype=np.uint8).reshape(2, 8, 8)
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP")
ODD = (b"\0" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"%s%n", b"\r\n", b'"', b",", b"\x1b[2J", b"9" * 400)


def _picture(kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(24 * 20 * 3, dtype=np.uint8).reshape(24, 20, 3)).save(file, kind)
    return file.getvalue()


def _matlab(**variables: Any) -> bytes:
    file = io.BytesIO()
    scipy.io.savemat(file, variables, do_compression=True)
    return file.getvalue()


def _tensors(path: Path) -> Any:
    return read_tensors(path, hashlib.sha256(path.read_bytes()).hexdigest())


def _norb(folder: Path) -> bytes:
    norb.write(folder / "seed", PIXELS)
    return (folder / "seed").read_bytes()


def cases(folder: Path) -> dict[str, tuple[Read, str, list[bytes]]]:
    """By format: what reads it, how its files are called, and files to begin with."""
    plain = idx.header(PIXELS.dtype, PIXELS.shape) + PIXELS.tobytes()
    street = _matlab(X=np.zeros((32, 32, 3, 2), np.uint8), y=np.array([[1], [10]], np.uint8))
    affine = _matlab(affNISTdata={"image": np.zeros((1600, 2), np.uint8), "label_int": np.array([[1, 2]], np.uint8)})
    listed = b'path,label,split\na/1.png,cat,train\na/2.png,dog,test\n"b, c.png",cat,val\n'
    return {
        "idx": (idx.read, "x-idx3-ubyte", [plain]),
        "idx, compressed": (idx.read, "x-idx3-ubyte.gz", [gzip.compress(plain)]),
        "idx, xz": (idx.read, "x-idx3-ubyte.xz", [lzma.compress(plain)]),
        "smallNORB": (norb.read, "x.mat", [_norb(folder)]),
        "MATLAB": (matlab.read, "x.mat", [street, affine]),
        "SVHN": (svhn.read, "x.mat", [street]),
        "affNIST": (affnist.read, "x.mat", [affine]),
        "pictures": (lambda path: read_bytes(path, (3, 16, 16)), "x.png", [_picture(kind) for kind in FORMATS]),
        "CSV": (list_images, "x.csv", [listed, listed.replace(b",", b";"), listed.replace(b",", b"\t")]),
        "safetensors": (_tensors, "x.safetensors", [save({"a": torch.zeros(3, 2), "b": torch.arange(4)})]),
    }


def mutated(content: bytes, lots: random.Random) -> bytes:
    """One to four small changes."""
    changed = bytearray(content)
    for _ in range(lots.choice([1, 1, 1, 2, 4])):
        place = lots.randrange(len(changed) + 1)
        match lots.randrange(6):
            case 0 if changed:
                changed[place % len(changed)] ^= 1 << lots.randrange(8)
            case 1:
                changed = changed[:place]
            case 2:
                changed[place : place + lots.choice([0, 2, 4])] = lots.choice(ODD)
            case 3:
                end = min(len(changed), place + lots.randrange(64))
                changed[place:end] = b""
            case 4:
                changed[place:place] = changed[place : place + lots.randrange(64)] * lots.choice([1, 2, 50])
            case _:
                changed[place : place + 4] = lots.randbytes(4)
    return bytes(changed)


def fuzz(folder: Path, seconds: float, seed: int, jobs: int = 1) -> dict[str, Any]:
    """Every format for so many seconds, so many formats at a time, each in a folder of its own."""
    names, faults = list(cases(folder)), []
    work = partial(_fuzz_one, folder, seconds, seed)
    # An executor, and not a pool, because it says so when a decoder ends its process.
    with ProcessPoolExecutor(jobs, get_context("spawn")) if jobs > 1 else contextlib.nullcontext() as pool:
        found = dict(zip(names, pool.map(work, names) if pool else map(work, names), strict=True))
    for counts in found.values():
        faults += counts.pop("faults")
    return {"formats": found, "faults": len(faults), "found": faults[:20]}


def _fuzz_one(whole: Path, seconds: float, seed: int, name: str) -> dict[str, Any]:
    folder = whole / name
    folder.mkdir()
    warnings.simplefilter("ignore")
    read, called, seeds = cases(folder)[name]
    lots, path = random.Random(f"{seed} {name}"), folder / called
    end, spent, count, accepted = time.monotonic() + seconds, time.process_time(), 0, 0
    faults: list[dict[str, str]] = []
    while time.monotonic() < end:
        path.write_bytes(mutated(lots.choice(seeds), lots))
        count += 1
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                read(path)
            accepted += 1
        except UserError as error:
            if "\n" in str(error):
                faults.append({"format": name, "what": f"more than one line: {error}"})
        except Exception:
            faults.append({"format": name, "what": traceback.format_exc()[-1500:]})
    busy = round(time.process_time() - spent, 1)
    refused = count - accepted
    return {"files": count, "read": accepted, "refused": refused, "processor_seconds": busy, "faults": faults}
