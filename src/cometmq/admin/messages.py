"""Messages of a cluster: found by id, key or place, looked at without a consumer group, and sent one at a time.

Lookups return :class:`cometmq.Message`, as a store does. Many messages are sent by a sender
(:mod:`cometmq.admin.sending`). Source: remoting specification 2.2, 2.4, 2.8.
"""

from __future__ import annotations

from collections.abc import Mapping

from cometmq._engine import Message, decode_messages, parse_message_id
from cometmq.admin.operation import Operation, accepted, ask_all, succeeded
from cometmq.admin.results import SendResult
from cometmq.admin.sending import SendLimits, SendState, targets_of
from cometmq.admin.servers import Route, Servers, TopicQueues, request
from cometmq.client.send.outgoing import OutgoingMessage
from cometmq.client.trace.trace_records import TRACE_TOPIC, TraceRecord, records_of
from cometmq.errors import CorruptRecord, InvalidArgument, NotFound
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.members import Members
from cometmq.store.options import parse_tags
from cometmq.store_config.fields import INT64_MAX
from cometmq.store_config.topic_config import Perm

__all__ = ["MessageOperations"]

_TOOLS_GROUP = "TOOLS_CONSUMER"
_PULL_WITH_SUBSCRIPTION = 4
_PULL_TIMEOUT_MS = 20_000
_PULL_MESSAGES = 32
_PULL_AGAIN = frozenset({ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED})
_PULL_ANSWERS = (*_PULL_AGAIN, ResponseCode.PULL_NOT_FOUND)
_QUERY_TIMEOUT_MS = 18_000
_CONSUMER_TIMEOUT_MS = 15_000
"""The broker itself waits ten seconds for the client."""
_TEMPLATE_TOPIC = "TBW102"
_TEMPLATE_QUEUES = 4

_TAGS = "T"
"""Upstream's index type for tags, since 5.4."""


def _check_limit(limit: int) -> None:
    if limit < 1:
        raise InvalidArgument(f"limit is {limit}, expected at least 1")


class MessageOperations:
    """Messages. Each method is an operation: the surfaces run it."""

    def __init__(self, servers: Servers) -> None:
        """``servers`` is the way to the cluster."""
        self._servers = servers

    # --- Finding ------------------------------------------------------------------------------------------------------

    def by_id(self, message_id: str) -> Operation[Message]:
        """Return the message with an offset message id, from the broker whose address stands in it.

        Raises:
            InvalidArgument: this is no such id; a unique id is looked up with :meth:`by_unique_id`.
            NotFound: the broker has no message there.
            CorruptRecord: its body does not match its CRC.
        """
        address, physical_offset = yield from self._place_of(message_id)
        call = self._servers.call(address, request(RequestCode.VIEW_MESSAGE_BY_ID, offset=physical_offset))
        answer = yield from succeeded(call, ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND)
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            remark = f" ({answer.remark})" if answer.remark else ""
            raise NotFound(f"{address} has no message at {physical_offset} of its log; it may have expired{remark}")
        (message,) = decode_messages(answer.body)[:1]
        return message

    def _place_of(self, message_id: str) -> Operation[tuple[str, int]]:
        """Return the broker and the physical offset that an offset message id names."""
        (host, port), physical_offset = parse_message_id(message_id)
        if not self._servers.is_direct:
            return f"{host}:{port}", physical_offset
        (broker,) = yield from self._servers.brokers()
        return broker.address, physical_offset

    def by_unique_id(
        self, topic: str, unique_id: str, *, damaged: list[CorruptRecord] | None = None
    ) -> Operation[tuple[Message, ...]]:
        """Return the messages of a topic that a sender gave this id, oldest first; none is an empty tuple.

        Several have it where they were sent as one batch, or one was sent again.

        Args:
            topic: the topic.
            unique_id: the id.
            damaged: gets an error for each message that is left out, as its body does not match its CRC.

        Raises:
            CorruptRecord: the body of a message does not match its CRC, and ``damaged`` was not given.
            BrokerError: there is no such topic (code 17).
        """
        found = yield from self._query(topic, unique_id, is_unique=True, limit=_PULL_MESSAGES, damaged=damaged)
        return tuple(message for message in found if message.unique_id == unique_id)

    def by_key(
        self,
        topic: str,
        key: str,
        *,
        limit: int = 64,
        begin_ms: int = 0,
        end_ms: int = INT64_MAX,
        damaged: list[CorruptRecord] | None = None,
    ) -> Operation[tuple[Message, ...]]:
        """Return messages of a topic that have a key, oldest first.

        Args:
            topic: the topic.
            key: one of their keys.
            limit: at most so many from each broker; the newest.
            begin_ms, end_ms: stored in this time, milliseconds since 1970.
            damaged: as for :meth:`by_unique_id`.

        Raises:
            BrokerError: there is no such topic (code 17).
        """
        found = yield from self._query(
            topic, key, is_unique=False, limit=limit, damaged=damaged, begin_ms=begin_ms, end_ms=end_ms
        )
        return tuple(message for message in found if message.topic == topic and key in message.keys)

    def by_tag(
        self,
        topic: str,
        tag: str,
        *,
        limit: int = 64,
        begin_ms: int = 0,
        end_ms: int = INT64_MAX,
        damaged: list[CorruptRecord] | None = None,
    ) -> Operation[tuple[Message, ...]]:
        """Return messages of a topic that have a tag, oldest first.

        Brokers answer this since RocketMQ 5.4, from their index, which has no tags of messages stored before; CometMQ
        answers it from the queues, which have all. Older brokers find none.

        Args:
            topic: the topic.
            tag: their tag.
            limit: at most so many from each broker; the newest.
            begin_ms, end_ms: stored in this time, milliseconds since 1970.
            damaged: as for :meth:`by_unique_id`.

        Raises:
            BrokerError: there is no such topic (code 17).
        """
        found = yield from self._query(
            topic,
            tag,
            is_unique=False,
            index_type=_TAGS,
            limit=limit,
            damaged=damaged,
            begin_ms=begin_ms,
            end_ms=end_ms,
        )
        # An older broker looks for a key of this name.
        return tuple(message for message in found if message.tags == tag)

    def _query(
        self,
        topic: str,
        key: str,
        *,
        is_unique: bool,
        index_type: str | None = None,
        limit: int,
        damaged: list[CorruptRecord] | None,
        begin_ms: int = 0,
        end_ms: int = INT64_MAX,
    ) -> Operation[list[Message]]:
        _check_limit(limit)
        route = yield from self._servers.route(topic)
        command = request(
            RequestCode.QUERY_MESSAGE,
            topic=topic,
            key=key,
            maxNum=limit,
            beginTimestamp=begin_ms,
            endTimestamp=end_ms,
            _UNIQUE_KEY_QUERY=is_unique,
            indexType=index_type,
        )
        brokers = [part.broker for part in route.parts]
        found: list[Message] = []
        for _, call, answer in (yield from self._servers.ask_brokers(brokers, command, timeout_ms=_QUERY_TIMEOUT_MS)):
            reply = accepted(call, answer, ResponseCode.QUERY_NOT_FOUND)
            found += decode_messages(reply.body, damaged)
        return sorted(found, key=lambda message: (message.store_timestamp_ms, message.physical_offset))

    def trace(
        self,
        unique_id: str,
        *,
        topic: str = TRACE_TOPIC,
        limit: int = 64,
        begin_ms: int = 0,
        end_ms: int = INT64_MAX,
        damaged: list[CorruptRecord] | None = None,
    ) -> Operation[tuple[TraceRecord, ...]]:
        """Return the records that tracing clients, ours and Java's, wrote of a message, in order of time.

        Args:
            unique_id: the id that the message's sender gave it.
            topic: the topic of trace messages.
            limit: at most so many trace messages from each broker; the newest.
            begin_ms, end_ms: trace messages stored in this time, milliseconds since 1970.
            damaged: as for :meth:`by_unique_id`.

        Raises:
            BrokerError: there is no trace topic (code 17).
        """
        found = yield from self._query(
            topic, unique_id, is_unique=False, limit=limit, damaged=damaged, begin_ms=begin_ms, end_ms=end_ms
        )
        return records_of(unique_id, found)

    def at(self, topic: str, queue_id: int, queue_offset: int, *, broker_name: str | None = None) -> Operation[Message]:
        """Return the message at a place in a queue.

        Args:
            topic: the topic.
            queue_id: the queue.
            queue_offset: its number in it.
            broker_name: whose queue; needed where the topic is at several brokers.

        Raises:
            NotFound: there is none.
            CorruptRecord: its body does not match its CRC.
            BrokerError: there is no such topic (17) or queue (29).
        """
        route = yield from self._servers.route(topic)
        part = route.part_of(broker_name)
        messages, _ = yield from self._pull(part, topic, queue_id, queue_offset, "*", 1)
        if not messages or messages[0].queue_offset != queue_offset:
            raise NotFound(
                f"queue {queue_id} of topic {topic} at {part.broker.broker_name} has no message {queue_offset}"
            )
        return messages[0]

    def peek(
        self,
        topic: str,
        *,
        limit: int = 32,
        tags: str = "*",
        broker_name: str | None = None,
        queue_id: int | None = None,
        start: int | None = None,
        start_ms: int | None = None,
        newest: bool = False,
        damaged: list[CorruptRecord] | None = None,
    ) -> Operation[tuple[Message, ...]]:
        """Return messages of a topic as a consumer would get them, without a group whose progress it changes.

        Args:
            topic: the topic.
            limit: at most so many.
            tags: ``*``, or tags joined by ``||``.
            broker_name, queue_id: only there; else of all queues, by store time.
            start: from this queue offset on; needs a queue. Default: the oldest.
            start_ms: from the first on that was stored then or later, milliseconds since 1970.
            newest: the newest instead of the oldest; tags are then looked for in the last ``limit`` of each queue.
            damaged: as for :meth:`by_unique_id`.

        Raises:
            CorruptRecord: as for :meth:`by_unique_id`.
            InvalidArgument: two places to begin at, or an offset without a queue.
            BrokerError: there is no such topic (17) or queue (29).
        """
        if (start is not None) + (start_ms is not None) + newest > 1:
            raise InvalidArgument("give only one of a start offset, a start time and newest")
        if start is not None and queue_id is None:
            raise InvalidArgument("an offset belongs to one queue: name the queue")
        _check_limit(limit)
        parse_tags(tags)
        route = yield from self._servers.route(topic)
        parts = route.parts if broker_name is None else (route.part_of(broker_name),)
        places = [
            (part, queue)
            for part in parts
            for queue in range(part.read_queues)
            if queue_id is None or queue == queue_id
        ]
        if not places:
            raise NotFound(f"topic {topic} has no queue {queue_id} that can be read")
        found: list[Message] = []
        for part, queue in places:
            at, end = yield from self._span(part, topic, queue, start=start, start_ms=start_ms)
            if newest:
                at = max(at, end - limit)
            found += yield from self._pull_until(part, topic, queue, at, end, tags, limit, damaged)
        found.sort(key=lambda message: (message.store_timestamp_ms, message.physical_offset, message.queue_offset))
        return tuple(found[-limit:] if newest else found[:limit])

    def _span(
        self, part: TopicQueues, topic: str, queue_id: int, *, start: int | None, start_ms: int | None
    ) -> Operation[tuple[int, int]]:
        """Where to begin in a queue, and where it ends now."""
        if start_ms is None:
            first = request(RequestCode.GET_MIN_OFFSET, topic=topic, queueId=queue_id)
        else:
            first = request(
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                topic=topic,
                queueId=queue_id,
                timestamp=start_ms,
                boundaryType="LOWER",
            )
        last = request(RequestCode.GET_MAX_OFFSET, topic=topic, queueId=queue_id, committed=True)
        answers = yield from ask_all(self._servers.call(part.broker.address, one) for one in (first, last))
        begin, end = (Members(accepted(call, answer).fields).required_int64("offset") for call, answer in answers)
        return max(begin, start if start is not None else begin), end

    def _pull_until(
        self,
        part: TopicQueues,
        topic: str,
        queue_id: int,
        at: int,
        end: int,
        tags: str,
        limit: int,
        damaged: list[CorruptRecord] | None,
    ) -> Operation[list[Message]]:
        found: list[Message] = []
        while at < end and len(found) < limit:
            messages, following = yield from self._pull(part, topic, queue_id, at, tags, limit - len(found), damaged)
            # Brokers choose by the tags' hash; the tag itself is looked at here, as a consumer does.
            found += [message for message in messages if _matches(tags, message.tags)]
            if following <= at:
                break
            at = following
        return found

    def _pull(
        self,
        part: TopicQueues,
        topic: str,
        queue_id: int,
        at: int,
        tags: str,
        limit: int,
        damaged: list[CorruptRecord] | None = None,
    ) -> Operation[tuple[list[Message], int]]:
        """One pull that is not held; returns what came, and where the next one begins."""
        command = request(
            RequestCode.PULL_MESSAGE,
            consumerGroup=_TOOLS_GROUP,
            topic=topic,
            queueId=queue_id,
            queueOffset=at,
            maxMsgNums=min(limit, _PULL_MESSAGES),
            sysFlag=_PULL_WITH_SUBSCRIPTION,
            commitOffset=0,
            suspendTimeoutMillis=_PULL_TIMEOUT_MS,
            subscription=tags,
            subVersion=0,
            expressionType="TAG",
        )
        call = self._servers.call(part.broker.address, command, timeout_ms=_PULL_TIMEOUT_MS)
        answer = yield from succeeded(call, *_PULL_ANSWERS)
        following = Members(answer.fields).required_int64("nextBeginOffset")
        return decode_messages(answer.body, damaged) if answer.code == ResponseCode.SUCCESS else [], following

    def consume_directly(
        self, message_id: str, *, group: str, client_id: str
    ) -> Operation[ConsumeMessageDirectlyResult]:
        """Let a connected consumer consume one message again, now; nobody's progress changes.

        Args:
            message_id: its offset message id.
            group: the consumer's group.
            client_id: the consumer, as :meth:`cometmq.admin.groups.GroupOperations.members` names it.

        Returns:
            How the consumer took it.

        Raises:
            NotFound: the broker has no message there.
            BrokerError: the consumer is not connected to the broker, or did not answer within ten seconds (code 207).
        """
        message = yield from self.by_id(message_id)
        address, _ = yield from self._place_of(message_id)
        command = request(
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            consumerGroup=group,
            clientId=client_id,
            msgId=message_id,
            topic=message.topic,
        )
        answer = yield from succeeded(self._servers.call(address, command, timeout_ms=_CONSUMER_TIMEOUT_MS))
        return ConsumeMessageDirectlyResult.from_json(answer.body)

    # --- Sending ------------------------------------------------------------------------------------------------------

    def send_route(self, topic: str) -> Operation[Route]:
        """Return the queues that can be sent to; those of the template for a topic that a broker will make.

        Raises:
            BrokerError: there is no such topic, and no broker creates topics (code 17).
        """
        found = yield from self._servers.find_route(topic)
        if found is not None and found.parts:
            return found
        template = yield from self._servers.find_route(_TEMPLATE_TOPIC)
        parts = () if template is None else tuple(part for part in template.parts if part.perm & Perm.INHERIT)
        if not parts:
            return (yield from self._servers.route(topic))
        made = tuple(
            TopicQueues(
                broker=part.broker,
                read_queues=min(part.read_queues, _TEMPLATE_QUEUES),
                write_queues=min(part.write_queues, _TEMPLATE_QUEUES),
                perm=part.perm,
            )
            for part in parts
        )
        return Route(topic=topic, parts=made)

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        sharding_key: str | None = None,
        broker_name: str | None = None,
        queue_id: int | None = None,
        retries: int = 2,
        timeout_ms: int = 3_000,
    ) -> Operation[SendResult]:
        """Send one message; when this returns, a broker has stored it.

        Args:
            topic: the topic; created if the broker allows it.
            body: its bytes.
            tags: its tag.
            keys: its keys, several with blanks between.
            properties: further names and values.
            delay_level: 1 for the broker's first delay (1 second by default) and so on.
            sharding_key: messages with the same one go to the same queue.
            broker_name: only to this broker.
            queue_id: to this queue.
            retries: how often it is sent again, to another queue if it may go there; it is then perhaps stored twice.
            timeout_ms: longest wait for one answer.

        Raises:
            InvalidArgument, MessageTooLarge: it cannot be sent.
            BrokerError: refused; see ``retriable``.
            ConnectionLost, RequestTimeout: no answer came; it may be stored.
        """
        route = yield from self.send_route(topic)
        sending = SendState(
            topic,
            targets_of(route, broker_name=broker_name),
            # Nothing here waits between two attempts, so that a busy broker gets no more of them than others.
            limits=SendLimits(retries=retries, busy_retries=retries, timeout_ms=timeout_ms),
        )
        sending.add(
            [
                OutgoingMessage(
                    body,
                    tags=tags,
                    keys=keys,
                    properties=properties,
                    delay_level=delay_level,
                    sharding_key=sharding_key,
                    queue_id=queue_id,
                )
            ]
        )
        batches = sending.next_batches()
        while batches:
            (batch,) = batches
            ((_, answer),) = yield from ask_all([batch.call])
            again = sending.settle(batch, answer)
            batches = [again] if again is not None else []
        if sending.failure is not None:
            raise sending.failure
        assert sending.last_result is not None
        return sending.last_result


def _matches(expression: str, tags: str | None) -> bool:
    wanted = [tag.strip() for tag in expression.split("||")]
    return expression.strip() in ("", "*") or tags in wanted
