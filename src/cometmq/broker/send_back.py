"""Messages that a consumer could not handle: sent back to be tried again later, or given up to the dead letters (36).

A sent-back message is stored as a new one in ``%RETRY%group``, parked by its delay level; after the group's maximum it
goes to ``%DLQ%group``. Our answer waits for the disk as for any send under synchronous flush, although the record says
``WAIT=false`` as upstream's does: the consumer's progress passes the message as soon as it has the answer.

Threads: the event loop's. Source: consumption specification 3.7; upstream's AbstractSendMessageProcessor.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from cometmq._engine import Message
from cometmq.broker.groups import BrokerGroups
from cometmq.broker.plane import DataPlane, OutgoingMessage, put_for
from cometmq.broker.stats import Statistics
from cometmq.broker.topics import BrokerTopics
from cometmq.errors import CorruptRecord, Error, InvalidArgument, InvalidTopic, NotFound, OffsetOutOfRange
from cometmq.remoting.answers import Caller, Refusal, Table, ok
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import Members
from cometmq.remoting.properties import properties_that_fit
from cometmq.store_config.fields import INT32_MAX
from cometmq.store_config.names import RETRY_PREFIX, dead_letter_topic, retry_topic
from cometmq.store_config.subscription_group_config import SubscriptionGroupConfig
from cometmq.store_config.topic_config import TopicConfig

__all__ = [
    "DLQ_QUEUES",
    "Route",
    "SendBack",
    "effective_maximum",
    "route_failed",
    "route_retry_send",
]

_log = logging.getLogger("cometmq.broker.send_back")

DLQ_QUEUES = 1
"""Queues of a dead-letter topic."""

_FIRST_RETRY_LEVEL = 3
_VERSION_WITH_MAXIMUM = 121
"""V3_4_9: from there on clients send ``maxReconsumeTimes``."""

_MESSAGES_FAULTS = (NotFound, OffsetOutOfRange, CorruptRecord, InvalidArgument)


@dataclass(frozen=True, slots=True)
class Route:
    """Where a failed message goes.

    Attributes:
        topic: its retry or dead-letter topic.
        delay_level: when it is redelivered; 0: at once.
        is_dead: True for the dead letters.
    """

    topic: str
    delay_level: int
    is_dead: bool


def route_failed(group: str, *, reconsume_times: int, delay_level: int, times_max: int) -> Route:
    """Decide about a message that was sent back.

    Args:
        group: consumer group.
        reconsume_times: how often it failed before.
        delay_level: the consumer's choice; negative gives it up, 0 leaves it to the broker.
        times_max: redeliveries before it is given up.
    """
    if reconsume_times >= times_max or delay_level < 0:
        return Route(dead_letter_topic(group), 0, True)
    level = delay_level or _FIRST_RETRY_LEVEL + reconsume_times
    return Route(retry_topic(group), level, False)


def route_retry_send(topic: str, *, reconsume_times: int, times_max: int, is_group_locked: bool) -> Route:
    """Decide about a plain send to a retry topic, which is how clients retry what they could not send back.

    While a queue of the group is locked by an orderly consumer such a message is a dead letter, since it would come out
    of order.

    Args:
        topic: ``%RETRY%`` and the group.
        reconsume_times: from the header.
        times_max: redeliveries before it is given up; the header's where it has one.
        is_group_locked: whether any lock of the group's queues is alive.
    """
    group = topic.removeprefix(RETRY_PREFIX)
    if is_group_locked or reconsume_times > times_max:
        return Route(dead_letter_topic(group), 0, True)
    # Its DELAY property says when it is redelivered.
    return Route(topic, 0, False)


def effective_maximum(request: Command, members: Members, group: SubscriptionGroupConfig) -> int:
    """Return the maximum of redeliveries of a message: the client's, or the group's setting."""
    if request.version < _VERSION_WITH_MAXIMUM:
        return group.retry_max_times
    return members.int32("maxReconsumeTimes", group.retry_max_times)


class SendBack:
    """Serves code 36."""

    def __init__(
        self,
        *,
        topics: BrokerTopics,
        groups: BrokerGroups,
        plane: DataPlane,
        stats: Statistics,
        read: Callable[[int], Message],
        is_writable: Callable[[], bool],
        broker_ip: str,
        queue_of: Callable[[int], int] = random.randrange,
    ) -> None:
        """Take what is needed.

        Args:
            topics, groups, plane, stats: the broker's.
            read: returns the message at a physical offset, or raises.
            is_writable: whether the broker takes messages at all.
            broker_ip: for the text of a refusal.
            queue_of: picks one of so many queues.
        """
        self._topics = topics
        self._groups = groups
        self._plane = plane
        self._stats = stats
        self._read = read
        self._is_writable = is_writable
        self._broker_ip = broker_ip
        self._queue_of = queue_of

    def handlers(self) -> Table:
        """Return what this part serves."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self._send_back}

    async def _send_back(self, request: Command, caller: Caller) -> Command:
        members = Members(request.fields)
        name = members.required("group")
        offset, delay_level = members.required_int64("offset"), members.required_int32("delayLevel")
        group = await self._groups.require(name)
        if not self._is_writable():
            text = f"the broker[{self._broker_ip}] sending message is forbidden"
            raise Refusal(ResponseCode.NO_PERMISSION, text)
        if group.retry_queue_nums <= 0:
            return ok(request)
        retry = await self._make(
            retry_topic(name), queues=group.retry_queue_nums, unit_mode=members.boolean("unitMode")
        )
        if not retry.is_writable:
            text = f"the topic[{retry.topic_name}] sending message is forbidden"
            raise Refusal(ResponseCode.NO_PERMISSION, text)
        message = self._message(offset)
        route = route_failed(
            name,
            reconsume_times=message.reconsume_times,
            delay_level=delay_level,
            times_max=effective_maximum(request, members, group),
        )
        queue_id = self._queue_of(DLQ_QUEUES if route.is_dead else group.retry_queue_nums)
        if route.is_dead:
            await self._make(route.topic, queues=DLQ_QUEUES)
        await self._store(message, route, queue_id, caller)
        origin = message.properties.get("RETRY_TOPIC", message.topic)
        if self._topics.get(origin) is None:
            # Its sender may have written anything into the property.
            origin = message.topic
        self._stats.add("SNDBCK_PUT_NUMS", f"{origin}@{name}", 1)
        if route.is_dead:
            _log.info("message given up", extra={"group": name, "topic": origin, "id": message.message_id})
        return ok(request)

    async def _make(self, topic: str, *, queues: int, unit_mode: bool = False) -> TopicConfig:
        try:
            return await self._topics.make_for_group(topic, queues=queues, unit_mode=unit_mode)
        except InvalidTopic as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, error.message) from error

    def _message(self, offset: int) -> Message:
        try:
            return self._read(offset)
        except _MESSAGES_FAULTS as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}") from error

    async def _store(self, message: Message, route: Route, queue_id: int, caller: Caller) -> None:
        properties = dict(message.properties)
        properties.setdefault("RETRY_TOPIC", message.topic)
        properties["WAIT"] = "false"
        properties["DELAY"] = str(route.delay_level)
        if not properties.get("ORIGIN_MESSAGE_ID", "").strip():
            properties["ORIGIN_MESSAGE_ID"] = message.message_id
        properties, gone = properties_that_fit(properties)
        if gone:
            _log.warning("properties left out for lack of room", extra={"topic": route.topic, "names": gone})
        outgoing = OutgoingMessage(
            topic=route.topic,
            queue_id=queue_id,
            body=bytes(message.raw_body),
            properties=properties,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp_ms=message.born_timestamp_ms,
            born_host=message.born_host,
            reconsume_times=min(message.reconsume_times + 1, INT32_MAX),
        )
        try:
            await put_for(caller, self._plane, outgoing)
        except Error as error:
            _log.warning("message not sent back", extra={"topic": route.topic, "error": str(error)})
            raise Refusal(ResponseCode.SYSTEM_ERROR, error.message) from error
