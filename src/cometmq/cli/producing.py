"""The sends of ``cometmq produce``: how many are in flight, how fast, and the result of each.

Threads: one; the producer has its own.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cometmq.cli.pacing import Pace
from cometmq.errors import Error, InvalidArgument, MessageTooLarge

if TYPE_CHECKING:
    from cometmq.cli.records import RecordOptions
    from cometmq.cli.terminal import Bar, Interruption
    from cometmq.client import OutgoingMessage, Producer, SendFuture, SendResult

__all__ = ["Failures", "ProduceReport", "SendPlan", "SendWindow", "made_up", "send_all"]

_SEND_OK = "SEND_OK"
_IN_FLIGHT_BYTES = 64 << 20
_KINDS_OF_FAILURE_MAX = 10
_FLUSH_EVERY = 1_000
_MADE_AT_A_TIME = 256
_SHOW_EVERY_S = 0.1


# --- Results ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Failures:
    """Messages that failed in one way.

    Attributes:
        error: the kind.
        messages: how many.
        first_message: which of the input was the first, from 1.
        first_text: its error text.
    """

    error: str
    messages: int
    first_message: int
    first_text: str


@dataclass(slots=True, kw_only=True)
class ProduceReport:
    """A run's sends, and those that failed.

    Attributes:
        topic: the topic.
        messages: acknowledged by brokers; with ``--one-way`` handed to the network.
        failed: not acknowledged.
        body_bytes: bytes of the bodies of ``messages``.
        maybe_twice: acknowledged at a second attempt or later: the first may have been stored, too.
        not_durable: stored, but not on disk or at a slave in time.
        one_way: nobody was asked for an acknowledgement.
        failures: the failed ones, by kind.
        elapsed_s: seconds from the first message to the last answer.
        messages_per_s: ``messages`` over these.
    """

    topic: str
    messages: int = 0
    failed: int = 0
    body_bytes: int = 0
    maybe_twice: int = 0
    not_durable: int = 0
    one_way: bool = False
    failures: list[Failures] = field(default_factory=list)
    elapsed_s: float = 0.0
    messages_per_s: float = 0.0

    def take_failure(self, number: int, error: BaseException) -> None:
        """Count a message that failed."""
        self.failed += 1
        kind = type(error).__name__
        for known in self.failures:
            if known.error == kind:
                known.messages += 1
                return
        if len(self.failures) < _KINDS_OF_FAILURE_MAX:
            self.failures.append(Failures(error=kind, messages=1, first_message=number, first_text=str(error)))


# --- Sending ----------------------------------------------------------------------------------------------------------


class SendWindow:
    """Gives messages to a producer, keeps a limited number under way, and counts what becomes of each."""

    def __init__(self, producer: Producer, report: ProduceReport, *, in_flight: int, batch: int) -> None:
        """Nothing is sent yet.

        Args:
            producer: sends.
            report: counts; it says whether sends are one way.
            in_flight: most messages that are not answered; with 1 each waits for its answer.
            batch: messages of one request; 1 for none.
        """
        self._producer = producer
        self._report = report
        self._in_flight = in_flight
        self._batch = batch
        self._put = 0
        self._waiting: deque[tuple[int, int, SendFuture]] = deque()
        self._waiting_bytes = 0
        self._gathered: list[OutgoingMessage] = []

    @property
    def failed(self) -> int:
        """Messages that failed."""
        return self._report.failed

    @property
    def done(self) -> int:
        """Messages whose end is known."""
        return self._report.messages + self._report.failed

    def put(self, message: OutgoingMessage) -> None:
        """Send a message; waits only while as many are under way as may be."""
        self._put += 1
        try:
            if self._report.one_way:
                self._one_way(message)
            elif self._batch > 1:
                self._gathered.append(message)
                if len(self._gathered) >= self._batch:
                    self.flush()
            elif self._in_flight == 1:
                self._acknowledged(self._producer.send(message), len(message.body))
            else:
                self._pipelined(message)
        except Error as error:
            self._report.take_failure(self._put, error)

    def _one_way(self, message: OutgoingMessage) -> None:
        self._producer.send_oneway(message)
        self._report.messages += 1
        self._report.body_bytes += len(message.body)
        if self._put % _FLUSH_EVERY == 0:
            # Nobody answers, so nothing else keeps the network from being given more than it takes.
            self._producer.flush()

    def _pipelined(self, message: OutgoingMessage) -> None:
        size = len(message.body)
        while self._waiting and (
            len(self._waiting) >= self._in_flight or self._waiting_bytes + size > _IN_FLIGHT_BYTES
        ):
            self._reap()
        self._waiting.append((self._put, size, self._producer.send_async(message)))
        self._waiting_bytes += size

    def _reap(self) -> None:
        """Wait for the oldest send."""
        number, size, future = self._waiting.popleft()
        self._waiting_bytes -= size
        error = future.exception()
        if error is not None:
            self._report.take_failure(number, error)
        else:
            self._acknowledged(future.result(), size)

    def _acknowledged(self, result: SendResult, size: int, count: int = 1) -> None:
        report = self._report
        report.messages += count
        report.body_bytes += size
        report.maybe_twice += count if result.attempts > 1 else 0
        report.not_durable += count if result.status.value != _SEND_OK else 0

    def look(self) -> None:
        """Count what has ended meanwhile."""
        while self._waiting and self._waiting[0][2].done():
            self._reap()

    def flush(self) -> None:
        """Send the batch that was begun; where it cannot be one, its messages go alone."""
        batch, self._gathered = self._gathered, []
        if not batch:
            return
        first = self._put - len(batch) + 1
        try:
            result = self._producer.send_batch(batch)
        except (InvalidArgument, MessageTooLarge):
            for number, message in enumerate(batch, first):
                self._alone(number, message)
        except Error as error:
            for number in range(first, self._put + 1):
                self._report.take_failure(number, error)
        else:
            self._acknowledged(result, sum(len(message.body) for message in batch), len(batch))

    def _alone(self, number: int, message: OutgoingMessage) -> None:
        try:
            result = self._producer.send(message)
        except Error as error:
            self._report.take_failure(number, error)
        else:
            self._acknowledged(result, len(message.body))

    def finish(self) -> None:
        """Wait until everything that was put has ended."""
        self.flush()
        while self._waiting:
            self._reap()


def made_up(size: int, options: RecordOptions) -> Iterator[list[OutgoingMessage]]:
    """Make messages without end, each with its number and as many bytes as asked for."""
    from cometmq.client import OutgoingMessage

    for first in itertools.count(1, _MADE_AT_A_TIME):
        yield [
            OutgoingMessage(
                (b"%d " % number).ljust(size, b".")[:size],
                options.tags,
                options.keys,
                options.properties,
                options.delay_level,
                options.sharding_key,
                options.queue_id,
                options.topic,
                delay_ms=options.delay_ms,
                deliver_at_ms=options.deliver_at_ms,
            )
            for number in range(first, first + _MADE_AT_A_TIME)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPlan:
    """How a run goes on and when it ends.

    Attributes:
        count: most messages; None for all there are.
        failures_max: a run with so many failures is stopped; 0 for never.
        rate: messages a second, or None.
    """

    count: int | None
    failures_max: int
    rate: float | None


def send_all(
    made: Iterator[list[OutgoingMessage]], sending: SendWindow, plan: SendPlan, interruption: Interruption, bar: Bar
) -> None:
    """Send messages until the input ends, enough are sent, or too many have failed."""

    def sleep(seconds: float) -> None:
        sending.flush()
        with interruption.waiting():
            time.sleep(seconds)

    pace = Pace(plan.rate, sleep=sleep)
    left = math.inf if plan.count is None else plan.count
    shown_s = 0.0
    for messages in made if left else ():
        for message in messages:
            pace.wait()
            sending.put(message)
            left -= 1
            if time.monotonic() - shown_s > _SHOW_EVERY_S:
                sending.look()
                bar(sending.done)
                shown_s = time.monotonic()
            if interruption.is_set():
                raise KeyboardInterrupt
            if not left or 0 < plan.failures_max <= sending.failed:
                return
        sending.flush()
        sending.look()
        bar(sending.done)
