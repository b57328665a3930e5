"""Power loss: what a program asked of the file system is recorded, and replayed up to every point with what was not
synced lost.

The disk here is a pessimist's. The content of a file is there only as far as it was synced; a new, renamed or removed
name is there only if its folder was synced after, except for the first few of those that wait, which may have made it.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from torchcaps.core.errors import UserError
from torchcaps.core.progress import quietly
from torchcaps.training.runs import Checkpoint

SAVES = 12


class Event(NamedTuple):
    kind: str
    """create, sync, rename, unlink, mkdir, sync-folder, or done: a save that has returned."""
    path: str
    other: Any = None


@contextmanager
def recorded(root: Path, events: list[Event], syncs: bool = True) -> Iterator[None]:
    """Everything below `root` that this process does by way of `os`; without `syncs`, on a disk that ignores them."""
    real = {name: getattr(os, name) for name in ("open", "fsync", "replace", "unlink", "mkdir")}
    names: dict[int, str] = {}

    def inside(path: Any) -> bool:
        return str(path).startswith(str(root))

    def opened(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        number = real["open"](path, flags, *rest, **options)
        if inside(path):
            names[number] = str(path)
            if flags & os.O_CREAT:
                events.append(Event("create", str(path)))
        return number

    def synced(file: int) -> None:
        real["fsync"](file)
        if syncs and (path := names.get(file)):
            kind = "sync-folder" if os.path.isdir(path) else "sync"
            events.append(Event(kind, path, None if kind == "sync-folder" else Path(path).read_bytes()))

    def noted(kind: str, name: str) -> Callable[..., None]:
        def called(path: Any, *rest: Any, **options: Any) -> None:
            real[name](path, *rest, **options)
            if inside(path):
                events.append(Event(kind, str(path), str(rest[0]) if kind == "rename" else None))

        return called

    fakes = {"open": opened, "fsync": synced, "replace": noted("rename", "replace")}
    fakes |= {"unlink": noted("unlink", "unlink"), "mkdir": noted("mkdir", "mkdir")}
    with patch.multiple(os, **fakes):
        yield


def left_over(events: list[Event], survivors: int) -> dict[str, bytes | None]:
    """What is on the disk after these events and a power loss: contents by path, None for a folder.

    Of the names that wait for their folder to be synced, the first `survivors` have made it.
    """
    content: dict[str, bytes] = {}
    """By the path under which a file was created: renaming does not change what it holds."""
    waiting: list[Event] = []
    disk: dict[str, Any] = {}

    def reach(event: Event) -> None:
        if event.kind == "create":
            disk[event.path] = event.path
        elif event.kind == "mkdir":
            disk[event.path] = None
        elif event.kind == "unlink":
            disk.pop(event.path, None)
        elif event.path in disk:
            disk[event.other] = disk.pop(event.path)

    for event in events:
        if event.kind == "create":
            content[event.path] = b""
        if event.kind == "sync":
            content[event.path] = event.other
        elif event.kind == "sync-folder":
            for one in [one for one in waiting if os.path.dirname(one.path) == event.path]:
                reach(one)
                waiting.remove(one)
        elif event.kind != "done":
            waiting.append(event)
    for event in waiting[:survivors]:
        reach(event)
    return {path: None if file is None else content[file] for path, file in disk.items()}


def _put(disk: dict[str, bytes | None], root: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path, content in sorted(disk.items()):
        place = target / Path(path).relative_to(root)
        if not place.parent.is_dir():
            continue  # its folder is lost, and so is the file
        if content is None:
            place.mkdir(exist_ok=True)
        else:
            place.write_bytes(content)


def losses(folder: Path, saves: int = SAVES, syncs: bool = True) -> dict[str, Any]:
    """The power goes at every point of several saves, with every number of names that made it.

    A disk without `syncs` has to lose something: else this would find nothing anywhere.
    """
    root, target = folder / "run", folder / "after"
    events: list[Event] = []
    root.mkdir()
    with recorded(root, events, syncs):
        for step in range(1, saves + 1):
            state = {"step": step, "seconds": 1.0, "rows": [], "kernels": {}}
            Checkpoint(root).save({"x": torch.full((50,), float(step))}, state)
            events.append(Event("done", str(root), step))
    whole = {path: content for path, content in left_over(events, len(events)).items() if content is not None}
    complete = whole == {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    count, lost = 0, []
    for point in range(len(events) + 1):
        before = events[:point]
        saved = max((event.other for event in before if event.kind == "done"), default=0)
        seen = []
        for survivors in range(point + 1):
            disk = left_over(before, survivors)
            if disk in seen:
                continue
            seen.append(disk)
            count += 1
            _put(disk, root, target)
            try:
                with quietly():
                    loaded = Checkpoint(target).load()
                step = 0 if loaded is None else loaded[1]["step"]
                good = step >= saved and (loaded is None or bool((loaded[0]["x"] == step).all()))
            except UserError as error:
                good, step = False, str(error)
            if not good:
                lost.append({"event": point, "survivors": survivors, "saved": saved, "found": step})
    return {"injected": count, "recorded_completely": int(complete), "wrong": len(lost), "found": lost[:5]}


def main() -> None:
    print(json.dumps(losses(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
