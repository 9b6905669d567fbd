"""Concurrent listeners: messages are consumed in any order, and each failure goes its own way.

Invariant: a message leaves its process queue only when it is done, or when another has it: the broker, or the next
owner of a queue that was given up. So the committed offset never passes a message that could be lost.

Threads: the client's loop; the listener's own workers come in through :class:`~cometmq.client.push.tasks.Workers`.
Source: consumption specification 1.9, 1.10.1.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cometmq._engine import set_reconsume_times
from cometmq.client.group.retry_policy import EXPIRED_DELAY_LEVEL, LOCAL_RETRY_MS
from cometmq.client.push.consume_service import ConsumeContext, ConsumeService
from cometmq.client.push.outcome_policy import failed_messages
from cometmq.client.push.tasks import Task
from cometmq.remoting.bodies.heartbeat import MessageModel

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage
    from cometmq.client.group.process_queue import ProcessQueue
    from cometmq.client.push.listeners import Handled
    from cometmq.client.push.tasks import TaskResult

__all__ = ["ConcurrentService"]

_HANGING_AT_ONCE_MAX: Final = 16

_log = logging.getLogger(__name__)


class ConcurrentService(ConsumeService):
    """Consumes a queue's messages in any order, several at a time."""

    def __init__(self, around: ConsumeContext, *, model: MessageModel) -> None:
        """Consume nothing yet; :attr:`workers` is to be set first.

        Args:
            around: the consumer's.
            model: members that each get all messages try none again.
        """
        is_lost = model is MessageModel.BROADCASTING
        super().__init__(around, consequence="broadcast messages are not tried again" if is_lost else "")
        self._model = model

    def submit(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Have messages of a pull consumed."""
        self.workers.submit(Task(held, messages, self._batch_max))

    def done(self, task_results: list[TaskResult]) -> None:
        """Take what workers have done."""
        finished: dict[ProcessQueue, list[ReceivedMessage]] = {}
        for task_result in task_results:
            held = task_result.task.held
            if task_result.succeeded:
                finished.setdefault(held, []).extend(task_result.succeeded)
            for part, handled in task_result.results:
                self._failed(held, part, handled)
        for held, messages in finished.items():
            self._finish(held, messages)

    def _finish(self, held: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        if held.dropped:
            return  # the queue's next owner consumes them again
        offset = held.remove(messages, now_ms=self._now_ms())
        if offset >= 0:
            self._store.update(held.queue, offset, increase_only=True)
        self._on_room(held)

    def _failed(self, held: ProcessQueue, part: list[ReceivedMessage], handled: Handled) -> None:
        is_lost = self._model is MessageModel.BROADCASTING
        if is_lost and handled.problem is None:
            handled = replace(handled, problem="it asked for a retry")
        self._failures.note(held.queue, part, handled)
        if held.dropped:
            return
        if is_lost:
            self._finish(held, part)
            return
        self._spawn(self._give_back(held, part, handled))

    async def _give_back(self, held: ProcessQueue, part: list[ReceivedMessage], handled: Handled) -> None:
        kept: list[ReceivedMessage] = []
        for message, delay_level in failed_messages(part, handled):
            # Messages of a listener that hung were sent back meanwhile.
            if held.contains(message) and not await self._send_backs.give_back(message, delay_level):
                set_reconsume_times(message, message.reconsume_times + 1)
                kept.append(message)
        if kept:
            offsets = {message.queue_offset for message in kept}
            part = [message for message in part if message.queue_offset not in offsets]
            self._later(held, kept)
        self._finish(held, part)

    def _later(self, held: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Try again here what nobody took back."""

        def submit() -> None:
            if not held.dropped:
                self.submit(held, messages)

        self._after(LOCAL_RETRY_MS, submit)

    async def give_back_hanging(self, queues: Sequence[ProcessQueue], *, longer_than_s: float) -> int:
        """Send back the first messages of queues whose listener has them for too long; return how many went.

        The listener's worker is lost until it returns; the offset can move on.

        Args:
            queues: where to look.
            longer_than_s: how long a listener may take.
        """
        self.workers.collect()  # finished messages must not stand before the one that hangs
        oldest = self._loop.time() - longer_than_s
        hanging = {
            (at_work.task.held, message.queue_offset): message
            for at_work in self.workers.running()
            if at_work.begun_s < oldest
            for message in at_work.part
        }
        sent = 0
        for held in queues:
            for _ in range(min(held.count, _HANGING_AT_ONCE_MAX)):
                first = held.first()
                message = None if first is None else hanging.get((held, first.queue_offset))
                if message is None or held.dropped:
                    break
                if not await self._send_backs.give_back(message, EXPIRED_DELAY_LEVEL):
                    break
                sent += 1
                _log.warning("group %s: %s hung in its listener and was sent back", self._group, message)
                self._finish(held, [message])
        return sent
