"""A command that runs until it is told to stop: SIGTERM and Ctrl-C end it cleanly, a second one at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Stopping", "stopping_by_signals"]

_LOOK_S = 1.0


class Stopping:
    """Whether somebody wants the end."""

    def __init__(self) -> None:
        """Nobody does yet."""
        self._wanted = threading.Event()

    def want(self, number: int | None = None, frame: FrameType | None = None) -> None:
        """Ask for the end; asked again, interrupt whatever is under way."""
        if self._wanted.is_set():
            raise KeyboardInterrupt
        self._wanted.set()

    def wait(self) -> None:
        """Return when the end is wanted."""
        # The system may give a signal to another thread where this one has one already, as after SIGCONT. Its handler
        # runs in this one all the same, but not before it wakes.
        while not self._wanted.wait(_LOOK_S):
            pass


@contextmanager
def stopping_by_signals() -> Iterator[Stopping]:
    """Let SIGTERM and SIGINT ask for the end. In another thread than the main one nothing is caught."""
    stopping = Stopping()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    before = {number: signal.signal(number, stopping.want) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
