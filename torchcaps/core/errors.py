"""The exception for wrong input by a user, and how its message names an argument."""

from contextvars import ContextVar

from torchcaps.core.text import printable

on_command_line: ContextVar[bool] = ContextVar("on_command_line", default=False)
_FLAGS = {"rotation": "rotate"}


class UserError(ValueError):
    """Wrong input: one line that says what is wrong and what would be right. The command line exits with code 2.

    It may name files, whoever named them: what would steer a terminal is escaped.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


def argument(name: str, value: object = None) -> str:
    """An argument as whoever reads the message gives it: `steps=5` in Python, `--steps 5` on the command line."""
    if not on_command_line.get():
        return name if value is None else f"{name}={value}"
    flag = f"--{_FLAGS.get(name, name).replace('_', '-')}"
    return flag if value is None or value is True else f"{flag} {value}"
