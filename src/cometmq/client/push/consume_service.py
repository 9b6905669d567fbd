"""The base of the services for concurrent and orderly listeners: their surroundings, timers, and the failures' log.

Threads: the client's loop; the listener's own workers come in through :class:`~cometmq.client.push.tasks.Workers`.
Source: consumption specification 1.10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cometmq.client.push.listener_failures import ListenerFailures

if TYPE_CHECKING:
    from cometmq.client.group.offset_stores import OffsetStore
    from cometmq.client.group.process_queue import ProcessQueue
    from cometmq.client.group.send_backs import SendBacks
    from cometmq.client.push.tasks import Workers

__all__ = ["ConsumeService", "ConsumeContext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeContext:
    """The parts of its consumer that a service needs.

    Attributes:
        group: the consumer group.
        batch_max: most messages that the listener gets at a time.
        store: where offsets go.
        send_backs: where failed messages go.
        on_room: called when a queue holds less than before.
        spawn: runs work beside.
        now_ms: milliseconds by a clock that is never set.
    """

    group: str
    batch_max: int
    store: OffsetStore
    send_backs: SendBacks
    on_room: Callable[[ProcessQueue], None]
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    now_ms: Callable[[], int]


class ConsumeService:
    """Gives pulled messages to the workers, and acts on what comes back.

    Attributes:
        workers: run the listener; to be set first.
    """

    workers: Workers

    def __init__(self, around: ConsumeContext, *, consequence: str = "") -> None:
        """Consume nothing yet.

        Args:
            around: the consumer's.
            consequence: of a listener's failure, for the log.
        """
        self._group = around.group
        self._batch_max = around.batch_max
        self._store = around.store
        self._send_backs = around.send_backs
        self._on_room = around.on_room
        self._spawn = around.spawn
        self._now_ms = around.now_ms
        self._loop = asyncio.get_running_loop()
        self._failures = ListenerFailures(around.group, consequence=consequence)
        self._timers: set[asyncio.TimerHandle] = set()
        self._closed = False

    def close(self) -> None:
        """Stop waiting retries; their messages are redelivered to the queue's next owner."""
        self._closed = True
        self._failures.close()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _after(self, delay_ms: int, action: Callable[[], object]) -> None:
        """Do something later, unless this is closed before."""
        if self._closed:
            return

        def act() -> None:
            self._timers.discard(timer)
            action()

        timer = self._loop.call_later(delay_ms / 1000, act)
        self._timers.add(timer)
