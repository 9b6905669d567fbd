"""Accumulation: messages of a topic that follow each other closely become batches (upstream's ``autoBatch``).

Messages are batched by topic, queue, tag and whether the broker is to wait; the batches themselves, with the batch's
bytes in them, are the engine's (:class:`cometmq._engine.Accumulator`). A batch goes when it has grown beyond
``batch_max_bytes``, in the thread that made it grow, or when its first message has waited ``batch_max_delay_ms``, by
one timer for all. All batches together have a limit; beyond it, messages go alone.

Thread safety: any thread adds; the timer is the loop's. Invariant: while a batch is open, either the timer runs, or the
loop has been asked to set it.

Source: consumption specification 2.7.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from typing import TYPE_CHECKING

from cometmq._engine import Accumulator, BatchFastPath
from cometmq.client.send.outgoing import SPECIAL_PROPERTIES, can_be_batched

if TYPE_CHECKING:
    from cometmq._engine import PendingBatch, SendFuture
    from cometmq.client.send.outgoing import OutgoingMessage
    from cometmq.client.send.producer_settings import ProducerSettings
    from cometmq.client.send.request_making import RequestMaker
    from cometmq.client.send.send_attempts import SendAttempts
    from cometmq.remoting.bodies.message_queue import MessageQueue

__all__ = ["Accumulation"]


class Accumulation:
    """One producer's accumulated messages."""

    def __init__(
        self,
        attempts: SendAttempts,
        settings: ProducerSettings,
        maker: RequestMaker,
        *,
        loop: AbstractEventLoop,
        now_ms: Callable[[], int] | None,
        keeps_messages: bool,
    ) -> None:
        """Nothing waits.

        Args:
            attempts: send what is ready; futures ask them for their results.
            settings: the producer's.
            maker: makes records and ids.
            loop: where the timer runs.
            now_ms: the wall clock; None for the machine's.
            keeps_messages: True where somebody is to see the messages of a batch.
        """
        self._settings = settings
        self._maker = maker
        self._loop = loop
        self._ship = attempts.ship
        self._timer: TimerHandle | None = None
        self._accumulator = Accumulator(
            attempts,
            maker.ids,
            batch_max_bytes=settings.batch_max_bytes,
            total_max_bytes=settings.total_batch_max_bytes,
            message_max_bytes=settings.max_message_size_bytes,
            delay_ms=settings.batch_max_delay_ms,
            on_fresh=self._began,
            on_ready=self._ship,
            clock=loop.time,
            now_ms=now_ms,
            keeps_messages=keeps_messages,
        )

    def add(
        self, message: OutgoingMessage, topic: str, queue: MessageQueue | None, *, is_awaited: bool
    ) -> SendFuture | None:
        """Put a message into its batch; None where it must go alone. Any thread.

        Raises:
            InvalidArgument, InvalidTopic, MessageTooLarge: it cannot be sent at all.
        """
        if message.sharding_key is not None or message.queue_id is not None or not can_be_batched(topic):
            return None
        record = self._maker.record(message)
        if record is None:
            return None
        self._maker.template(topic)
        body, stored = record
        return self._accumulator.add(
            topic,
            queue,
            message.tags,
            body,
            stored,
            flag=message.flag,
            wait_stored=message.wait_stored,
            is_awaited=is_awaited,
            message=message,
        )

    def lane(self, topic: str) -> BatchFastPath | None:
        """Return the fast path of plain messages to a topic, or None where it takes no batches.

        Raises:
            InvalidTopic: messages cannot go there.
        """
        self._maker.template(topic)
        if not can_be_batched(topic):
            return None
        return BatchFastPath(
            self._accumulator,
            topic,
            special=SPECIAL_PROPERTIES,
            body_bytes_max=self._settings.max_message_size_bytes,
        )

    def take_all(self) -> list[PendingBatch]:
        """Return all batches that wait; they are the caller's."""
        return self._accumulator.take_all()

    def _began(self, pending: PendingBatch) -> None:
        # The timer is looked at behind the batch's coming in, and set behind a look at the batches: one sees the other.
        if self._timer is None:
            self._loop.call_soon_threadsafe(self._watch)

    def _watch(self) -> None:
        due_s = self._accumulator.first_due_s
        if self._timer is None and due_s is not None:
            self._timer = self._loop.call_at(due_s, self._due)

    def _due(self) -> None:
        self._timer = None
        for pending in self._accumulator.take_due(self._loop.time()):
            self._ship(pending)
        self._watch()

    def __repr__(self) -> str:
        """Return how much waits."""
        return f"Accumulation({self._accumulator!r})"
