"""Sends messages with our client, one way, and tells what it took: one JSON object.

    python benchmarks/system/sending_main.py NAME_SERVER TOPIC WAY COUNT BODY_BYTES UNDER_WAY

``WAY`` is one of :data:`WAYS` or :data:`AIO_WAYS`. Message ``i`` has the body of ``body_of(i)``, so that whoever reads
the topic can tell that each is there once and whole (``run_sending.py``). Every result is asked for and must say
SEND_OK; one-way sends have none. At most ``UNDER_WAY`` messages wait for their answers. The clock runs from the first
send to the last result; CPU is this process's, both threads.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from cometmq import aio
from cometmq.client import OutgoingMessage, Producer, SendFuture, SendResult
from cometmq.client.send.outgoing import SendStatus

__all__ = ["AIO_WAYS", "WAYS", "body_of"]

_WARM = 2_000


def body_of(number: int, body_bytes: int) -> bytes:
    """Return the body of message ``number``: the number, then bytes that follow from it."""
    return number.to_bytes(8, "big") + bytes([number % 251]) * (body_bytes - 8)


def _check(result: SendResult) -> None:
    if result.status is not SendStatus.SEND_OK:
        raise SystemExit(f"a message was not stored as asked: {result!r}")


def _send(producer: Producer, topic: str, bodies: Iterator[bytes], under_way: int) -> None:
    for body in bodies:
        _check(producer.send(topic, body))


def _send_async(producer: Producer, topic: str, bodies: Iterator[bytes], under_way: int) -> None:
    waiting: deque[SendFuture] = deque()
    for body in bodies:
        if len(waiting) >= under_way:
            for _ in range(under_way // 2):
                _check(waiting.popleft().result())
        waiting.append(producer.send_async(topic, body))
    for future in waiting:
        _check(future.result())


def _send_many(producer: Producer, topic: str, bodies: Iterator[bytes], under_way: int) -> None:
    for result in producer.send_many(bodies, topic=topic, under_way=under_way):
        _check(result)


def _send_messages(producer: Producer, topic: str, bodies: Iterator[bytes], under_way: int) -> None:
    for result in producer.send_many((OutgoingMessage(body) for body in bodies), topic=topic, under_way=under_way):
        _check(result)


def _send_oneway(producer: Producer, topic: str, bodies: Iterator[bytes], under_way: int) -> None:
    for body in bodies:
        producer.send_oneway(topic, body)


WAYS: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {
    "send": (_send, {}),
    "send_async": (_send_async, {}),
    "send_many": (_send_many, {}),
    "send_messages": (_send_messages, {}),
    "send_oneway": (_send_oneway, {}),
    "accumulated": (_send_async, {"accumulate": True}),
}
"""The ways of the blocking producer: the function, and the producer's options."""

AIO_WAYS: dict[str, dict[str, Any]] = {"aio": {}, "aio_accumulated": {"accumulate": True}}
"""The ways of ``cometmq.aio``: the producer's options."""


async def _send_aio(producer: aio.Producer, topic: str, bodies: Iterator[bytes], under_way: int) -> None:
    waiting: deque[SendFuture] = deque()
    for body in bodies:
        if len(waiting) >= under_way:
            for _ in range(under_way // 2):
                _check(await waiting.popleft())
        waiting.append(producer.send_async(topic, body))
    for future in waiting:
        _check(await future)


def _report(count: int, began: tuple[float, float]) -> str:
    seconds, cpu_s = time.perf_counter() - began[0], time.process_time() - began[1]
    return json.dumps({"count": count, "seconds": seconds, "cpu_s": cpu_s})


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


async def _main_aio(name_server: str, topic: str, way: str, count: int, body_bytes: int, under_way: int) -> str:
    warm = min(count // 2, _WARM)
    async with aio.Producer("sending", name_servers=name_server, **AIO_WAYS[way]) as producer:
        _check(await producer.send(topic, body_of(0, body_bytes)))
        await _send_aio(producer, topic, (body_of(i, body_bytes) for i in range(1, warm)), under_way)
        bodies = [body_of(i, body_bytes) for i in range(warm, count)]
        began = _now()
        await _send_aio(producer, topic, iter(bodies), under_way)
        return _report(count - warm, began)


def main() -> int:
    name_server, topic, way, *numbers = sys.argv[1:]
    count, body_bytes, under_way = map(int, numbers)
    if way in AIO_WAYS:
        print(asyncio.run(_main_aio(name_server, topic, way, count, body_bytes, under_way)))
        return 0
    function, options = WAYS[way]
    warm = min(count // 2, _WARM)
    with Producer("sending", name_servers=name_server, **options) as producer:
        _check(producer.send(topic, body_of(0, body_bytes)))
        function(producer, topic, (body_of(i, body_bytes) for i in range(1, warm)), under_way)
        producer.flush()
        bodies = [body_of(i, body_bytes) for i in range(warm, count)]
        began = _now()
        function(producer, topic, iter(bodies), under_way)
        producer.flush()
        print(_report(count - warm, began))
    return 0


if __name__ == "__main__":
    sys.exit(main())
