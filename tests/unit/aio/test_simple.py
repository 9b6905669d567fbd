"""Checks: the asyncio simple consumer against a name server and a broker in this process."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from cometmq.aio.producer import Producer
from cometmq.aio.simple import SimpleConsumer
from cometmq.testing.clusters import cluster

_LIMIT_S = 30


def test_everything_a_simple_consumer_does() -> None:
    async def main(name_server: str) -> None:
        async with (
            SimpleConsumer(
                "g", name_servers=name_server, consume_from_where="CONSUME_FROM_FIRST_OFFSET", invisible_time_ms=2_000
            ) as consumer,
            Producer("p", name_servers=name_server) as producer,
        ):
            await producer.send("orders", b"0", tags="other")
            await producer.send("orders", b"1", tags="t")
            await consumer.subscribe("orders", "t")
            (first,) = await consumer.receive(1, wait_s=_LIMIT_S)
            assert first.body_bytes == b"1"
            assert await consumer.extend(first, invisible_s=60) == first.pop_handle
            await consumer.ack(first)

            waiting = asyncio.ensure_future(consumer.receive(wait_s=_LIMIT_S))
            while not waiting.done():  # held at the broker by the time that one of these comes, most likely
                await producer.send("orders", b"2", tags="t")
                await asyncio.wait([waiting], timeout=0.1)
            await consumer.ack_many(await waiting)
            while rest := await consumer.receive(wait_s=0):
                await consumer.ack_many(rest)

            for body in (b"3", b"4", b"5"):
                await producer.send("orders", body, tags="t")
            seen = []
            async with aclosing(aiter(consumer)) as messages:
                async for message in messages:
                    seen.append(message.body_bytes)
                    if len(seen) == 2:
                        await consumer.ack(message)
                        break
            (last,) = await consumer.receive(wait_s=_LIMIT_S)
            assert sorted([*seen, last.body_bytes]) == [b"3", b"4", b"5"]
            with pytest.raises(RuntimeError):
                async with consumer.handling(last):
                    raise RuntimeError
            (again,) = await consumer.receive(wait_s=_LIMIT_S)
            assert (again.body_bytes, again.reconsume_times) == (last.body_bytes, 1)
            async with consumer.handling(again):
                assert await consumer.receive(wait_s=0) == []
            assert await consumer.receive(wait_s=0) == []

    with cluster() as running:
        asyncio.run(main(running.name_server_address))
