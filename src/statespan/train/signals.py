"""SIGTERM and SIGINT set a flag; the loop checks it, saves and exits."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupted(SystemExit):
    """The run was stopped by a signal and is saved. Uncaught, it exits with 143 (SIGTERM) or 130 (SIGINT).

    Example:
        >>> error = Interrupted(signal.SIGTERM, "runs/mine")
        >>> error.code, str(error)
        (143, 'stopped by SIGTERM and saved in runs/mine; continue with resume')
    """

    def __init__(self, number: int, saved: str) -> None:
        super().__init__(128 + number)
        self.message = f"stopped by {signal.Signals(number).name} and saved in {saved}; continue with resume"

    def __str__(self) -> str:
        return self.message


class Signals:
    """A context in which SIGTERM and SIGINT only set :attr:`received`.

    Outside of the main thread, where Python cannot handle signals, it does nothing.

    Example:
        >>> with Signals() as signals:
        ...     signal.raise_signal(signal.SIGTERM)
        >>> signals.received == signal.SIGTERM
        True
    """

    WATCHED = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.received: int = 0
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._old = {number: signal.signal(number, self._note) for number in self.WATCHED}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or number
