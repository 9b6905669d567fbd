"""Listeners of a pull consumer to the queues of topics, which are looked at in intervals.

A listener is first called at the second look that shows other queues than the one before. Its failure is logged and
ends no watch.

Threads: the client's loop. Source: consumption specification 1.13.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final

from cometmq.client.arguments import plain_hook
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.store_config.names import validate_topic

__all__ = ["QueueWatches", "QueuesChanged"]

QueuesChanged = Callable[[str, Collection[MessageQueue]], object]
"""Called on the loop with a topic and its queues."""

_FIRST_LOOK_MS: Final = 10_000

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Watch:
    """A listener to a topic's queues, and the queues that it got last."""

    callback: QueuesChanged
    known: frozenset[MessageQueue] | None = None


class QueueWatches:
    """The listeners of one consumer."""

    def __init__(self, queues: Callable[[str], Awaitable[Collection[MessageQueue]]], *, group: str) -> None:
        """Watch nothing yet.

        Args:
            queues: returns the queues of a topic.
            group: for the log.
        """
        self._queues = queues
        self._group = group
        self._watches: dict[str, _Watch] = {}

    def add(self, topic: str, callback: QueuesChanged) -> None:
        """Call ``callback`` when the queues of a topic change; it replaces an earlier one of the topic.

        Raises:
            InvalidTopic: no topic has this name.
            InvalidArgument: the callback cannot be called.
        """
        validate_topic(topic)
        plain_hook("the callback", callback)
        self._watches[topic] = _Watch(callback)

    async def run(self, interval_ms: Callable[[], int]) -> None:
        """Look at the topics until the task is cancelled.

        Args:
            interval_ms: returns the time between two looks; the first look is after 10 s.
        """
        delay_ms = _FIRST_LOOK_MS
        while True:
            await asyncio.sleep(delay_ms / 1000)
            delay_ms = interval_ms()
            for topic, watch in list(self._watches.items()):
                try:
                    found = frozenset(await self._queues(topic))
                    if watch.known not in (None, found):
                        watch.callback(topic, found)
                    watch.known = found
                except Exception as error:  # noqa: BLE001, PERF203 - a callback of the user's may raise anything
                    _log.warning("group %s: the queues of %s: %r", self._group, topic, error, exc_info=error)
