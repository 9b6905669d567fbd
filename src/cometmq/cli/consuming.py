"""The work of ``cometmq consume``: read queues without a group, or as a member of one, and print the messages.

Invariant for a member: a message counts as consumed only when it was printed and the stream was flushed. Messages that
were fetched ahead and not printed stay with the group.

Threads: a member prints in its one worker thread; the rest is the caller's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, BinaryIO

from cometmq.cli.credentials import hooks_of_environment
from cometmq.cli.pacing import Pace
from cometmq.errors import InvalidArgument

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage
    from cometmq.admin import Admin
    from cometmq.cli.formats import Encoder
    from cometmq.cli.logs import Warnings
    from cometmq.cli.terminal import Bar, Interruption
    from cometmq.client import MessageQueue, Outcome, PullConsumer, PushConsumer

__all__ = ["Printer", "Queues", "Start", "Wanted", "be_a_member", "look_at", "read_queues"]

_READER_GROUP = "TOOLS_CONSUMER"
"""Upstream's group for tools: it has no progress, and nobody is a member of it for long."""
_PULL_MESSAGES = 256
_POLL_MS = 100
_TOPIC_CHECK_S = 30.0
_PROGRESS_EVERY_S = 0.2
_SETTLE_S = 2.0
"""How long a member may take to get its queues and their first messages; only then it can be idle."""
_FINISH_MS = 200
"""Time to finish printing a message when the command is stopped; after that it is redelivered."""
_FINISH_ORDERLY_MS = 10_000
"""The same for an orderly member, whose other calls return at once: a queue that is not unlocked rests for a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where reading begins: the first message, the end, a time or an offset.

    Attributes:
        is_last: behind the newest message.
        timestamp_ms: at the first that was stored then or later; milliseconds since 1970.
        offset: at this offset of each queue.
    """

    is_last: bool = False
    timestamp_ms: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The messages to read, and for how long.

    Attributes:
        topics: the topics.
        expression, expression_type: which messages.
        queue_ids: only these queues; all if empty.
        start: where to begin; for a group that has no progress.
        follow: wait for more at the end.
        idle_s: stop when nothing came for so long; None for never.
        namespace: stands before topics and groups on the wire, or None.
    """

    topics: tuple[str, ...]
    expression: str
    expression_type: str
    queue_ids: tuple[int, ...]
    start: Start
    follow: bool
    idle_s: float | None
    namespace: str | None


class Printer:
    """Writes messages, as fast and as many as asked for, and counts."""

    def __init__(
        self,
        stream: BinaryIO,
        encode: Encoder,
        *,
        keys: Collection[str],
        count: int | None,
        rate: float | None,
        sleep: Callable[[float], object],
    ) -> None:
        """Nothing is written yet.

        Args:
            stream: where to.
            encode: makes bytes of messages.
            keys: only messages with one of these are printed; all if empty.
            count: most messages; None for no limit.
            rate: most messages a second; None for no limit.
            sleep: waits for that.
        """
        self._stream = stream
        self._encode = encode
        self._keys = frozenset(keys)
        self._count = count
        self._pace = Pace(rate, sleep=sleep)
        self.messages = 0
        self.body_bytes = 0

    @property
    def is_full(self) -> bool:
        """True when no more was asked for."""
        return self._count is not None and self.messages >= self._count

    def wants(self, message: ReceivedMessage) -> bool:
        """Whether a message is to be printed; waits until it may."""
        if self._keys and self._keys.isdisjoint(message.keys):
            return False
        self._pace.wait()
        return True

    def write(self, message: ReceivedMessage) -> None:
        """Write a message; :meth:`flush` hands it on."""
        self._stream.write(self._encode(message))
        self.messages += 1
        self.body_bytes += message.body_size

    def flush(self) -> None:
        """Hand on what was written."""
        self._stream.flush()


# --- Queues as they are -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Queues:
    """Where the queues of topics begin and end, and where reading begins in them."""

    ends: Mapping[MessageQueue, int]
    begins: Mapping[MessageQueue, int]
    starts: Mapping[MessageQueue, int]


def look_at(admin: Admin, wanted: Wanted) -> Queues:
    """Return the queues of the topics.

    Raises:
        BrokerError: there is no such topic.
        InvalidArgument: a topic has no such queue.
    """
    from cometmq.client import MessageQueue
    from cometmq.client.instance.namespaces import with_namespace

    ends: dict[MessageQueue, int] = {}
    begins: dict[MessageQueue, int] = {}
    starts: dict[MessageQueue, int] = {}
    for topic in wanted.topics:
        wire = with_namespace(wanted.namespace, topic)
        found = admin.topics.queues(wire)
        missing = sorted({*wanted.queue_ids} - {one.queue_id for one in found})
        if missing:
            raise InvalidArgument(
                f"topic {topic} has no queue {', '.join(map(str, missing))}; it has {len(found)} queues"
            )
        by_time: dict[tuple[str, int], int] = {}
        if wanted.start.timestamp_ms is not None:
            for place in admin.offsets.at_time(wire, wanted.start.timestamp_ms):
                by_time[place.broker_name, place.queue_id] = place.offset
        for one in found:
            if wanted.queue_ids and one.queue_id not in wanted.queue_ids:
                continue
            queue = MessageQueue(topic=topic, broker_name=one.broker_name, queue_id=one.queue_id)
            ends[queue], begins[queue] = one.max_offset, one.min_offset
            start = one.max_offset if wanted.start.is_last else one.min_offset
            if wanted.start.offset is not None:
                start = wanted.start.offset
            start = by_time.get((one.broker_name, one.queue_id), start)
            starts[queue] = min(max(start, one.min_offset), one.max_offset)
    return Queues(ends, begins, starts)


# --- Without a group --------------------------------------------------------------------------------------------------


class _NoProgress:
    """A store of offsets that keeps nothing: reading without a group commits no progress."""

    def load(self, queue: MessageQueue) -> None:
        return None

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        return None


def read_queues(
    queues: Queues,
    wanted: Wanted,
    printer: Printer,
    interruption: Interruption,
    bar: Bar,
    *,
    name_servers: str,
    warnings: Warnings,
) -> None:
    """Print what is in queues, from their starts on; nobody's progress changes.

    Raises:
        Error: the expression cannot be used.
        OSError: the output took nothing more.
    """
    from cometmq.client import PullConsumer

    with PullConsumer(
        _READER_GROUP,
        name_servers=name_servers,
        offset_store=_NoProgress(),
        auto_commit=False,
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        pull_batch_size=_PULL_MESSAGES,
        namespace=wanted.namespace,
        rpc_hooks=hooks_of_environment(),
    ) as consumer:
        try:
            _Reading(consumer, queues, wanted, printer).run(interruption, bar, warnings)
        finally:
            consumer.close(commit=False)


class _Reading:
    """One run over queues that are assigned by hand."""

    def __init__(self, consumer: PullConsumer, queues: Queues, wanted: Wanted, printer: Printer) -> None:
        self._consumer = consumer
        self._queues = queues
        self._wanted = wanted
        self._printer = printer
        # Of a reading that ends: the queues that are not at their end.
        self._left = {} if wanted.follow else {q: end for q, end in queues.ends.items() if queues.starts[q] < end}
        self._looked_s = 0.0

    def run(self, interruption: Interruption, bar: Bar, warnings: Warnings) -> None:
        """Print until there is nothing more to be printed."""
        self._begin()
        last_s = time.monotonic()
        while (self._wanted.follow or self._left) and not self._printer.is_full:
            with interruption.waiting():
                messages = self._consumer.poll(_POLL_MS)
            if messages:
                self._take(messages, interruption)
                bar(self._printer.messages)
                last_s = time.monotonic()
                continue
            warnings.raise_refusal()
            if self._wanted.idle_s is not None and time.monotonic() - last_s >= self._wanted.idle_s:
                return
            self._look_past_what_is_not_wanted()
            self._take_queues_that_came()

    def _begin(self) -> None:
        consumer, wanted = self._consumer, self._wanted
        if wanted.expression_type != "TAG":
            for queue in list(self._queues.starts)[:1]:  # where the broker does not take it, it says so here
                consumer.pull(
                    queue,
                    self._queues.starts[queue],
                    expression=wanted.expression,
                    expression_type=wanted.expression_type,
                    max_messages=1,
                )
        consumer.assign(self._queues.starts, wanted.expression, expression_type=wanted.expression_type)
        for queue, start in self._queues.starts.items():
            consumer.seek(queue, start)
        self._looked_s = time.monotonic()

    def _take(self, messages: Sequence[ReceivedMessage], interruption: Interruption) -> None:
        for message in messages:
            queue = _queue_of(message)
            end = None if self._wanted.follow else self._left.get(queue, 0)
            if end is None or message.queue_offset < end:
                if self._printer.wants(message):
                    self._printer.write(message)
                if self._printer.is_full or interruption.is_set():
                    break
            if end is not None and message.queue_offset + 1 >= end:
                self._left.pop(queue, None)
        self._printer.flush()

    def _look_past_what_is_not_wanted(self) -> None:
        """See queues end whose last messages nobody wants: their place moves on all the same."""
        for queue, end in list(self._left.items()):
            if (self._consumer.position(queue) or 0) >= end:
                del self._left[queue]

    def _take_queues_that_came(self) -> None:
        """See every half minute whether a topic has queues that it had not; they are read from their beginning."""
        wanted, consumer = self._wanted, self._consumer
        if not wanted.follow or wanted.queue_ids or time.monotonic() - self._looked_s < _TOPIC_CHECK_S:
            return
        found = {queue for topic in wanted.topics for queue in consumer.queues(topic)}
        if not found <= {*consumer.assignment()}:
            consumer.assign(found, wanted.expression, expression_type=wanted.expression_type)
        self._looked_s = time.monotonic()


def _queue_of(message: ReceivedMessage) -> MessageQueue:
    from cometmq.client import MessageQueue

    return MessageQueue(topic=message.topic, broker_name=message.broker_name, queue_id=message.queue_id)


# --- As a member of a group -------------------------------------------------------------------------------------------


class _Member:
    """The listener of a member that prints."""

    def __init__(self, printer: Printer, ended: threading.Event, *, orderly: bool) -> None:
        self._printer = printer
        self._orderly = orderly
        self._closed = threading.Event()
        self.ended = ended
        self.failure: BaseException | None = None
        self.last_s = time.monotonic() + _SETTLE_S

    def take(self, message: ReceivedMessage) -> Outcome | None:
        """Print a message; when the command is to end, keep it from being counted as consumed."""
        if self.ended.is_set():
            return self._refuse()
        self.last_s = time.monotonic()
        try:
            if self._printer.wants(message):
                if self.ended.is_set():
                    return self._refuse()
                self._printer.write(message)
                self._printer.flush()
        except Exception as error:  # noqa: BLE001 - any failure ends the command, which raises it
            self.failure = error
            self.ended.set()
            return self._refuse()
        if self._printer.is_full:
            self.ended.set()
        self.last_s = time.monotonic()
        return None

    def _refuse(self) -> Outcome:
        from cometmq.client import Outcome

        if self._orderly:
            return Outcome.SUSPEND
        # A failure would be retried. A message without a result when the consumer is closed stays uncommitted.
        self._closed.wait()
        return Outcome.RETRY

    def close(self, consumer: PushConsumer) -> None:
        """Leave the group; printed messages are committed."""
        self.ended.set()
        consumer.close(timeout_ms=_FINISH_ORDERLY_MS if self._orderly else _FINISH_MS)
        self._closed.set()


def be_a_member(
    group: str,
    queues: Queues,
    wanted: Wanted,
    printer: Printer,
    ended: threading.Event,
    interruption: Interruption,
    bar: Bar,
    *,
    orderly: bool,
    admin: Admin,
    name_servers: str,
    warnings: Warnings,
) -> None:
    """Print what a group's member gets, and commit what was printed.

    Args:
        group: the group.
        queues: as they were at the start.
        wanted: selects their messages.
        printer: prints.
        ended: set when no more shall be printed.
        interruption: Ctrl-C.
        bar: shows how many were printed.
        orderly: queues are locked, so that nobody else prints of them meanwhile.
        admin: reads the group's progress.
        name_servers: where the client finds its brokers.
        warnings: prints what the client warns of.

    Raises:
        Error: the group, or the expression, cannot be used.
        OSError: the output took nothing more.
    """
    from cometmq.client import PushConsumer

    member = _Member(printer, ended, orderly=orderly)
    moment = wanted.start.timestamp_ms
    where = "LAST_OFFSET" if wanted.start.is_last else "FIRST_OFFSET" if moment is None else "TIMESTAMP"
    consumer = PushConsumer(
        group,
        name_servers=name_servers,
        listener=member.take,
        orderly=orderly,
        consume_thread_max=1,
        consume_from_where=f"CONSUME_FROM_{where}",
        consume_timestamp=None if moment is None else datetime.fromtimestamp(moment / 1000),
        namespace=wanted.namespace,
        rpc_hooks=hooks_of_environment(),
    )
    for topic in wanted.topics:
        consumer.subscribe(topic, wanted.expression, expression_type=wanted.expression_type)
    ends = {queue: end for queue, end in queues.ends.items() if queues.begins[queue] < end}
    with consumer:
        try:
            while not member.ended.is_set():
                with interruption.waiting():
                    member.ended.wait(_PROGRESS_EVERY_S)
                warnings.raise_refusal()
                bar(printer.messages)
                is_idle = wanted.idle_s is not None and time.monotonic() - member.last_s >= wanted.idle_s
                if is_idle or (not wanted.follow and _has_reached(admin, consumer, wanted.namespace, ends)):
                    break
        finally:
            warnings.setLevel(logging.ERROR)  # that a listener waits in vain is how a member ends that has enough
            member.close(consumer)
    if member.failure is not None:
        raise member.failure


def _has_reached(admin: Admin, consumer: PushConsumer, namespace: str | None, ends: Mapping[MessageQueue, int]) -> bool:
    """Whether the group has come to these ends: this member by what it knows, others by what they committed."""
    from cometmq.client.instance.namespaces import with_namespace

    left = dict(ends)
    for topic in {queue.topic for queue in ends}:
        for queue, offset in consumer.progress(topic).items():
            if offset >= left.get(queue, offset + 1):
                del left[queue]
    if not left:
        return True
    name = with_namespace(namespace, consumer.settings.group)
    for topic in {queue.topic for queue in left}:
        progress = admin.offsets.progress(name, topic=with_namespace(namespace, topic))
        at = {(one.broker_name, one.queue_id): one.consumer_offset for one in progress.queues}
        of_topic = [(queue, end) for queue, end in left.items() if queue.topic == topic]
        if any(at.get((queue.broker_name, queue.queue_id), -1) < end for queue, end in of_topic):
            return False
    return True
