"""Every example in a docstring of the package runs and shows what it says.

Examples are read from the source, since the functions themselves are wrapped by the shape checks while testing.
"""

import ast
import doctest
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "torchcaps"
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def examples() -> list[doctest.DocTest]:
    """One test for each docstring that has an example, named after where it stands."""
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        source = file.read_text()
        if ">>>" not in source:
            continue
        module = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(source)):
            text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
            if text and ">>>" in text:
                name = f"{module}.{getattr(node, 'name', '')}".rstrip(".")
                line = getattr(node, "lineno", 1)
                test = doctest.DocTestParser().get_doctest(text, {"__name__": module}, name, str(file), line)
                found.append(test)
    return found


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_example(example: doctest.DocTest) -> None:
    example.globs.update(vars(importlib.import_module(example.globs["__name__"])))
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(example, out=report.append)
    assert runner.failures == 0, "".join(report)


def test_there_are_examples() -> None:
    assert {"torchcaps.core.functional.squash", "torchcaps.data.transforms.place"} <= {
        example.name for example in examples()
    }
