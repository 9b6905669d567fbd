"""The brokers of a simple consumer: which of them have its topics, whose turn it is, and which have messages.

It owns the topics that have no queue to read, and the questions to brokers whether there is something to pop: at most
one in flight for each broker and topic.

Threads: the client's loop. Source: consumption specification 4.4, 4.10.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cometmq.client.pop.pop_policy import ALL_QUEUES
from cometmq.errors import Error, RouteNotFound
from cometmq.remoting.bodies.message_queue import MessageQueue

if TYPE_CHECKING:
    from cometmq.client.instance.instance import ClientInstance
    from cometmq.client.pop.pop_kernel import PopKernel
    from cometmq.remoting.bodies.heartbeat import SubscriptionData

__all__ = ["BROKER_FAILED_S", "HOLD_MAX_MS", "PopTargets"]

HOLD_MAX_MS: Final = 15_000
"""Longest time for which a broker is asked to hold a request; longer waits ask again."""
BROKER_FAILED_S: Final = 1.0
"""Pause before a broker is asked again that failed, or that holds no more pops."""
_NOT_YET_S: Final = 0.05
"""Pause before a broker is asked again that holds too many questions to hold one more."""

_log = logging.getLogger(__name__)


class PopTargets:
    """The brokers of one consumer.

    Attributes:
        missing: topics without a queue to read, which were logged.
        until_routes_change: set, and replaced, when the route of a topic changes.
    """

    def __init__(
        self,
        instance: ClientInstance,
        kernel: PopKernel,
        subscriptions: Mapping[str, SubscriptionData],
        *,
        group: str,
    ) -> None:
        """Ask nobody yet.

        Args:
            instance: has the routes.
            kernel: asks brokers.
            subscriptions: the consumer's, as they are at any time.
            group: for the log.
        """
        self._instance = instance
        self._kernel = kernel
        self._subscriptions = subscriptions
        self._group = group
        self.missing: set[str] = set()
        self.until_routes_change = asyncio.Event()
        self._turn = 0
        self._notices: dict[MessageQueue, asyncio.Task[bool]] = {}

    async def close(self) -> None:
        """End the questions to brokers."""
        notices = list(self._notices.values())
        for task in notices:
            task.cancel()
        await asyncio.gather(*notices, return_exceptions=True)
        self._notices.clear()

    def routes_changed(self) -> None:
        """Wake calls of :meth:`notified_of_any`, which then read the routes again."""
        changed, self.until_routes_change = self.until_routes_change, asyncio.Event()
        changed.set()

    async def find(self) -> list[MessageQueue]:
        """Return each topic at each of its brokers, another first each time; none without a subscription.

        Topics without one are logged once, and the others are received.

        Raises:
            RouteNotFound: no name server knows any of the topics.
            Error: no name server could be asked.
        """
        queues = self.known()
        known = {queue.topic for queue in queues}
        self.missing -= known
        unknown = [topic for topic in self._subscriptions if topic not in known]
        if unknown and not (queues and self.missing.issuperset(unknown)):
            errors = [error for topic in unknown if (error := await self._not_readable(topic)) is not None]
            queues = self.known()
            if errors and not queues:
                # A server that did not answer may know the topic.
                raise next((error for error in errors if not isinstance(error, RouteNotFound)), errors[0])
            for error in errors:
                _log.warning("group %s receives the other topics: %s", self._group, error)
            self.missing = set(self._subscriptions) - {queue.topic for queue in queues}
        if not queues:
            # Subscriptions became others while it asked.
            return await self.find() if self._subscriptions else []
        self._turn += 1
        first = self._turn % len(queues)
        return queues[first:] + queues[:first]

    async def _not_readable(self, topic: str) -> Error | None:
        """Ask where a topic is; return why it cannot be read, or None."""
        try:
            await self._instance.update_route(topic, must_exist=True)
        except Error as error:
            return error
        if self._instance.routes.subscribe_queues(topic):
            return None
        return RouteNotFound(
            f"topic {topic} has no queue that can be read: give it read permission: cometmq topic update", topic=topic
        )

    async def require_missing(self) -> None:
        """Return where the topics that were missing are there by now.

        Raises:
            RouteNotFound: one is not.
            Error: no name server could be asked.
        """
        for topic in sorted(self.missing.intersection(self._subscriptions)):
            error = await self._not_readable(topic)
            if error is not None:
                raise error

    def known(self) -> list[MessageQueue]:
        """Return each topic at each of its brokers, as far as the routes are known."""
        found: dict[MessageQueue, None] = {}
        for topic in self._subscriptions:
            for queue in self._instance.routes.subscribe_queues(topic) or ():
                found[replace(queue, queue_id=ALL_QUEUES)] = None
        return list(found)

    async def notified_of_any(
        self, queues: Sequence[MessageQueue], longest_s: float, routes_changed: asyncio.Event
    ) -> bool:
        """Wait until a broker has something, or it is time to look again; return whether one said that it has.

        Args:
            queues: each topic at each of its brokers.
            longest_s: the longest wait.
            routes_changed: set when it is time to look again since a topic's route has changed: it may be a new topic.
        """
        if longest_s <= 0:
            return False
        for queue in queues:
            if queue not in self._notices:
                self._notices[queue] = asyncio.ensure_future(self._until_notified(queue))
        asked = {self._notices[queue]: queue for queue in queues}
        changed = asyncio.ensure_future(routes_changed.wait())
        try:
            done, _ = await asyncio.wait((*asked, changed), timeout=longest_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        answers = [task for task in asked if task in done]
        for task in answers:
            self._notices.pop(asked[task], None)
        return any(not task.cancelled() and task.result() for task in answers)

    async def _until_notified(self, queue: MessageQueue) -> bool:
        """Return True when there is something to pop; False where a broker has nothing for long, or cannot notify."""
        try:
            is_there = await self._kernel.has_messages(queue, poll_ms=HOLD_MAX_MS)
        except Error as error:
            # The pops of the same broker fail, too, and log it once.
            _log.debug("group %s: %s cannot notify of messages: %s", self._group, queue.broker_name, error)
            await asyncio.sleep(BROKER_FAILED_S)
            return False
        if not is_there:
            await asyncio.sleep(_NOT_YET_S)
        return is_there
