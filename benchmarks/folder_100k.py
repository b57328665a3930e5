"""A folder of 100,000 images: how fast it is read, how much memory that takes, how soon a second run begins.

`python benchmarks/folder_100k.py` writes `results/folder-100k.json`. The images are made for it, small JPEGs of ten
classes, and removed afterwards; `--images 5000` tries it with fewer and `--out` elsewhere. Memory is what the process
holds beyond what it held after its imports, mapped files not counted, since the system may drop those at any time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from PIL import Image

from torchcaps.core.files import write_json
from torchcaps.core.machine import processor
from torchcaps.data import folder
from torchcaps.data.folder.decode import BUFFER, threads
from torchcaps.data.named import resolve

ROOT = Path(__file__).parent.parent
CLASSES, SIDE, IMAGE = 10, 48, (3, 32, 32)
BYTES_PER_FILE = 1200
"""For the path, label, hash and place of each file, while it is listed, divided and written down."""


def bound(count: int) -> int:
    """Rows that wait to be written, twice; a decoded picture for each thread; and the list of files."""
    return 2 * BUFFER + threads() * 16 * 2**20 + BYTES_PER_FILE * count


def make(root: Path, count: int) -> None:
    random = np.random.RandomState(0)
    for index in range(count):
        place = root / f"class-{index % CLASSES}" / f"{index // CLASSES // 1000}"
        if index % (1000 * CLASSES) < CLASSES:
            place.mkdir(parents=True)
        coarse = Image.fromarray(random.randint(0, 256, (6, 6, 3), dtype=np.uint8))
        coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(place / f"{index}.jpg")


def held() -> int:
    """Bytes of this process that are in no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


class Peak(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.first = self.most = held()

    def run(self) -> None:
        while True:
            self.most = max(self.most, held())
            time.sleep(0.02)


def read(root: str) -> dict[str, float]:
    """What a training does before its first step, then the batches of an epoch."""
    peak = Peak()
    peak.start()
    began = time.perf_counter()
    record = folder.load(str(folder.collect(root, IMAGE)))
    training = record.images("train")
    stream = resolve(root).stream(training, seed=0)
    stream.batch(0, 128)
    ready = time.perf_counter() - began
    for step in range(len(stream) // 128):
        stream.batch(step, 128)
    epoch = time.perf_counter() - began - ready
    return {"seconds_to_first_batch": ready, "seconds_of_batches": epoch, "peak_bytes": peak.most - peak.first}


def measured(root: Path, cache: Path) -> dict[str, float]:
    """`read` in a process of its own, whose memory is its own."""
    answer = subprocess.run(
        [sys.executable, __file__, "--read", str(root)],
        env={**os.environ, "TORCHCAPS_DATA": str(cache)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(answer.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "folder-100k.json")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read:
        print(json.dumps(read(args.read)))
        return
    with tempfile.TemporaryDirectory() as place:
        images, cache = Path(place) / "images", Path(place) / "cache"
        began = time.perf_counter()
        make(images, args.images)
        print(f"{args.images:,} images made in {time.perf_counter() - began:.0f} s", file=sys.stderr)
        chosen = resolve(str(images)).image
        first, second = measured(images, cache), measured(images, cache)
        written = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
    result = {
        "command": f"python benchmarks/folder_100k.py --images {args.images}",
        "machine": {"processor": processor(), "threads": threads()},
        "images": args.images,
        "image": IMAGE,
        "image_chosen_without_size": chosen,
        "images_per_second": round(args.images / first["seconds_to_first_batch"]),
        "seconds_to_first_batch": round(first["seconds_to_first_batch"], 2),
        "seconds_to_first_batch_again": round(second["seconds_to_first_batch"], 2),
        "batched_images_per_second": round(args.images * 0.75 / second["seconds_of_batches"]),
        "peak_bytes": max(first["peak_bytes"], second["peak_bytes"]),
        "bound_bytes": bound(args.images),
        "within_bound": max(first["peak_bytes"], second["peak_bytes"]) < bound(args.images),
        "cache_bytes": written,
    }
    write_json(args.out, result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
