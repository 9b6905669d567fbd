"""Writing a file down without holding the control thread up, once for all who wait.

A table of 50,000 topics takes half a second to write. A caller that changed it waits for a write that began after the
change; callers that arrive during a write share the next.

A long write is followed by a pause as long as itself, at most a second. Changes one after the other, each of which
writes the whole table, therefore take at most half of a processor, and changes that come in the pause share a write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

__all__ = ["SharedWrite"]

_QUICK_S: Final = 0.005
"""A write that is as quick needs no pause."""
_PAUSE_S_MAX: Final = 1.0


class SharedWrite:
    """One file's writes. Threads: the event loop's; the write itself runs in the loop's executor."""

    def __init__(self, write: Callable[[], object]) -> None:
        """``write`` writes the whole content as it is when it begins."""
        self._write = write
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._not_before_s = 0.0

    async def __call__(self) -> None:
        """Wait until what is there now is written.

        Raises:
            Error: as ``write`` does; the content is still in memory.
        """
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._turn(self._running))
        # A caller that gives up waiting must not stop the write for the others.
        await asyncio.shield(self._next)

    async def _turn(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait((before,))
        loop = asyncio.get_running_loop()
        if loop.time() < self._not_before_s:
            await asyncio.sleep(self._not_before_s - loop.time())
        mine, self._next = self._next, None
        self._running = mine
        began_s = loop.time()
        try:
            await loop.run_in_executor(None, self._write)
        finally:
            took_s = loop.time() - began_s
            self._not_before_s = loop.time() + min(took_s, _PAUSE_S_MAX) if took_s > _QUICK_S else 0.0
            if self._running is mine:
                self._running = None
