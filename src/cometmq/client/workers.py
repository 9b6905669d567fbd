"""Who runs the listener: worker threads, an executor of the user's, or the event loop itself.

The engine submits tasks on the loop and gets them back there, done, many at a time. Tasks lie in one deque and belong
to nobody until they begin, so that one that hangs holds up none behind it.

Threads are woken as work asks for them: quick listeners are served by one or two, which take task after task without
waking anybody, since each hand-over costs more than such a listener; where tasks still wait a few milliseconds later,
as many threads again are woken, until all are. What is done is reported when a thread runs out of tasks, and once a
millisecond while it does not.

Threads: everything but the tasks themselves is for the loop. Source: decision 0014, consumption specification 1.10.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Final, Protocol

from cometmq.client.listeners import Handled, Outcome, call_elsewhere

if TYPE_CHECKING:
    from cometmq._engine import ReceivedMessage
    from cometmq.client.listeners import AnyListener, AsyncCall, Call
    from cometmq.client.process_queue import ProcessQueue

__all__ = ["ExecutorWorkers", "LoopWorkers", "Task", "ThreadWorkers", "Workers"]

_log = logging.getLogger(__name__)

_REPORT_S: Final = 0.001
"""How long a thread that has more to do keeps what it has done."""
_LOOK_AGAIN_S: Final = 0.01
"""How long tasks may wait before more threads are woken."""
_WORTH_A_WAKE_S: Final = 0.0002
"""How much work a further thread must find. Waking one takes a tenth of it, measured on two cores."""
_REFUSED_S: Final = 5.0
"""How long tasks wait that an executor refused."""
_TASKS_PER_CALL_MAX: Final = 64
_LOOP_TURN_S: Final = 0.005
_TYPICAL_FIRST_S: Final = 0.00002
_TYPICAL_MIN_S: Final = 0.0000001
_SLOWER: Final = 1.1
_QUICKER: Final = 0.9


class Task:
    """What a worker does at a time: parts of one queue, each for one call of the listener, in order.

    Attributes:
        held: the queue's messages; a task whose queue is dropped is not begun, and one at work ends.
        parts: what each call of the listener gets.
        results: what came of each call; fewer than parts where the task ended early.
        orderly: no part is begun after one that failed.
        begun_s: when a worker took it, by the loop's clock, which is ``time.monotonic()``; 0 before.
    """

    __slots__ = ("begun_s", "held", "may_go_on", "orderly", "parts", "results")

    def __init__(
        self,
        held: ProcessQueue,
        parts: list[list[ReceivedMessage]],
        *,
        may_go_on: Callable[[], bool] | None = None,
    ) -> None:
        """Nothing is done yet.

        Args:
            held: the queue.
            parts: what each call of the listener gets.
            may_go_on: asked before each part of an orderly task; None where the parts do not depend on each other.
        """
        self.held = held
        self.parts = parts
        self.results: list[Handled] = []
        self.may_go_on = may_go_on
        self.orderly = may_go_on is not None
        self.begun_s = 0.0

    @property
    def is_wanted(self) -> bool:
        """Whether its next part may begin."""
        return not self.held.dropped and (self.may_go_on is None or self.may_go_on())

    def run(self, call: Call) -> None:
        """Do it here and now."""
        for part in self.parts:
            if not self.is_wanted:
                return
            handled = call(part)
            self.results.append(handled)
            if self.orderly and not handled.is_success:
                return

    async def run_async(self, call: AsyncCall) -> None:
        """Do it on the loop."""
        for part in self.parts:
            if not self.is_wanted:
                return
            handled = await call(part)
            self.results.append(handled)
            if self.orderly and not handled.is_success:
                return


class Workers(Protocol):
    """Where listeners run."""

    @property
    def parts_max(self) -> int:
        """Most parts that an orderly task should have."""
        ...

    @property
    def waiting(self) -> int:
        """Tasks that have not begun."""
        ...

    def submit(self, tasks: Iterable[Task]) -> None:
        """Have tasks done; each comes back once, done or not begun because its queue was dropped."""
        ...

    def running(self) -> list[Task]:
        """Return the tasks that have begun and not ended."""
        ...

    async def close(self, *, drain_ms: int, finish_ms: int) -> int:
        """End.

        Args:
            drain_ms: how long tasks that wait may still begin.
            finish_ms: how long those that have begun may still take.

        Returns:
            how many are still at work: their listeners hang.
        """
        ...


class _Common:
    """Tasks that wait, tasks that are done, and how both are told."""

    def __init__(self, on_done: Callable[[list[Task]], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_done = on_done
        self._ready: deque[Task] = deque()
        self._done: deque[Task] = deque()
        self._outstanding = 0
        self._handed_back = 0
        self._nothing_left: asyncio.Future[None] | None = None

    @property
    def parts_max(self) -> int:
        return _TASKS_PER_CALL_MAX

    @property
    def waiting(self) -> int:
        return len(self._ready)

    def _take(self, tasks: Iterable[Task]) -> int:
        before = len(self._ready)
        self._ready.extend(tasks)
        added = len(self._ready) - before
        self._outstanding += added
        return added

    def _hand_back(self) -> None:
        done = self._done
        # Workers go on appending meanwhile; what comes after this count is told again.
        tasks = [done.popleft() for _ in range(len(done))]
        if not tasks:
            return
        self._handed_back += len(tasks)
        self._outstanding -= len(tasks)
        self._on_done(tasks)
        if not self._outstanding and self._nothing_left is not None and not self._nothing_left.done():
            self._nothing_left.set_result(None)

    async def _finish(self, *, drain_ms: int, finish_ms: int) -> None:
        if drain_ms > 0:
            await self._until_nothing_is_left(drain_ms)
        while self._ready:
            try:
                self._ready.popleft()
            except IndexError:  # a worker was quicker
                break
            self._outstanding -= 1
        await self._until_nothing_is_left(finish_ms)

    async def _until_nothing_is_left(self, wait_ms: int) -> None:
        self._hand_back()
        if self._outstanding:
            self._nothing_left = self._loop.create_future()
            await asyncio.wait([self._nothing_left], timeout=wait_ms / 1000)
            self._nothing_left = None
            self._hand_back()


class _Seat:
    """One thread's place: what it does now, and the lock on which it sleeps."""

    __slots__ = ("sleep", "task")

    def __init__(self) -> None:
        self.task: Task | None = None
        self.sleep = threading.Lock()
        self.sleep.acquire()


class ThreadWorkers(_Common):
    """Runs listeners in daemon threads of its own, which are made when work first asks for them."""

    def __init__(
        self,
        call: Call,
        on_done: Callable[[list[Task]], None],
        *,
        threads_max: int,
        name: str,
    ) -> None:
        """To be made on the loop.

        Args:
            call: calls the listener; raises nothing.
            on_done: gets tasks that are done, on the loop.
            threads_max: most threads.
            name: their names begin with it.
        """
        super().__init__(on_done)
        self._call = call
        self._threads_max = threads_max
        self._name = name
        self._seats: list[_Seat] = []
        self._asleep: list[_Seat] = []
        self._told = False
        self._closed = False
        self._typical_s = _TYPICAL_FIRST_S
        self._timer: asyncio.TimerHandle | None = None
        self._wake_is_due = False

    def submit(self, tasks: Iterable[Task]) -> None:
        """Have tasks done."""
        if self._take(tasks) and not self._wake_is_due:
            # Several queues' tasks often come in one turn of the loop, from one read of a socket.
            self._wake_is_due = True
            self._loop.call_soon(self._wake_for_work)

    def running(self) -> list[Task]:
        """Return the tasks that threads are at."""
        return [task for seat in self._seats if (task := seat.task) is not None]

    async def close(self, *, drain_ms: int, finish_ms: int) -> int:
        """End the threads; one whose listener hangs stays until that returns."""
        await self._finish(drain_ms=drain_ms, finish_ms=finish_ms)
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._wake(len(self._asleep))
        return len(self.running())

    @property
    def _awake(self) -> int:
        return len(self._seats) - len(self._asleep)

    def _wake_for_work(self) -> None:
        """Have as many threads awake as the work is worth; those that are take what comes."""
        self._wake_is_due = False
        waiting = len(self._ready)
        if not waiting:
            return
        worth = min(max(1, int(waiting * self._typical_s / _WORTH_A_WAKE_S)), waiting)
        self._wake(worth - self._awake)
        if self._timer is None and not self._closed:
            self._look_again()

    def _look_again(self) -> None:
        done = self._done_so_far()
        self._timer = self._loop.call_later(_LOOK_AGAIN_S, self._look, done)

    def _done_so_far(self) -> int:
        return self._handed_back + len(self._done)

    def _look(self, done_before: int) -> None:
        """Wake more threads where tasks wait and those awake do not get on with them."""
        self._timer = None
        progress = self._done_so_far() - done_before
        if self._done:
            self._hand_back()
        waiting = len(self._ready)
        if waiting and not self._closed:
            if progress < waiting:
                self._wake(max(1, self._awake))
            self._look_again()

    def _wake(self, count: int) -> None:
        for _ in range(min(count, self._threads_max)):
            if not self._wake_one():
                return

    def _wake_one(self) -> bool:
        try:
            seat = self._asleep.pop()
        except IndexError:
            if len(self._seats) >= self._threads_max or self._closed:
                return False
            seat = _Seat()
            self._seats.append(seat)
            name = f"{self._name}_{len(self._seats)}"
            threading.Thread(target=self._work, args=(seat,), name=name, daemon=True).start()
        else:
            seat.sleep.release()
        return True

    # --- In the threads -----------------------------------------------------------------------------------------------

    def _work(self, seat: _Seat) -> None:
        while True:
            self._do_all(seat)
            if self._closed:
                return
            self._asleep.append(seat)
            if self._ready or self._closed:
                # A task came, or the end, after the last look and before anybody could see that this thread sleeps.
                try:
                    self._asleep.remove(seat)
                except ValueError:
                    seat.sleep.acquire()  # it was seen: the lock is released, or will be at once
                continue
            seat.sleep.acquire()

    def _do_all(self, seat: _Seat) -> None:
        ready, done, call, clock = self._ready, self._done, self._call, time.monotonic
        told = now = clock()
        count = 0
        while True:
            try:
                task = ready.popleft()
            except IndexError:
                break
            task.begun_s = now
            seat.task = task
            task.run(call)
            done.append(task)
            count += 1
            now = clock()
            # The median, nearly: the mean would count the times for which another thread had the interpreter, and
            # wake more threads to fight for it.
            self._typical_s *= _SLOWER if now - task.begun_s > self._typical_s else _QUICKER
            if now - told > _REPORT_S:
                told = now
                self._tell()
        seat.task = None
        if count:
            self._typical_s = max(self._typical_s, _TYPICAL_MIN_S)
            self._tell()

    def _tell(self) -> None:
        if self._told:
            return
        self._told = True
        try:
            self._loop.call_soon_threadsafe(self._be_told)
        except RuntimeError:
            # The loop was closed while a listener hung; nobody is left who could commit what it did.
            self._closed = True

    def _be_told(self) -> None:
        # First the flag, then the look: what is done in between is told once more.
        self._told = False
        self._hand_back()


class ExecutorWorkers(_Common):
    """Runs listeners in an executor of the user's, which stays the user's: it is not shut down here.

    In a process pool the listener and the messages travel by pickle, so the listener must be a function that a module
    defines. Where many tasks wait, several travel at a time.
    """

    def __init__(
        self,
        executor: Executor,
        listener: AnyListener,
        on_done: Callable[[list[Task]], None],
        *,
        batch: bool,
        at_once_max: int,
    ) -> None:
        """To be made on the loop.

        Args:
            executor: where the listener runs.
            listener: the user's, plain.
            on_done: gets tasks that are done, on the loop.
            batch: the listener takes lists.
            at_once_max: how many calls the executor gets before it has answered one.
        """
        super().__init__(on_done)
        self._executor = executor
        self._listener = listener
        self._batch = batch
        self._at_once_max = at_once_max
        self._calls: dict[Future[list[list[Handled]]], list[Task]] = {}
        self._refused: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def parts_max(self) -> int:
        """One: whether the queue still belongs to this consumer can be looked at here alone."""
        return 1

    def submit(self, tasks: Iterable[Task]) -> None:
        """Have tasks done."""
        if self._take(tasks):
            self._pump()

    def running(self) -> list[Task]:
        """Return the tasks that the executor has, begun there or not."""
        return [task for tasks in self._calls.values() for task in tasks]

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
            count = min(-(-len(self._ready) // free), _TASKS_PER_CALL_MAX)
            tasks: list[Task] = []
            for task in [self._ready.popleft() for _ in range(count)]:
                (tasks if task.is_wanted else self._done).append(task)
            if tasks and not self._call(tasks):
                break
        if self._done:
            self._loop.call_soon(self._hand_back)

    def _call(self, tasks: list[Task]) -> bool:
        now = self._loop.time()
        for task in tasks:
            task.begun_s = now
        parts = [task.parts for task in tasks]
        try:
            future = self._executor.submit(call_elsewhere, self._listener, self._batch, parts)
        except RuntimeError:
            # It was shut down, or has lost its processes.
            _log.warning("the executor of a listener takes nothing more; trying again in %s s", int(_REFUSED_S))
            self._ready.extendleft(reversed(tasks))
            self._refused = self._loop.call_later(_REFUSED_S, self._try_again)
            return False
        self._calls[future] = tasks
        future.add_done_callback(self._tell)
        return True

    def _try_again(self) -> None:
        self._refused = None
        self._pump()

    def _tell(self, future: Future[list[list[Handled]]]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._be_told, future)
        except RuntimeError:
            # The loop was closed while a listener hung; nobody is left who could commit what it did.
            self._closed = True

    def _be_told(self, future: Future[list[list[Handled]]]) -> None:
        tasks = self._calls.pop(future)
        error: BaseException | None = None if not future.cancelled() else asyncio.CancelledError()
        error = error or future.exception()
        if error is None:
            for task, results in zip(tasks, future.result(), strict=True):
                task.results = results
        else:
            for task in tasks:
                task.results = [Handled(Outcome.RETRY, problem=error) for _ in task.parts]
        self._done.extend(tasks)
        self._hand_back()
        self._pump()


class LoopWorkers(_Common):
    """Awaits ``async def`` listeners on the loop, several at a time."""

    def __init__(self, call: AsyncCall, on_done: Callable[[list[Task]], None], *, at_once_max: int) -> None:
        """To be made on the loop.

        Args:
            call: awaits the listener; raises nothing but cancellation.
            on_done: gets tasks that are done.
            at_once_max: how many listener calls may be awaited at a time.
        """
        super().__init__(on_done)
        self._call = call
        self._at_once_max = at_once_max
        self._at_work: dict[asyncio.Task[None], Task | None] = {}
        self._told = False

    def submit(self, tasks: Iterable[Task]) -> None:
        """Have tasks done."""
        added = self._take(tasks)
        for _ in range(min(added, self._at_once_max - len(self._at_work))):
            worker = self._loop.create_task(self._work())
            self._at_work[worker] = None
            worker.add_done_callback(self._at_work.pop)

    def running(self) -> list[Task]:
        """Return the tasks that are awaited."""
        return [task for task in self._at_work.values() if task is not None]

    async def close(self, *, drain_ms: int, finish_ms: int) -> int:
        """End; what still waits for something then is cancelled, and its messages come again."""
        await self._finish(drain_ms=drain_ms, finish_ms=finish_ms)
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
        while self._ready:
            task = self._ready.popleft()
            if time.monotonic() - turn > _LOOP_TURN_S:
                # Listeners that never wait for anything must not keep the loop from its sockets.
                await asyncio.sleep(0)
                turn = time.monotonic()
            task.begun_s = self._loop.time()
            self._at_work[me] = task
            await task.run_async(self._call)
            self._done.append(task)
            if not self._told:
                self._told = True
                self._loop.call_soon(self._be_told)

    def _be_told(self) -> None:
        self._told = False
        self._hand_back()
