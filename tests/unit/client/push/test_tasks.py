"""Checks: a task's parts are what they should be, and each is taken once, whoever takes them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from cometmq.client.group.process_queue import ProcessQueue
from cometmq.client.push.listeners import SUCCEEDED, Handled, Outcome
from cometmq.client.push.tasks import Task, TaskPool, TaskResult
from cometmq.remoting.bodies.message_queue import MessageQueue


def task_of(messages: list[Any], size: int = 1, **options: Any) -> Task:
    return Task(ProcessQueue(MessageQueue(topic="t", broker_name="b", queue_id=0)), messages, size, **options)


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [(1, 1, [[0]]), (3, 1, [[0], [1], [2]]), (5, 2, [[0, 1], [2, 3], [4]]), (2, 8, [[0, 1]])],
)
def test_parts(count: int, size: int, expected: list[list[int]]) -> None:
    """Promise 69: chunks of ``consume_message_batch_max_size``."""
    task = task_of(list(range(count)), size)
    assert task.parts_left == len(expected)
    assert [task.part(start) for start in task.starts] == expected
    assert task.parts_left == 0
    assert [part.messages for part in task_of(list(range(count)), size).split()] == expected


def test_threads_share_tasks() -> None:
    """Each part is one thread's, also where many look for the next at the same time."""

    async def body() -> None:
        pool = TaskPool(lambda _: None)
        for first in range(0, 6_000, 300):
            pool._take(task_of(list(range(first, first + 300)), 2))
        taken: list[list[list[int]]] = [[] for _ in range(6)]
        together = threading.Barrier(len(taken))

        def work(mine: list[list[int]]) -> None:
            together.wait()
            while (task := pool._next_task()) is not None:
                mine += [task.part(start) for start in task.starts]  # type: ignore[misc]
                pool._all_begun(task)

        threads = [threading.Thread(target=work, args=(mine,)) for mine in taken]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert sorted(message for mine in taken for part in mine for message in part) == list(range(6_000))
        assert pool.waiting == 0

    asyncio.run(body())


def test_an_orderly_task_is_taken_whole() -> None:
    async def body() -> None:
        pool = TaskPool(lambda _: None)
        first, second = (task_of([1, 2], may_go_on=lambda: True) for _ in range(2))
        pool._take(first)
        pool._take(second)
        assert [pool._next_task() for _ in range(3)] == [first, second, None]
        pool._all_begun(first)

    asyncio.run(body())


def test_a_task_result_notes_each_part() -> None:
    failed = Handled(Outcome.RETRY)
    shared, orderly = TaskResult(task_of([1, 2, 3]), 0.0), TaskResult(task_of([1, 2, 3], may_go_on=lambda: True), 0.0)
    for task_result in (shared, orderly):
        task_result.add([1], SUCCEEDED)  # type: ignore[list-item]
        task_result.add([2], failed)  # type: ignore[list-item]
        task_result.add([3], Handled(Outcome.COMMIT))  # type: ignore[list-item]
    assert (shared.succeeded, shared.results) == ([1, 3], [([2], failed)])
    assert (orderly.succeeded, [part for part, _ in orderly.results]) == ([], [[1], [2], [3]])
