"""Route look-ups of one client instance, and the registered producers and consumers that get their results.

Invariants: concurrent callers for one topic share a request; a producer or consumer gets a route when it changes, and
once after it has registered; an error that repeats is logged at its first time alone.

Threads: the loop's. Source: consumption specification 1.4.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from cometmq.client.instance.routes import clamp_default_route
from cometmq.errors import Error, RouteNotFound
from cometmq.store_config.names import RETRY_PREFIX, retry_topic

if TYPE_CHECKING:
    from cometmq.client.instance.name_servers import NameServers
    from cometmq.client.instance.registrants import ConsumerPart, ProducerPart
    from cometmq.client.instance.routes import RouteTable
    from cometmq.remoting.bodies.routes import TopicRouteData

__all__ = ["RouteUpdates"]

_TEMPLATE_TOPIC = "TBW102"

_log = logging.getLogger(__name__)


class RouteUpdates:
    """Looks up routes, keeps them in the route table, and passes them on."""

    def __init__(
        self,
        routes: RouteTable,
        name_servers: NameServers,
        *,
        consumers: Mapping[str, ConsumerPart],
        producers: Mapping[str, ProducerPart],
        client_id: str,
        timeout_ms: int,
        on_changed: Callable[[], None],
    ) -> None:
        """Look up nothing yet; on the loop.

        Args:
            routes: the table that gets the routes.
            name_servers: return them.
            consumers: the registered consumers by group.
            producers: the registered producers by group.
            client_id: begins every line of the log.
            timeout_ms: longest wait for a name server.
            on_changed: called when a refresh found another route of a known topic.
        """
        self._loop = asyncio.get_running_loop()
        self._routes = routes
        self._name_servers = name_servers
        self._consumers = consumers
        self._producers = producers
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._on_changed = on_changed
        self._passed: dict[int, set[str]] = {}
        """The topics whose route a part has got; a part that registered later gets it with the next refresh."""
        self._calls: dict[tuple[str, str | None, int], asyncio.Task[bool]] = {}
        self._last_error: type[Error] | None = None
        """The last error of a look-up, which was logged then."""
        self._unknown_topics: set[str] = set()
        """Topics that no name server knew when they were last asked."""

    @property
    def calls(self) -> Collection[asyncio.Task[bool]]:
        """The look-ups in progress."""
        return self._calls.values()

    def add(self, part: object) -> None:
        """Pass routes to a producer or consumer from now on."""
        self._passed[id(part)] = set()

    def remove(self, part: object) -> None:
        """Pass it no more."""
        del self._passed[id(part)]

    async def refresh(self) -> None:
        """Ask for the routes of all topics that parts subscribe to or send to."""
        topics = {topic for part in self._consumers.values() for topic in part.subscriptions}
        topics.update(topic for part in self._producers.values() for topic in part.publish_topics())
        for topic in sorted(topics):
            is_known = self._routes.route(topic) is not None
            if await self.update(topic) and is_known:
                self._on_changed()

    async def find_missing(self) -> bool:
        """Ask for the routes of subscribed topics that have none; return whether one was found."""
        # The retry topics of popped ones are not waited for: their broker pops them by itself, and most never exist.
        wanted = {
            topic
            for part in self._consumers.values()
            for topic in part.subscriptions
            if not topic.startswith(RETRY_PREFIX) or topic == retry_topic(part.group)
        }
        missing = sorted(topic for topic in wanted if self._routes.route(topic) is None)
        for topic in missing:
            await self.update(topic)
        return any(self._routes.route(topic) is not None for topic in missing)

    async def update(
        self,
        topic: str,
        *,
        default_topic: str | None = None,
        default_queues: int = 4,
        must_exist: bool = False,
        must_answer: bool = False,
    ) -> bool:
        """Look up one topic's route; see :meth:`ClientInstance.update_route`."""
        key = (topic, default_topic, default_queues)
        call = self._calls.get(key)
        if call is None:
            call = self._loop.create_task(self._look_up(topic, default_topic, default_queues))
            self._calls[key] = call
            call.add_done_callback(lambda ended: self._call_ended(key, ended))
        try:
            return await asyncio.shield(call)
        except RouteNotFound as error:
            if must_exist:
                raise
            is_logged = topic in self._unknown_topics or topic.startswith(RETRY_PREFIX) or topic == _TEMPLATE_TOPIC
            self._unknown_topics.add(topic)
            _log.log(logging.DEBUG if is_logged else logging.INFO, "%s: %s", self._client_id, error)
        except Error as error:
            if must_exist or must_answer:
                raise
            is_logged = self._last_error is type(error)
            self._last_error = type(error)
            level = logging.DEBUG if is_logged else logging.WARNING
            _log.log(level, "%s: cannot get route for topic %s: %s", self._client_id, topic, error)
        return False

    def _call_ended(self, key: tuple[str, str | None, int], call: asyncio.Task[bool]) -> None:
        self._calls.pop(key, None)
        if not call.cancelled():
            call.exception()  # all callers may have been cancelled meanwhile, and nobody fetches it

    async def _look_up(self, topic: str, default_topic: str | None, default_queues: int) -> bool:
        asked = topic if default_topic is None else default_topic
        route = await self._name_servers.find_route(asked, timeout_ms=self._timeout_ms)
        self._last_error = None
        if route is None:
            known = f"no name server knows topic {topic}"
            if default_topic is not None:
                known += ", and no broker creates topics"
            raise RouteNotFound(f"{known}: check the name, or create it: cometmq topic create {topic}", topic=topic)
        if default_topic is not None:
            route = clamp_default_route(route, default_queues)
        return self._put(topic, route)

    def _put(self, topic: str, route: TopicRouteData) -> bool:
        self._unknown_topics.discard(topic)
        changed = self._routes.put(topic, route)
        info = self._routes.publish_info(topic)
        queues = self._routes.subscribe_queues(topic)
        assert info is not None
        assert queues is not None
        for producer in list(self._producers.values()):
            if self._must_pass(producer, topic, changed=changed):
                producer.routes_changed(topic, info)
        for consumer in list(self._consumers.values()):
            if topic in consumer.subscriptions and self._must_pass(consumer, topic, changed=changed):
                consumer.routes_changed(topic, queues)
        return changed

    def _must_pass(self, part: object, topic: str, *, changed: bool) -> bool:
        # A part that was called before this one may have removed it.
        passed = self._passed.get(id(part))
        if passed is None or (topic in passed and not changed):
            return False
        passed.add(topic)
        return True
