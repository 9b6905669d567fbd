"""Which topics are where, as name servers last said: routes by topic, addresses by broker. Plain data, no network.

Threads: the client's loop changes it; any thread may read single entries. Source: consumption specification 1.4.5,
1.4.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

from cometmq.errors import MalformedBody
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.routes import TopicRouteData
from cometmq.store_config.topic_config import Perm

__all__ = [
    "MASTER_ID",
    "QUEUES_MAX",
    "PublishInfo",
    "RouteTable",
    "check_route",
    "clamp_default_route",
    "publish_queues",
    "subscribe_queues",
]

MASTER_ID = 0
"""Broker id of a master; slaves have others."""

QUEUES_MAX = 65_536
"""Most queues of a topic at one broker that we believe."""

_NO_ADDRESSES: Mapping[int, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishInfo:
    """Where a topic can be sent to.

    Attributes:
        topic: the topic.
        queues: its queues that can be written, in the order in which they take turns.
        is_order_topic: True where the name server fixes the queues, so that they stay when brokers go.
    """

    topic: str
    queues: tuple[MessageQueue, ...]
    is_order_topic: bool = False


def check_route(topic: str, route: TopicRouteData) -> TopicRouteData:
    """Return the route where it can be used as it is.

    Raises:
        MalformedBody: it names more queues than there can be.
    """
    for part in route.queue_datas:
        if max(part.read_queue_nums, part.write_queue_nums) > QUEUES_MAX:
            raise MalformedBody(
                f"the route of {topic} gives {part.broker_name} {part.read_queue_nums} queues to read and "
                f"{part.write_queue_nums} to write; {QUEUES_MAX} is the most"
            )
    for entry in (route.order_topic_conf or "").split(";"):
        count = entry.partition(":")[2]
        if count.isascii() and count.isdigit() and (len(count) > 9 or int(count) > QUEUES_MAX):
            raise MalformedBody(
                f"the order configuration of {topic} names {count[:20]} queues; {QUEUES_MAX} is the most"
            )
    return route


def publish_queues(topic: str, route: TopicRouteData) -> PublishInfo:
    """Return where a topic can be sent to: those of the order configuration, else the queues at masters."""
    if route.order_topic_conf:
        return PublishInfo(topic=topic, queues=_ordered_queues(topic, route.order_topic_conf), is_order_topic=True)
    with_master = {broker.broker_name for broker in route.broker_datas if MASTER_ID in broker.broker_addresses}
    queues = tuple(
        MessageQueue(topic=topic, broker_name=part.broker_name, queue_id=queue_id)
        for part in sorted(route.queue_datas, key=lambda part: part.broker_name)
        if part.perm & Perm.WRITE and part.broker_name in with_master
        for queue_id in range(part.write_queue_nums)
    )
    return PublishInfo(topic=topic, queues=queues)


def _ordered_queues(topic: str, conf: str) -> tuple[MessageQueue, ...]:
    """Read ``broker:queues;broker:queues``; an entry that says nothing of the kind names no queue."""
    queues = []
    for entry in conf.split(";"):
        broker_name, _, count = entry.partition(":")
        if broker_name and count.isascii() and count.isdigit():
            queues += [
                MessageQueue(topic=topic, broker_name=broker_name, queue_id=queue_id) for queue_id in range(int(count))
            ]
    return tuple(queues)


def subscribe_queues(topic: str, route: TopicRouteData) -> tuple[MessageQueue, ...]:
    """Return the queues that can be read; a slave is enough for that."""
    return tuple(
        MessageQueue(topic=topic, broker_name=part.broker_name, queue_id=queue_id)
        for part in route.queue_datas
        if part.perm & Perm.READ
        for queue_id in range(part.read_queue_nums)
    )


def clamp_default_route(route: TopicRouteData, queues: int) -> TopicRouteData:
    """Return the template's route as that of a topic which the first send will create.

    Args:
        route: the template's.
        queues: most queues that the topic shall get at each broker.
    """
    parts = []
    for part in route.queue_datas:
        count = min(queues, part.read_queue_nums)
        parts.append(replace(part, read_queue_nums=count, write_queue_nums=count))
    return replace(route, queue_datas=tuple(parts))


class _Entry:
    """One topic: its route and what follows from it."""

    __slots__ = ("publish", "route", "shape", "subscribe")

    def __init__(self, topic: str, route: TopicRouteData) -> None:
        self.route = route
        self.shape = _shape(route)
        self.publish = publish_queues(topic, route)
        self.subscribe = subscribe_queues(topic, route)


def _shape(route: TopicRouteData) -> TopicRouteData:
    """Return the route without the order in which the name server happened to list its parts."""
    return replace(
        route,
        queue_datas=tuple(sorted(route.queue_datas, key=lambda part: part.broker_name)),
        broker_datas=tuple(sorted(route.broker_datas, key=lambda part: part.broker_name)),
    )


class RouteTable:
    """Routes by topic and addresses by broker. An address stays known until no route names it any more.

    Attributes:
        masters: broker name to the address that is written to.
    """

    def __init__(self, *, random: Random | None = None) -> None:
        """``random`` chooses among the brokers of a topic."""
        self._random = Random() if random is None else random
        self._topics: dict[str, _Entry] = {}
        self._brokers: dict[str, Mapping[int, str]] = {}
        self.masters: dict[str, str] = {}

    # --- Topics -------------------------------------------------------------------------------------------------------

    def put(self, topic: str, route: TopicRouteData) -> bool:
        """Keep a name server's route of a topic; return whether it is new."""
        for broker in route.broker_datas:
            self._set_addresses(broker.broker_name, dict(broker.broker_addresses))
        known = self._topics.get(topic)
        if known is not None and known.shape == _shape(route):
            return False
        self._topics[topic] = _Entry(topic, route)
        return True

    def route(self, topic: str) -> TopicRouteData | None:
        """Return a topic's route, or None where it is not known."""
        entry = self._topics.get(topic)
        return None if entry is None else entry.route

    def publish_info(self, topic: str) -> PublishInfo | None:
        """Return where a topic can be sent to, or None where its route is not known."""
        entry = self._topics.get(topic)
        return None if entry is None else entry.publish

    def subscribe_queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """Return a topic's queues that can be read, or None where its route is not known."""
        entry = self._topics.get(topic)
        return None if entry is None else entry.subscribe

    def broker_of_topic(self, topic: str) -> str | None:
        """Return the address of any broker of a topic, its master where it has one; None where none is known."""
        entry = self._topics.get(topic)
        brokers = [] if entry is None else [data for data in entry.route.broker_datas if data.broker_addresses]
        if not brokers:
            return None
        addresses = self._random.choice(brokers).broker_addresses
        return addresses.get(MASTER_ID) or self._random.choice(list(addresses.values()))

    # --- Brokers ------------------------------------------------------------------------------------------------------

    @property
    def broker_names(self) -> tuple[str, ...]:
        """The brokers that are known."""
        return tuple(self._brokers)

    def addresses(self, broker_name: str) -> Mapping[int, str]:
        """Return a broker's addresses by broker id; none where it is not known."""
        return self._brokers.get(broker_name, _NO_ADDRESSES)

    def master_address(self, broker_name: str) -> str | None:
        """Return the address that is written to, or None."""
        return self.masters.get(broker_name)

    def broker_address(
        self, broker_name: str, broker_id: int = MASTER_ID, *, only_this: bool = False
    ) -> tuple[str, bool] | None:
        """Return an address that can be read from, and whether it is a slave's; or None.

        Args:
            broker_name: the broker.
            broker_id: the one that is wanted; for a slave that is not there the next id is taken.
            only_this: take no other; else any does.
        """
        addresses = self._brokers.get(broker_name)
        if not addresses:
            return None
        chosen = broker_id
        if chosen not in addresses and chosen != MASTER_ID:
            chosen += 1
        if chosen not in addresses:
            if only_this:
                return None
            chosen = next(iter(addresses))
        return addresses[chosen], chosen != MASTER_ID

    def targets(self, *, slaves: bool) -> list[str]:
        """Return the addresses of all brokers, each once, with or without slaves."""
        return list(
            dict.fromkeys(
                address
                for addresses in self._brokers.values()
                for broker_id, address in addresses.items()
                if slaves or broker_id == MASTER_ID
            )
        )

    def is_known(self, address: str) -> bool:
        """Return whether an address is a broker's."""
        return any(address in addresses.values() for addresses in self._brokers.values())

    def drop_gone_brokers(self) -> list[str]:
        """Forget the addresses that no route names any more, and return them."""
        named = {
            address
            for entry in self._topics.values()
            for broker in entry.route.broker_datas
            for address in broker.broker_addresses.values()
        }
        gone = []
        for broker_name, addresses in list(self._brokers.items()):
            left = {broker_id: address for broker_id, address in addresses.items() if address in named}
            gone += [address for address in addresses.values() if address not in named]
            self._set_addresses(broker_name, left)
        return gone

    def _set_addresses(self, broker_name: str, addresses: Mapping[int, str]) -> None:
        if addresses:
            self._brokers[broker_name] = addresses
        else:
            self._brokers.pop(broker_name, None)
        if MASTER_ID in addresses:
            self.masters[broker_name] = addresses[MASTER_ID]
        else:
            self.masters.pop(broker_name, None)
