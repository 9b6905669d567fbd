"""Where a producer's messages may go: the queues of each topic, and the line of sends that wait until they are known.

Invariants: while sends wait for a topic's queues, others come behind them and overtake none, so that one thread's sends
stay in order; a line is served to its end, even if sends in it fail. For a topic that does not exist yet, whose queues
are the template's, the first send has ended before the next one goes: its broker makes the topic with it, and would
have to keep the others meanwhile, of which it keeps no more than a thousand.

Threads: a send may take a ring, or stand in line, in any thread; all else is the loop's. Source: consumption
specification 2.4, 2.5.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from cometmq.client.send.queue_selection import QueueRing
from cometmq.client.send.sending import arrival
from cometmq.errors import Error, RouteNotFound

if TYPE_CHECKING:
    from cometmq._engine import PendingSend
    from cometmq.client.instance.instance import ClientInstance
    from cometmq.client.instance.routes import PublishInfo
    from cometmq.client.send.producer_settings import ProducerSettings

__all__ = ["SendRoutes"]


class SendRoutes:
    """The queues that one producer sends to.

    Attributes:
        rings: topic to its queues. Only ever replaced whole; of a topic with a line it has none.
        topics: the topics that were sent to.
    """

    def __init__(
        self,
        instance: ClientInstance,
        settings: ProducerSettings,
        *,
        attempt: Callable[[PendingSend, QueueRing], None],
        fail: Callable[[PendingSend, BaseException], None],
    ) -> None:
        """Nothing is known yet.

        Args:
            instance: asks the name servers.
            settings: the producer's.
            attempt: makes the first attempt of a send that stood in line, on the loop.
            fail: ends one without a queue.
        """
        self.rings: dict[str, QueueRing] = {}
        self.topics: set[str] = set()
        self._instance = instance
        self._settings = settings
        self._attempt = attempt
        self._fail = fail
        # Of a topic with a line the queues are kept back in _found, until nobody stands there any more.
        self._lines: dict[str, deque[PendingSend]] = {}
        self._found: dict[str, QueueRing] = {}
        self._unborn: set[str] = set()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        """Return the topics whose queues are known, and those that are waited for."""
        return f"SendRoutes({', '.join(sorted(self.rings)) or 'none'}; waiting for: {', '.join(sorted(self._lines))})"

    def changed(self, topic: str, info: PublishInfo) -> None:
        """Take the queues of a topic; of one that has none any more the next send asks again."""
        with self._lock:
            rings = self._found if topic in self._lines else self.rings
            if info.queues:
                rings[topic] = QueueRing(info.queues)
            else:
                rings.pop(topic, None)

    async def find(self, topic: str) -> QueueRing:
        """Return the queues of a topic: as the name servers say, or as a broker will make them after the template.

        Raises:
            RouteNotFound: it has none.
            Error: no name server could be asked.
        """
        self.topics.add(topic)
        instance, settings = self._instance, self._settings
        ring = self._ring(topic)
        if ring is not None:
            return ring
        try:
            await instance.update_route(topic, must_exist=True)
        except RouteNotFound:
            await instance.update_route(
                topic,
                default_topic=settings.create_topic_key,
                default_queues=settings.default_topic_queue_nums,
                must_exist=True,
            )
            self._unborn.add(topic)
        ring = self._ring(topic)
        if ring is None:
            raise _no_queue(topic)
        return ring

    def _ring(self, topic: str) -> QueueRing | None:
        """Return the queues of a topic as far as they are known here, also while others wait for them."""
        known = self.rings.get(topic) or self._found.get(topic)
        if known is None and (info := self._instance.routes.publish_info(topic)) is not None:
            self.changed(topic, info)
            known = self.rings.get(topic) or self._found.get(topic)
        return known

    # --- The line -----------------------------------------------------------------------------------------------------

    def stand_in_line(self, send: PendingSend) -> QueueRing | None:
        """Let a send wait for the queues of its topic, behind those that do; return them where they have just come."""
        topic = send.topic
        with self._lock:
            ring = self.rings.get(topic)
            if ring is not None:
                return ring
            line = self._lines.get(topic)
            if line is not None:
                line.append(send)
                return None
            # First: if Ctrl-C comes between the two, no line is left unserved.
            self._instance.loop.call_soon_threadsafe(self._spawn, topic)
            self._lines[topic] = deque([send])
        return None

    def _spawn(self, topic: str) -> None:
        self._instance.spawn(self._serve(topic))

    async def _serve(self, topic: str) -> None:
        """Find a topic's queues, then make the first attempts of all that wait for them, in order."""
        error: BaseException | None = None
        stopped: BaseException | None = None
        try:
            await self.find(topic)
        except BaseException as caught:  # noqa: BLE001 - raised below: nobody shall wait for a send that nobody makes
            error = caught
        while (following := self._next(topic)) is not None:
            send, ring = following
            if error is not None or ring is None:
                self._fail(send, error or _no_queue(topic))
            else:
                try:
                    self._attempt(send, ring)
                except BaseException as caught:  # noqa: BLE001 - raised below: sys.exit() in a selector, and others wait
                    stopped = caught
                    self._fail(send, caught)
                try:
                    if topic in self._unborn:
                        self._unborn.remove(topic)
                        await arrival(send, self._instance.loop)
                except BaseException as caught:  # noqa: BLE001 - raised below: the client closes, and nobody goes on
                    error = caught
        if stopped is not None:
            raise stopped
        if error is not None and not isinstance(error, Error):
            raise error

    def _next(self, topic: str) -> tuple[PendingSend, QueueRing | None] | None:
        """Return who is next, and the queues; where there is nobody, others may send without a line."""
        with self._lock:
            line = self._lines.get(topic)
            if line:
                return line.popleft(), self._found.get(topic)
            self._lines.pop(topic, None)
            ring = self._found.pop(topic, None)
            if ring is not None:
                self.rings[topic] = ring
            return None


def _no_queue(topic: str) -> RouteNotFound:
    return RouteNotFound(
        f"topic {topic} has no queue that takes messages: it has no write permission, or no broker of it has a master",
        topic=topic,
    )
