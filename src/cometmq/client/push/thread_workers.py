"""Listeners in threads of the consumer's own.

Threads are woken as work asks for them: quick listeners are served by one or two, which take part after part without
waking anybody, since each hand-over costs more than such a listener; where parts still wait some milliseconds later, as
many threads again are woken, until all are. Results are reported when a thread finds no more to do, and once a
millisecond while it does.

Threads: everything but the work itself is for the loop. Source: decision 0014, consumption specification 1.10.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cometmq.client.push.listeners import SUCCEEDED
from cometmq.client.push.tasks import AtWork, Task, TaskPool, TaskResult

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage
    from cometmq.client.push.listeners import Call

__all__ = ["ThreadWorkers"]

_log = logging.getLogger(__name__)

_REPORT_S: Final = 0.001
"""How long a thread that has more to do keeps what it has done."""
_LOOK_AGAIN_S: Final = 0.01
"""How long parts may wait before more threads are woken."""
_WORTH_A_WAKE_S: Final = 0.0002
"""How much work a further thread must find. Waking one takes a tenth of it, measured on two cores."""
_TYPICAL_FIRST_S: Final = 0.000002
_TYPICAL_MIN_S: Final = 0.0000001
_SLOWER: Final = 1.25
_QUICKER: Final = 0.8


class _WorkerThread:
    """One thread's state: its current work, its number of finished parts, and the lock on which it sleeps."""

    __slots__ = ("begun_s", "done", "part", "sleep", "task", "task_result")

    def __init__(self) -> None:
        self.task: Task | None = None
        self.part: list[ReceivedMessage] | None = None
        self.task_result: TaskResult | None = None
        self.begun_s = 0.0
        self.done = 0
        self.sleep = threading.Lock()
        self.sleep.acquire()


class ThreadWorkers(TaskPool):
    """Runs listeners in daemon threads of its own, which are made when work first asks for them."""

    def __init__(
        self,
        call: Call,
        on_done: Callable[[list[TaskResult]], None],
        *,
        threads_max: int,
        name: str,
    ) -> None:
        """To be made on the loop.

        Args:
            call: calls the listener; raises nothing.
            on_done: gets what is done, on the loop.
            threads_max: most threads.
            name: their names begin with it.
        """
        super().__init__(on_done)
        self._call = call
        self._threads_max = threads_max
        self._name = name
        self._worker_threads: list[_WorkerThread] = []
        self._asleep: list[_WorkerThread] = []
        self._idents: set[int] = set()
        self._is_notified = False
        self._closed = False
        self._typical_s = _TYPICAL_FIRST_S
        self._timer: asyncio.TimerHandle | None = None
        self._wake_is_due = False

    @property
    def is_inside(self) -> bool:
        """Whether the caller is one of the threads."""
        return threading.get_ident() in self._idents

    def submit(self, task: Task) -> None:
        """Have a task done."""
        self._take(task)
        if not self._awake:
            # At once: while the thread wakes, the loop finishes its turn.
            self._wake_one()
        if self._timer is None and not self._closed:
            self._look_again()
        if not self._wake_is_due and (task.parts_left > 1 or len(self._ready) > 1 or self._is_slow):
            # Several queues' tasks often come in one turn of the loop, from one read of a socket.
            self._wake_is_due = True
            self._loop.call_soon(self._wake_for_work)

    def running(self) -> list[AtWork]:
        """Return what listeners have now."""
        found = []
        for worker_thread in self._worker_threads:
            task, part, begun_s = worker_thread.task, worker_thread.part, worker_thread.begun_s
            if task is not None and part is not None:
                found.append(AtWork(task, part, begun_s))
        return found

    async def close(self, *, drain_ms: int, finish_ms: int) -> int:
        """End the threads; one whose listener hangs stays until that returns."""
        await self._finish(drain_ms=drain_ms, finish_ms=finish_ms)
        self.collect()
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._wake(len(self._asleep))
        return len(self.running())

    def collect(self) -> None:
        """Hand back all that is done, also what threads keep whose listeners are at the next part.

        A thread only ever appends to its task_result, so what is there can be taken from its front meanwhile.
        """
        for worker_thread in self._worker_threads:
            task_result = worker_thread.task_result
            if task_result is None or task_result.task.is_orderly:
                continue
            succeeded, results = task_result.succeeded[:], task_result.results[:]
            del task_result.succeeded[: len(succeeded)], task_result.results[: len(results)]
            if succeeded or results:
                self._done.append(TaskResult(task_result.task, task_result.begun_s, succeeded, results))
        self._hand_back()

    @property
    def _awake(self) -> int:
        return len(self._worker_threads) - len(self._asleep)

    @property
    def _is_slow(self) -> bool:
        """Whether a single part is worth a thread."""
        return self._typical_s > _WORTH_A_WAKE_S

    def _wake_for_work(self) -> None:
        """Have as many threads awake as the work is worth; those that are take what comes."""
        self._wake_is_due = False
        waiting = self.waiting
        if self._is_slow:
            self._wake(waiting)  # threads awake are busy for longer than waking one more takes
        elif waiting:
            self._wake(max(1, int(waiting * self._typical_s / _WORTH_A_WAKE_S)) - self._awake)

    def _look_again(self) -> None:
        done = self._done_so_far()
        self._timer = self._loop.call_later(_LOOK_AGAIN_S, self._look, done)

    def _done_so_far(self) -> int:
        return sum([worker_thread.done for worker_thread in self._worker_threads])

    def _look(self, done_before: int) -> None:
        """Wake more threads where tasks wait and those awake do not get on with them."""
        self._timer = None
        progress = self._done_so_far() - done_before
        if self._done:
            self._hand_back()
        waiting = self.waiting
        if waiting and not self._closed:
            # Quick work that waits all the same waits for the machine: more threads would only be in the way.
            if not progress or (progress < waiting and waiting * self._typical_s > _LOOK_AGAIN_S):
                self._wake(max(1, self._awake))
            self._look_again()

    def _wake(self, count: int) -> None:
        for _ in range(min(count, self._threads_max)):
            if not self._wake_one():
                return

    def _wake_one(self) -> bool:
        try:
            worker_thread = self._asleep.pop()
        except IndexError:
            if len(self._worker_threads) >= self._threads_max or self._closed:
                return False
            worker_thread = _WorkerThread()
            name = f"{self._name}_{len(self._worker_threads) + 1}"
            try:
                threading.Thread(target=self._work, args=(worker_thread,), name=name, daemon=True).start()
            except RuntimeError as error:
                # The process may have no more threads now; while parts wait it is tried again every 10 ms.
                if not self._worker_threads:
                    _log.warning("no thread for a listener can be started: %s", error)
                return False
            self._worker_threads.append(worker_thread)
        else:
            worker_thread.sleep.release()
        return True

    # --- In the threads -----------------------------------------------------------------------------------------------

    def _work(self, worker_thread: _WorkerThread) -> None:
        ident = threading.get_ident()
        self._idents.add(ident)
        try:
            self._work_on(worker_thread)
        finally:
            self._idents.discard(ident)

    def _work_on(self, worker_thread: _WorkerThread) -> None:
        while True:
            self._do_all(worker_thread)
            if self._closed:
                return
            self._asleep.append(worker_thread)
            if self._ready or self._closed:
                # A task came, or the end, after the last look and before anybody could see that this thread sleeps.
                try:
                    self._asleep.remove(worker_thread)
                except ValueError:
                    worker_thread.sleep.acquire()  # it was seen: the lock is released, or will be at once
                continue
            worker_thread.sleep.acquire()

    def _do_all(self, worker_thread: _WorkerThread) -> None:
        reported_s = time.monotonic()
        while (task := self._next_task()) is not None:
            reported_s = self._do(task, worker_thread, reported_s)
        if self._done:
            self._notify()

    def _do(self, task: Task, worker_thread: _WorkerThread, reported_s: float) -> float:
        """Do the rest of a task, and return when results were reported to the loop last."""
        call, clock = self._call, time.monotonic
        held, messages, size, is_orderly = task.held, task.messages, task.part_size, task.is_orderly
        typical = self._typical_s
        now = clock()
        task_result = worker_thread.task_result = TaskResult(task, now)
        succeeded, parts = task_result.succeeded, 0
        worker_thread.task = task
        for start in task.starts:
            parts += 1
            if held.dropped or (is_orderly and not task.is_wanted):
                if is_orderly:
                    break
                continue
            part = messages[start : start + size]
            worker_thread.begun_s = begun = now
            worker_thread.part = part
            handled = call(part)
            now = clock()
            # The median, nearly: the mean would count the times for which another thread had the interpreter, and
            # wake more threads to fight for it.
            typical *= _SLOWER if now - begun > typical else _QUICKER
            if handled is SUCCEEDED and not is_orderly:
                succeeded += part
            else:
                task_result.add(part, handled)
                if is_orderly and not handled.is_success:
                    break
            if now - reported_s > _REPORT_S and not is_orderly:
                worker_thread.part = None
                task_result.parts, task_result.ended_s = parts, now
                self._report(task_result, worker_thread)
                self._notify()
                reported_s = now
                task_result = worker_thread.task_result = TaskResult(task, now)
                succeeded, parts = task_result.succeeded, 0
        worker_thread.part = None
        worker_thread.task = None
        worker_thread.task_result = None
        self._all_begun(task)
        self._typical_s = max(typical, _TYPICAL_MIN_S)
        if is_orderly:
            parts += task.parts_left
        if parts:
            task_result.parts, task_result.ended_s = parts, now
            self._report(task_result, worker_thread)
            if now - reported_s > _REPORT_S:
                self._notify()
                reported_s = now
        return reported_s

    def _report(self, task_result: TaskResult, worker_thread: _WorkerThread) -> None:
        worker_thread.done += task_result.parts
        self._done.append(task_result)

    def _notify(self) -> None:
        if self._is_notified:
            return
        self._is_notified = True
        try:
            self._loop.call_soon_threadsafe(self._take_results)
        except RuntimeError:
            # The loop was closed while a listener hung; nobody is left who could commit what it did.
            self._closed = True

    def _take_results(self) -> None:
        # First the flag, then the look: results in between are reported once more.
        self._is_notified = False
        self._hand_back()
