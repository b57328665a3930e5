"""How commands write: JSON, tables and lines."""

import json
import sys
from typing import Any

from torchcaps.core.text import printable

UNLIMITED = 10_000
"""Columns, where no terminal has an end of line: what is read by a program is not broken."""


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def print_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, title in enumerate(header):
        table.add_column(title, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console(width=None if sys.stdout.isatty() else UNLIMITED).print(table)


def score_line(result: dict[str, Any]) -> str:
    text = f"{result['model']} on {result['data']}: {result['accuracy']:.2%} of {result['images']:,} images right"
    text = printable(text)
    return f"{text} (both digits)" if "at_least_one" in result else text
