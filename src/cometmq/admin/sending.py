"""The sender without sockets: which messages go into which request, and the result of each.

Messages wait in lanes. A lane is a queue, for messages that say where they go (a queue, or a sharding key that picks
one), or the one lane of all others. A lane has one request under way at a time, so that its messages stay in order; the
common lane has as many as there are queues, and takes the queues in turn, from one that chance picks.
A request takes the messages that wait when it can go, up to a batch: a slow input goes out at once, a quick one in
large batches, and no clock decides.

A request that failed is sent again as the Java producer does: up to twice more, from the common lane to another broker
or queue, from the others to the same one. Where no answer came, nobody knows whether the messages are stored; they are
sent again and counted as perhaps stored twice. A message that cannot be sent at all ends the sender: none is skipped.

Threads: one at a time. Source: remoting specification 1.10, 2.2, 4.2.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cometmq._engine import java_hash
from cometmq.admin.advice import advice_for
from cometmq.admin.encoding import batch_request, single_request
from cometmq.admin.operation import Answer, Call
from cometmq.admin.results import BrokerRef, QueueRange, SendReport, SendResult
from cometmq.admin.servers import Route
from cometmq.client.instance.unique_ids import UniqueIds
from cometmq.client.send.outgoing import (
    BODY_BYTES_MAX,
    STATUS_OF,
    Encoded,
    OutgoingMessage,
    SendStatus,
    can_be_batched,
    encode_message,
)
from cometmq.errors import BrokerError, Error, InvalidArgument, MalformedCommand, MessageTooLarge
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.members import Members
from cometmq.store_config.topic_config import Perm

__all__ = ["OutboundBatch", "SendLimits", "SendState", "Target", "targets_of"]

_AGAIN = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
"""Codes on which the Java producer tries again."""

_PAUSE_MS = 50
_PAUSE_MS_MAX = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SendLimits:
    """How a sender works.

    Attributes:
        batch_messages: most messages of one request; 1 sends each alone.
        batch_bytes: most bytes of one request; a longer message goes alone.
        in_flight: most requests under way at a time.
        waiting_bytes: bytes that may wait to be sent; callers that bring more wait.
        retries: how often a request is sent again, as the Java producer's ``retryTimesWhenSendFailed``.
        busy_retries: how often one is sent again that a broker was too busy for, each time after a longer pause.
        timeout_ms: longest wait for one answer.
    """

    batch_messages: int = 1_000
    batch_bytes: int = 1 << 20
    in_flight: int = 8
    waiting_bytes: int = 16 << 20
    retries: int = 2
    busy_retries: int = 10
    timeout_ms: int = 10_000

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name, least, most in (
            ("batch_messages", 1, 4_096),
            ("batch_bytes", 1, BODY_BYTES_MAX),
            ("in_flight", 1, 1_024),
            ("waiting_bytes", 1, 1 << 30),
            ("retries", 0, 100),
            ("busy_retries", 0, 1_000),
            ("timeout_ms", 1, 3_600_000),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise InvalidArgument(f"{name} is {value}, expected {least} to {most:,}")


@dataclass(frozen=True, slots=True)
class Target:
    """A queue that can be sent to."""

    broker: BrokerRef
    queue_id: int


def targets_of(route: Route, *, broker_name: str | None = None) -> tuple[Target, ...]:
    """Return the queues of a topic that take messages, brokers in turn.

    Raises:
        InvalidArgument: no queue takes messages.
    """
    parts = route.parts if broker_name is None else (route.part_of(broker_name),)
    writable = [part for part in parts if part.perm & Perm.WRITE]
    found = [
        Target(part.broker, queue_id)
        for queue_id in range(max((part.write_queues for part in writable), default=0))
        for part in writable
        if queue_id < part.write_queues
    ]
    if not found:
        raise InvalidArgument(
            f"topic {route.topic} has no writable queue: it has no write permission, or no write queues"
        )
    return tuple(found)


@dataclass(slots=True)
class _Lane:
    """Messages that wait; ``target`` is None for those that may go anywhere."""

    target: Target | None
    waiting: deque[Encoded] = field(default_factory=deque)
    under_way: int = 0


@dataclass(slots=True, eq=False)
class OutboundBatch:
    """One request, however often it is sent. The driver makes its call, and gives what came to :meth:`Sending.settle`.

    Attributes:
        call: the request to send now.
        pause_ms: how long the driver waits before it sends it.
    """

    lane: _Lane
    target: Target
    messages: list[Encoded]
    unique_id: str | None
    call: Call
    pause_ms: int = 0
    failures: int = 0
    refusals: int = 0
    is_uncertain: bool = False


@dataclass(slots=True)
class _Range:
    first: int
    last: int
    messages: int


class SendState:
    """The state of one sender."""

    def __init__(
        self,
        topic: str,
        targets: tuple[Target, ...],
        *,
        limits: SendLimits | None = None,
        group: str = "cometmq_admin",
        first_target: int | None = None,
        own_ids: bool = False,
        now_ms: Callable[[], int] | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is sent yet.

        Args:
            topic: the topic.
            targets: its queues, from :func:`targets_of`.
            limits: how it works.
            group: the producer group that it says it is of.
            first_target: which of the targets the common lane begins with; None lets chance pick one, as the Java
                producer does, so that many short runs do not fill one queue.
            own_ids: each message brings its unique id, as the property ``UNIQ_KEY``.
            now_ms: the wall clock, milliseconds since 1970.
            monotonic_s: a clock for durations.
        """
        self.topic = topic
        self.limits = limits if limits is not None else SendLimits()
        self._targets = targets
        self._group = group
        self._now_ms = now_ms if now_ms is not None else lambda: int(time.time() * 1000)
        self._monotonic_s = monotonic_s
        self._began_s = monotonic_s()
        self._batch_messages = self.limits.batch_messages if can_be_batched(topic) else 1
        self._ids = None if own_ids else UniqueIds()
        self._common = _Lane(None)
        self._lanes = tuple(_Lane(target) for target in targets)
        self._lane_of_queue: dict[int, list[_Lane]] = {}
        for lane, target in zip(self._lanes, targets, strict=True):
            self._lane_of_queue.setdefault(target.queue_id, []).append(lane)
        self._next_target = random.randrange(len(targets)) if first_target is None else first_target % len(targets)
        self._waiting_bytes = 0
        self._under_way = 0
        self._ranges: dict[Target, _Range] = {}
        self._messages = self._body_bytes = self._requests = self._retried = self._maybe_twice = self._not_durable = 0
        self._delayed = 0
        self.failure: Error | None = None
        self.last_result: SendResult | None = None

    # --- Taking messages ----------------------------------------------------------------------------------------------

    def add(self, messages: Iterable[OutgoingMessage]) -> None:
        """Take messages, in their order.

        Raises:
            InvalidArgument, MessageTooLarge: one that cannot be sent; those before it were taken.
        """
        for message in messages:
            if message.topic not in (None, self.topic) or not message.wait_stored:
                raise InvalidArgument(f"this sender sends to topic {self.topic} and waits for stored messages")
            encoded = encode_message(message)
            if len(encoded.body) > BODY_BYTES_MAX:
                raise MessageTooLarge(
                    f"the body has {len(encoded.body):,} bytes; a broker takes at most {BODY_BYTES_MAX:,} by default"
                )
            self._lane_of(message).waiting.append(encoded)
            self._waiting_bytes += encoded.batch_bytes

    def _lane_of(self, message: OutgoingMessage) -> _Lane:
        if message.queue_id is not None:
            lanes = self._lane_of_queue.get(message.queue_id, ())
            if len(lanes) != 1:
                why = (
                    "is at several brokers: name one (--broker-name)"
                    if lanes
                    else "does not take messages, or is not there"
                )
                raise InvalidArgument(f"queue {message.queue_id} of topic {self.topic} {why}")
            return lanes[0]
        if message.sharding_key is not None:
            # As upstream's SelectMessageQueueByHash.
            return self._lanes[abs(java_hash(message.sharding_key)) % len(self._lanes)]
        return self._common

    @property
    def has_room(self) -> bool:
        """False while more wait than the limits say."""
        return self._waiting_bytes < self.limits.waiting_bytes

    @property
    def is_idle(self) -> bool:
        """True when nothing waits and nothing is under way; after a failure, when nothing is under way."""
        return self._under_way == 0 and (self.failure is not None or self._waiting_bytes == 0)

    # --- Sending ------------------------------------------------------------------------------------------------------

    def next_batches(self) -> list[OutboundBatch]:
        """Return what can be sent now. Each must come back to :meth:`settle`."""
        batches: list[OutboundBatch] = []
        if self.failure is not None:
            return batches
        for lane in (*self._lanes, self._common):
            width = 1 if lane.target is not None else len(self._targets)
            while lane.waiting and lane.under_way < width and self._under_way < self.limits.in_flight:
                batches.append(self._next_batch(lane))
        return batches

    def _next_batch(self, lane: _Lane) -> OutboundBatch:
        messages = [lane.waiting.popleft()]
        size = messages[0].batch_bytes
        while lane.waiting and len(messages) < self._batch_messages and not messages[0].is_delayed:
            more = lane.waiting[0].batch_bytes
            if size + more > self.limits.batch_bytes or lane.waiting[0].is_delayed:
                break
            messages.append(lane.waiting.popleft())
            size += more
        target = lane.target
        if target is None:
            target = self._targets[self._next_target]
            self._next_target = (self._next_target + 1) % len(self._targets)
        self._waiting_bytes -= size
        lane.under_way += 1
        self._under_way += 1
        unique_id = None if self._ids is None else self._ids.next(self._now_ms())
        return OutboundBatch(lane, target, messages, unique_id, self._call(target, messages, unique_id))

    def _call(self, target: Target, messages: list[Encoded], unique_id: str | None) -> Call:
        self._requests += 1
        now_ms = self._now_ms()
        if len(messages) == 1:
            command = single_request(
                messages[0],
                topic=self.topic,
                queue_id=target.queue_id,
                group=self._group,
                unique_id=unique_id,
                now_ms=now_ms,
            )
        else:
            command = batch_request(
                messages,
                topic=self.topic,
                queue_id=target.queue_id,
                group=self._group,
                unique_id=unique_id,
                now_ms=now_ms,
            )
        return Call(target.broker.address, command, self.limits.timeout_ms)

    # --- Answers ------------------------------------------------------------------------------------------------------

    def settle(self, batch: OutboundBatch, answer: Answer) -> OutboundBatch | None:
        """Take what became of a batch; return it when it is to be sent again, after its pause."""
        try:
            if isinstance(answer, Error) or answer.code not in STATUS_OF:
                return self._again(batch, answer)
            self._take(batch, STATUS_OF[answer.code], Members(answer.fields))
        except Error as error:
            self.failure = self.failure or error
        batch.lane.under_way -= 1
        self._under_way -= 1
        return None

    def _again(self, batch: OutboundBatch, answer: Answer) -> OutboundBatch:
        """Make a batch ready for another attempt, or raise the error that ends it."""
        if isinstance(answer, Error):
            if not answer.retriable:
                raise answer
            batch.is_uncertain = True
            error = answer
            is_busy = False
        else:
            error = BrokerError(
                answer.remark,
                code=answer.code,
                address=batch.call.address,
                advice=advice_for(answer.code, request_code=batch.call.request.code),
            )
            if answer.code not in _AGAIN:
                raise error
            is_busy = answer.code == ResponseCode.SYSTEM_BUSY
        batch.refusals += is_busy
        batch.failures += not is_busy
        is_over = batch.failures > self.limits.retries or batch.refusals > self.limits.busy_retries
        if is_over or self.failure is not None:
            raise error
        batch.pause_ms = min(_PAUSE_MS << min(batch.failures + batch.refusals - 1, 16), _PAUSE_MS_MAX)
        self._retried += 1
        if batch.lane.target is None:
            batch.target = self._another(batch.target)
        batch.call = self._call(batch.target, batch.messages, batch.unique_id)
        return batch

    def _another(self, target: Target) -> Target:
        """The next queue in turn, of another broker if there is one."""
        at = self._targets.index(target)
        others = [self._targets[(at + step) % len(self._targets)] for step in range(1, len(self._targets))]
        elsewhere = [other for other in others if other.broker != target.broker]
        return (elsewhere or others or [target])[0]

    def _take(self, batch: OutboundBatch, status: SendStatus, members: Members) -> None:
        count = len(batch.messages)
        queue_id = members.required_int32("queueId")
        offset = members.required_int64("queueOffset")
        message_ids = members.required("msgId")
        # A topic of inner batches has one id for all.
        acknowledged = message_ids.count(",") + 1
        if count > 1 and acknowledged not in (1, count):
            raise MalformedCommand(
                f"{batch.call.address} acknowledged {acknowledged} messages of {count}", member="msgId"
            )
        self._messages += count
        self._body_bytes += sum(len(message.body) for message in batch.messages)
        self._not_durable += count if status is not SendStatus.SEND_OK else 0
        self._maybe_twice += count if batch.is_uncertain else 0
        place = Target(batch.target.broker, queue_id)
        if batch.messages[0].is_delayed:
            # The offset is that of the place where it waits, which is in no queue of the topic.
            self._delayed += count
        else:
            self._extend(place, offset, offset + count - 1, count)
        self.last_result = SendResult(
            topic=self.topic,
            broker_name=place.broker.broker_name,
            queue_id=queue_id,
            queue_offset=offset,
            message_id=message_ids.partition(",")[0],
            unique_id=batch.unique_id or "",
            status=status,
            attempts=1 + batch.failures + batch.refusals,
        )

    def _extend(self, place: Target, first: int, last: int, messages: int) -> None:
        known = self._ranges.get(place)
        if known is None:
            self._ranges[place] = _Range(first, last, messages)
        else:
            known.first, known.last = min(known.first, first), max(known.last, last)
            known.messages += messages

    # --- Results ------------------------------------------------------------------------------------------------------

    @property
    def messages(self) -> int:
        """Messages that were acknowledged."""
        return self._messages

    def report(self) -> SendReport:
        """Return what was done so far."""
        return SendReport(
            topic=self.topic,
            messages=self._messages,
            body_bytes=self._body_bytes,
            requests=self._requests,
            retries=self._retried,
            maybe_twice=self._maybe_twice,
            not_durable=self._not_durable,
            delayed=self._delayed,
            queues=tuple(
                sorted(
                    QueueRange(
                        broker_name=target.broker.broker_name,
                        queue_id=target.queue_id,
                        first=one.first,
                        last=one.last,
                        messages=one.messages,
                    )
                    for target, one in self._ranges.items()
                )
            ),
            elapsed_s=round(self._monotonic_s() - self._began_s, 3),
        )
