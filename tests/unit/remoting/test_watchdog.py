"""Checks: a request that holds the event loop is named, by its code and its sender."""

from __future__ import annotations

import asyncio
import logging

import pytest

from cometmq.remoting.watchdog import Watchdog


class Clock:
    """Nanoseconds that a test moves."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def test_a_step_of_a_hundred_milliseconds_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    clock, cpu = Clock(), Clock()
    cpu.now_ns = 5_000_000_000
    watchdog = Watchdog(now_ns=clock, cpu_ns=cpu)
    with caplog.at_level(logging.WARNING, logger="cometmq.remoting"):
        for held_ms in (99, 100):
            watchdog.begin(208, "10.0.0.1:5")
            clock.now_ns += held_ms * 1_000_000
            cpu.now_ns += 7_000_000
            watchdog.end()
    (record,) = caplog.records
    assert [vars(record)[name] for name in ("code", "peer", "ms", "cpu_ms")] == [208, "10.0.0.1:5", 100, 7]


def test_steps_between_waits_are_timed_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    watchdog = Watchdog(now_ns=clock)

    async def work() -> None:
        clock.now_ns += 60_000_000
        await asyncio.sleep(0)
        clock.now_ns += 60_000_000
        await asyncio.sleep(0)
        clock.now_ns += 160_000_000

    async def whole() -> None:
        await asyncio.get_running_loop().create_task(watchdog.steps(work(), 34, "10.0.0.1:5"))

    with caplog.at_level(logging.WARNING, logger="cometmq.remoting"):
        asyncio.run(whole())
    assert [vars(record)["ms"] for record in caplog.records] == [160]


def test_a_step_that_does_not_end_is_logged_once_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    watchdog = Watchdog(now_ns=clock)
    with caplog.at_level(logging.ERROR, logger="cometmq.remoting"):
        watchdog.begin(25, "10.0.0.1:5")
        watchdog.look()
        clock.now_ns += 1_000_000_000
        watchdog.look()
        watchdog.look()
    assert len(caplog.records) == 1
    assert "test_a_step_that_does_not_end" in vars(caplog.records[0])["at"]


def test_cancelled_work_ends(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = Watchdog()
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("done")

    async def whole() -> None:
        task = asyncio.get_running_loop().create_task(watchdog.steps(work(), 34, "p"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(whole())
    assert ended == ["done"]
