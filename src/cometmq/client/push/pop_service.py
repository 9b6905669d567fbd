"""Concurrent listeners over popped messages: successes are acknowledged, failures are redelivered later.

Invariants: a message is acknowledged only when its listener took it within its invisible time, which may be made longer
while the listener works on it; one that was not begun in that time is not begun here any more, because another member
has it.

Threads: the client's loop; the listener's own workers come in through :class:`~cometmq.client.push.tasks.Workers`.
Source: consumption specification 1.18.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from cometmq._plural import counted
from cometmq.client.pop.pop_extending import Extender
from cometmq.client.pop.pop_handles import PopHandle
from cometmq.client.pop.pop_policy import invisible_after_failure_ms, invisible_when_tried_out_ms
from cometmq.client.push.listener_failures import ListenerFailures
from cometmq.client.push.outcome_policy import failed_messages
from cometmq.client.push.tasks import Task
from cometmq.errors import Error

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage
    from cometmq.client.group.process_queue import ProcessQueue
    from cometmq.client.pop.pop_kernel import PopKernel
    from cometmq.client.push.push_pops import PopQueue
    from cometmq.client.push.tasks import TaskResult, Workers
    from cometmq.remoting.bodies.message_queue import MessageQueue

__all__ = ["PopBatch", "PopService"]

_EXTEND_LONGEST_S: Final = 3_600.0
"""A listener that works for longer counts as hanging."""

_log = logging.getLogger(__name__)


class PopBatch:
    """The messages of one pop, in the place that a process queue has for workers.

    Attributes:
        held: the queue that they were popped from.
        unaccounted: how many no result covers yet.
        parts_out: how many parts workers have not handed back.
        invisible_ms: for how long they were hidden.
    """

    __slots__ = ("_clock", "_end_s", "held", "invisible_ms", "parts_out", "unaccounted")

    def __init__(
        self, held: PopQueue, *, count: int, parts: int, invisible_ms: int, clock: Callable[[], float]
    ) -> None:
        """None of them has a result yet; they have just come.

        Args:
            held: the queue.
            count: how many messages.
            parts: in how many parts.
            invisible_ms: for how long they are hidden from now on.
            clock: seconds; any thread may ask it.
        """
        self.held = held
        self.unaccounted = count
        self.parts_out = parts
        self.invisible_ms = invisible_ms
        self._end_s = clock() + invisible_ms / 1000
        self._clock = clock

    @property
    def queue(self) -> MessageQueue:
        """The queue of the messages."""
        return self.held.queue

    def queue_of(self, message: ReceivedMessage) -> MessageQueue:
        """Return the queue that a message lies in: the batch's may stand for all queues of a broker."""
        return replace(self.queue, queue_id=message.queue_id)

    @property
    def left_ms(self) -> float:
        """For how long they are still hidden; below 0 where they are not."""
        return (self._end_s - self._clock()) * 1000

    @property
    def dropped(self) -> bool:
        """Whether others may have them by now. Any thread."""
        return self._clock() >= self._end_s


class PopService:
    """Gives popped messages to the workers, and acts on what comes back."""

    def __init__(
        self,
        *,
        group: str,
        batch_max: int,
        tries_max: int,
        kernel: PopKernel,
        extends: bool,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        now_ms: Callable[[], int],
    ) -> None:
        """Consume nothing yet; :attr:`workers` is to be set first.

        Args:
            group: the consumer group.
            batch_max: most messages that the listener gets at a time.
            tries_max: how often a message is tried again at its usual times.
            kernel: asks the brokers.
            extends: whether messages are hidden for as long as their listener works on them.
            spawn: runs work beside.
            now_ms: the wall clock.
        """
        self.workers: Workers
        self._group = group
        self._batch_max = batch_max
        self._tries_max = tries_max
        self._kernel = kernel
        self._spawn = spawn
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._failures = ListenerFailures(group)
        self._extender = Extender(kernel.set_invisible, longest_s=_EXTEND_LONGEST_S) if extends else None
        self._closed = False

    def close(self) -> None:
        """Log the last failures; messages with listeners are not hidden for longer from now on."""
        self._closed = True
        self._failures.close()

    async def end(self) -> None:
        """Leave what listeners still have to others, when its time is over."""
        if self._extender is not None:
            await self._extender.close()

    def submit(self, held: PopQueue, messages: list[ReceivedMessage]) -> None:
        """Have the messages of a pop consumed; they have just come."""
        handle = PopHandle.parse(messages[0].pop_handle or "")
        batch = PopBatch(
            held,
            count=len(messages),
            parts=-(-len(messages) // self._batch_max),
            invisible_ms=handle.times.invisible_ms,
            clock=self._loop.time,
        )
        if self._extender is not None:
            self._look_later(self._extender, batch)
        # Of what a task belongs to, workers only ask for the queue and whether it was dropped.
        self.workers.submit(Task(cast("ProcessQueue", batch), messages, self._batch_max))

    def _look_later(self, extender: Extender, batch: PopBatch) -> None:
        self._loop.call_later(batch.invisible_ms / 4000, self._look, extender, batch)

    def _look(self, extender: Extender, batch: PopBatch) -> None:
        """Keep hidden what listeners have of a batch by now."""
        if self._closed or batch.parts_out <= 0:
            return
        hanging_s = self._loop.time() - _EXTEND_LONGEST_S
        for at_work in self.workers.running():
            if cast("object", at_work.task.held) is batch and at_work.begun_s > hanging_s:
                for message in at_work.part:
                    extender.keep(message, invisible_ms=batch.invisible_ms, left_ms=batch.left_ms)
        self._look_later(extender, batch)

    def _is_ours(self, batch: PopBatch, message: ReceivedMessage) -> bool:
        """Whether nobody else has a message yet."""
        return not batch.dropped or (self._extender is not None and self._extender.is_kept(message))

    def done(self, batch: PopBatch, task_result: TaskResult) -> None:
        """Take what a worker has done of a pop."""
        taken = task_result.succeeded
        finished = len(taken)
        late = 0
        for part, handled in task_result.results:
            finished += len(part)
            failed = failed_messages(part, handled)
            if len(failed) < len(part):
                gone = {id(message) for message, _ in failed}
                taken = [*taken, *(message for message in part if id(message) not in gone)]
            self._failures.note(batch.queue_of(part[0]), part, handled)
            for message, delay_level in failed:
                if self._is_ours(batch, message):
                    self._spawn(self._later(message, delay_level))
                else:
                    late += 1
        in_time = [message for message in taken if self._is_ours(batch, message)] if batch.dropped else taken
        late += len(taken) - len(in_time)
        if late:
            _log.warning(
                "group %s: listeners took longer than the invisible time (%g s) for %s of %s at %s: they are "
                "redelivered; a longer pop_invisible_time_ms or pop_extend=True gives them time",
                self._group,
                batch.invisible_ms / 1_000,
                counted(late, "message"),
                batch.queue.topic,
                batch.queue.broker_name,
            )
        if in_time:
            self._spawn(self._acknowledge(in_time))
        batch.parts_out -= task_result.parts
        batch.unaccounted -= finished
        if batch.parts_out <= 0 and batch.unaccounted:
            finished += batch.unaccounted  # parts that nobody began in time
            batch.unaccounted = 0
        if finished:
            batch.held.done(finished)

    async def _acknowledge(self, messages: list[ReceivedMessage]) -> None:
        if self._extender is not None:
            await self._extender.let_go(messages)
        await self._kernel.ack_quietly(messages)

    async def _later(self, message: ReceivedMessage, delay_level: int) -> None:
        """Have a message redelivered, or give it up."""
        if self._extender is not None:
            await self._extender.let_go([message])
        try:
            if delay_level < 0:
                await self._kernel.give_up(message)
                return
            if message.reconsume_times < self._tries_max:
                invisible_ms: int | None = invisible_after_failure_ms(delay_level, message.reconsume_times)
            else:
                invisible_ms = invisible_when_tried_out_ms(self._now_ms() - message.born_timestamp_ms)
            if invisible_ms is None:
                _log.warning("group %s: %s was tried often enough and is given up", self._group, message)
                await self._kernel.give_up(message)
            else:
                await self._kernel.set_invisible(message, invisible_ms)
        except Error as error:
            _log.warning("group %s: %s is redelivered when its invisible time is over: %s", self._group, message, error)
