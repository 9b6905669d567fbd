"""The pops of a push consumer: one for each queue, or all queues of a broker, that a broker says this member is to pop.

Invariant: each has one pop that waits for a timer, is at a broker, or is being decided. A queue that is given up is not
popped any more; its received messages are consumed and acknowledged all the same, since no other member has them.

Threads: the client's loop. Source: consumption specification 1.18.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from cometmq.client.group.process_queue import PULL_IDLE_MS
from cometmq.client.instance.outages import OutageLog
from cometmq.client.pop.pop_kernel import PopKernel
from cometmq.client.pop.pop_policy import PopStatus, usual_invisible_ms
from cometmq.client.pull.pull_policy import FLOW_CONTROL_DELAY_MS, PAUSED_DELAY_MS, delay_after_error_ms
from cometmq.errors import BrokerError, Error
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere
from cometmq.remoting.bodies.running_info import PopProcessQueueInfo

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage
    from cometmq.client.instance.instance import ClientInstance
    from cometmq.client.push.consume_counts import ConsumeCounts
    from cometmq.client.settings import PushSettings
    from cometmq.remoting.bodies.heartbeat import SubscriptionData
    from cometmq.remoting.bodies.message_queue import MessageQueue

__all__ = ["PopHost", "PopQueue", "PushPops"]

_FIRST_POP_S: Final = 0.5
_POLL_MS: Final = 15_000

_log = logging.getLogger(__name__)


class PopHost(Protocol):
    """The consumer whose pops these are."""

    @property
    def is_suspended(self) -> bool:
        """Whether its user has suspended it."""
        ...

    @property
    def subscriptions(self) -> Mapping[str, SubscriptionData]:
        """Topic to subscription, as it is now."""
        ...


class PopQueue:
    """A consumer's messages of one queue that it pops.

    Attributes:
        queue: the queue; its id may stand for all of its broker.
        dropped: it is not to be popped any more.
        unfinished: messages that came and are not done with.
        last_pop_ms: when a pop was last due, by a clock that is never set.
        room: set when messages are done.
        task: pops.
    """

    __slots__ = ("dropped", "last_pop_ms", "queue", "room", "task", "unfinished")

    def __init__(self, queue: MessageQueue, *, now_ms: int) -> None:
        """Hold nothing yet."""
        self.queue = queue
        self.dropped = False
        self.unfinished = 0
        self.last_pop_ms = now_ms
        self.room = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        """Name the queue and what is held."""
        queue = self.queue
        return f"PopQueue({queue.topic!r}, {queue.broker_name!r}, {queue.queue_id}, unfinished={self.unfinished})"

    def done(self, count: int) -> None:
        """Take note of messages that are done with."""
        self.unfinished -= count
        self.room.set()

    def info(self, *, wall_ahead_ms: int) -> PopProcessQueueInfo:
        """Return the figures that code 307 shows of this queue; the wall clock is so much ahead of the steady one."""
        return PopProcessQueueInfo(
            wait_ack_count=self.unfinished,
            dropped=self.dropped,
            last_pop_timestamp_ms=self.last_pop_ms + wall_ahead_ms,
        )


class PushPops:
    """The pops of one push consumer.

    Attributes:
        queues: the popped queues.
    """

    def __init__(
        self,
        instance: ClientInstance,
        host: PopHost,
        settings: PushSettings,
        kernel: PopKernel,
        *,
        group: str,
        counts: ConsumeCounts,
        consume: Callable[[PopQueue, list[ReceivedMessage]], None],
    ) -> None:
        """Pop nothing yet.

        Args:
            instance: has loop and clock.
            host: the consumer.
            settings: the consumer's.
            kernel: asks the brokers.
            group: the group, for the log.
            counts: counts the popped messages, together with pulled ones.
            consume: takes messages that came.
        """
        self.queues: dict[MessageQueue, PopQueue] = {}
        self._instance = instance
        self._host = host
        self._settings = settings
        self._kernel = kernel
        self._troubles = OutageLog(_log, group=group)
        self._counts = counts
        self._consume = consume
        self._invisible_ms = usual_invisible_ms(settings.pop_invisible_time_ms)

    def assign(self, topic: str, wanted: Collection[MessageQueue]) -> bool:
        """Pop exactly these queues of a topic; return whether they changed.

        One whose pops have stopped is replaced, as for pulls.
        """
        now_ms = self._instance.steady_ms()
        gone = [
            queue
            for queue, held in self.queues.items()
            if queue.topic == topic and (queue not in wanted or now_ms - held.last_pop_ms > PULL_IDLE_MS)
        ]
        for queue in gone:
            self._drop(queue)
        new = [queue for queue in wanted if queue not in self.queues]
        for queue in new:
            held = self.queues[queue] = PopQueue(queue, now_ms=now_ms)
            held.task = self._instance.spawn(self._pop_on(held))
        return bool(gone or new)

    def keep_topics(self, topics: Collection[str]) -> None:
        """Pop only these topics any more."""
        for queue in [queue for queue in self.queues if queue.topic not in topics]:
            self._drop(queue)

    def _drop(self, queue: MessageQueue) -> None:
        # The pop in flight is not abandoned with it: its messages would be hidden for nothing.
        held = self.queues.pop(queue)
        held.dropped = True
        held.room.set()

    def close(self) -> None:
        """Stop popping; messages of pops in flight are redelivered to others."""
        for held in self.queues.values():
            held.dropped = True
            if held.task is not None:
                held.task.cancel()
        self.queues.clear()

    async def _pop_on(self, held: PopQueue) -> None:
        await asyncio.sleep(_FIRST_POP_S)
        while not held.dropped:
            held.last_pop_ms = self._instance.steady_ms()
            subscription = self._host.subscriptions.get(held.queue.topic)
            if self._host.is_suspended:
                delay_ms = PAUSED_DELAY_MS
            elif held.unfinished > self._settings.pop_threshold_for_queue:
                delay_ms = FLOW_CONTROL_DELAY_MS
            elif subscription is None:
                delay_ms = self._settings.pull_time_delay_when_exception_ms
            else:
                delay_ms = await self._pop(held, subscription)
            if delay_ms > 0:
                await self._wait(held, delay_ms)

    async def _wait(self, held: PopQueue, delay_ms: int) -> None:
        """Wait for the time, or until there is room."""
        held.room.clear()
        timer = self._instance.loop.call_later(delay_ms / 1000, held.room.set)
        try:
            await held.room.wait()
        finally:
            timer.cancel()

    async def _pop(self, held: PopQueue, subscription: SubscriptionData) -> int:
        """Pop once, have consumed what came, and return how long to wait before the next."""
        settings, asked_s = self._settings, self._instance.loop.time()
        try:
            result = await self._kernel.pop(
                held.queue,
                subscription,
                max_messages=settings.pop_batch_nums,
                invisible_ms=self._invisible_ms,
                poll_ms=_POLL_MS,
                from_first=settings.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            )
        except Error as error:
            if not held.dropped:
                self._troubles.fails(held.queue, error)
            code = error.code if isinstance(error, BrokerError) else None
            return delay_after_error_ms(code, exception_delay_ms=settings.pull_time_delay_when_exception_ms)
        if self._troubles:
            self._troubles.works(held.queue)
        if result.messages:
            held.unfinished += len(result.messages)
            elapsed_s = self._instance.loop.time() - asked_s
            self._counts.pulled(held.queue.topic, len(result.messages), elapsed_s)
            self._consume(held, list(result.messages))
            return settings.pull_interval_ms
        return settings.pull_time_delay_when_exception_ms if result.status is PopStatus.POLLING_FULL else 0
