"""Clients that come, stay and go: heartbeats (34), goodbyes (35), lists of members (38), checks of filters (46).

A heartbeat makes the group and its retry topic where they are missing; the name servers know the topic, and the members
of the group have heard of a new one (code 40), before the heartbeat is answered. A client is gone when it says so, when
its connection closes, or after 120 s of silence.

Threads: the event loop's. Source: consumption specification 3.4, remoting specification 2.7; upstream's
ClientManageProcessor, ConsumerManageProcessor and ClientHousekeepingService.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from cometmq._engine import Selector
from cometmq.broker.filters import BrokerFilters, examine, is_by_tag
from cometmq.broker.groups import BrokerGroups
from cometmq.broker.link import ClientLink
from cometmq.broker.plane import DataPlane
from cometmq.broker.registry import ClientConnection, ConsumerGroup, ConsumerRegistry, ProducerRegistry
from cometmq.broker.topics import BrokerTopics
from cometmq.errors import InvalidArgument, LimitReached
from cometmq.remoting.answers import Caller, Refusal, Table, ok, read_apart, with_body
from cometmq.remoting.bodies.connections import GetConsumerListByGroupResponseBody
from cometmq.remoting.bodies.heartbeat import (
    CheckClientRequestBody,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    SubscriptionData,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import Members, flag_text
from cometmq.store_config.names import retry_topic, validate_used_group

__all__ = [
    "CLIENT_ID_CHARS_MAX",
    "EXPRESSION_CHARS_MAX",
    "GROUPS_OF_CONNECTION_MAX",
    "SUBSCRIPTIONS_MAX",
    "ClientRules",
    "Clients",
]

_log = logging.getLogger("cometmq.broker.clients")

_SUPPORTS_V2 = "IS_SUPPORT_HEART_BEAT_V2"
_SUB_CHANGED = "IS_SUB_CHANGE"
_TOPIC_BYTES_MAX = 255
_MEMBERS_INLINE = 500
"""Members whose list is written, or who are notified, on the event loop."""

_NOTIFY_LATER_S = 0.2
_NOTICES_AT_ONCE = 200

_EXPRESSION_CHARS_INLINE = 4_096
"""Longer SQL92 expressions come in heartbeats that are read outside the event loop, and are compiled there."""

_SUBSCRIPTIONS_INLINE = 100
"""Subscriptions of a group behind which a heartbeat lets others go first."""

CLIENT_ID_CHARS_MAX = 4_096
"""Length of a client id."""
GROUPS_OF_CONNECTION_MAX = 1_000
"""Consumer groups that one connection is in, and as many producer groups."""
SUBSCRIPTIONS_MAX = 2_000
"""Topics that one group subscribes to."""
EXPRESSION_CHARS_MAX = 262_144
"""Length of all expressions of one group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRules:
    """The settings of clients.

    Attributes:
        refuse_pull_consumers: pull consumers in heartbeats are ignored.
        notify_changes: members are notified when others come or go.
        notify_at_once: they are notified as it happens; else every 15 s (:meth:`Clients.flush_notices`).
        expire_ms: silence after which a client is gone.
        property_filter: SQL92 subscriptions are served.
    """

    refuse_pull_consumers: bool = False
    notify_changes: bool = True
    notify_at_once: bool = True
    expire_ms: int = 120_000
    property_filter: bool = False


@dataclass(slots=True, eq=False)
class _Beat:
    """A heartbeat in progress, and the changes of its connection since it was read, which make parts of it stale.

    Attributes:
        closed: the connection is gone.
        left_consumers, left_producers: groups that the client has left.
    """

    closed: bool = False
    left_consumers: set[str] = field(default_factory=set)
    left_producers: set[str] = field(default_factory=set)


class Clients:
    """All clients of one broker."""

    def __init__(
        self,
        *,
        topics: BrokerTopics,
        groups: BrokerGroups,
        plane: DataPlane,
        link: ClientLink,
        filters: BrokerFilters,
        rules: ClientRules,
        now_ms: Callable[[], int],
    ) -> None:
        """Nobody is there."""
        self._topics = topics
        self._groups = groups
        self._plane = plane
        self._link = link
        self._filters = filters
        self.rules = rules
        self._now_ms = now_ms
        self._fingerprints: dict[str, int] = {}
        self._beats: dict[int, list[_Beat]] = {}
        self._to_notify: set[str] = set()
        self._notifying: dict[str, asyncio.Task[None]] = {}
        self.consumers = ConsumerRegistry(self, now_ms=now_ms)
        self.producers = ProducerRegistry(now_ms=now_ms)

    # --- Notifications from the registry

    def members_changed(self, group: ConsumerGroup) -> None:
        """Notify every member of a group to look again (code 40)."""
        if not self.rules.notify_changes:
            return
        if self.rules.notify_at_once:
            self._notify(group)
        else:
            self._to_notify.add(group.name)

    def subscriptions_changed(self, group: ConsumerGroup, *, end_holds: bool) -> None:
        """Give the loops what a group subscribes to, with the filters that are in effect."""
        end_holds = self._filters.register(group.name, group.subscriptions.values()) or end_holds
        self._plane.put_consumer(
            group.name,
            group.message_model,
            group.consume_type,
            tuple(group.subscriptions.values()),
            self._groups.forbidden_topics(group.name),
            {
                topic: selector
                for topic, subscription in group.subscriptions.items()
                if not is_by_tag(subscription) and (selector := self._filters.selector(topic, group.name)) is not None
            },
            end_holds=end_holds,
        )

    def forbidden_changed(self, name: str) -> None:
        """Give the loops the topics that an online group may not read."""
        group = self.consumers.get(name)
        if group is not None:
            self.subscriptions_changed(group, end_holds=True)

    def group_gone(self, name: str) -> None:
        """Forget a group that nobody is in."""
        self._fingerprints.pop(name, None)
        self._to_notify.discard(name)
        self._filters.unregister(name)
        self._plane.remove_consumer(name)

    def _notify(self, group: ConsumerGroup) -> None:
        """Notify the members at once; of a large group soon, once for all changes until then, and a few at a time."""
        if len(group.members) <= _MEMBERS_INLINE:
            self._send_notices(group.name, group.members)
        elif group.name not in self._notifying:
            self._notifying[group.name] = asyncio.get_running_loop().create_task(self._notify_many(group.name))

    async def _notify_many(self, name: str) -> None:
        try:
            await asyncio.sleep(_NOTIFY_LATER_S)
        finally:
            del self._notifying[name]
        group = self.consumers.get(name)
        conns = [] if group is None else list(group.members)
        for begin in range(0, len(conns), _NOTICES_AT_ONCE):
            self._send_notices(name, conns[begin : begin + _NOTICES_AT_ONCE])
            await asyncio.sleep(0)

    def _send_notices(self, name: str, conns: Iterable[int]) -> None:
        notice = Command(code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields={"consumerGroup": name}).as_oneway()
        for conn in list(conns):
            self._link.send_oneway(conn, notice)

    def flush_notices(self) -> None:
        """Send the notifications kept back. Called every 15 s where members are not notified at once."""
        names, self._to_notify = self._to_notify, set()
        for name in sorted(names):
            group = self.consumers.get(name)
            if group is not None:
                self._notify(group)

    # --- Connections

    def _wants_notice(self, name: str) -> bool:
        config = self._groups.get(name)
        return config is None or config.notify_consumer_ids_changed_enable

    def connection_closed(self, conn: int) -> None:
        """Take a connection that is gone out of all groups."""
        for beat in self._beats.get(conn, ()):
            # It still waits for its turn, or for a topic to be made, and would bring the connection back.
            beat.closed = True
        self.consumers.close(conn, self._wants_notice)
        self.producers.close(conn)

    def silent_ms(self, member: ClientConnection) -> int:
        """Return how long ago a member was last heard of."""
        return self._now_ms() - member.seen_ms

    def expire(self) -> None:
        """Take out and disconnect clients that were silent too long. Called every 10 s."""
        doomed = self.consumers.expire(self.rules.expire_ms) + self.producers.expire(self.rules.expire_ms)
        for conn in dict.fromkeys(doomed):
            _log.info("client expired", extra={"conn": conn})
            self._link.close_connection(conn)

    # --- Requests

    def handlers(self) -> Table:
        """Return what this part serves."""
        return {
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._list,
            RequestCode.CHECK_CLIENT_CONFIG: with_body(CheckClientRequestBody.from_request, self._check),
        }

    def _heartbeat(self, request: Command, caller: Caller) -> Awaitable[Command]:
        """Note at once that a heartbeat is under way: a goodbye or the connection's end may come before its turn."""
        beat = _Beat()
        self._beats.setdefault(caller.conn, []).append(beat)
        return self._take_heartbeat(beat, request, caller)

    async def _take_heartbeat(self, beat: _Beat, request: Command, caller: Caller) -> Command:
        try:
            data = await read_apart(request, caller, _read_heartbeat)
            self._check_heartbeat(data, caller.conn)
            is_changed = data.fingerprint == 0
            for consumer in data.consumers:
                is_changed = await self._register(data, consumer, beat, request, caller) or is_changed
                if len(consumer.subscriptions) > _SUBSCRIPTIONS_INLINE:
                    await asyncio.sleep(0)
        finally:
            under_way = self._beats[caller.conn]
            under_way.remove(beat)
            if not under_way:
                del self._beats[caller.conn]
        if beat.closed:
            return ok(request)
        for producer in data.producers:
            name = _checked_group(producer.group_name)
            if name not in beat.left_producers:
                self.producers.register(name, self._connection(data, request, caller))
        return ok(request, fields={_SUPPORTS_V2: "true", _SUB_CHANGED: flag_text(is_changed)})

    def _check_heartbeat(self, data: HeartbeatData, conn: int) -> None:
        """Refuse what is more than a connection may have, before anything of the heartbeat is noted."""
        if not 0 < len(data.client_id) <= CLIENT_ID_CHARS_MAX:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"a clientID has 1 to {CLIENT_ID_CHARS_MAX} characters, not {len(data.client_id)}",
            )
        consumers = {consumer.group_name for consumer in data.consumers} | self.consumers.groups_of_conn(conn)
        producers = {producer.group_name for producer in data.producers} | self.producers.groups_of_conn(conn)
        if max(len(consumers), len(producers)) > GROUPS_OF_CONNECTION_MAX:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"a connection is in at most {GROUPS_OF_CONNECTION_MAX} groups of a kind, not "
                f"{max(len(consumers), len(producers))}",
            )

    async def _register(
        self, data: HeartbeatData, consumer: ConsumerData, beat: _Beat, request: Command, caller: Caller
    ) -> bool:
        """Note one consumer group of a heartbeat; return whether the group's fingerprint changed."""
        name = consumer.group_name
        if self.rules.refuse_pull_consumers and consumer.consume_type is ConsumeType.CONSUME_ACTIVELY:
            return False
        before = self._fingerprints.get(name)
        config = await self._groups.find_or_make(name)
        if config is None:
            return False
        order = any(
            (topic := self._topics.get(sub.topic)) is not None and topic.order for sub in consumer.subscriptions
        )
        await self._topics.make_for_group(
            retry_topic(name), queues=max(config.retry_queue_nums, 0), order=order, unit_mode=consumer.unit_mode
        )
        if beat.closed or name in beat.left_consumers:
            return False
        # A heartbeat without subscriptions refreshes the connection; it says so only in the second version.
        without = data.without_sub and data.fingerprint != 0
        self.consumers.register(
            name,
            self._connection(data, request, caller),
            consume_type=consumer.consume_type,
            message_model=consumer.message_model,
            consume_from_where=consumer.consume_from_where,
            subscriptions=None if without else consumer.subscriptions,
            notify=config.notify_consumer_ids_changed_enable,
        )
        self._fingerprints[name] = data.fingerprint
        return before is not None and before != data.fingerprint

    def _connection(self, data: HeartbeatData, request: Command, caller: Caller) -> ClientConnection:
        return ClientConnection(
            conn=caller.conn,
            client_id=data.client_id,
            language=request.language,
            version=request.version,
            peer=caller.peer,
            seen_ms=self._now_ms(),
        )

    def _unregister(self, request: Command, caller: Caller) -> Command:
        members = Members(request.fields)
        members.required("clientID")
        producer, consumer = members.text("producerGroup"), members.text("consumerGroup")
        under_way = self._beats.get(caller.conn, ())
        if producer is not None:
            for beat in under_way:
                beat.left_producers.add(producer)
            self.producers.unregister(producer, caller.conn)
        if consumer is not None:
            for beat in under_way:
                beat.left_consumers.add(consumer)
            self.consumers.unregister(consumer, caller.conn, notify=self._wants_notice(consumer))
        return ok(request)

    async def _list(self, request: Command, caller: Caller) -> Command:
        name = Members(request.fields).required("consumerGroup")
        group = self.consumers.get(name)
        if group is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        members = tuple(group.members.values())
        if len(members) <= _MEMBERS_INLINE:
            return ok(request, body=_members_body(members))
        return ok(request, body=await caller.apart(lambda: _members_body(members)))

    def _check(self, request: Command, caller: Caller, body: CheckClientRequestBody) -> Command:
        subscription = body.subscription
        if subscription is None or is_by_tag(subscription):
            return ok(request)
        kind = subscription.expression_type
        if not self.rules.property_filter:
            text = f"The broker does not support consumer to filter message by {kind}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"{text}; its setting enablePropertyFilter is false")
        if kind != "SQL92":
            text = f"the broker does not filter messages by {kind}, only by TAG and SQL92"
            raise Refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, text)
        try:
            Selector(subscription.sub_string)
        except (InvalidArgument, LimitReached) as error:
            text = f"Invalid MessageSelector. {error.message}"
            raise Refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, text) from error
        return ok(request)


def _members_body(members: Iterable[ClientConnection]) -> bytes:
    ids = tuple(dict.fromkeys(member.client_id for member in members))
    return GetConsumerListByGroupResponseBody(consumer_ids=ids).to_json()


def _read_heartbeat(body: bytes) -> HeartbeatData:
    """Read a heartbeat, and refuse what a group must not subscribe to; apart from the event loop where it is long."""
    data = HeartbeatData.from_request(body)
    for consumer in data.consumers:
        if len(consumer.subscriptions) > SUBSCRIPTIONS_MAX:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"a group subscribes to at most {SUBSCRIPTIONS_MAX} topics, not {len(consumer.subscriptions)}",
            )
        length = sum(len(subscription.sub_string) for subscription in consumer.subscriptions)
        if length > EXPRESSION_CHARS_MAX:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"the expressions of a group have at most {EXPRESSION_CHARS_MAX} characters, not {length}",
            )
        for subscription in consumer.subscriptions:
            _check_subscription(subscription)
            if subscription.expression_type == "SQL92" and len(subscription.sub_string) > _EXPRESSION_CHARS_INLINE:
                examine(subscription.sub_string)
    return data


def _check_subscription(subscription: SubscriptionData) -> None:
    """Refuse what the loops cannot keep, before anything of the heartbeat is noted."""
    topic, expression = subscription.topic, subscription.sub_string
    if not 0 < len(topic.encode("utf-8", "replace")) <= _TOPIC_BYTES_MAX:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR, f"a subscription's topic has 1 to {_TOPIC_BYTES_MAX} bytes: {topic[:60]!r}"
        )
    if is_by_tag(subscription) and expression and not any(part.strip() for part in expression.split("||")):
        raise Refusal(
            ResponseCode.SYSTEM_ERROR, f"{expression[:60]!r} names no tag; write *, or tags with || between them"
        )


def _checked_group(name: str) -> str:
    try:
        return validate_used_group(name)
    except InvalidArgument as error:
        raise Refusal(ResponseCode.SYSTEM_ERROR, error.message) from error
