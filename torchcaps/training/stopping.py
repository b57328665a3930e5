"""A training that is asked to stop finishes its step and saves, then stops: Ctrl-C, schedulers, spot instances."""

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """While it lasts, the first signal is only noted; a second one acts at once, as it would have.

    What is ignored stays so, such as Ctrl-C by what a shell started in the background.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._note) for number in heard}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def now(self) -> None:
        """Stop as the signal would have done: the program, or a debugger around it, sees the same as ever.

        If only another process of this training was asked, by SIGTERM.
        """
        self._restore()
        signal.raise_signal(self.asked or signal.SIGTERM)
