"""Long work of the event loop in steps: others are served between them.

A piece of work is a generator that yields where it may pause; its value is the result. One that ends before its first
pause is done at once. Those that pause run one after the other, a step in each turn of the loop: none sees half of
another.

Threads: the event loop's alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from inspect import isawaitable
from typing import Any, TypeAlias, TypeVar, cast

__all__ = ["Steps", "Turns"]

T = TypeVar("T")
R = TypeVar("R")

Steps: TypeAlias = Generator[None, None, T]
"""Work that pauses at each ``yield``, and returns its result."""


class Turns:
    """Pieces of work, one after the other."""

    def __init__(self) -> None:
        """Begin without work."""
        self._waiting: deque[tuple[Steps[Any], asyncio.Future[Any]]] = deque()

    def run(self, steps: Steps[T], then: Callable[[T], R | Awaitable[R]], *, ahead: bool = False) -> R | Awaitable[R]:
        """Run work, and ``then`` with its result; an awaitable where it pauses, or waits for work before it.

        Args:
            steps: the work.
            then: makes the answer.
            ahead: its first step does not wait for work before it, of which it may see half.

        Raises:
            Exception: from the work, or from ``then``.
        """
        if ahead or not self._waiting:
            try:
                next(steps)
            except StopIteration as end:
                return then(end.value)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((steps, future))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._step)
        return self._later(future, then)

    @staticmethod
    async def _later(future: asyncio.Future[T], then: Callable[[T], R | Awaitable[R]]) -> R:
        outcome = then(await future)
        return await cast("Awaitable[R]", outcome) if isawaitable(outcome) else outcome

    def run_apart(self, steps: Steps[T]) -> None:
        """Run work whose result nobody waits for."""
        outcome = self.run(steps, lambda _: None)
        if isawaitable(outcome):
            asyncio.ensure_future(outcome)  # noqa: RUF006 - the queue holds its future until it is done

    def _step(self) -> None:
        steps, future = self._waiting[0]
        try:
            next(steps)
        except StopIteration as end:
            self._waiting.popleft()
            if not future.done():
                future.set_result(end.value)
        except Exception as error:  # noqa: BLE001 - it is the caller's
            self._waiting.popleft()
            if not future.done():
                future.set_exception(error)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._step)
