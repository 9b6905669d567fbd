"""Runs work that must not be cancelled with its waiters: the close of a client, and the undoing of a start.

A client that is left half closed is a zombie: brokers count it as a member, its queues are nobody else's, and nothing
consumes them until its process ends. So a close runs in a task of its own. Callers wait for the task; a caller that is
cancelled leaves it running, and a later caller waits for the same one.

Threads: the client's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

__all__ = ["Closing", "to_the_end"]

_log = logging.getLogger(__name__)

_under_way: Final[set[asyncio.Task[None]]] = set()
"""References to running tasks: a loop alone does not keep a task alive."""


def _begin(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(work)
    _under_way.add(task)
    task.add_done_callback(_ended)
    return task


def _ended(task: asyncio.Task[None]) -> None:
    _under_way.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("a client could not be closed in order: %r", error)


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Run work to its end, also where the caller is cancelled meanwhile."""
    await asyncio.shield(_begin(work))


class Closing:
    """The one close of a client."""

    def __init__(self) -> None:
        """It has not begun."""
        self._task: asyncio.Task[None] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether :meth:`begin` was called."""
        return self._task is not None

    def begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Begin to close, unless that has begun; return the task, which is not to be cancelled."""
        if self._task is None:
            self._task = _begin(work())
        return self._task

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close, or wait for the close that has begun; raise what it raises."""
        await asyncio.shield(self.begin(work))
