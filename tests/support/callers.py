"""A connection whose long work is done at once, for handlers that are asked without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, TypeVar, cast

from cometmq.remoting.command import Command

T = TypeVar("T")


@dataclass(frozen=True)
class DirectCaller:
    """One connection."""

    conn: int = 1
    peer: str = "10.0.0.9:1"
    is_busy: bool = False

    async def apart(self, work: Callable[[], T]) -> T:
        return work()

    async def store_apart(self, work: Callable[[], T]) -> T:
        return work()


def answer_of(outcome: object) -> Command:
    """Return a handler's answer, now or when it has come."""

    async def whole() -> Any:
        return await cast("Awaitable[Any]", outcome)

    answer = asyncio.run(whole()) if isawaitable(outcome) else outcome
    assert isinstance(answer, Command)
    return answer
