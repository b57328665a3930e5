"""The house: packages import in one direction only, also inside functions, and the inner ones need little."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "torchcaps"
ORDER = (
    "core", "routing", "kernels", "nn", "data", "models", "training", "analysis", "viz", "experiments", "app",
)  # fmt: skip
INNER = ("core", "routing", "kernels", "nn")
LONGEST = 400


def rooms_of(file: Path) -> set[str]:
    """The packages of torchcaps that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("torchcaps.")}
    return found


def files() -> list[Path]:
    return sorted(file for file in PACKAGE.rglob("*.py") if file.parent != PACKAGE)


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_follow_the_arrow(file: Path) -> None:
    room = file.relative_to(PACKAGE).parts[0]
    allowed = (
        {*ORDER[: ORDER.index("models") + 1], "testing"} if room == "testing" else set(ORDER[: ORDER.index(room) + 1])
    )
    assert rooms_of(file) & {*ORDER, "testing"} <= allowed


def test_every_room_is_in_the_order() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == {*ORDER, "testing"}


def test_no_module_is_too_long() -> None:
    long = {
        str(file.relative_to(PACKAGE)): count for file in PACKAGE.rglob("*.py") if (count := _lines(file)) > LONGEST
    }
    assert not long


def _lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("room", ["nn", "routing"])
def test_layers_and_routings_need_torch_einops_and_jaxtyping_only(room: str) -> None:
    unwanted = ("matplotlib", "starlette", "uvicorn", "rich", "PIL", "safetensors", "pooch")
    code = f"import sys, torchcaps.{room}; print([n for n in {unwanted} if n in sys.modules], end='')"
    code += f"; print(sorted(n for n in sys.modules if n.startswith('torchcaps.') and n.split('.')[1] not in {INNER}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[][]\n"


def test_packages_are_attributes() -> None:
    code = "import torchcaps; assert torchcaps.routing.ROUTINGS and torchcaps.nn.DenseCaps and torchcaps.models.MODELS"
    subprocess.run([sys.executable, "-c", code], check=True)
