"""Replies to requests (324, 325): each is pushed to the client that waits for it (326), and stored.

The requester is found by the client id in the reply's property ``REPLY_TO_CLIENT``, over the connection of its newest
heartbeat as a producer. The replier gets its answer when the requester has acknowledged the reply, or has not for 10 s.
The reply is stored pushed or not, unless ``storeReplyMessageEnable`` is off. Nothing of the request itself is kept.

Threads: the event loop's. Source: specification of transactions and filters 2.3, 2.4; upstream's ReplyMessageProcessor.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from cometmq._engine import decode_properties
from cometmq.broker.link import ClientLink
from cometmq.broker.plane import DataPlane, OutgoingMessage, StoredPlace, put_for
from cometmq.broker.registry import ProducerRegistry
from cometmq.broker.sends import check_size, members_of_send, not_stored
from cometmq.broker.topics import BrokerTopics
from cometmq.errors import ConnectionLost, Error, RequestTimeout
from cometmq.remoting.addresses import parse_address
from cometmq.remoting.answers import Caller, Refusal, Table
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import Members, request
from cometmq.store_config.broker_settings import BrokerSettings
from cometmq.store_config.names import may_send_to
from cometmq.store_config.topic_config import Perm, TopicConfig

__all__ = ["PUSHED_MAX", "PUSHED_TO_CLIENT_MAX", "Replies"]

_log = logging.getLogger("cometmq.broker.replies")

PUSHED_TO_CLIENT_MAX = 500
"""Replies that wait for one requester to acknowledge them. A requester that never does holds each for 10 s."""
PUSHED_MAX = 4_000
"""All of them: fewer than the requests that the control thread takes, of which each is one."""

_ACKNOWLEDGED_MS = 10_000
_COMPRESSION_MASK = 0x701
"""Bits of a reply's sysFlag that are stored: whether and how its body is compressed."""


class Replies:
    """Serves codes 324 and 325."""

    def __init__(
        self,
        *,
        topics: BrokerTopics,
        producers: ProducerRegistry,
        plane: DataPlane,
        link: ClientLink,
        settings: Callable[[], BrokerSettings],
        answer_fields: Mapping[str, str],
        broker_ip: str,
        broker_address: Callable[[], str],
        now_ms: Callable[[], int],
        queue_of: Callable[[int], int] = random.randrange,
    ) -> None:
        """Take the broker's parts and settings.

        Args:
            topics, producers, plane, link: the broker's.
            settings: returns the settings as they are now.
            answer_fields: ``MSG_REGION`` and ``TRACE_ON``, which every answer carries.
            broker_ip: for the text of a refusal.
            broker_address: returns ``ip:port``, the storing host of a reply.
            now_ms: the wall clock.
            queue_of: picks one of so many queues.
        """
        self._topics = topics
        self._producers = producers
        self._plane = plane
        self._link = link
        self._settings = settings
        self._answer_fields = dict(answer_fields)
        self._broker_ip = broker_ip
        self._broker_address = broker_address
        self._now_ms = now_ms
        self._queue_of = queue_of
        self._pushed: Counter[int] = Counter()
        self._pushed_to_all = 0

    def handlers(self) -> Table:
        """Return what this part serves."""
        return {RequestCode.SEND_REPLY_MESSAGE: self._reply, RequestCode.SEND_REPLY_MESSAGE_V2: self._reply}

    async def _reply(self, request: Command, caller: Caller) -> Command:
        try:
            return await self._take(request, caller)
        except Refusal as refusal:
            # A client reads these fields of a failed send, too.
            return request.response(refusal.code, remark=refusal.remark, fields=self._answer_fields)

    async def _take(self, request: Command, caller: Caller) -> Command:
        members = members_of_send(request)
        topic = await self._topic(request, members)
        queue_id = self._queue_id(members, topic)
        properties = decode_properties(members.text("properties", "").encode("utf-8")) | self._answer_fields
        check_size(
            body_bytes=len(request.body),
            properties_bytes=len(_property_text(properties).encode("utf-8")),
            body_bytes_max=self._settings().max_message_size_bytes,
        )
        message = OutgoingMessage(
            topic=topic.topic_name,
            queue_id=queue_id,
            body=request.body,
            properties=properties,
            flag=members.required_int32("flag"),
            sys_flag=members.required_int32("sysFlag") & _COMPRESSION_MASK,
            born_timestamp_ms=members.required_int64("bornTimestamp"),
            born_host=parse_address(caller.peer),
            reconsume_times=members.int32("reconsumeTimes", 0),
        )
        failure = await self._push(message, members, caller)
        place = await self._store(message, caller) if self._settings().store_reply_message_enable else None
        fields = {
            **self._answer_fields,
            "msgId": "0" if place is None else place.message_id,
            "queueId": str(queue_id),
            "queueOffset": "0" if place is None else str(place.queue_offset),
        }
        if failure is not None:
            return request.response(ResponseCode.SYSTEM_ERROR, remark=failure, fields=fields)
        return request.response(ResponseCode.SUCCESS, fields=fields)

    # --- Checks

    async def _topic(self, request: Command, members: Members) -> TopicConfig:
        if not self._settings().broker_permission & Perm.WRITE:
            text = f"the broker[{self._broker_ip}] sending message is forbidden"
            raise Refusal(ResponseCode.NO_PERMISSION, text)
        name = members.required("topic")
        topic = self._topics.get(name) if may_send_to(name) else None
        if topic is None:
            topic = await self._topics.make_for_request(request)
        if not topic.is_writable:
            raise Refusal(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
        return topic

    def _queue_id(self, members: Members, topic: TopicConfig) -> int:
        queue_id = members.required_int32("queueId")
        queues = max(topic.read_queue_nums, topic.write_queue_nums)
        if queue_id < queues:
            return queue_id if queue_id >= 0 else self._queue_of(max(topic.write_queue_nums, 1))
        raise Refusal(
            ResponseCode.INVALID_PARAMETER,
            f"request queueId[{queue_id}] is illegal: the queues of topic {topic.topic_name} are 0 to {queues - 1}",
        )

    # --- Pushing and storing

    async def _push(self, message: OutgoingMessage, members: Members, caller: Caller) -> str | None:
        """Push a reply to its requester; return None, or why it was not acknowledged.

        Raises:
            Refusal: too many replies wait.
        """
        client_id = message.properties.get("REPLY_TO_CLIENT")
        if not client_id:
            return "reply message properties[REPLY_TO_CLIENT] is null"
        conn = self._producers.conn_of(client_id)
        if conn is None:
            _log.warning("reply not pushed: its requester is not connected", extra={"client": client_id})
            return f"push reply message fail, channel of <{client_id}> not found."
        with self._pushing(conn, client_id):
            try:
                answer = await self._link.invoke(
                    conn, self._push_request(message, members, caller), timeout_ms=_ACKNOWLEDGED_MS
                )
            except (RequestTimeout, ConnectionLost) as error:
                _log.warning("reply not acknowledged", extra={"client": client_id, "error": error.message})
                return f"push reply message to {client_id}fail."
        if answer.code == ResponseCode.SUCCESS:
            return None
        _log.warning("reply refused by its requester", extra={"client": client_id, "error": answer.remark or ""})
        return f"push reply message to {client_id}fail."

    @contextmanager
    def _pushing(self, conn: int, client_id: str) -> Iterator[None]:
        """Count a push while the block runs; refuse those beyond a limit."""
        if self._pushed[conn] >= PUSHED_TO_CLIENT_MAX:
            text = f"{PUSHED_TO_CLIENT_MAX} replies wait for client <{client_id}>"
            raise Refusal(ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]system busy: {text}")
        if self._pushed_to_all >= PUSHED_MAX:
            raise Refusal(ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]system busy: {PUSHED_MAX} replies wait for clients")
        self._pushed[conn] += 1
        self._pushed_to_all += 1
        try:
            yield
        finally:
            self._pushed_to_all -= 1
            self._pushed[conn] -= 1
            if not self._pushed[conn]:
                del self._pushed[conn]

    def _push_request(self, message: OutgoingMessage, members: Members, caller: Caller) -> Command:
        now_ms = self._now_ms()
        properties = {**message.properties, "PUSH_REPLY_TIME": str(now_ms)}
        return request(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            body=message.body,
            producerGroup=members.required("producerGroup"),
            topic=message.topic,
            defaultTopic=members.text("defaultTopic"),
            defaultTopicQueueNums=members.text("defaultTopicQueueNums"),
            queueId=message.queue_id,
            sysFlag=members.required_int32("sysFlag"),
            bornTimestamp=message.born_timestamp_ms,
            flag=message.flag,
            properties=_property_text(properties),
            reconsumeTimes=message.reconsume_times,
            unitMode=members.boolean("unitMode"),
            bornHost=caller.peer,
            storeHost=self._broker_address(),
            storeTimestamp=now_ms,
        )

    async def _store(self, message: OutgoingMessage, caller: Caller) -> StoredPlace | None:
        """Store a reply; return its place, or None where the store did not take it, as upstream's answer says nothing
        of that."""
        try:
            return await put_for(caller, self._plane, message)
        except Error as error:
            _log.warning("reply not stored", extra={"topic": message.topic, "error": not_stored(error).remark})
            return None


def _property_text(properties: Mapping[str, str]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
