"""What the server says in the terminal: one line for an error, and few of them, however often it happens."""

import logging
import time
from typing import Any

SECONDS = 10.0
"""In which the same error is said once."""
MOST_KINDS = 100
OF_CLIENTS = ("ASGI callable returned without completing response",)
"""What uvicorn says when a client breaks off in the middle of HTTP: nothing went wrong here."""


class OneLine(logging.Formatter):
    """What happened and where, without the frames above."""

    def format(self, record: logging.LogRecord) -> str:
        text, error = record.getMessage().strip(), record.exc_info and record.exc_info[1]
        if error:
            text += f": {type(error).__name__}: {error}"
            frame = error.__traceback__
            while frame is not None and frame.tb_next is not None:
                frame = frame.tb_next
            text += f" ({frame.tb_frame.f_code.co_filename}, line {frame.tb_lineno})" if frame else ""
        more = getattr(record, "left_out", 0)
        return f"torchcaps: {' '.join(text.split())}" + (f" ({more:,} more like this)" if more else "")


class Seldom(logging.Filter):
    """The same error once in ten seconds; the next time says how many were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[tuple[object, ...], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if str(record.msg).startswith(OF_CLIENTS):
            return False
        kind = (record.name, record.msg, record.exc_info and record.exc_info[0])
        now = time.monotonic()
        said, left_out = self._said.get(kind, (-SECONDS, 0))
        if now - said < SECONDS:
            self._said[kind] = (said, left_out + 1)
            return False
        if len(self._said) >= MOST_KINDS:
            self._said.clear()
        self._said[kind] = (now, 0)
        record.left_out = left_out
        return True


CONFIGURATION: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"seldom": {"()": Seldom}},
    "formatters": {"line": {"()": OneLine}},
    "handlers": {
        "terminal": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["seldom"]},
    },
    "loggers": {
        name: {"handlers": ["terminal"], "level": "ERROR", "propagate": False} for name in ("uvicorn", "asyncio")
    },
}
"""For `logging.config`: uvicorn reports what an answer raised, asyncio what the sockets did."""
