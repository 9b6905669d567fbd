"""Checks: work apart from the event loop is shared fairly among connections, keeps its order and its bounds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from cometmq.remoting.answers import Refusal
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.lanes import Lanes, stop_if_gone


class Gates:
    """Work that says when it began, and ends when it is let."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._changed = threading.Condition()
        self._open: set[str] = set()

    def work(self, name: str) -> Callable[[], str]:
        def run() -> str:
            with self._changed:
                self.begun.append(name)
                self._changed.notify_all()
                self._changed.wait_for(lambda: name in self._open)
            return name

        return run

    def open(self, *names: str) -> None:
        with self._changed:
            self._open.update(names)
            self._changed.notify_all()

    async def wait_begun(self, count: int) -> None:
        def wait() -> None:
            with self._changed:
                self._changed.wait_for(lambda: len(self.begun) >= count)

        await asyncio.get_running_loop().run_in_executor(None, wait)


def on_loop(check: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await check()

    asyncio.run(whole())


def test_connections_take_turns() -> None:
    async def check() -> None:
        lanes, gates = Lanes(threads=1), Gates()
        first = [asyncio.ensure_future(lanes.run(1, gates.work(f"a{number}"))) for number in range(3)]
        await gates.wait_begun(1)
        second = asyncio.ensure_future(lanes.run(2, gates.work("b")))
        await asyncio.sleep(0)
        gates.open("a0", "a1", "a2", "b")
        assert await second == "b"
        assert await asyncio.gather(*first) == ["a0", "a1", "a2"]
        assert gates.begun.index("b") <= 2, "it waits for what ran, and for one piece at most"
        lanes.close()

    on_loop(check)


def test_work_has_its_place_before_anybody_waits_for_it() -> None:
    async def check() -> None:
        lanes = Lanes(threads=1)
        first = lanes.run(1, lambda: "first")
        assert lanes.is_busy(1), "a request of the same batch comes behind it"
        assert await first == "first"
        assert not lanes.is_busy(1)
        lanes.close()

    on_loop(check)


def test_one_connection_has_one_thread_and_keeps_its_order() -> None:
    async def check() -> None:
        lanes, gates = Lanes(threads=2), Gates()
        mine = [asyncio.ensure_future(lanes.run(1, gates.work(f"a{number}"))) for number in range(3)]
        other = asyncio.ensure_future(lanes.run(2, gates.work("b")))
        await gates.wait_begun(2)
        assert sorted(gates.begun) == ["a0", "b"]
        assert lanes.is_busy(1)
        gates.open("a0", "a1", "a2", "b")
        await asyncio.gather(*mine, other)
        assert [name for name in gates.begun if name != "b"] == ["a0", "a1", "a2"]
        assert not lanes.is_busy(1)
        lanes.close()

    on_loop(check)


def test_several_at_once_where_the_disk_is_waited_for() -> None:
    async def check() -> None:
        lanes, gates = Lanes(threads=3, at_once=2), Gates()
        mine = [asyncio.ensure_future(lanes.run(1, gates.work(f"a{number}"))) for number in range(3)]
        other = asyncio.ensure_future(lanes.run(2, gates.work("b")))
        await gates.wait_begun(3)
        assert sorted(gates.begun) == ["a0", "a1", "b"]
        gates.open("a0", "a1", "a2", "b")
        await asyncio.gather(*mine, other)
        lanes.close()

    on_loop(check)


def test_too_much_work_of_one_connection_is_refused() -> None:
    async def check() -> None:
        lanes, gates = Lanes(threads=1, waiting_max=2), Gates()
        mine = [asyncio.ensure_future(lanes.run(1, gates.work(f"a{number}"))) for number in range(2)]
        await gates.wait_begun(1)
        with pytest.raises(Refusal) as refused:
            await lanes.run(1, gates.work("more"))
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
        gates.open("a0", "a1")
        await asyncio.gather(*mine)
        assert await lanes.run(1, lambda: "again") == "again"
        lanes.close()

    on_loop(check)


def test_work_of_a_closed_connection_is_dropped() -> None:
    async def check() -> None:
        lanes, gates = Lanes(threads=1), Gates()
        running = asyncio.ensure_future(lanes.run(1, gates.work("a")))
        await gates.wait_begun(1)
        waiting = asyncio.ensure_future(lanes.run(2, gates.work("b")))
        await asyncio.sleep(0)
        lanes.forget(2)
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gates.open("a")
        assert await running == "a"
        assert gates.begun == ["a"]
        lanes.close()

    on_loop(check)


def test_a_look_ends_when_its_connection_is_gone() -> None:
    async def check() -> None:
        lanes, steps = Lanes(threads=1), threading.Semaphore(0)

        def look() -> None:
            while True:
                stop_if_gone()
                steps.release()

        endless = asyncio.ensure_future(lanes.run(1, look))
        await asyncio.get_running_loop().run_in_executor(None, steps.acquire)
        lanes.forget(1)
        with pytest.raises(Refusal):
            await endless
        await lanes.run(2, stop_if_gone)
        lanes.close()

    on_loop(check)


def test_failures_come_through() -> None:
    async def check() -> None:
        lanes = Lanes(threads=1)

        def fails() -> None:
            raise KeyError("topic")

        with pytest.raises(KeyError):
            await lanes.run(1, fails)
        assert await lanes.run(1, lambda: 5) == 5
        lanes.close()

    on_loop(check)
