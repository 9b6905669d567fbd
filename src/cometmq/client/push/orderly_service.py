"""Orderly listeners: one call at a time for each queue, in the queue's order, while the broker's lock is ours.

For each queue at most one chain is under way: a task at the workers, a timer that continues it, or a question to the
broker. A task holds several parts where the listener is quick, so that a queue is not handed over for each message; a
part is begun only while the lock is fresh and the queue is not given up.

Threads: the client's loop. Source: consumption specification 1.10.2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from cometmq._engine import set_reconsume_times
from cometmq.client.group.retry_policy import suspend_ms
from cometmq.client.push.consume_service import ConsumeContext, ConsumeService
from cometmq.client.push.outcome_policy import CHAIN_MAX_MS, OrderlyStep, OrderlyVerdict, orderly_verdict
from cometmq.client.push.tasks import Task

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from cometmq._engine import ReceivedMessage
    from cometmq.client.group.process_queue import ProcessQueue
    from cometmq.client.push.tasks import TaskResult
    from cometmq.remoting.bodies.message_queue import MessageQueue

__all__ = ["OrderlyService"]

_NOT_LOCKED_MS: Final = 100
_LOCK_LOST_MS: Final = 10
_LOCKED_MS: Final = 10
_LOCK_REFUSED_MS: Final = 3_000
_TOO_LONG_MS: Final = 10
_RELEASE_WAIT_S: Final = 0.5
_TASK_S: Final = 0.005
"""How long a task of several parts should take; finished messages are committed when it ends."""


class OrderlyService(ConsumeService):
    """Chains of listener calls, one for each queue."""

    def __init__(
        self,
        around: ConsumeContext,
        *,
        needs_lock: bool,
        auto_commit: bool,
        most: int,
        suspend_default_ms: int,
        lock: Callable[[MessageQueue], Awaitable[bool]],
    ) -> None:
        """Consume nothing yet; :attr:`workers` is to be set first.

        Args:
            around: the consumer's; messages for ``send_backs`` were tried often enough.
            needs_lock: members share the messages, so that a queue needs its lock.
            auto_commit: success is a commit.
            most: how often a message is tried before it goes to the retry topic.
            suspend_default_ms: how long a queue waits after a failure.
            lock: asks the broker for a queue's lock.
        """
        super().__init__(around, consequence="the queue waits")
        self._needs_lock = needs_lock
        self._auto_commit = auto_commit
        self._most = most
        self._suspend_default_ms = suspend_default_ms
        self._lock = lock
        self._began_ms: dict[ProcessQueue, int] = {}
        self._mean_s: dict[ProcessQueue, float] = {}
        self._quiet: dict[ProcessQueue, asyncio.Future[None]] = {}

    def submit(self, held: ProcessQueue, *, dispatch: bool) -> None:
        """Begin a chain for messages that were pulled, where ``dispatch`` says that none runs."""
        if dispatch:
            self._run(held)

    def forget(self, held: ProcessQueue) -> None:
        """Forget a queue that was given up."""
        self._began_ms.pop(held, None)
        self._mean_s.pop(held, None)

    async def quiet(self, held: ProcessQueue) -> bool:
        """Wait a moment until no listener has messages of a queue; False where one still has."""
        if held.listeners:
            future = self._quiet.setdefault(held, self._loop.create_future())
            await asyncio.wait([future], timeout=_RELEASE_WAIT_S)
        return not held.listeners

    # --- The chain ----------------------------------------------------------------------------------------------------

    def _may_consume(self, held: ProcessQueue) -> bool:
        return not self._needs_lock or (held.locked and not held.lock_expired(self._now_ms()))

    def _run(self, held: ProcessQueue) -> None:
        if held.dropped or self._closed:
            return
        if not self._may_consume(held):
            self._lock_later(held, _NOT_LOCKED_MS if held not in self._began_ms else _LOCK_LOST_MS)
            return
        now_ms = self._now_ms()
        if now_ms - self._began_ms.setdefault(held, now_ms) > CHAIN_MAX_MS:
            self._later(held, _TOO_LONG_MS)
            return
        taken = cast("list[ReceivedMessage]", held.take(self._batch_max * self._parts(held), now_ms=now_ms))
        if not taken:
            self._began_ms.pop(held, None)
            return
        held.listeners += 1
        self.workers.submit(Task(held, taken, self._batch_max, may_go_on=partial(self._may_consume, held)))

    def _parts(self, held: ProcessQueue) -> int:
        # A commit of the listener's counts for all that it has seen, and must not for what it will see.
        if not self._auto_commit:
            return 1
        mean_s = self._mean_s.get(held, _TASK_S)
        return max(1, min(int(_TASK_S / max(mean_s, 1e-9)), self.workers.parts_max))

    def _later(self, held: ProcessQueue, delay_ms: int) -> None:
        """Give the worker up and go on later, with a new measure of time."""
        self._began_ms.pop(held, None)
        self._after(delay_ms, partial(self._run, held))

    def _lock_later(self, held: ProcessQueue, delay_ms: int) -> None:
        self._began_ms.pop(held, None)
        self._after(delay_ms, lambda: self._spawn(self._ask_for_lock(held)))

    async def _ask_for_lock(self, held: ProcessQueue) -> None:
        if held.dropped or self._closed:
            return
        is_locked = await self._lock(held.queue)
        self._later(held, _LOCKED_MS if is_locked else _LOCK_REFUSED_MS)

    # --- Results ------------------------------------------------------------------------------------------------------

    def done(self, task_results: list[TaskResult]) -> None:
        """Take what workers have done."""
        for task_result in task_results:
            self._done(task_result)

    def _done(self, task_result: TaskResult) -> None:
        held, results = task_result.task.held, task_result.results
        held.listeners -= 1
        if not held.listeners and (quiet := self._quiet.pop(held, None)) is not None and not quiet.done():
            quiet.set_result(None)
        if results and not held.dropped:  # a dropped queue is forgotten already
            self._mean_s[held] = (self._loop.time() - task_result.begun_s) / len(results)
        # A listener that ended after its queue was given up has consumed, but may not say so: the next owner
        # consumes the same again.
        begun = 0
        for part, handled in results:
            begun += len(part)
            self._failures.note(held.queue, part, handled)
            verdict = orderly_verdict(handled, auto_commit=self._auto_commit)
            if verdict.step in (OrderlyStep.AGAIN, OrderlyStep.ROLL_BACK):
                held.put_back(task_result.task.messages[begun:])
                self._failed(held, part, verdict)
                return
            if verdict.step is OrderlyStep.COMMIT:
                self._commit(held, part if self._auto_commit else None)
        held.put_back(task_result.task.messages[begun:])
        self._run(held)

    def _commit(self, held: ProcessQueue, messages: list[ReceivedMessage] | None) -> None:
        offset = held.commit(messages)
        if offset >= 0 and not held.dropped:
            self._store.update(held.queue, offset, increase_only=False)
            self._on_room(held)

    def _failed(self, held: ProcessQueue, part: list[ReceivedMessage], verdict: OrderlyVerdict) -> None:
        wait_ms = suspend_ms(verdict.suspend_ms, default_ms=self._suspend_default_ms)
        if verdict.step is OrderlyStep.ROLL_BACK:
            held.rollback()
            self._later(held, wait_ms)
            return
        done, failed = part[: verdict.done], part[verdict.done :]
        if done:
            self._commit(held, done)
        if any(message.reconsume_times >= self._most for message in failed):
            self._spawn(self._give_up(held, failed, wait_ms))
            return
        for message in failed:
            set_reconsume_times(message, message.reconsume_times + 1)
        held.put_back(failed)
        self._later(held, wait_ms)

    async def _give_up(self, held: ProcessQueue, failed: list[ReceivedMessage], wait_ms: int) -> None:
        """Send away what was tried often enough; go on only where all of it was taken."""
        is_suspended = False
        for message in failed:
            if message.reconsume_times >= self._most and await self._send_backs.send_again(message):
                continue
            set_reconsume_times(message, message.reconsume_times + 1)
            is_suspended = True
        if is_suspended:
            held.put_back(failed)
            self._later(held, wait_ms)
            return
        if self._auto_commit:
            self._commit(held, failed)
        self._run(held)
