"""Fixtures of the benchmarks of the Python surface."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from bench_support import is_quick, new_directory

Result = TypeVar("Result")


@pytest.fixture
def directories() -> Iterator[Callable[[], Path]]:
    """Make directories that are gone after the test."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(new_directory())


class Meter:
    """Measures one figure with pytest-benchmark: each round has its own set-up, is timed once, and is then verified."""

    def __init__(self, benchmark: Any) -> None:
        self._benchmark = benchmark

    def run(
        self,
        name: str,
        work: Callable[[Any], Result],
        *,
        operations: int,
        set_up: Callable[[], Any],
        check: Callable[[Any, Result], None],
        unit: str = "msg/s",
        rounds: int = 5,
        cpu_clock: Callable[[], int] = time.thread_time_ns,
        **info: Any,
    ) -> None:
        """Measure ``work(subject)``, where ``set_up()`` makes the subject and ``check(subject, result)`` must pass.

        Args:
            name: the figure's name.
            operations: how many operations a round does.
            unit: "msg/s", or "ns", "us" or "ms" per operation.
            cpu_clock: of this thread; ``time.process_time_ns`` where others work too.
            info: further fields of the figure.
        """
        results: list[Result] = []
        cpu_ns: list[float] = []

        def timed(subject: Any) -> None:
            begin = cpu_clock()
            result = work(subject)
            cpu_ns.append((cpu_clock() - begin) / operations)
            results.append(result)

        def verified(subject: Any) -> None:
            check(subject, results.pop())

        self._benchmark.pedantic(
            timed, setup=lambda: ((set_up(),), {}), teardown=verified, rounds=2 if is_quick() else rounds, iterations=1
        )
        self._benchmark.extra_info.update(
            name=name, operations=operations, unit=unit, cpu_ns=sorted(cpu_ns)[len(cpu_ns) // 2], **info
        )


@pytest.fixture
def meter(benchmark: Any) -> Meter:
    """Measure and verify one figure."""
    return Meter(benchmark)
