"""Loads that our client puts on a cluster: pulls with an SQL92 filter, and requests with their replies.

Each returns the figures of one run, and only after every message, or every reply, was the one that it must be.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import cometmq.admin
from cometmq import aio
from cometmq.client import MessageQueue, Producer, PullConsumer, ReceivedMessage, SendFuture
from system.peers import Server

__all__ = ["EXPRESSION", "MATCH_EACH", "QUEUES", "fill_filtered", "measure_requests", "measure_sql_pulls"]

EXPRESSION = "price > 10 AND region = 'eu' AND kind <> 'slow'"
"""Three comparisons, all of which a matching message needs."""

MATCH_EACH = 16
"""One message in so many matches."""

QUEUES = 4
"""All of which are pulled at once."""

_UNDER_WAY = 1_000
_PULL_MESSAGES = 32
_TIMEOUT_MS = 60_000
_WARM_REQUESTS = 200


def _body(number: int) -> bytes:
    return b"%08d" % number + bytes([number % 251]) * 120


def fill_filtered(server: Server, topic: str, count: int) -> None:
    """Make a topic of :data:`QUEUES` queues and send so many messages of 128 B with three properties each."""
    with cometmq.admin.connect(namesrv=server.address) as admin:
        admin.topics.create(topic, queues=QUEUES)
    waiting: deque[SendFuture] = deque()
    with Producer("bench_filtered", name_servers=server.address, accumulate=True) as producer:
        for number in range(count):
            if len(waiting) >= _UNDER_WAY:
                for _ in range(_UNDER_WAY // 2):
                    waiting.popleft().result()
            properties = {
                "price": "15" if number % MATCH_EACH == 0 else "5",
                "region": "eu" if number % 2 == 0 else "us",
                "kind": "fast",
            }
            waiting.append(producer.send_async(topic, _body(number), properties=properties))
        for future in waiting:
            future.result()


def _pull_all(consumer: PullConsumer, queue: MessageQueue) -> list[bytes]:
    """Pull the matching messages of a queue, one pull after the other."""
    found: list[bytes] = []
    offset, last = 0, 1
    while offset < last:
        result = consumer.pull(
            queue, offset, expression=EXPRESSION, expression_type="SQL92", max_messages=_PULL_MESSAGES
        )
        offset, last = result.next_begin_offset, result.max_offset
        found.extend(message.body_bytes for message in result.messages)
    return found


def measure_sql_pulls(server: Server, topic: str, count: int, *, rounds: int) -> dict[str, float]:
    """Pull the matching messages of all queues at once, ``rounds`` times."""
    expected = sorted(_body(number) for number in range(0, count, MATCH_EACH))
    seconds = cpu_s = 0.0
    with (
        PullConsumer("bench_filtered_pulls", name_servers=server.address) as consumer,
        ThreadPoolExecutor(QUEUES) as threads,
    ):
        queues = consumer.queues(topic)
        for _ in range(rounds):
            began, cpu_began = time.perf_counter(), server.cpu_s()
            found = [body for part in threads.map(partial(_pull_all, consumer), queues) for body in part]
            seconds += time.perf_counter() - began
            cpu_s += server.cpu_s() - cpu_began
            if sorted(found) != expected:
                raise SystemExit(
                    f"SQL92 pulls at {server.name}: {len(found):,} messages, not the {len(expected):,} that match"
                )
    looked_at = count * rounds
    return {"looked at, messages/s": looked_at / seconds, "CPU us/message": cpu_s * 1e6 / looked_at}


async def _request_all(server: Server, topic: str, count: int) -> tuple[list[float], float]:
    """Send requests one after the other; microseconds of each, and the server's CPU seconds."""
    times_us: list[float] = []
    cpu_began = 0.0
    async with (
        aio.Producer("bench_replies", name_servers=server.address) as replier,
        aio.Producer("bench_asks", name_servers=server.address) as asker,
    ):

        async def reply(message: ReceivedMessage) -> None:
            await replier.reply_to(message, b"re: " + message.body_bytes)

        consumer = aio.PushConsumer("bench_answers", name_servers=server.address, listener=reply)
        await consumer.subscribe(topic)
        async with consumer:
            for number in range(-_WARM_REQUESTS, count):
                body = b"%d" % number
                if number == 0:
                    cpu_began = server.cpu_s()
                began = time.perf_counter()
                answer = await asker.request(topic, body, timeout_ms=_TIMEOUT_MS)
                if answer.body_bytes != b"re: " + body:
                    raise SystemExit(f"request {number} at {server.name}: reply {answer.body_bytes[:40]!r}")
                times_us.append((time.perf_counter() - began) * 1e6)
            return times_us[_WARM_REQUESTS:], server.cpu_s() - cpu_began


def measure_requests(server: Server, topic: str, count: int) -> dict[str, float]:
    """Send requests one after the other; a push consumer on the same loop replies to each."""
    with cometmq.admin.connect(namesrv=server.address) as admin:
        admin.topics.create(topic, queues=1)
    times_us, cpu_s = asyncio.run(_request_all(server, topic, count))
    times_us.sort()
    return {
        "p50 us": statistics.median(times_us),
        "p99 us": times_us[count * 99 // 100],
        "CPU us/request": cpu_s * 1e6 / count,
    }
