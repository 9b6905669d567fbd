"""The background tasks of one client instance: work that runs beside its callers, and rounds at fixed times.

Invariants: a task is held until it ends; rounds of one kind never overlap; a round that fails is logged, and the next
one comes at its time.

Threads: the loop's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TypeVar

from cometmq.errors import Error

__all__ = ["LoopTasks"]

T = TypeVar("T")

_log = logging.getLogger(__name__)


class LoopTasks:
    """Tasks on the running loop, until :meth:`cancel`."""

    def __init__(self, client_id: str) -> None:
        """Run nothing yet; on the loop. ``client_id`` begins every line of the log."""
        self._loop = asyncio.get_running_loop()
        self._client_id = client_id
        self._tasks: set[asyncio.Task[object]] = set()

    def spawn(self, work: Coroutine[object, object, T]) -> asyncio.Task[T]:
        """Run work beside the caller until it ends or is cancelled; its exceptions are logged."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s: background task failed", self._client_id, exc_info=error)

    def repeat(self, first_ms: int, period_ms: int, round_: Callable[[], Awaitable[object]]) -> None:
        """Run rounds at fixed times; one that takes longer than the period lets the next ones be late, not pile up."""
        self.spawn(self._rounds(first_ms, period_ms, round_))

    async def _rounds(self, first_ms: int, period_ms: int, round_: Callable[[], Awaitable[object]]) -> None:
        due_s = self._loop.time() + first_ms / 1000
        while True:
            await asyncio.sleep(max(0.0, due_s - self._loop.time()))
            try:
                await round_()
            except Error as error:
                _log.warning("%s: %s", self._client_id, error)
            except Exception:  # noqa: BLE001 - the rhythm goes on
                _log.exception("%s: a scheduled round failed", self._client_id)
            due_s = max(due_s + period_ms / 1000, self._loop.time())

    async def cancel(self, others: Iterable[asyncio.Task[bool]] = ()) -> None:
        """End all tasks, and ``others``, but the caller's own; return when they have ended."""
        current = asyncio.current_task()
        tasks = [task for task in (*self._tasks, *others) if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
