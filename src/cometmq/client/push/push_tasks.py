"""The tasks of one push consumer: work that a close waits for, and timers that it cancels.

A close lets work end, as failed messages on their way back to the brokers; timers only repeat what the next owner of a
queue does anyway.

Threads: the client's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from cometmq.client.instance.instance import ClientInstance
from cometmq.errors import Error

__all__ = ["PushTasks"]

_log = logging.getLogger(__name__)


class PushTasks:
    """The tasks of one push consumer."""

    def __init__(self, instance: ClientInstance, *, group: str) -> None:
        """No task runs yet.

        Args:
            instance: runs the tasks.
            group: the group, for the log.
        """
        self._instance = instance
        self._group = group
        self._work: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work that a close waits for."""
        return self._keep(self._work, work)

    def spawn_timer(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work that a close cancels."""
        return self._keep(self._timers, work)

    def _keep(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._instance.spawn(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    def repeat(self, first_s: float, period_s: float, action: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run the action after ``first_s`` and then every ``period_s``, until a close; failures are logged."""

        async def rounds() -> None:
            await asyncio.sleep(first_s)
            while True:
                try:
                    await action()
                except Error as error:
                    _log.warning("group %s: %s", self._group, error)
                except Exception as error:  # noqa: BLE001 - locks that are renewed no more would be lost for good
                    _log.error("group %s: a round failed", self._group, exc_info=error)
                await asyncio.sleep(period_s)

        self.spawn_timer(rounds())

    async def finish(self, *, timeout_ms: int) -> None:
        """Wait until the work has ended."""
        if self._work:
            await asyncio.wait(set(self._work), timeout=timeout_ms / 1000)

    def cancel(self) -> None:
        """Cancel timers and work, but not the caller."""
        for task in (*self._timers, *self._work):
            if task is not asyncio.current_task():
                task.cancel()
