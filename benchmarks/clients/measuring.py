"""Timing in a worker: the clock with the processor time of the process, and a collector for listeners."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from clients.messages import WORD_BYTES, WrongResult, check_ascending, check_once_each, numbers_of

LIMIT_S = 60.0
"""How long messages that were sent may take to come."""


@dataclass(frozen=True)
class Taken:
    """Seconds on the clock, and of all the process's threads on the processors, for so many messages."""

    seconds: float
    cpu_s: float
    messages: int


class Stopwatch:
    """Runs from its making."""

    def __init__(self) -> None:
        self._cpu = time.process_time()
        self._begin = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Elapsed wall-clock time."""
        return time.perf_counter() - self._begin

    def taken(self, messages: int) -> Taken:
        """Return the elapsed times, for so many messages."""
        return Taken(time.perf_counter() - self._begin, time.process_time() - self._cpu, messages)


class Collector:
    """Takes bodies, from any thread, until all are there. Runs from the first call to the last.

    A rate excludes the time of connecting and of sharing queues out before the first message, and the messages of the
    first call, which came before the clock ran.
    """

    def __init__(self, count: int, on_done: Callable[[], object], *, is_ordered: bool = False) -> None:
        self.bodies: list[bytes] = []
        self._is_ordered = is_ordered
        self.sources: list[tuple[object, int]] = []
        """From where so many of the bodies came one after the other, where that is known."""
        self._count = count
        self._on_done = on_done
        self._watch: Stopwatch | None = None
        self._before = 0
        self._taken: Taken | None = None

    def add(self, body: bytes) -> None:
        """Take one."""
        bodies = self.bodies
        if not bodies:
            self._begin(1)
        bodies.append(body)
        if len(bodies) >= self._count:
            self._end()

    def add_all(self, bodies: Sequence[bytes]) -> None:
        """Take some."""
        if not self.bodies:
            self._begin(len(bodies))
        self.bodies += bodies
        if len(self.bodies) >= self._count:
            self._end()

    def add_from(self, source: object, bodies: Sequence[bytes]) -> None:
        """Take some that follow each other in one queue."""
        self.sources.append((source, len(bodies)))
        self.add_all(bodies)

    def _begin(self, messages: int) -> None:
        # Several threads may have the first message, or the last.
        if self._watch is None:
            self._before = messages
            self._watch = Stopwatch()

    def _end(self) -> None:
        if self._taken is None and self._watch is not None:
            self._taken = self._watch.taken(max(self._count - self._before, 1))
            self._on_done()

    @property
    def is_done(self) -> bool:
        """Whether all have come."""
        return self._taken is not None

    def taken(self) -> Taken:
        """Return how long it took from the first to the last.

        Raises:
            WrongResult: not all have come.
        """
        if self._taken is None:
            raise WrongResult(f"{len(self.bodies)} of {self._count} messages came within {LIMIT_S:.0f} s")
        return self._taken

    def check(self, body_bytes: int) -> None:
        """Check that each message came once, with its bytes, and in order where its source is known.

        Raises:
            WrongResult: that is not so.
        """
        numbers = numbers_of(self.bodies, body_bytes)
        check_once_each(numbers, self._count)
        if self._is_ordered:
            check_ascending(numbers, "the one queue")
        at, by_source = 0, {}
        for source, count in self.sources:
            by_source.setdefault(source, []).append(numbers[at : at + count])
            at += count
        for source, parts in by_source.items():
            check_ascending(np.concatenate(parts), source)


# --- Latency ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LatencyJob:
    """Send ``count`` messages, so many a second, the first ones of them ahead."""

    topic: str
    group: str
    ahead: int
    count: int
    per_s: int


class Arrivals:
    """Takes stamped messages, from any thread, with the time at which the listener got them.

    The first messages are sent ahead and do not count: when they are there, the consumer has all its queues.
    """

    def __init__(
        self, ahead: int, count: int, *, on_ready: Callable[[], object], on_done: Callable[[], object]
    ) -> None:
        self._ahead = ahead
        self._count = count
        self._on_ready = on_ready
        self._on_done = on_done
        self._came: list[tuple[int, bytes]] = []

    def add(self, body: bytes) -> None:
        """Take one."""
        came = self._came
        came.append((time.monotonic_ns(), body))
        if len(came) == self._ahead:
            self._on_ready()
        if len(came) == self._count:
            self._on_done()

    def latencies_us(self) -> list[float]:
        """Return microseconds from before the send until the listener has it, of all but the first messages.

        Raises:
            WrongResult: a message is missing, or came twice.
        """
        numbers = np.array([number_of(body) for _, body in self._came], dtype=np.uint64)
        check_once_each(numbers, self._count)
        return [(at - sent_ns_of(body)) / 1000 for at, body in self._came if number_of(body) >= self._ahead]


def stamped(number: int, body_bytes: int) -> bytes:
    """Return a body with its number and the time."""
    head = number.to_bytes(WORD_BYTES, "little") + time.monotonic_ns().to_bytes(WORD_BYTES, "little")
    return head + bytes(body_bytes - len(head))


def number_of(body: bytes) -> int:
    """Return a body's number."""
    return int.from_bytes(body[:WORD_BYTES], "little")


def sent_ns_of(body: bytes) -> int:
    """Return when a stamped body was made."""
    return int.from_bytes(body[WORD_BYTES : 2 * WORD_BYTES], "little")


def times(numbers: range, per_s: int) -> Iterator[tuple[int, float]]:
    """Yield each message's number and the seconds left until it is due."""
    begin = time.perf_counter()
    for place, number in enumerate(numbers):
        yield number, begin + place / per_s - time.perf_counter()


def paced(numbers: range, per_s: int, send: Callable[[int], object]) -> None:
    """Call ``send`` so many times a second; where one takes longer than its time, the next ones follow at once."""
    for number, wait_s in times(numbers, per_s):
        if wait_s > 0:
            time.sleep(wait_s)
        send(number)


def paced_when_ready(job: LatencyJob, send: Callable[[int], object], ready: threading.Event) -> None:
    """Send those ahead, wait until they are there, and send the others.

    Raises:
        TimeoutError: they did not come.
    """
    paced(range(job.ahead), job.per_s, send)
    if not ready.wait(LIMIT_S):
        raise TimeoutError(f"the first {job.ahead} messages did not come within {LIMIT_S:.0f} s")
    paced(range(job.ahead, job.count), job.per_s, send)


async def paced_async(job: LatencyJob, send: Callable[[int], Awaitable[object]], ready: asyncio.Event) -> None:
    """Do the same on an event loop."""
    for numbers in (range(job.ahead), range(job.ahead, job.count)):
        for number, wait_s in times(numbers, job.per_s):
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            await send(number)
        await asyncio.wait_for(ready.wait(), LIMIT_S)
