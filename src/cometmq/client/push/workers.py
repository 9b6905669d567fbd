"""Listeners in an executor of the user's, or on the event loop itself; ``thread_workers`` has those in threads.

Threads: the loop; executors call back from theirs. Source: decision 0014, consumption specification 1.10.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from cometmq.client.push.listeners import Handled, Outcome, call_elsewhere
from cometmq.client.push.tasks import PARTS_PER_CALL_MAX, AtWork, Task, TaskPool, TaskResult

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage
    from cometmq.client.push.listeners import AnyListener, AsyncCall

__all__ = ["ExecutorWorkers", "LoopWorkers", "handled_apart"]

_log = logging.getLogger(__name__)

_REFUSED_S: Final = 5.0
"""How long tasks wait that an executor refused."""
_LOOP_TURN_S: Final = 0.005
_REPLACE_S: Final = 0.05
"""How long after the end of a worker that was cancelled another takes its place."""

_call_of_listener: ContextVar[AtWork | None] = ContextVar("_call_of_listener", default=None)
"""The call that the running task, or the one that began it, belongs to."""


class ExecutorWorkers(TaskPool):
    """Runs listeners in an executor of the user's, which stays the user's: it is not shut down here.

    In a process pool the listener and the messages travel by pickle, so the listener must be a function that a module
    defines. Where many tasks wait, several travel at a time.
    """

    def __init__(
        self,
        executor: Executor,
        listener: AnyListener,
        on_done: Callable[[list[TaskResult]], None],
        *,
        batch: bool,
        at_once_max: int,
    ) -> None:
        """To be made on the loop.

        Args:
            executor: where the listener runs.
            listener: the user's, plain.
            on_done: gets what is done, on the loop.
            batch: the listener takes lists.
            at_once_max: how many calls the executor gets before it has answered one.
        """
        super().__init__(on_done)
        self._executor = executor
        self._listener = listener
        self._batch = batch
        self._at_once_max = at_once_max
        self._calls: dict[Future[list[Handled]], tuple[list[Task], float]] = {}
        self._refused: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def parts_max(self) -> int:
        """One: whether the queue still belongs to this consumer can be looked at here alone."""
        return 1

    def submit(self, task: Task) -> None:
        """Have a task done."""
        for part in task.split():  # the executor's workers cannot share one
            self._take(part)
        self._pump()

    def running(self) -> list[AtWork]:
        """Return what the executor has, begun there or not."""
        return [AtWork(task, task.messages, begun_s) for tasks, begun_s in self._calls.values() for task in tasks]

    async def close(self, *, drain_ms: int, finish_ms: int) -> int:
        """End; the executor stays as it is."""
        await self._finish(drain_ms=drain_ms, finish_ms=finish_ms)
        self._closed = True
        if self._refused is not None:
            self._refused.cancel()
        return len(self.running())

    def _pump(self) -> None:
        if self._closed or self._refused is not None:
            return
        while self._ready and (free := self._at_once_max - len(self._calls)) > 0:
            count = min(-(-len(self._ready) // free), PARTS_PER_CALL_MAX)
            tasks: list[Task] = []
            for task in [self._ready.popleft() for _ in range(count)]:
                if task.is_wanted:
                    tasks.append(task)
                else:
                    self._done.append(TaskResult(task, 0.0, parts=1))
            if tasks and not self._call(tasks):
                break
        if self._done:
            self._loop.call_soon(self._hand_back)

    def _call(self, tasks: list[Task]) -> bool:
        parts = [task.messages for task in tasks]
        try:
            future = self._executor.submit(call_elsewhere, self._listener, self._batch, parts)
        except RuntimeError:
            # It was shut down, or has lost its processes.
            _log.warning("the executor of a listener takes nothing more; trying again in %s s", int(_REFUSED_S))
            self._ready.extendleft(reversed(tasks))
            self._refused = self._loop.call_later(_REFUSED_S, self._try_again)
            return False
        self._calls[future] = tasks, self._loop.time()
        future.add_done_callback(self._notify)
        return True

    def _try_again(self) -> None:
        self._refused = None
        self._pump()

    def _notify(self, future: Future[list[Handled]]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._take_results, future)
        except RuntimeError:
            # The loop was closed while a listener hung; nobody is left who could commit what it did.
            self._closed = True

    def _take_results(self, future: Future[list[Handled]]) -> None:
        tasks, begun_s = self._calls.pop(future)
        error: BaseException | None = None if not future.cancelled() else asyncio.CancelledError()
        error = error or future.exception()
        results = [Handled(Outcome.RETRY, problem=error)] * len(tasks) if error is not None else future.result()
        took_s = (self._loop.time() - begun_s) / len(tasks)
        for task, handled in zip(tasks, results, strict=True):
            task_result = TaskResult(task, begun_s, parts=1, ended_s=begun_s + took_s)
            task_result.add(task.messages, handled)
            self._done.append(task_result)
        self._hand_back()
        self._pump()


class LoopWorkers(TaskPool):
    """Awaits ``async def`` listeners on the loop, several at a time.

    A worker whose task was cancelled reports what it has, and another takes its place: a cancelled task is not trusted
    with more calls, since it could not distinguish its own end from a listener's failure.
    """

    def __init__(self, call: AsyncCall, on_done: Callable[[list[TaskResult]], None], *, at_once_max: int) -> None:
        """To be made on the loop.

        Args:
            call: awaits the listener; raises nothing but cancellation.
            on_done: gets what is done.
            at_once_max: how many listener calls may be awaited at a time.
        """
        super().__init__(on_done)
        self._call = call
        self._at_once_max = at_once_max
        self._at_work: dict[asyncio.Task[None], AtWork | None] = {}
        self._is_notified = False
        self._closed = False

    @property
    def is_inside(self) -> bool:
        """Whether the caller is a call of the listener, or a task that one began and may wait for."""
        call = _call_of_listener.get()
        return call is not None and any(call is at_work for at_work in self._at_work.values())

    def submit(self, task: Task) -> None:
        """Have a task done."""
        self._take(task)
        self._add_workers(1 if task.is_orderly else task.parts_left)

    def _add_workers(self, wanted: int) -> None:
        for _ in range(min(wanted, self._at_once_max - len(self._at_work))):
            worker = self._loop.create_task(self._work())
            self._at_work[worker] = None
            worker.add_done_callback(self._ended)

    def _ended(self, worker: asyncio.Task[None]) -> None:
        # One that is cancelled before its first turn never gets to take itself out.
        self._at_work.pop(worker, None)
        if (worker.cancelled() or worker.exception() is not None) and not self._closed:
            # Not at once: where all tasks of a loop are cancelled because it ends, nothing is to begin any more.
            self._loop.call_later(_REPLACE_S, self._replace)

    def _replace(self) -> None:
        if self._ready and not self._closed:
            self._add_workers(self.waiting)

    def running(self) -> list[AtWork]:
        """Return what is awaited."""
        return [at_work for at_work in self._at_work.values() if at_work is not None]

    async def close(self, *, drain_ms: int, finish_ms: int) -> int:
        """End; calls that still wait for something then are cancelled, and their messages redelivered."""
        await self._finish(drain_ms=drain_ms, finish_ms=finish_ms)
        self._closed = True
        left = len(self.running())
        workers = list(self._at_work)
        for worker in workers:
            worker.cancel()
        if workers:
            await asyncio.wait(workers, timeout=finish_ms / 1000)
        return left

    async def _work(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        turn = time.monotonic()
        while (task := self._next_task()) is not None:
            turn = await self._do(task, me, turn)
        # At once, not when the loop says that this has ended: a task that comes in between needs a new worker.
        del self._at_work[me]

    async def _do(self, task: Task, me: asyncio.Task[None], turn: float) -> float:
        """Do what is left of a task, and return when the loop turned last.

        Raises:
            asyncio.CancelledError: this worker's task was cancelled. Its results are reported.
        """
        task_result = TaskResult(task, self._loop.time())
        try:
            for start in task.starts:
                task_result.parts += 1
                if not task.is_wanted:
                    if task.is_orderly:
                        break
                    continue
                part = task.part(start)
                at_work = self._at_work[me] = AtWork(task, part, self._loop.time())
                _call_of_listener.set(at_work)
                try:
                    handled, is_cancelled = await self._handled(part, me)
                except (KeyboardInterrupt, GeneratorExit) as error:
                    task_result.add(part, Handled(Outcome.RETRY, problem=error))
                    raise
                self._at_work[me] = None
                task_result.ended_s = self._loop.time()
                task_result.add(part, handled)
                if not task.is_orderly:
                    self._report(task_result)
                    task_result = TaskResult(task, self._loop.time())
                if is_cancelled:
                    raise asyncio.CancelledError
                if task.is_orderly and not handled.is_success:
                    break
                if time.monotonic() - turn > _LOOP_TURN_S:
                    # Listeners that never wait for anything must not keep the loop from its sockets.
                    await asyncio.sleep(0)
                    turn = time.monotonic()
        finally:
            if task.is_orderly:
                task_result.parts += task.parts_left
            elif not task.parts_left:
                self._all_begun(task)
            if task_result.parts:
                self._report(task_result)
        return turn

    async def _handled(self, part: list[ReceivedMessage], me: asyncio.Task[None]) -> tuple[Handled, bool]:
        """Await the listener; return its answer, and whether this worker's task was cancelled meanwhile.

        That the listener awaited something that was cancelled, or cancelled its own task, is its failure.

        Raises:
            asyncio.CancelledError: the consumer closes.
        """
        try:
            if sys.version_info >= (3, 11):
                handled = await self._call(part)
                return handled, me.cancelling() > 0
            return await handled_apart(self._call, part), False
        except asyncio.CancelledError as error:
            if self._closed:
                raise
            handled = Handled(Outcome.RETRY, problem=error)
            if sys.version_info >= (3, 11):
                return handled, me.cancelling() > 0
            return handled, True

    def _report(self, task_result: TaskResult) -> None:
        self._done.append(task_result)
        if not self._is_notified:
            self._is_notified = True
            self._loop.call_soon(self._take_results)

    def _take_results(self) -> None:
        self._is_notified = False
        self._hand_back()


async def handled_apart(call: AsyncCall, part: list[ReceivedMessage]) -> Handled:
    """Await a listener in a task of its own: in Python 3.10 a task's own end looks like that of its awaitable.

    Raises:
        asyncio.CancelledError: the caller is to end; the listener has ended.
    """
    task = asyncio.ensure_future(call(part))
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        raise
    if task.cancelled():
        return Handled(Outcome.RETRY, problem=asyncio.CancelledError())
    return task.result()
