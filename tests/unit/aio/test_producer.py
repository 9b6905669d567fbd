"""Checks: the asyncio producer against a name server and a broker in this process."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.aio.producer import Producer
from cometmq.client.instance.hooks import Interceptor, SendContext
from cometmq.client.instance.service_state import ServiceState
from cometmq.client.send.outgoing import OutgoingMessage, SendStatus
from cometmq.errors import ClientStateError, InvalidTopic
from cometmq.testing.clusters import cluster


def test_everything_a_producer_does() -> None:
    async def main(name_server: str) -> None:
        async with Producer("p", name_servers=name_server) as producer:
            assert producer.state is ServiceState.RUNNING
            first = await producer.send("orders", b"one", tags="t")
            assert first.status is SendStatus.SEND_OK
            futures = [producer.send_async("orders", b"%d" % at) for at in range(100)]
            results = await asyncio.gather(*futures)
            assert len({(one.queue, one.queue_offset) for one in results}) == 100
            batch = await producer.send_batch([OutgoingMessage(b"a"), OutgoingMessage(b"b")], topic="orders")
            assert batch.unique_id.count(",") == 1
            producer.send_oneway("orders", b"x")
            late = producer.send_async("orders", b"y")
            await producer.flush()
            assert late.done()
            with pytest.raises(ClientStateError):
                await producer.start()
        with pytest.raises(ClientStateError, match="closed"):
            await producer.send("orders", b"x")

    with cluster() as running:
        asyncio.run(main(running.name_server_address))


def test_failed_send_many_leaves_no_send_in_flight() -> None:
    async def main(name_server: str) -> None:
        ended: list[SendContext] = []
        counting = Interceptor(after_send=ended.append)
        async with Producer("p", name_servers=name_server, interceptors=[counting]) as producer:
            with pytest.raises(InvalidTopic):
                await producer.send_many(
                    OutgoingMessage(b"x", topic=topic) for topic in ("orders", "orders", "no topic!")
                )
            assert len(ended) == 2

    with cluster() as running:
        asyncio.run(main(running.name_server_address))


def test_before_the_start() -> None:
    async def main() -> None:
        producer = Producer("p", name_servers="127.0.0.1:1")
        await producer.close()
        with pytest.raises(ClientStateError, match=r"start\(\)"):
            await producer.send("orders", b"x")
        assert "not started" in repr(producer)

    asyncio.run(main())
