"""Checks: a close waits for work, cancels timers, and a round that fails does not end its timer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from cometmq.client.instance.instance import ClientInstance
from cometmq.client.push.push_tasks import PushTasks
from cometmq.errors import RequestTimeout


class _Instance:
    """Runs tasks, as a client instance does."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work)


def _tasks() -> PushTasks:
    return PushTasks(cast("ClientInstance", _Instance()), group="g")


def test_work_is_awaited_and_timers_are_cancelled() -> None:
    async def run() -> None:
        tasks = _tasks()
        may_end = asyncio.Event()

        async def work() -> None:
            await may_end.wait()

        async def for_ever() -> None:
            await asyncio.Event().wait()

        working, timer = tasks.spawn(work()), tasks.spawn_timer(for_ever())
        asyncio.get_running_loop().call_soon(may_end.set)
        await tasks.finish(timeout_ms=60_000)
        assert working.done()
        assert not timer.done()
        tasks.cancel()
        with pytest.raises(asyncio.CancelledError):
            await timer

    asyncio.run(run())


def test_work_that_hangs_is_awaited_no_longer_than_the_timeout_and_cancelled() -> None:
    async def run() -> None:
        tasks = _tasks()

        async def hang() -> None:
            await asyncio.Event().wait()

        working = tasks.spawn(hang())
        await tasks.finish(timeout_ms=0)
        assert not working.done()
        tasks.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    asyncio.run(run())


def test_work_that_cancels_all_ends_itself() -> None:
    async def run() -> None:
        tasks = _tasks()

        async def cancel_all() -> None:
            tasks.cancel()

        await tasks.spawn(cancel_all())

    asyncio.run(run())


@pytest.mark.parametrize("failure", [RequestTimeout("no answer"), ValueError("a defect")])
def test_a_round_that_fails_is_logged_and_repeated(failure: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        tasks = _tasks()
        rounds = asyncio.Queue[None]()

        async def fail() -> None:
            rounds.put_nowait(None)
            raise failure

        tasks.repeat(0.0, 0.0, fail)
        for _ in range(3):
            await rounds.get()
        tasks.cancel()

    asyncio.run(run())
    assert len(caplog.records) >= 2
    assert all("group g" in record.message for record in caplog.records)
