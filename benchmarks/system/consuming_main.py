"""Consumes a topic with our client, one way, and tells what it took: one JSON object.

    python benchmarks/system/consuming_main.py NAME_SERVER TOPIC WAY COUNT BODY_BYTES PULL_BATCH

``WAY`` is one of :data:`WAYS` or :data:`AIO_WAYS`. The topic holds ``COUNT`` messages, number ``i`` with the body of
``sending_main.body_of(i)``. The listener keeps each body; when all have come the clock stops, and then every body is
looked at: each number must be there once, whole. Nothing is printed otherwise. The clock runs from the first call of
the listener to the last; CPU is this process's, all threads.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from cometmq import aio
from cometmq.client import ConsumeFromWhere, PullConsumer, PushConsumer, ReceivedMessage
from system.sending_main import body_of

__all__ = ["AIO_WAYS", "WAYS", "check_bodies"]

_LIMIT_S = 300
_FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


class _Clock:
    """Runs from the first message to the last."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._began = (0.0, 0.0)
        self._ended = (0.0, 0.0)
        self.bodies: list[bytes] = []
        self.is_over = threading.Event()

    def began(self) -> None:
        self._began = (time.perf_counter(), time.process_time())

    def look(self) -> bool:
        """Stop where all have come."""
        if len(self.bodies) < self._count:
            return False
        self._ended = (time.perf_counter(), time.process_time())
        self.is_over.set()
        return True

    def report(self, body_bytes: int) -> str:
        check_bodies(self.bodies, self._count, body_bytes)
        seconds, cpu_s = (end - begin for begin, end in zip(self._began, self._ended, strict=True))
        return json.dumps({"count": self._count, "seconds": seconds, "cpu_s": cpu_s})


def check_bodies(bodies: list[bytes], count: int, body_bytes: int) -> None:
    """Look at what came.

    Raises:
        SystemExit: a message is missing, came twice, or is not what was sent.
    """
    seen = bytearray(count)
    for body in bodies:
        at = int.from_bytes(body[:8], "big")
        if at >= count or body != body_of(at, body_bytes):
            raise SystemExit(f"a message came that was not sent: {body[:40]!r}")
        if seen[at]:
            raise SystemExit(f"message {at} came twice")
        seen[at] = 1
    if missing := seen.count(0):
        raise SystemExit(f"{missing:,} of {count:,} messages did not come, the first is {seen.index(0)}")


def _one_by_one(clock: _Clock) -> Callable[[ReceivedMessage], None]:
    bodies, count = clock.bodies, clock._count

    def listener(message: ReceivedMessage) -> None:
        if not bodies:
            clock.began()
        bodies.append(message.body_bytes)
        if len(bodies) >= count:
            clock.look()

    return listener


def _batches(clock: _Clock) -> Callable[[list[ReceivedMessage]], None]:
    bodies = clock.bodies

    def listener(messages: list[ReceivedMessage]) -> None:
        if not bodies:
            clock.began()
        bodies.extend([message.body_bytes for message in messages])
        clock.look()

    return listener


def _push(clock: _Clock, consumer: PushConsumer) -> None:
    with consumer:
        if not clock.is_over.wait(_LIMIT_S):
            raise SystemExit(f"{len(clock.bodies):,} messages came within {_LIMIT_S} s, which is not all")


def _run_push(clock: _Clock, topic: str, settings: dict[str, Any], batch: int) -> None:
    consumer = PushConsumer(f"push_{topic}", consume_from_where=_FIRST, **settings)
    consumer.subscribe(topic)
    consumer.listener(_one_by_one(clock))
    _push(clock, consumer)


def _run_batch(clock: _Clock, topic: str, settings: dict[str, Any], batch: int) -> None:
    size = {"consume_message_batch_max_size": batch}
    consumer = PushConsumer(f"push_batch_{topic}", consume_from_where=_FIRST, **size, **settings)
    consumer.subscribe(topic)
    consumer.batch_listener(_batches(clock))
    _push(clock, consumer)


def _run_orderly(clock: _Clock, topic: str, settings: dict[str, Any], batch: int) -> None:
    consumer = PushConsumer(f"orderly_{topic}", orderly=True, consume_from_where=_FIRST, **settings)
    consumer.subscribe(topic)
    consumer.listener(_one_by_one(clock))
    _push(clock, consumer)


def _run_poll(clock: _Clock, topic: str, settings: dict[str, Any], batch: int) -> None:
    end = time.monotonic() + _LIMIT_S
    with PullConsumer(f"poll_{topic}", consume_from_where=_FIRST, **settings) as consumer:
        consumer.subscribe(topic)
        while not clock.look():
            messages = consumer.poll()
            if not clock.bodies:
                clock.began()
            clock.bodies.extend([message.body_bytes for message in messages])
            if time.monotonic() > end:
                raise SystemExit(f"{len(clock.bodies):,} messages came within {_LIMIT_S} s, which is not all")


WAYS: dict[str, Callable[[_Clock, str, dict[str, Any], int], None]] = {
    "push": _run_push,
    "push_batch": _run_batch,
    "orderly": _run_orderly,
    "poll": _run_poll,
}
"""The ways of the blocking consumers: a plain function of one message, of a list, in order; and polls."""

AIO_WAYS = ("aio",)
"""The way of ``cometmq.aio``: an ``async def`` listener of one message."""


async def _run_aio(clock: _Clock, topic: str, settings: dict[str, Any]) -> None:
    listen = _one_by_one(clock)
    over = asyncio.Event()

    async def listener(message: ReceivedMessage) -> None:
        listen(message)
        if clock.is_over.is_set():
            over.set()

    consumer = aio.PushConsumer(f"aio_{topic}", listener=listener, consume_from_where=_FIRST, **settings)
    await consumer.subscribe(topic)
    async with consumer:
        try:
            await asyncio.wait_for(over.wait(), _LIMIT_S)
        except asyncio.TimeoutError:
            raise SystemExit(f"{len(clock.bodies):,} messages came within {_LIMIT_S} s, which is not all") from None


def main() -> int:
    name_server, topic, way, *numbers = sys.argv[1:]
    count, body_bytes, batch = map(int, numbers)
    settings: dict[str, Any] = {"name_servers": name_server, "pull_batch_size": batch}
    clock = _Clock(count)
    if way in AIO_WAYS:
        asyncio.run(_run_aio(clock, topic, settings))
    else:
        WAYS[way](clock, topic, settings, batch)
    print(clock.report(body_bytes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
