"""Upstream's message trace: records of sends and consumption, sent to a topic of its own.

Tracing never costs a message: a record that finds no room is dropped and counted, and one that cannot be sent is
logged.

Threads: records come from any; they are sent on the loop. Source: consumption specification 1.17.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from cometmq.client.instance.hooks import ConsumeContext, Interceptor, SendContext
from cometmq.client.instance.unique_ids import UniqueIds
from cometmq.client.send.outgoing import DELAYS, OutgoingMessage, SendStatus
from cometmq.client.send.sending import DEFAULT_REGION
from cometmq.client.trace.trace_records import (
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceRecord,
    encode_trace,
)
from cometmq.errors import Error

if TYPE_CHECKING:
    from cometmq.client.send.sending import SendFuture

__all__ = [
    "TraceDispatcher",
    "TraceSender",
    "consume_tracer",
    "send_tracer",
    "trace_messages",
]

_CHARS_MAX = 128_000
_QUEUE_MAX = 2_048
_BATCH_MAX = 20
_FLUSH_S = 5.0
_NORMAL, _HALF, _DELAYED = 0, 1, 3

_log = logging.getLogger(__name__)


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
            keys.update(dict.fromkeys((record.message_id, *_keys_of(record))))
        messages.append(OutgoingMessage(text.encode(), keys=" ".join(keys), topic=trace_topic))
    return messages


def _keys_of(record: TraceRecord) -> list[str]:
    return [] if isinstance(record, RecallTrace) else record.keys.split()


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
    return _DELAYED if is_held or not DELAYS.isdisjoint(properties) else _NORMAL


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
