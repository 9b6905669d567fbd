"""An event loop whose clock is a number: it never waits, but jumps to the next timer.

Hours pass in milliseconds, the same way each time. A loop on which nothing can happen any more says so instead of
hanging. Threads have no place on it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["EPOCH_MS", "NothingWillHappen", "VirtualLoop", "run_virtual"]

EPOCH_MS = 1_700_000_000_000
"""Wall clock of a virtual loop at its time 0, milliseconds since 1970."""

T = TypeVar("T")


class NothingWillHappen(AssertionError):
    """Everybody waits, and no timer is set."""


class _Selector(selectors.SelectSelector):
    """Looks at the files, but lets the clock do the waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise NothingWillHappen("all tasks wait, and no timer is set")
            self.now_s += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. ``now_ms`` is its wall clock."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s

    def now_ms(self) -> int:
        """Milliseconds since 1970, as machines would tell them."""
        return EPOCH_MS + round(self._virtual.now_s * 1000)


def run_virtual(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]], *, limit_s: float = 36_000) -> T:
    """Run a coroutine on a new virtual loop to its end, which must come within ``limit_s`` of the loop's time.

    Tasks that still run then are cancelled, and must end. An error that nobody fetched is raised.
    """
    loop = VirtualLoop()
    troubles: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: troubles.append(context))
    try:
        result = loop.run_until_complete(asyncio.wait_for(main(loop), limit_s))
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
    assert not troubles, troubles
    return result
