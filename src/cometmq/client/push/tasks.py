"""The tasks and results of workers: a pull's messages, taken part by part, and their outcome.

The engine submits tasks on the loop and gets their results back there, many at a time. Tasks lie in one deque, and
workers take the first one's parts one by one: a part belongs to nobody until it begins, so a part that hangs does not
hold up those behind it.

Threads: any may take parts and append what is done; the rest is for the loop. Source: consumption specification 1.10.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from operator import length_hint
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from cometmq.client.push.listeners import SUCCEEDED, Handled

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage
    from cometmq.client.group.process_queue import ProcessQueue

__all__ = ["PARTS_PER_CALL_MAX", "AtWork", "TaskResult", "Task", "TaskPool", "Workers"]

PARTS_PER_CALL_MAX: Final = 64
"""Most parts that go to an executor at a time, and most of an orderly task."""


class Task:
    """Messages of one queue for a listener, in parts, each for one call.

    Workers share a task: a free one takes its next part. An orderly task is one worker's from beginning to end.

    Attributes:
        held: the queue's messages; a part whose queue is dropped is not begun, and one at work ends.
        messages: all its messages.
        part_size: how many of them a call gets.
        starts: where parts begin that nobody has taken yet. To take the next is one step of the interpreter.
        is_orderly: parts follow each other, and none is begun after one that failed.
    """

    __slots__ = ("_may_go_on", "held", "is_orderly", "messages", "part_size", "starts")

    def __init__(
        self,
        held: ProcessQueue,
        messages: list[ReceivedMessage],
        part_size: int,
        *,
        may_go_on: Callable[[], bool] | None = None,
    ) -> None:
        """Nothing is done yet.

        Args:
            held: the queue.
            messages: at least one.
            part_size: most messages of one call.
            may_go_on: asked before each part of an orderly task; None where the parts do not depend on each other.
        """
        self.held = held
        self.messages = messages
        self.part_size = part_size
        self.starts = iter(range(0, len(messages), part_size))
        self.is_orderly = may_go_on is not None
        self._may_go_on = may_go_on

    @property
    def is_wanted(self) -> bool:
        """Whether its next part may begin."""
        return not self.held.dropped and (self._may_go_on is None or self._may_go_on())

    @property
    def parts_left(self) -> int:
        """How many parts nobody has taken yet."""
        return length_hint(self.starts)

    def part(self, start: int) -> list[ReceivedMessage]:
        """Return the part that begins there."""
        return self.messages[start : start + self.part_size]

    def split(self) -> list[Task]:
        """Return a task of its own for each part."""
        return [Task(self.held, self.part(start), self.part_size, may_go_on=self._may_go_on) for start in self.starts]


@dataclass(slots=True, eq=False)
class TaskResult:
    """One worker's share of a task. Together, the results of a task hold each of its parts once.

    Attributes:
        task: the task.
        begun_s: when the worker began, by the loop's clock, which is ``time.monotonic()``.
        succeeded: messages that the listener took; those of an orderly task are in ``results``.
        results: the other parts' results; an orderly task has the result of each part that was begun, in order.
        parts: how many parts it had, begun or not: an orderly task may end early, and one whose queue was dropped.
        ended_s: when the last of its parts was done; 0 where that is not known (yet), or none was begun.
    """

    task: Task
    begun_s: float
    succeeded: list[ReceivedMessage] = field(default_factory=list)
    results: list[tuple[list[ReceivedMessage], Handled]] = field(default_factory=list)
    parts: int = 0
    ended_s: float = 0.0

    def add(self, part: list[ReceivedMessage], handled: Handled) -> None:
        """Take note of what came of one part."""
        if not self.task.is_orderly and (handled is SUCCEEDED or handled.is_success):
            self.succeeded += part
        else:
            self.results.append((part, handled))


class AtWork(NamedTuple):
    """A worker's current call.

    Attributes:
        task: the task.
        part: the listener's messages.
        begun_s: since when, by the loop's clock.
    """

    task: Task
    part: list[ReceivedMessage]
    begun_s: float


class Workers(Protocol):
    """Where listeners run."""

    @property
    def parts_max(self) -> int:
        """Most parts that an orderly task should have."""
        ...

    @property
    def waiting(self) -> int:
        """Parts that have not begun."""
        ...

    @property
    def is_inside(self) -> bool:
        """Whether the caller is a call of the listener. Any thread."""
        ...

    def submit(self, task: Task) -> None:
        """Have a task done; each of its parts comes back once, done or not begun because its queue was dropped."""
        ...

    def running(self) -> list[AtWork]:
        """Return what listeners have now."""
        ...

    def collect(self) -> None:
        """Hand back all that is done, also what a worker keeps whose listener is at the next part, or hangs there."""
        ...

    async def close(self, *, drain_ms: int, finish_ms: int) -> int:
        """End.

        Args:
            drain_ms: how long parts that wait may still begin.
            finish_ms: how long those that have begun may still take.

        Returns:
            how many are still at work: their listeners hang.
        """
        ...


class TaskPool:
    """Waiting tasks and finished results, and how both are announced: the part that all workers share."""

    def __init__(self, on_done: Callable[[list[TaskResult]], None]) -> None:
        """To be made on the loop, where ``on_done`` gets what is done."""
        self._loop = asyncio.get_running_loop()
        self._on_done = on_done
        self._ready: deque[Task] = deque()
        self._done: deque[TaskResult] = deque()
        self._outstanding = 0
        self._nothing_left: asyncio.Future[None] | None = None

    @property
    def parts_max(self) -> int:
        """Most parts that an orderly task should have."""
        return PARTS_PER_CALL_MAX

    @property
    def is_inside(self) -> bool:
        """Whether the caller is a call of the listener, as far as that is known."""
        return False

    @property
    def waiting(self) -> int:
        """Parts that have not begun."""
        return sum([task.parts_left for task in list(self._ready)])

    def collect(self) -> None:
        """Hand back all that is done."""
        self._hand_back()

    def _take(self, task: Task) -> None:
        self._outstanding += task.parts_left
        self._ready.append(task)

    def _next_task(self) -> Task | None:
        """Return the task whose parts come next; an orderly one is the caller's alone. Any thread."""
        ready = self._ready
        while True:
            try:
                task = ready[0]
                if task.is_orderly:
                    ready.remove(task)
            except IndexError:
                return None
            except ValueError:  # another worker was quicker
                continue
            return task

    def _all_begun(self, task: Task) -> None:
        """Take note that nobody finds a part of the task any more. Any thread."""
        if not task.is_orderly:
            with suppress(ValueError):  # another worker was quicker
                self._ready.remove(task)

    def _hand_back(self) -> None:
        done = self._done
        # Workers go on appending meanwhile; results after this count wake the loop again.
        task_results = [done.popleft() for _ in range(len(done))]
        if not task_results:
            return
        self._outstanding -= sum([task_result.parts for task_result in task_results])
        self._on_done(task_results)
        if not self._outstanding and self._nothing_left is not None and not self._nothing_left.done():
            self._nothing_left.set_result(None)

    async def _finish(self, *, drain_ms: int, finish_ms: int) -> None:
        if drain_ms > 0:
            await self._until_nothing_is_left(drain_ms)
        while self._ready:
            try:
                task = self._ready.popleft()
            except IndexError:  # a worker was quicker
                break
            # Its owner counts an orderly task as a listener at work until it comes back.
            self._done.append(TaskResult(task, 0.0, parts=sum(1 for _ in task.starts)))
        await self._until_nothing_is_left(finish_ms)

    async def _until_nothing_is_left(self, wait_ms: int) -> None:
        self._hand_back()
        if self._outstanding:
            self._nothing_left = self._loop.create_future()
            await asyncio.wait([self._nothing_left], timeout=wait_ms / 1000)
            self._nothing_left = None
            self._hand_back()
