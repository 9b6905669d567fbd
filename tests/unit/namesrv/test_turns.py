"""Checks: work in steps runs one after the other, with the loop's other work between its steps."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.namesrv.turns import Steps, Turns
from support.steps import finished


def counted(name: str, pauses: int, seen: list[str]) -> Steps[str]:
    for number in range(pauses):
        seen.append(f"{name}{number}")
        yield
    return name


def test_short_work_is_done_at_once() -> None:
    assert Turns().run(counted("a", 0, []), str.upper) == "A"
    assert finished(counted("a", 3, [])) == "a"


def test_long_work_leaves_the_loop_to_others_and_keeps_its_order() -> None:
    async def run() -> None:
        turns, seen = Turns(), list[str]()
        first = turns.run(counted("a", 3, seen), str.upper)
        second = turns.run(counted("b", 0, seen), str.upper)
        assert not isinstance(first, str)
        assert not isinstance(second, str), "work before it is not done"
        for _ in range(3):
            seen.append("-")
            await asyncio.sleep(0)
        assert (await first, await second) == ("A", "B")
        assert seen == ["a0", "-", "a1", "-", "a2", "-"]
        assert turns.run(counted("c", 0, seen), str.upper) == "C"

    asyncio.run(run())


def test_an_error_is_the_callers_and_ends_nothing_else() -> None:
    async def run() -> None:
        turns = Turns()

        def failing() -> Steps[str]:
            yield
            raise ValueError("no")

        first, second = turns.run(failing(), str.upper), turns.run(counted("b", 2, []), str.upper)
        assert not isinstance(first, str)
        assert not isinstance(second, str)
        with pytest.raises(ValueError, match="no"):
            await first
        assert await second == "B"

    asyncio.run(run())


def test_work_that_nobody_waits_for_runs_to_its_end() -> None:
    async def run() -> None:
        turns, seen = Turns(), list[str]()
        turns.run_apart(counted("a", 2, seen))
        last = turns.run(counted("b", 0, seen), str.upper)
        assert not isinstance(last, str)
        assert await last == "B"
        assert seen == ["a0", "a1"]

    asyncio.run(run())
