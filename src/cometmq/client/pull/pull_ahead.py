"""Pulls ahead of the user's polls: one task for each queue, and the pulled messages until they are handed out.

Invariants: messages of a queue that was stopped or given up are not handed out afterwards; the consumed offset never
passes a message that nobody has got, or that another thread's loop is still at.

Threads: the client's loop. Source: consumption specification 1.13, 1.14.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from cometmq.client.group.subscriptions import TAG
from cometmq.client.instance.outages import OutageLog
from cometmq.client.pull.pull_kernel import PullKernel, PullResult
from cometmq.client.pull.pull_policy import (
    FLOW_CONTROL_DELAY_MS,
    PAUSED_DELAY_MS,
    PullStatus,
    delay_after_error_ms,
    pull_flags,
)
from cometmq.errors import BrokerError, Error
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.store_config.fields import INT32_MAX

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage
    from cometmq.client.group.process_queue import ProcessQueue
    from cometmq.client.instance.instance import ClientInstance
    from cometmq.client.settings import PullSettings
    from cometmq.remoting.bodies.heartbeat import SubscriptionData

__all__ = ["NONE", "Assigned", "Batch", "PullAhead", "Reader"]

NONE: Final = -1
"""Stands for an offset that is not known yet."""

_NO_START_DELAY_MS: Final = 3_000
_MIB: Final = 1 << 20

_log = logging.getLogger(__name__)


class Assigned:
    """One queue of a pull consumer.

    Attributes:
        queue: the queue.
        held: its messages that were pulled and not handed out.
        paused: its user wants no more of it for now.
        pull_offset: where the next pull begins.
        consume_offset: behind what was handed out; a commit stores this.
        handed_end: behind all that was ever handed out. The process queue only knows the end of what was put into it
            last, which may be a batch that was taken back.
        life: how often its position was reset; messages pulled before the last reset are void.
    """

    __slots__ = ("consume_offset", "handed_end", "held", "life", "paused", "pull_offset", "queue", "task", "wake")

    def __init__(self, queue: MessageQueue, held: ProcessQueue, *, pull_offset: int = NONE) -> None:
        """Nothing was pulled yet; without an offset it begins where the group is, or by the settings."""
        self.queue = queue
        self.held = held
        self.paused = False
        self.pull_offset = pull_offset
        self.consume_offset = NONE
        self.handed_end = 0
        self.life = 0
        self.task: asyncio.Task[None] | None = None
        self.wake = asyncio.Event()


class Reader:
    """A loop over a consumer. Its messages count as consumed one by one, as it comes back for the next.

    Attributes:
        is_left: it has ended; messages that it has not seen go to the next caller.
    """

    __slots__ = ("is_left",)

    def __init__(self) -> None:
        """It has nothing yet."""
        self.is_left = False

    @property
    def is_callers(self) -> bool:
        """Whether the running thread or task is the loop's, or a task that the loop's began."""
        return self in _readers.get()

    def note_caller(self) -> None:
        """Take note that the running thread or task is the loop's."""
        readers = _readers.get()
        if self not in readers:
            _readers.set(frozenset({self, *(reader for reader in readers if not reader.is_left)}))


_readers: ContextVar[frozenset[Reader]] = ContextVar("_readers", default=frozenset())


class Batch:
    """Messages of one pull that were handed out, until they are done with.

    Its holder sets the flags, in any thread; the rest happens on the loop.

    Attributes:
        assigned: of which queue.
        messages: the messages handed out.
        reader: the loop that has it; None for a poll.
        thread: the caller's. An unreceived batch goes back when this thread makes another call.
        seen: how many messages the loop was given; it is at the last of them.
        is_received: the caller has it.
        is_done: the loop is through with it.
    """

    __slots__ = ("_life", "assigned", "is_done", "is_received", "messages", "reader", "seen", "thread")

    def __init__(
        self, assigned: Assigned, messages: list[ReceivedMessage], *, reader: Reader | None, thread: int | None
    ) -> None:
        """Nobody has it yet."""
        self.assigned = assigned
        self.messages = messages
        self.reader = reader
        self.thread = thread
        self.seen = 0
        self.is_received = False
        self.is_done = False
        self._life = assigned.life

    @property
    def is_outlived(self) -> bool:
        """Whether its queue's position was reset since."""
        return self._life != self.assigned.life

    @property
    def is_void(self) -> bool:
        """Whether its queue's position was reset since, or the queue was given up."""
        return self.is_outlived or self.assigned.held.dropped

    def message(self, index: int) -> ReceivedMessage | None:
        """Return the next message for a loop; None at the end, or where the batch is void."""
        if self.is_outlived or index >= len(self.messages):
            return None
        return self.messages[index]

    def first_undone(self, *, of_polls: bool) -> int | None:
        """Return the place of the first message that is not done with; None where all are.

        Args:
            of_polls: messages that polls returned are done, because their caller says so.
        """
        if not self.is_received:
            return 0
        if self.reader is None:
            return None if of_polls else 0
        # The loop's own call counts the message that it is at.
        first = self.seen if self.reader.is_callers else max(self.seen - 1, 0)
        return first if first < len(self.messages) else None


class PullAhead:
    """The queues of one pull consumer, and what came of them.

    Attributes:
        assigned: the queues.
    """

    def __init__(
        self,
        settings: PullSettings,
        *,
        group: str,
        subscriptions: Callable[[], Mapping[str, SubscriptionData]],
        start_offset: Callable[[MessageQueue], Awaitable[int]],
        forget_offset: Callable[[MessageQueue], None],
        now_ms: Callable[[], int],
    ) -> None:
        """Pull nothing yet.

        Args:
            settings: the consumer's.
            group: its group, as brokers know it.
            subscriptions: returns the subscriptions, topics as brokers know them.
            start_offset: returns where a new queue begins; below 0 where that is not known.
            forget_offset: drops the progress in memory of a queue whose place the broker corrected.
            now_ms: the wall clock.
        """
        self.assigned: dict[MessageQueue, Assigned] = {}
        self._settings = settings
        self._group = group
        self._subscriptions = subscriptions
        self._start_offset = start_offset
        self._forget_offset = forget_offset
        self._now_ms = now_ms
        self._reach: tuple[ClientInstance, PullKernel] | None = None
        self._out: list[Batch] = []
        """Batches handed out and not known to be done, in that order."""
        self._ready: deque[tuple[Assigned, list[ReceivedMessage], int]] = deque()
        """Messages to hand out: of which queue, and where the pull that brought them ended."""
        self._arrived = asyncio.Event()
        self._troubles = OutageLog(_log, group=group)

    def __repr__(self) -> str:
        """Return how many queues there are, and how many pulls wait to be handed out."""
        return f"PullAhead({self._group}, {len(self.assigned)} queues, {len(self._ready)} pulls ready)"

    # --- Queues -------------------------------------------------------------------------------------------------------

    def start(self, instance: ClientInstance, kernel: PullKernel) -> None:
        """Pull, from now on; ``instance`` runs the tasks, ``kernel`` asks the brokers."""
        self._reach = instance, kernel
        for assigned in self.assigned.values():
            self.go_on(assigned)

    def begin(self, assigned: Assigned) -> None:
        """Take a queue, and pull it as soon as this is started."""
        self.assigned[assigned.queue] = assigned
        if self._reach is not None:
            self.go_on(assigned)

    def go_on(self, assigned: Assigned) -> None:
        """Pull a queue from its offset on; :meth:`stop` came before."""
        assert self._reach is not None
        assigned.task = self._reach[0].spawn(self._pull_on(assigned, *self._reach))

    def stop(self, assigned: Assigned) -> None:
        """End a queue's pulls, and forget what came of them."""
        if assigned.task is not None:
            assigned.task.cancel()
            assigned.task = None
        self._void(assigned)

    def _void(self, assigned: Assigned) -> None:
        assigned.life += 1
        assigned.held.clear()
        self._ready = deque(item for item in self._ready if item[0] is not assigned)

    def end(self, queue: MessageQueue, held: ProcessQueue) -> None:
        """Release a queue; do nothing if it was assigned again meanwhile."""
        assigned = self.assigned.get(queue)
        if assigned is None or assigned.held is not held:
            return
        del self.assigned[queue]
        self.stop(assigned)
        if self._reach is not None:
            self._reach[1].forget(queue)

    async def end_pulls(self) -> None:
        """Stop pulling; callers that wait for messages look again."""
        self._reach = None
        tasks = [assigned.task for assigned in self.assigned.values() if assigned.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def drop_all(self) -> None:
        """Let all queues go."""
        for assigned in self.assigned.values():
            assigned.held.dropped = True
        self.assigned.clear()
        self._ready.clear()
        self._out.clear()
        self._arrived.set()

    # --- Pulls --------------------------------------------------------------------------------------------------------

    async def _pull_on(self, assigned: Assigned, instance: ClientInstance, kernel: PullKernel) -> None:
        while not assigned.held.dropped:
            delay_ms = self._gate_ms(assigned)
            if delay_ms == 0:
                delay_ms = await self._pull_once(assigned, kernel)
            if delay_ms > 0:
                await _wait(assigned, delay_ms, instance.loop)

    def _gate_ms(self, assigned: Assigned) -> int:
        """Return how long a pull has to wait before it may be sent, 0 where it may be now."""
        settings, held = self._settings, assigned.held
        if assigned.paused:
            return PAUSED_DELAY_MS
        held.last_pull_ms = self._now_ms()
        if (
            len(self._ready) * settings.pull_batch_size > settings.pull_threshold_for_all
            or held.count > settings.pull_threshold_for_queue
            or held.size_bytes // _MIB > settings.pull_threshold_size_for_queue_mib
            or held.max_span > settings.consume_max_span
        ):
            return FLOW_CONTROL_DELAY_MS
        return 0

    async def _pull_once(self, assigned: Assigned, kernel: PullKernel) -> int:
        """Pull, and put what came where poll finds it; return how long to wait before the next."""
        queue, held, settings = assigned.queue, assigned.held, self._settings
        subscription = self._subscriptions().get(queue.topic)
        if subscription is None:
            return PAUSED_DELAY_MS
        try:
            if assigned.pull_offset == NONE:
                start = await self._start_offset(queue)
                if start < 0:
                    return _NO_START_DELAY_MS
                assigned.pull_offset = start
            result = await self.ask(
                kernel,
                queue,
                subscription,
                offset=assigned.pull_offset,
                max_messages=settings.pull_batch_size,
                flags=pull_flags(suspend=True, subscription=True, lite=True),
                timeout_ms=settings.consumer_timeout_when_suspend_ms,
            )
        except Error as error:
            self._troubles.fails(queue, error)
            if assigned.pull_offset == NONE:
                return _NO_START_DELAY_MS
            code = error.code if isinstance(error, BrokerError) else None
            return delay_after_error_ms(code, exception_delay_ms=settings.pull_time_delay_when_exception_ms)
        if self._troubles:
            self._troubles.works(queue)
        if held.dropped:
            return 0
        if result.status is PullStatus.OFFSET_ILLEGAL:
            _log.warning(
                "group %s: the broker has no offset %d of %s; it goes on with %d",
                self._group,
                assigned.pull_offset,
                queue,
                result.next_begin_offset,
            )
            if result.next_begin_offset != assigned.pull_offset:
                self._forget_offset(queue)  # it would be stored again, and undo a reset
            if result.next_begin_offset < assigned.pull_offset:
                # The group was reset, or the topic re-created: messages handed out before lie behind this place.
                self._void(assigned)
                assigned.consume_offset = assigned.handed_end = result.next_begin_offset
        is_stuck = result.status is PullStatus.OFFSET_ILLEGAL and result.next_begin_offset == assigned.pull_offset
        has_moved = result.next_begin_offset > assigned.pull_offset
        assigned.pull_offset = result.next_begin_offset
        if result.messages:
            held.put(result.messages)
            self._ready.append((assigned, list(result.messages), result.next_begin_offset))
            self._arrived.set()
        elif held.count == 0 and (has_moved or assigned.consume_offset != NONE):
            # Messages that do not match are passed, too; else a tag that never occurs would hold the progress back.
            assigned.consume_offset = assigned.handed_end = assigned.pull_offset
        return settings.pull_time_delay_when_exception_ms if is_stuck else 0

    async def ask(
        self,
        kernel: PullKernel,
        queue: MessageQueue,
        subscription: SubscriptionData,
        *,
        offset: int,
        max_messages: int,
        flags: int,
        timeout_ms: int,
    ) -> PullResult:
        """Pull once, as the settings say; arguments and errors as :meth:`PullKernel.pull`."""
        return await kernel.pull(
            queue,
            subscription,
            group=self._group,
            offset=offset,
            max_messages=max_messages,
            max_bytes=INT32_MAX,
            sys_flag=flags,
            suspend_timeout_ms=self._settings.broker_suspend_max_time_ms,
            timeout_ms=timeout_ms,
            sub_version=0 if subscription.expression_type == TAG else subscription.sub_version,
        )

    # --- Handing out --------------------------------------------------------------------------------------------------

    def take(self, *, reader: Reader | None = None, thread: int | None = None) -> Batch | None:
        """Hand out the messages of one pull to a loop or a poll; None without any."""
        while self._ready:
            assigned, messages, pull_end = self._ready.popleft()
            if assigned.held.dropped:
                continue
            # Behind the last message there may be some that the subscription leaves out: they are done with, too.
            assigned.handed_end = max(assigned.handed_end, messages[-1].queue_offset + 1, pull_end)
            first_left = assigned.held.remove(messages, now_ms=self._now_ms())
            assigned.consume_offset = first_left if assigned.held.count else assigned.handed_end
            if not assigned.paused:
                assigned.wake.set()
            batch = Batch(assigned, messages, reader=reader, thread=thread)
            self._out.append(batch)
            return batch
        return None

    async def arrival(self, timeout_s: float) -> None:
        """Wait until something came, or there is nothing more to wait for, or the time is over."""
        self._arrived.clear()
        try:
            await asyncio.wait_for(self._arrived.wait(), timeout_s)
        except asyncio.TimeoutError:
            return

    @property
    def has_handed_out(self) -> bool:
        """Whether anything was handed out that is not known to be done with. Any thread."""
        return bool(self._out)

    def settle(self, *, thread: int | None) -> None:
        """Take back messages handed out that nobody looks at any more: the next caller gets them.

        That is what the caller's own loops, and those that were left, have not looked at; and what a call in the same
        thread was to return before, when something interrupted it.
        """
        kept: list[Batch] = []
        for batch in reversed(self._out):
            if batch.is_void or batch.is_done:
                continue
            if not batch.is_received:
                if batch.thread is not None and batch.thread == thread:
                    self._take_back(batch, 0)
                    continue
            elif batch.reader is not None and (batch.reader.is_left or batch.reader.is_callers):
                self._take_back(batch, batch.seen)
                if batch.reader.is_left:
                    batch.reader = None
            kept.append(batch)
        kept.reverse()
        self._out = kept

    def _take_back(self, batch: Batch, first: int) -> None:
        unseen = batch.messages[first:]
        if unseen:
            assigned = batch.assigned
            batch.messages = batch.messages[:first]
            assigned.held.put(unseen)
            assigned.consume_offset = min(assigned.consume_offset, unseen[0].queue_offset)
            self._ready.appendleft((assigned, unseen, 0))
            self._arrived.set()

    def finish_polled(self) -> None:
        """Take note that what polls have returned is done with."""
        self._out = [batch for batch in self._out if batch.reader is not None or not batch.is_received]

    def consumed(self, *, of_polls: bool = True) -> dict[MessageQueue, int]:
        """Return for each queue the offset behind what is done with.

        That is what was handed out, but for what nobody has received, and what a loop elsewhere is at.

        Args:
            of_polls: with what polls have returned.
        """
        return {
            queue: offset
            for queue, assigned in self.assigned.items()
            if not assigned.held.dropped and (offset := self.consumed_of(assigned, of_polls=of_polls)) != NONE
        }

    def consumed_of(self, assigned: Assigned, *, of_polls: bool) -> int:
        """Return the offset behind what is done with of one queue, also of one that is on its way out; or ``NONE``."""
        offset = assigned.consume_offset
        for batch in self._out:
            if batch.assigned is not assigned or batch.is_outlived or batch.is_done:
                continue
            first = batch.first_undone(of_polls=of_polls)
            if first is not None:
                offset = min(offset, batch.messages[first].queue_offset)
        return offset


async def _wait(assigned: Assigned, delay_ms: int, loop: asyncio.AbstractEventLoop) -> None:
    """Wait for the time, or until there is a reason to look again."""
    timer = loop.call_later(delay_ms / 1000, assigned.wake.set)
    try:
        await assigned.wake.wait()
    finally:
        timer.cancel()
        assigned.wake.clear()
