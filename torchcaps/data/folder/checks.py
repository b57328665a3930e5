"""Whether the JSON of a record of images is one: it may come from somebody else, or from a disk that is failing."""

import re
from typing import Any

from torchcaps.core.files import is_kind
from torchcaps.data.folder.listing import SPLITS

LARGEST = 1 << 14


def check_record(content: Any) -> None:
    """ValueError that names the first field that is missing or of another kind."""
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    texts = [content.get(name) for name in ("name", "root", "key")]
    classes = content.get("classes")
    image, files = content.get("image"), content.get("files")
    holds = {
        "name, root or key": all(isinstance(text, str) and "\0" not in text for text in texts),
        "key": isinstance(texts[2], str) and re.fullmatch("[0-9a-f]{32}", texts[2]) is not None,
        "classes": bool(classes) and _are_texts(classes) and len(set(classes)) == len(classes),
        "image": isinstance(image, list)
        and len(image) == 3
        and image[0] in (1, 3)
        and all(is_kind(side, int) and 0 < side <= LARGEST for side in image),
        "files": _is_division(files, classes),
        "sha256": isinstance(content.get("sha256"), dict) and {*SPLITS} == content["sha256"].keys(),
        "unreadable": _are_texts(content.get("unreadable")),
        "notes": _are_texts(content.get("notes")),
        "seal": isinstance(content.get("seal", ""), str),
    }
    for name, good in holds.items():
        if not good:
            raise ValueError(f"its {name} is missing or not what it should be")


def _is_division(files: Any, classes: Any) -> bool:
    """Paths by class and split."""
    if not isinstance(files, dict) or files.keys() != {*SPLITS} or not isinstance(classes, list):
        return False
    return all(
        isinstance(part, dict) and all(name in classes and _are_texts(paths) for name, paths in part.items())
        for part in files.values()
    )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) and "\0" not in text for text in value)
