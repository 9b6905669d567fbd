"""Checks: every task comes back once, whoever runs it; one that hangs holds up none behind it; the end is in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import pytest

from cometmq.client.group.process_queue import ProcessQueue
from cometmq.client.push import workers as workers_module
from cometmq.client.push.listeners import Handled, Outcome, async_caller, caller
from cometmq.client.push.tasks import Task, TaskResult, Workers
from cometmq.client.push.thread_workers import ThreadWorkers
from cometmq.client.push.workers import ExecutorWorkers, LoopWorkers
from cometmq.remoting.bodies.message_queue import MessageQueue

LIMIT_S = 30
Started = Callable[..., Workers]


def held() -> ProcessQueue:
    return ProcessQueue(MessageQueue(topic="t", broker_name="b", queue_id=0))


def task_of(queue: ProcessQueue, messages: list[Any], size: int = 1) -> Task:
    return Task(queue, messages, size)


class Collected:
    """Takes what is done, and lets a test wait for so many parts."""

    def __init__(self) -> None:
        self.task_results: list[TaskResult] = []
        self.parts = 0
        self._waiting: tuple[int, asyncio.Future[None]] | None = None

    def __call__(self, task_results: list[TaskResult]) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.task_results += task_results
        self.parts += sum(task_result.parts for task_result in task_results)
        if self._waiting is not None and self.parts >= self._waiting[0] and not self._waiting[1].done():
            self._waiting[1].set_result(None)

    async def until(self, parts: int) -> list[Any]:
        """Return the messages that listeners had, sorted."""
        if self.parts < parts:
            self._waiting = (parts, asyncio.get_running_loop().create_future())
            await asyncio.wait_for(self._waiting[1], LIMIT_S)
        return sorted(self.succeeded + [message for part, _ in self.results for message in part])

    @property
    def succeeded(self) -> list[Any]:
        return [message for task_result in self.task_results for message in task_result.succeeded]

    @property
    def results(self) -> list[tuple[list[Any], Handled]]:
        return [result for task_result in self.task_results for result in task_result.results]


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), LIMIT_S))  # type: ignore[arg-type]


def refuse_odd(message: int) -> Outcome | None:
    if message == 13:
        raise ValueError("thirteen")
    return Outcome.RETRY if message % 2 else None


async def refuse_odd_async(message: int) -> Outcome | None:
    await asyncio.sleep(0)
    return refuse_odd(message)


def start(kind: str, done: Collected, executor: Executor | None) -> Workers:
    listener: Any = refuse_odd
    if kind == "threads":
        return ThreadWorkers(caller(listener, batch=False), done, threads_max=4, name="t")
    if kind == "loop":
        call: Any = async_caller(refuse_odd_async, batch=False)  # type: ignore[arg-type]
        return LoopWorkers(call, done, at_once_max=4)
    assert executor is not None
    return ExecutorWorkers(executor, listener, done, batch=False, at_once_max=4)


class Gate:
    """A listener that waits until the test lets it go on."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, _: object) -> None:
        self.begun.set()
        assert self.go_on.wait(LIMIT_S)


@pytest.mark.parametrize("kind", ["threads", "loop", "executor"])
def test_every_task_comes_back_once(kind: str) -> None:
    async def body() -> None:
        done = Collected()
        with ThreadPoolExecutor(2) as executor:
            workers = start(kind, done, executor)
            queue = held()
            for first in range(0, 1000, 50):
                workers.submit(task_of(queue, list(range(first, first + 50))))
            assert await done.until(1000) == list(range(1000))
            assert sorted(done.succeeded) == list(range(0, 1000, 2))
            assert not any(handled.is_success for _, handled in done.results)
            problems = [handled.problem for _, handled in done.results if handled.problem is not None]
            assert [str(problem) for problem in problems] == ["thirteen"]
            assert all(0 < task_result.begun_s <= task_result.ended_s for task_result in done.task_results)
            assert workers.running() == []
            assert workers.waiting == 0
            assert await workers.close(drain_ms=0, finish_ms=1000) == 0

    run(body)


@pytest.mark.parametrize("kind", ["threads", "loop", "executor"])
def test_tasks_of_a_dropped_queue_are_not_begun(kind: str) -> None:
    async def body() -> None:
        done = Collected()
        with ThreadPoolExecutor(1) as executor:
            workers = start(kind, done, executor)
            queue = held()
            queue.dropped = True
            workers.submit(task_of(queue, [1, 2]))
            assert await done.until(2) == []
            assert not any(task_result.ended_s > task_result.begun_s for task_result in done.task_results)
            await workers.close(drain_ms=0, finish_ms=1000)

    run(body)


@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_an_orderly_task_ends_at_its_first_failure_or_when_it_may_not_go_on(kind: str) -> None:
    async def body() -> None:
        done = Collected()
        workers = start(kind, done, None)
        queue = held()
        workers.submit(Task(queue, [2, 4, 5, 6, 8], 1, may_go_on=lambda: True))  # type: ignore[list-item]
        await done.until(5)
        assert [(part, handled.is_success) for part, handled in done.results] == [
            ([2], True),
            ([4], True),
            ([5], False),
        ]
        asked: list[int] = []
        may_go_on: Any = lambda: asked.append(1) or len(asked) < 3  # noqa: E731
        workers.submit(Task(queue, [2, 4, 6, 8], 1, may_go_on=may_go_on))  # type: ignore[list-item]
        await done.until(9)
        assert [part for part, _ in done.task_results[1].results] == [[2], [4]]
        assert len(done.task_results) == 2
        assert done.succeeded == []
        await workers.close(drain_ms=0, finish_ms=1000)

    run(body)


def test_a_hanging_listener_holds_up_none_behind_it() -> None:
    async def body() -> None:
        done = Collected()
        go_on = threading.Event()

        def listener(message: Any) -> None:
            if message < 3:
                assert go_on.wait(LIMIT_S)

        workers = ThreadWorkers(caller(listener, batch=False), done, threads_max=4, name="hang")
        workers.submit(task_of(held(), list(range(500))))
        assert await done.until(497) == list(range(3, 500))
        assert sorted(at_work.part for at_work in workers.running()) == [[0], [1], [2]]  # type: ignore[list-item,type-var]
        go_on.set()
        await done.until(500)
        await workers.close(drain_ms=0, finish_ms=1000)

    run(body)


@pytest.mark.parametrize("at_the_end", [False, True])
def test_results_before_a_hanging_listener_are_reported(at_the_end: bool) -> None:
    """A thread keeps what it has done for a moment; one that hangs in that moment must not keep it for good."""
    go_on = threading.Event()

    async def body() -> None:
        done = Collected()
        hangs = threading.Event()

        def listener(message: Any) -> Outcome | None:
            if message == 3:
                hangs.set()
                assert go_on.wait(LIMIT_S)
            return Outcome.RETRY if message == 1 else None

        workers = ThreadWorkers(caller(listener, batch=False), done, threads_max=1, name="keeps")
        workers.submit(task_of(held(), list(range(6))))
        await asyncio.to_thread(hangs.wait, LIMIT_S)
        if at_the_end:
            assert await workers.close(drain_ms=0, finish_ms=1) == 1
        else:
            workers.collect()
        assert (done.succeeded, [part for part, _ in done.results]) == ([0, 2], [[1]])
        go_on.set()
        if not at_the_end:
            await done.until(6)
            assert (done.succeeded, [part for part, _ in done.results]) == ([0, 2, 3, 4, 5], [[1]])
            await workers.close(drain_ms=0, finish_ms=1000)

    run(body)


def test_slow_listeners_get_all_threads() -> None:
    """Promise 49: 20 threads by default; all of them work when listeners wait for something."""

    async def body() -> None:
        done = Collected()
        together = threading.Barrier(20)

        def listener(_: object) -> None:
            together.wait(LIMIT_S)

        workers = ThreadWorkers(caller(listener, batch=False), done, threads_max=20, name="slow")
        workers.submit(task_of(held(), list(range(40))))
        await done.until(40)
        assert len(done.succeeded) == 40
        await workers.close(drain_ms=0, finish_ms=1000)

    run(body)


@pytest.mark.parametrize(
    ("progress", "typical_s", "threads"),
    [(0, 0.000_001, [2, 4, 8]), (5, 0.000_001, [1, 1, 1]), (5, 0.001, [2, 4, 8]), (50, 0.001, [1, 1, 1])],
    ids=["stuck", "quick", "slow", "caught up"],
)
def test_further_threads_are_woken_where_work_waits(progress: int, typical_s: float, threads: list[int]) -> None:
    """Looks that find 40 parts waiting behind a listener that hangs, and ``progress`` parts done since the last."""

    async def body() -> None:
        done = Collected()
        gate = Gate()
        workers = ThreadWorkers(caller(gate, batch=False), done, threads_max=20, name="look")
        workers.submit(task_of(held(), list(range(41))))
        assert gate.begun.wait(LIMIT_S)
        workers._typical_s = typical_s
        found = []
        for _ in threads:  # nothing else runs on the loop meanwhile
            assert workers._timer is not None
            workers._timer.cancel()
            workers._look(workers._done_so_far() - progress)
            found.append(len(workers._worker_threads))
        assert found == threads
        gate.go_on.set()
        await done.until(41)
        await workers.close(drain_ms=0, finish_ms=1000)

    run(body)


def test_quick_listeners_wake_few_threads() -> None:
    async def body() -> None:
        done = Collected()
        workers = ThreadWorkers(caller(lambda _: None, batch=False), done, threads_max=20, name="quick")
        queue = held()
        for round_ in range(50):
            workers.submit(task_of(queue, [round_] * 32))
            await done.until(32 * (round_ + 1))
        assert len([t for t in threading.enumerate() if t.name.startswith("quick_")]) < 20
        await workers.close(drain_ms=0, finish_ms=1000)

    run(body)


def test_close_finishes_running_tasks_and_drops_the_rest() -> None:
    async def body() -> None:
        done = Collected()
        gate = Gate()
        workers = ThreadWorkers(caller(gate, batch=False), done, threads_max=1, name="close")
        workers.submit(task_of(held(), [1, 2, 3]))
        await asyncio.to_thread(gate.begun.wait, LIMIT_S)
        closing = asyncio.create_task(workers.close(drain_ms=0, finish_ms=LIMIT_S * 1000))
        await asyncio.to_thread(lambda: None)
        gate.go_on.set()
        assert await closing == 0
        assert await done.until(1) == [1]
        for thread in threading.enumerate():
            if thread.name.startswith("close_"):
                thread.join(LIMIT_S)
                assert not thread.is_alive()

    run(body)


def test_close_with_a_drain_time_starts_waiting_tasks() -> None:
    async def body() -> None:
        done = Collected()
        workers = ThreadWorkers(caller(lambda _: None, batch=False), done, threads_max=1, name="drain")
        workers.submit(task_of(held(), list(range(200))))
        assert await workers.close(drain_ms=LIMIT_S * 1000, finish_ms=0) == 0
        assert await done.until(200) == list(range(200))

    run(body)


def test_close_does_not_wait_for_hanging_listeners() -> None:
    go_on = threading.Event()

    async def body() -> None:
        begun = threading.Event()
        done = Collected()

        def listener(_: object) -> None:
            begun.set()
            assert go_on.wait(LIMIT_S)

        workers = ThreadWorkers(caller(listener, batch=False), done, threads_max=2, name="stuck")
        workers.submit(task_of(held(), [1]))
        await asyncio.to_thread(begun.wait, LIMIT_S)
        assert await workers.close(drain_ms=1, finish_ms=1) == 1

    run(body)
    go_on.set()
    for thread in threading.enumerate():
        if thread.name.startswith("stuck_"):
            thread.join(LIMIT_S)
            assert not thread.is_alive()


def awaiting(listener: Any, *, apart: bool) -> Any:
    """Return what awaits a listener, ``apart`` as on Python 3.10, where it has a task of its own."""
    call: Any = async_caller(listener, batch=False)
    return partial(workers_module.handled_apart, call) if apart else call


@pytest.mark.parametrize("apart", [False, True])
def test_closing_cancels_async_listeners_that_do_not_end(apart: bool) -> None:
    async def body() -> None:
        done = Collected()
        cancelled: list[int] = []
        begun = asyncio.Event()

        async def listener(message: int) -> None:
            begun.set()
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                cancelled.append(message)
                raise

        workers = LoopWorkers(awaiting(listener, apart=apart), done, at_once_max=1)
        workers.submit(task_of(held(), [7, 8]))
        await begun.wait()
        assert await workers.close(drain_ms=1, finish_ms=1) == 1
        assert cancelled == [7]

    run(body)


@pytest.mark.parametrize("apart", [False, True])
def test_listener_that_awaits_a_cancelled_task_has_failed(apart: bool) -> None:
    async def body() -> None:
        done = Collected()

        async def listener(message: int) -> None:
            if message == 1:
                other = asyncio.ensure_future(asyncio.sleep(LIMIT_S))
                other.cancel()
                await other

        workers = LoopWorkers(awaiting(listener, apart=apart), done, at_once_max=1)
        workers.submit(task_of(held(), [0, 1, 2]))
        assert await done.until(3) == [0, 1, 2]
        ((part, handled),) = done.results
        assert (part, type(handled.problem)) == ([1], asyncio.CancelledError)
        assert await workers.close(drain_ms=0, finish_ms=1000) == 0

    run(body)


@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_listener_that_cancels_its_own_task_loses_nothing(apart: bool, swallows: bool) -> None:
    """As time-outs of libraries do that cancel the task and do not call ``uncancel()``."""

    async def body() -> None:
        done = Collected()

        async def listener(message: int) -> None:
            if message == 1:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                try:
                    await asyncio.sleep(LIMIT_S)
                except asyncio.CancelledError:
                    if not swallows:
                        raise

        workers = LoopWorkers(awaiting(listener, apart=apart), done, at_once_max=1)
        workers.submit(task_of(held(), [0, 1, 2]))
        assert await done.until(3) == [0, 1, 2]
        failed = [part for part, handled in done.results if isinstance(handled.problem, asyncio.CancelledError)]
        assert failed == ([] if swallows else [[1]])
        workers.submit(task_of(held(), [3]))
        assert await done.until(4) == [0, 1, 2, 3]
        assert await workers.close(drain_ms=0, finish_ms=1000) == 0

    run(body)


class OddError(BaseException):
    """As ``pytest.fail()`` and the time-outs of some libraries raise."""


@pytest.mark.parametrize("error", [SystemExit("enough"), OddError(), GeneratorExit()])
@pytest.mark.parametrize("apart", [False, True])
def test_async_listener_that_raises_no_exception_has_failed(apart: bool, error: BaseException) -> None:
    async def body() -> None:
        done = Collected()

        async def listener(message: int) -> None:
            if message == 1:
                raise error

        workers = LoopWorkers(awaiting(listener, apart=apart), done, at_once_max=1)
        workers.submit(task_of(held(), [0, 1, 2]))
        assert await done.until(3) == [0, 1, 2]
        ((part, handled),) = done.results
        assert (part, type(handled.problem)) == ([1], type(error))
        assert await workers.close(drain_ms=0, finish_ms=1000) == 0

    run(body)


def test_ctrl_c_in_an_async_listener_loses_no_message() -> None:
    """It ends the program, or, on the loop of a blocking consumer, is logged: the message is retried."""
    done = Collected()
    tries: list[int] = []

    async def listener(message: int) -> None:
        tries.append(message)
        if message == 1:
            raise KeyboardInterrupt

    loop = asyncio.new_event_loop()
    workers = loop.run_until_complete(_workers_of(listener, done))
    loop.call_soon(lambda: workers.submit(task_of(held(), [0, 1, 2])))
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(done.until(3))
    assert loop.run_until_complete(done.until(3)) == [0, 1, 2]
    ((part, handled),) = done.results
    assert (part, type(handled.problem), tries) == ([1], KeyboardInterrupt, [0, 1, 2])
    assert loop.run_until_complete(workers.close(drain_ms=0, finish_ms=1000)) == 0
    loop.close()


async def _workers_of(listener: Any, done: Collected) -> LoopWorkers:
    return LoopWorkers(awaiting(listener, apart=False), done, at_once_max=1)


def test_a_task_that_comes_just_when_the_last_worker_ends_is_done() -> None:
    """Results are reported before the loop knows that the worker has ended."""

    async def body() -> None:
        done = Collected()

        async def listener(_: object) -> None:
            return

        def then_another(task_results: list[TaskResult]) -> None:
            done(task_results)
            if done.parts == 1:
                workers.submit(task_of(held(), [1]))

        call: Any = async_caller(listener, batch=False)
        workers = LoopWorkers(call, then_another, at_once_max=1)
        workers.submit(task_of(held(), [0]))
        assert await done.until(2) == [0, 1]
        await workers.close(drain_ms=0, finish_ms=1000)

    run(body)


def test_async_listeners_that_never_wait_leave_the_loop_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "_LOOP_TURN_S", -1.0)

    async def body() -> None:
        done = Collected()
        turns: list[int] = []

        async def listener(_: object) -> None:
            turns.append(done.parts)

        call: Any = async_caller(listener, batch=False)
        workers = LoopWorkers(call, done, at_once_max=1)
        workers.submit(task_of(held(), list(range(10))))
        await done.until(10)
        assert len(set(turns)) > 1
        await workers.close(drain_ms=0, finish_ms=1000)

    run(body)


def test_a_process_pool() -> None:
    """Listeners that compute: messages and outcomes travel by pickle."""

    async def body() -> None:
        done = Collected()
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
            workers = start("executor", done, executor)
            workers.submit(task_of(held(), list(range(20))))
            assert await done.until(20) == list(range(20))
            assert sorted(done.succeeded) == list(range(0, 20, 2))
            await workers.close(drain_ms=0, finish_ms=1000)

    run(body)


def test_unpicklable_results_fail_with_a_reason() -> None:
    async def body() -> None:
        done = Collected()
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
            workers = ExecutorWorkers(executor, lambda _: None, done, batch=False, at_once_max=2)
            workers.submit(task_of(held(), [1]))
            await done.until(1)
            assert "pickle" in str(done.results[0][1].problem).lower()
            await workers.close(drain_ms=0, finish_ms=1000)

    run(body)


class Refusing(Executor):
    def __init__(self) -> None:
        self.refuses = True

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.refuses:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def test_tasks_that_are_refused_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise 69: tasks that the pool rejects are submitted later."""
    monkeypatch.setattr(workers_module, "_REFUSED_S", 0.01)

    async def body() -> None:
        done = Collected()
        executor = Refusing()
        workers = start("executor", done, executor)
        workers.submit(task_of(held(), [2, 4, 6]))
        assert workers.waiting == 3
        assert done.task_results == []
        executor.refuses = False
        assert await done.until(3) == [2, 4, 6]
        await workers.close(drain_ms=0, finish_ms=1000)

    run(body)


def test_a_listener_that_takes_long_is_not_waited_for() -> None:
    """A message that comes while others are being handled gets a thread of its own at once."""

    async def body() -> None:
        done = Collected()
        go_on = threading.Event()
        workers = ThreadWorkers(
            caller(lambda _: go_on.wait(LIMIT_S) and None, batch=False), done, threads_max=9, name="w"
        )
        workers._typical_s = 0.1
        for first in (0, 3):
            workers.submit(task_of(held(), [first, first + 1, first + 2]))
            await asyncio.sleep(0)
            assert len(workers._worker_threads) == first + 3
        go_on.set()
        await done.until(6)
        await workers.close(drain_ms=0, finish_ms=1000)

    run(body)


def test_quick_work_that_waits_for_the_machine_wakes_nobody_else() -> None:
    async def body() -> None:
        done = Collected()
        workers = ThreadWorkers(caller(lambda _: None, batch=False), done, threads_max=9, name="w")
        workers._typical_s = 0.000001
        workers._take(task_of(held(), list(range(1_000))))
        thread_count = []
        for was_done in (-1, 0):  # once with progress, once without
            workers._look(was_done)
            thread_count.append(len(workers._worker_threads))
            assert workers._timer is not None
            workers._timer.cancel()
        assert thread_count == [0, 1]
        await done.until(1_000)
        await workers.close(drain_ms=0, finish_ms=1000)

    run(body)


def test_a_thread_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, refused = threading.Thread.start, iter([True, True])

    def start_later(thread: threading.Thread) -> None:
        if thread.name.startswith("late_") and next(refused, False):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_later)

    async def body() -> None:
        done = Collected()
        workers = ThreadWorkers(caller(lambda _: None, batch=False), done, threads_max=2, name="late")
        workers.submit(task_of(held(), [1, 2, 3]))
        assert workers._worker_threads == []
        assert await done.until(3) == [1, 2, 3]
        await workers.close(drain_ms=0, finish_ms=1000)

    run(body)
    assert "can't start new thread" in caplog.text
