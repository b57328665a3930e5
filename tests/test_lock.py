"""The hashes that `make` verifies packages by: complete, and of the versions in constraints.txt."""

import hashlib
import re
import tomllib
from itertools import chain

import lock
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from pip._internal.models.link import Link

ENTRY = re.compile(r"[a-z0-9-]+==[\w.]+( \\\n    --hash=sha256:[0-9a-f]{64})+\n")


def offer(filename: str, digest: str) -> Link:
    return Link(f"https://index.invalid/files/{filename}#sha256={digest}")


def test_the_lock_has_the_versions_of_the_constraints_each_with_a_hash() -> None:
    pinned = lock.pins(lock.CONSTRAINTS.read_text())
    locked = {}
    for path in (lock.LOCK, lock.TORCH_LOCK):
        text = path.read_text().removeprefix(lock.HEAD)
        assert re.fullmatch(f"({ENTRY.pattern})+", text), f"{path.name} has something else than versions with hashes"
        locked |= lock.pins(text)
    assert locked == pinned, "run python tools/lock.py"
    assert list(lock.pins(lock.TORCH_LOCK.read_text())) == ["torch"]


def test_whatever_the_package_asks_for_is_pinned() -> None:
    project = tomllib.loads((lock.ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    del extras["timm"]  # `make` does not install it: it brings torchvision, which asks for a torch of its own
    lists = [project["build-system"]["requires"], project["project"]["dependencies"], *extras.values()]
    pinned = lock.pins(lock.CONSTRAINTS.read_text())
    for requirement in map(Requirement, chain(*lists)):
        if requirement.name != "torchcaps":
            assert pinned[canonicalize_name(requirement.name)] in requirement.specifier, requirement
    assert "editables" in pinned  # hatchling wants it for `pip install -e`


def test_all_wheels_of_a_version_are_taken_and_nothing_else(tmp_path) -> None:
    here = tmp_path / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
    here.write_bytes(b"a build of one's own")
    links = [
        offer("torch-2.13.0-cp311-none-macosx_11_0_arm64.whl", "a" * 64),
        offer("torch-2.13.0-cp312-cp312-win_amd64.whl", "b" * 64),
        offer("torch-2.13.1-cp312-cp312-win_amd64.whl", "c" * 64),
        offer("torch-2.13.0.tar.gz", "d" * 64),
        Link(here.as_uri()),
    ]
    found = lock.wheels(links, "torch", Version("2.13.0"))
    assert found == {"a" * 64, "b" * 64, hashlib.sha256(here.read_bytes()).hexdigest()}


def test_what_cannot_be_verified_is_refused() -> None:
    name, version = "einops-0.8.2-py3-none-any.whl", Version("0.8.2")
    with pytest.raises(SystemExit, match="two files of this name differ"):
        lock.wheels([offer(name, "a" * 64), offer(name, "b" * 64)], "einops", version)
    with pytest.raises(SystemExit, match="no SHA-256"):
        lock.wheels([Link(f"https://index.invalid/{name}")], "einops", version)
    with pytest.raises(SystemExit, match="no wheel"):
        lock.wheels([offer("einops-0.8.2.tar.gz", "a" * 64)], "einops", version)
