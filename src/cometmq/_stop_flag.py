"""A flag that a signal handler sets and a thread waits for.

``threading.Event`` takes a lock in ``set``. A handler that interrupts ``wait`` in the same thread while ``wait`` holds
that lock would wait for itself.

Threads: any; one may wait.
"""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue

__all__ = ["StopFlag"]


class StopFlag:
    """A request to stop."""

    def __init__(self) -> None:
        """It is not set."""
        self._is_set = False
        self._wakes: SimpleQueue[None] = SimpleQueue()  # its put is reentrant

    def is_set(self) -> bool:
        """Return whether :meth:`set` was called."""
        return self._is_set

    def set(self) -> None:
        """Set it. Signal handlers may call this."""
        if not self._is_set:
            self._is_set = True
            self._wakes.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is set, or for ``timeout_s``; return whether it is set."""
        if not self._is_set:
            with suppress(Empty):
                self._wakes.get(timeout=timeout_s)
        return self._is_set
