"""Where the queues of topics are, in the whole cluster, for sharing them out among a group's members.

Asked of the name servers when a topic is first needed, and again every 30 s as long as somebody needs it. Where a name
server cannot be reached, what was known holds. A broker that has no name server is the whole cluster.

Threads: the event loop's. Source: consumption specification 4.2; upstream's TopicRouteInfoManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cometmq.broker.topics import BrokerTopics
from cometmq.client.instance.routes import check_route, subscribe_queues
from cometmq.errors import MalformedBody
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.routes import QueueData, TopicRouteData

__all__ = ["RouteSource", "Routes", "Unanswered"]

_log = logging.getLogger("cometmq.broker.routes")

_UNUSED_MS = 600_000
"""A topic that nobody needed for so long is not asked for any more."""


class Unanswered(Exception):
    """No name server could be asked."""


class RouteSource(Protocol):
    """The name servers."""

    @property
    def has_name_servers(self) -> bool:
        """True where there is one at all, reachable or not."""

    async def route(self, topic: str) -> TopicRouteData | None:
        """Ask for a topic's route; None where it has none.

        Raises:
            Unanswered: nobody could be asked.
        """


@dataclass(slots=True)
class _Known:
    queues: tuple[MessageQueue, ...]
    used_ms: int


class Routes:
    """The queues of topics, as name servers last said."""

    def __init__(
        self, name_servers: RouteSource, topics: BrokerTopics, *, broker_name: str, now_ms: Callable[[], int]
    ) -> None:
        """Nothing is known.

        Args:
            name_servers: whom to ask.
            topics: this broker's, where there is nobody to ask.
            broker_name: this broker's name.
            now_ms: a clock that is never set.
        """
        self._name_servers = name_servers
        self._topics = topics
        self._broker_name = broker_name
        self._now_ms = now_ms
        self._known: dict[str, _Known] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """Return the queues of a topic that can be read; None where nobody knows it, or nobody can be asked."""
        if not self._name_servers.has_name_servers:
            return self._own_queues(topic)
        found = self._known.get(topic)
        if found is None or not found.queues:
            await self._ask_once(topic)
            found = self._known.get(topic)
        if found is None:
            return None
        found.used_ms = self._now_ms()
        return found.queues

    def _own_queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        config = self._topics.get(topic)
        if config is None:
            return None
        own = QueueData(
            broker_name=self._broker_name,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
        )
        return subscribe_queues(topic, TopicRouteData(queue_datas=(own,)))

    async def refresh(self) -> None:
        """Ask again for every topic that is needed, and forget the others."""
        limit = self._now_ms() - _UNUSED_MS
        for topic, known in list(self._known.items()):
            if known.used_ms < limit:
                del self._known[topic]
            else:
                await self._ask_once(topic)

    async def _ask_once(self, topic: str) -> None:
        """Ask; callers that arrive meanwhile wait for the same answer."""
        task = self._asking.get(topic)
        if task is None:
            task = self._asking[topic] = asyncio.get_running_loop().create_task(self._ask(topic))
            task.add_done_callback(lambda _: self._asking.pop(topic, None))
        await asyncio.shield(task)

    async def _ask(self, topic: str) -> None:
        try:
            route = await self._name_servers.route(topic)
            queues = None if route is None else subscribe_queues(topic, check_route(topic, route))
        except (Unanswered, MalformedBody) as error:
            _log.warning("no route for an assignment", extra={"topic": topic, "error": str(error)})
            return
        known = self._known.get(topic)
        if queues is None:
            self._known.pop(topic, None)
        elif known is None:
            self._known[topic] = _Known(queues, self._now_ms())
        elif known.queues != queues:
            _log.info("route changed", extra={"topic": topic, "queues": len(queues)})
            known.queues = queues
