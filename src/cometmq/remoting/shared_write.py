"""Writing a file down without holding the control thread up, once for all who wait.

A table of 50,000 topics takes half a second to write. A caller that changed it waits for a write that began after the
change; callers that arrive during a write share the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["SharedWrite"]


class SharedWrite:
    """One file's writes. Threads: the event loop's; the write itself runs in the loop's executor."""

    def __init__(self, write: Callable[[], object]) -> None:
        """``write`` writes the whole content as it is when it begins."""
        self._write = write
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

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
        mine, self._next = self._next, None
        self._running = mine
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._write)
        finally:
            if self._running is mine:
                self._running = None
