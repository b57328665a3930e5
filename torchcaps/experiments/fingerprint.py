"""What a number depends on: a hash of the code that trained and scored a network, or that measured one.

Hashed are the source files that the training and the scoring of that network on that data import, found by reading
the import statements. Rewording changes nothing: docstrings, comments, formatting, annotations, import statements,
messages of errors, formatted strings and strings of several words are left out, and it does not matter in which of
these files a definition stands.

Left out are files that cannot change a number or are held in another way:

- `kernels/`: tests hold each kernel to its plain twin
- tables of names (models, routings, data sets): what they name is part of a trial's configuration
- files, folders, downloads, progress, errors: what they read has a pinned SHA-256 or is written as it came
"""

import ast
import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from torchcaps.data import DATA
from torchcaps.experiments import find
from torchcaps.models.config import KINDS
from torchcaps.models.registry import configure
from torchcaps.routing import routing_class

PACKAGE = Path(__file__).parents[1]
Reader = Callable[[str], str | None]
"""The source of a module by its dotted name, or None if there is none."""

TRAINING = tuple(f"torchcaps.training.{name}" for name in ("train", "loop", "optim", "scoring", "task", "networks"))
IMAGES = ("torchcaps.data.dataset", "torchcaps.data.sets", "torchcaps.data.transforms")
SYNTHETIC = {
    "multimnist": "multimnist",
    "affnist-style": "affnist_style",
    "faces": "faces",
    "ships": "ships",
    "norb-style": "norb_style",
}
"""The modules that make the images of sets whose names begin so."""
LEFT_OUT = (
    *(f"torchcaps.core.{name}" for name in ("errors", "files", "machine", "progress")),
    "torchcaps.kernels",
    *(f"torchcaps.models.{name}" for name in ("config", "hub", "pretrained", "registry")),
    *(f"torchcaps.data.{name}" for name in ("folder", "named", "own", "readers", "sources", "tensors")),
    *(f"torchcaps.training.{name}" for name in ("config", "fit", "forecast", "progress", "recipes", "runs", "state")),
    *(f"torchcaps.training.{name}" for name in ("processes", "records", "stopping")),
    "torchcaps.viz",
    *(f"torchcaps.experiments.{name}" for name in ("base", "costs", "fingerprint", "protocols", "search")),
    *(f"torchcaps.experiments.{name}" for name in ("statistics", "verdicts")),
)
TABLES = ("torchcaps", "torchcaps.data", "torchcaps.experiments", "torchcaps.routing")


def of_training(model: str, data: str, overrides: Mapping[str, Any] | None = None, loss: str | None = None) -> str:
    """The code that trains and scores a model on data, with a loss of an experiment's own or with the model's."""
    config = configure(model, **(overrides or {}))
    kind = next(kind for kind in KINDS.values() if kind.config is type(config))
    starts = [*TRAINING, *IMAGES, kind.module]
    if hasattr(config, "routing"):
        starts += ["torchcaps.routing.base", routing_class(config.routing).__module__]
    starts += [loss.partition(":")[0]] if loss else []
    starts += [type(DATA[data]).__module__] if data in DATA else []
    starts += [f"torchcaps.data.synthetic.{module}" for name, module in SYNTHETIC.items() if data.startswith(name)]
    starts += ["torchcaps.data.viewpoints"] if ":" in data else []
    return _hash(tuple(sorted({name for name in starts if not _is_left_out(name)})))


def of_measurement(experiment: str) -> str:
    """The code that measures what an experiment measures of trained networks."""
    return _hash((f"torchcaps.experiments.{find(experiment).module}",))


@cache
def _hash(starts: tuple[str, ...]) -> str:
    return hashed(starts, source)


def hashed(starts: Iterable[str], read: Reader) -> str:
    """A hash over all definitions of the modules and of what they import within the package."""
    definitions = {part for name in sorted(_reached(starts, read)) for part in _definitions(read(name) or "")}
    return hashlib.sha256("\n".join(sorted(definitions)).encode()).hexdigest()[:16]


def source(module: str) -> str | None:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file.read_text(encoding="utf-8") for file in files if file.is_file()), None)


def _reached(starts: Iterable[str], read: Reader) -> set[str]:
    reached: set[str] = set()
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        if name in reached or (text := read(name)) is None:
            continue
        reached.add(name)
        waiting += [found for found in _imports(text) if not _is_left_out(found)]
    return reached


@cache
def _imports(text: str) -> set[str]:
    """All that may be a module: `from a.b import c` names `a.b` and `a.b.c`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] == "torchcaps"}


def _is_left_out(module: str) -> bool:
    return module in TABLES or any(f"{module}.".startswith(f"{prefix}.") for prefix in LEFT_OUT)


@cache
def _definitions(text: str) -> list[str]:
    """Each top-level statement, in the form that Python writes it, which all versions do alike."""
    plain = ast.fix_missing_locations(_Plain().visit(ast.parse(text)))
    return [ast.unparse(part) for part in plain.body]


class _Plain(ast.NodeTransformer):
    """A module without what cannot change a number."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """A docstring, or a line for the person who waits."""
        value = node.value
        said = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "say"
        return None if said or isinstance(value, ast.Constant) else self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return ast.Raise()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """The name stays, which makes a field of a dataclass."""
        value = self.visit(node.value) if node.value else None
        return ast.Assign([self.visit(node.target)], value or ast.Constant(None))

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(node.arg)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("") if isinstance(node.value, str) and " " in node.value else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return ast.Constant("")
