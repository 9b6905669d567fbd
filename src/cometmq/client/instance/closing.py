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

__all__ = ["CloseSteps", "Closing", "to_the_end"]

_log = logging.getLogger(__name__)

_CANCEL_S = 1.0
"""Longest wait for a cancelled step; afterwards the close continues without it."""

_under_way: Final[set[asyncio.Task[None]]] = set()
"""References to running tasks: a loop alone does not keep a task alive."""


def _begin(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(work)
    _keep(task)
    return task


def _keep(task: asyncio.Task[None]) -> None:
    _under_way.add(task)
    task.add_done_callback(_ended)


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

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]], *, wait_ms: int | None = None) -> None:
        """Close, or wait for the close that has begun; raise what it raises.

        Args:
            work: the close, which limits its own time.
            wait_ms: longest wait for a close that an earlier call began; that close continues afterwards.
        """
        has_begun = self.has_begun
        task = self.begin(work)
        if not has_begun or wait_ms is None:
            await asyncio.shield(task)
            return
        await asyncio.wait([task], timeout=wait_ms / 1000)
        if task.done():
            task.result()
        else:
            _log.warning("a client is still closing after %d ms; its first close continues", wait_ms)


class CloseSteps:
    """The steps of a close, which share one time. A step that has not ended by then is cancelled, and logged."""

    def __init__(self, name: str, timeout_ms: int | None) -> None:
        """The time begins.

        Args:
            name: the closed object's.
            timeout_ms: for all steps together; None waits for each to its end.
        """
        self._name = name
        self._timeout_ms = timeout_ms
        self._loop = asyncio.get_running_loop()
        self._end_s = None if timeout_ms is None else self._loop.time() + timeout_ms / 1000

    @property
    def left_ms(self) -> int | None:
        """The remaining time; None without a limit."""
        return None if self._end_s is None else max(0, int((self._end_s - self._loop.time()) * 1000))

    async def run(self, work: Coroutine[Any, Any, None], given_up: Callable[[], str]) -> bool:
        """Run a step; it begins also where no time is left. Return whether it ended in time.

        Args:
            work: the step, which may be cancelled.
            given_up: says what is lost without its end.
        """
        if self._end_s is None:
            await work
            return True
        step = self._loop.create_task(work)
        await asyncio.wait([step], timeout=max(0.0, self._end_s - self._loop.time()))
        in_time = step.done()
        if not in_time:
            _log.warning("closing %s: gave up after %d ms: %s", self._name, self._timeout_ms, given_up())
            step.cancel()
            await asyncio.wait([step], timeout=_CANCEL_S)
        if not step.done():
            _keep(step)
        elif not step.cancelled():
            step.result()
        return in_time
