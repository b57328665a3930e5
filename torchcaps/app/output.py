"""How commands write: JSON, tables, and text that cannot steer a terminal."""

import json
import re
import sys
from typing import Any

_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\udc80-\udc9f]")

UNLIMITED = 10_000
"""Columns, where no terminal has an end of line: what is read by a program is not broken."""


def printable(text: str) -> str:
    r"""Control characters, line ends and changes of the writing direction as escapes, so that a name stays one line.

    Names of files and classes come from anywhere, and a terminal obeys what they hold. Other bytes that are not UTF-8
    pass through as they came.

    >>> printable("a\x1b[2Jb\n")
    'a\\x1b[2Jb\\n'
    """
    return _STEERING.sub(lambda found: _escaped(found[0]), text)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code - 0xDC00:02x}" if code >= 0xDC80 else character.encode("unicode_escape").decode()


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
    return f"{text} (both digits)" if "at_least_one" in result else text
