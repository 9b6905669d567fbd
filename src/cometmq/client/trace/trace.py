"""Upstream's message trace: records of sends and consumption, sent to a topic of its own, and read back.

A trace message holds records, each ended by byte 2, with fields divided by byte 1. :func:`decode_trace` reads those of
all client versions and passes over what it does not know. Telling never costs a message: what finds no room is dropped
and counted, and what cannot be sent is logged.

Threads: records come from any; they are sent on the loop. Source: consumption specification 1.17.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from cometmq.client.instance.hooks import ConsumeContext, Interceptor, SendContext
from cometmq.client.instance.unique_ids import UniqueIds
from cometmq.client.send.outgoing import OutgoingMessage, SendStatus
from cometmq.client.send.sending import DEFAULT_REGION
from cometmq.errors import Error

if TYPE_CHECKING:
    from cometmq.client.send.sending import SendFuture

__all__ = [
    "PubTrace",
    "SubAfterTrace",
    "SubBeforeTrace",
    "TraceDispatcher",
    "TraceRecord",
    "TraceSender",
    "consume_tracer",
    "decode_trace",
    "encode_trace",
    "send_tracer",
    "trace_messages",
]

_FIELD = "\x01"
_END = "\x02"
_CHARS_MAX = 128_000
_QUEUE_MAX = 2_048
_BATCH_MAX = 20
_FLUSH_S = 5.0
_DELAYS = frozenset({"DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"})
_NORMAL, _HALF, _DELAYED = 0, 1, 3

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PubTrace:
    """A message was sent.

    Attributes:
        timestamp_ms: when the send began, milliseconds since 1970.
        region_id: the broker's region.
        group, topic, message_id, tags, keys: the producer group and the message; the id is its unique one.
        store_host: the broker, ``host:port``.
        body_bytes: length of the body.
        cost_ms: how long it took.
        message_type: 0 normal, 1 half of a transaction, 2 committed, 3 held back, 4 ordered.
        offset_message_id: the broker's id, or None in the form of old clients.
        is_success: True where it was stored as safely as asked.
        client_host: the client's address, where the client says it.
    """

    timestamp_ms: int
    region_id: str
    group: str
    topic: str
    message_id: str
    tags: str
    keys: str
    store_host: str
    body_bytes: int
    cost_ms: int
    message_type: int
    offset_message_id: str | None
    is_success: bool
    client_host: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubBeforeTrace:
    """A message is given to a listener.

    Attributes:
        timestamp_ms: when, milliseconds since 1970.
        region_id: the broker's region.
        group: the consumer group.
        request_id: pairs this with the record of the end.
        message_id, keys: the message.
        retry_times: how often it was tried before.
    """

    timestamp_ms: int
    region_id: str
    group: str
    request_id: str
    message_id: str
    retry_times: int
    keys: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubAfterTrace:
    """A listener is done with a message.

    Attributes:
        request_id: that of the beginning.
        message_id, keys: the message.
        cost_ms: how long it took, shared among the messages of the call.
        is_success: True where it was consumed.
        context_code: how the call ended: 0 well, 1 over the time, 2 by an exception, 3 without an answer, 4 failed.
        timestamp_ms, group: when and who; None in the form of old clients.
    """

    request_id: str
    message_id: str
    cost_ms: int
    is_success: bool
    keys: str
    context_code: int
    timestamp_ms: int | None = None
    group: str | None = None


TraceRecord: TypeAlias = PubTrace | SubBeforeTrace | SubAfterTrace


# --- The form ---------------------------------------------------------------------------------------------------------


def encode_trace(record: TraceRecord) -> str:
    """Return a record as it stands in a trace message, with its end."""
    values: Sequence[object]
    if isinstance(record, PubTrace):
        values = (
            "Pub",
            record.timestamp_ms,
            record.region_id,
            record.group,
            record.topic,
            record.message_id,
            record.tags,
            record.keys,
            record.store_host,
            record.body_bytes,
            record.cost_ms,
            record.message_type,
            record.offset_message_id or "",
            _truth(record.is_success),
        )
    elif isinstance(record, SubBeforeTrace):
        values = (
            "SubBefore",
            record.timestamp_ms,
            record.region_id,
            record.group,
            record.request_id,
            record.message_id,
            record.retry_times,
            record.keys,
        )
    else:
        values = (
            "SubAfter",
            record.request_id,
            record.message_id,
            record.cost_ms,
            _truth(record.is_success),
            record.keys,
            record.context_code,
            record.timestamp_ms or 0,
            record.group or "",
        )
    return _FIELD.join(map(str, values)) + _END


def decode_trace(text: str) -> list[TraceRecord]:
    """Return the records of a trace message that we know; others, and broken ones, are passed over."""
    found: list[TraceRecord] = []
    for part in text.split(_END):
        fields = part.split(_FIELD)
        read = _READERS.get(fields[0])
        if read is None:
            continue
        try:
            found.append(read(fields))
        except (IndexError, ValueError):
            _log.debug("a trace record that is none was passed over: %.80r", part)
    return found


def _read_pub(fields: list[str]) -> PubTrace:
    # 13 fields: no id of the broker's; from 15 on the last is the client's host.
    has_offset_id = len(fields) >= 14
    return PubTrace(
        timestamp_ms=int(fields[1]),
        region_id=fields[2],
        group=fields[3],
        topic=fields[4],
        message_id=fields[5],
        tags=fields[6],
        keys=fields[7],
        store_host=fields[8],
        body_bytes=int(fields[9]),
        cost_ms=int(fields[10]),
        message_type=int(fields[11]),
        offset_message_id=fields[12] if has_offset_id else None,
        is_success=fields[13 if has_offset_id else 12] == "true",
        client_host=fields[-1] if len(fields) >= 15 else None,
    )


def _read_sub_before(fields: list[str]) -> SubBeforeTrace:
    return SubBeforeTrace(
        timestamp_ms=int(fields[1]),
        region_id=fields[2],
        group=fields[3],
        request_id=fields[4],
        message_id=fields[5],
        retry_times=int(fields[6]),
        keys=fields[7],
    )


def _read_sub_after(fields: list[str]) -> SubAfterTrace:
    return SubAfterTrace(
        request_id=fields[1],
        message_id=fields[2],
        cost_ms=int(fields[3]),
        is_success=fields[4] == "true",
        keys=fields[5],
        context_code=int(fields[6]) if len(fields) >= 7 else 0,
        timestamp_ms=int(fields[7]) if len(fields) >= 9 else None,
        group=fields[8] if len(fields) >= 9 else None,
    )


_READERS: dict[str, Callable[[list[str]], TraceRecord]] = {
    "Pub": _read_pub,
    "SubBefore": _read_sub_before,
    "SubAfter": _read_sub_after,
}


def _truth(value: bool) -> str:
    return "true" if value else "false"


def trace_messages(records: Iterable[tuple[str, TraceRecord]], *, trace_topic: str) -> list[OutgoingMessage]:
    """Return the messages for records: one for each topic and 128,000 characters.

    Args:
        records: each with the topic of its message.
        trace_topic: where they go.
    """
    by_topic: dict[str, list[TraceRecord]] = {}
    for topic, record in records:
        by_topic.setdefault(topic, []).append(record)
    messages: list[OutgoingMessage] = []
    for together in by_topic.values():
        text, keys = "", dict[str, None]()
        for record in together:
            more = encode_trace(record)
            if text and len(text) + len(more) > _CHARS_MAX:
                messages.append(OutgoingMessage(text.encode(), keys=" ".join(keys), topic=trace_topic))
                text, keys = "", {}
            text += more
            keys.update(dict.fromkeys((record.message_id, *record.keys.split())))
        messages.append(OutgoingMessage(text.encode(), keys=" ".join(keys), topic=trace_topic))
    return messages


# --- The dispatcher ---------------------------------------------------------------------------------------------------


class TraceSender(Protocol):
    """The sender of trace messages: a producer's engine that is not itself traced."""

    def send(self, message: OutgoingMessage) -> SendFuture:
        """Send one message."""
        ...


class TraceDispatcher:
    """Gathers records and sends them: as many as make a batch, or those of five seconds.

    Attributes:
        dropped: records that found no room.
    """

    def __init__(
        self, sender: TraceSender, loop: asyncio.AbstractEventLoop, *, trace_topic: str, batch: int = 10
    ) -> None:
        """Nothing is gathered yet.

        Args:
            sender: sends the messages.
            loop: where they are sent.
            trace_topic: where to.
            batch: records of a message; 20 at most.
        """
        self._sender = sender
        self._loop = loop
        self._trace_topic = trace_topic
        self._batch = min(batch, _BATCH_MAX)
        self._waiting: deque[tuple[str, TraceRecord]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.dropped = 0

    def add(self, topic: str, record: TraceRecord) -> None:
        """Take a record of a message of ``topic``. Any thread."""
        if len(self._waiting) >= _QUEUE_MAX:
            self.dropped += 1
            return
        self._waiting.append((topic, record))
        waiting = len(self._waiting)
        if waiting == 1 or waiting == self._batch:
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        while len(self._waiting) >= self._batch:
            self._send(self._batch)
        if self._waiting and self._timer is None:
            self._timer = self._loop.call_later(_FLUSH_S, self._due)

    def _due(self) -> None:
        self._timer = None
        self.flush()

    def flush(self) -> None:
        """Send what waits; on the loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            self._send(self._batch)

    def _send(self, most: int) -> None:
        taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        for message in trace_messages(taken, trace_topic=self._trace_topic):
            self._send_one(message)

    def _send_one(self, message: OutgoingMessage) -> None:
        try:
            self._sender.send(message).add_done_callback(_note)
        except Error as error:
            _log.warning("a trace message was not sent: %s", error)

    def __repr__(self) -> str:
        """Return how many records wait and how many were dropped."""
        return f"TraceDispatcher({self._trace_topic}, {len(self._waiting)} wait, {self.dropped} dropped)"


def _note(future: SendFuture) -> None:
    error = future.exception()
    if error is not None:
        _log.warning("a trace message was not sent: %s", error)


# --- Sources of records -----------------------------------------------------------------------------------------------


def send_tracer(dispatcher: TraceDispatcher) -> Interceptor:
    """Return the interceptor that traces what a producer sends."""

    def after(context: SendContext) -> None:
        result = context.result
        if result is None or not result.trace_on:
            return
        cost_ms = int(context.elapsed_ms / len(context.messages))
        for index, (message, unique_id) in enumerate(zip(context.messages, context.unique_ids, strict=True)):
            part = result if len(context.messages) == 1 else result.part(index, unique_id)
            record = PubTrace(
                timestamp_ms=context.began_ms,
                region_id=result.region_id,
                group=context.group,
                topic=context.topic,
                message_id=unique_id,
                tags=message.tags or "",
                keys=message.keys or "",
                store_host=context.address or "",
                body_bytes=len(message.body),
                cost_ms=cost_ms,
                message_type=_type_of(message),
                offset_message_id=part.offset_message_id,
                is_success=result.status is SendStatus.SEND_OK,
            )
            dispatcher.add(context.topic, record)

    return Interceptor(after_send=after)


def _type_of(message: OutgoingMessage) -> int:
    properties = message.properties or {}
    if properties.get("TRAN_MSG") == "true":
        return _HALF
    is_held = message.delay_level or message.delay_ms is not None or message.deliver_at_ms is not None
    return _DELAYED if is_held or not _DELAYS.isdisjoint(properties) else _NORMAL


def consume_tracer(dispatcher: TraceDispatcher, *, now_ms: Callable[[], int]) -> Interceptor:
    """Return the interceptor that traces what a consumer's listener gets; ``now_ms`` is the wall clock."""
    ids = UniqueIds()

    def before(context: ConsumeContext) -> None:
        context.data["trace"] = request_id = ids.next(context.began_ms)
        for message in context.messages:
            properties = message.properties
            if properties.get("TRACE_ON") == "false":
                continue
            record = SubBeforeTrace(
                timestamp_ms=context.began_ms,
                region_id=properties.get("MSG_REGION", DEFAULT_REGION),  # brokers of 4.9 store none
                group=context.group,
                request_id=request_id,
                message_id=properties.get("UNIQ_KEY") or message.message_id,
                retry_times=message.reconsume_times,
                keys=properties.get("KEYS", ""),
            )
            dispatcher.add(context.queue.topic, record)

    def after(context: ConsumeContext) -> None:
        cost_ms = int(context.elapsed_ms / max(len(context.messages), 1))
        for message in context.messages:
            properties = message.properties
            if properties.get("TRACE_ON") == "false":
                continue
            record = SubAfterTrace(
                request_id=context.data["trace"],
                message_id=properties.get("UNIQ_KEY") or message.message_id,
                cost_ms=cost_ms,
                is_success=context.is_success,
                keys=properties.get("KEYS", ""),
                context_code=int(context.return_type),
                timestamp_ms=now_ms(),
                group=context.group,
            )
            dispatcher.add(context.queue.topic, record)

    return Interceptor(before_consume=before, after_consume=after)
