"""Checks: the asyncio pull consumer against a name server and a broker in this process."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from cometmq.aio.producer import Producer
from cometmq.aio.pull import PullConsumer
from cometmq.client.instance.service_state import ServiceState
from cometmq.client.pull.pull_policy import PullStatus
from cometmq.client.send.outgoing import OutgoingMessage
from cometmq.errors import ClientStateError
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.testing.clusters import cluster

_LIMIT_S = 30
_QUEUE = MessageQueue(topic="orders", broker_name="broker-a", queue_id=1)


def _consumer(name_server: str, group: str) -> PullConsumer:
    return PullConsumer(
        group,
        name_servers=name_server,
        rebalance_min_interval_ms=10,
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        auto_commit=False,
    )


async def _publish(name_server: str, count: int) -> None:
    async with Producer("p", name_servers=name_server) as producer:
        await producer.send("orders", b"first", tags="other")
        for number in range(count):
            await producer.send(OutgoingMessage(b"%d" % number, topic="orders", tags="t"), queue=_QUEUE)


def test_everything_a_pull_consumer_does() -> None:
    async def main(name_server: str) -> None:
        await _publish(name_server, 12)
        async with _consumer(name_server, "g") as consumer:
            assert consumer.state is ServiceState.RUNNING
            await consumer.subscribe("orders", "t")
            seen = []
            async for message in consumer:
                seen.append(bytes(message.body))
                if len(seen) == 5:
                    await consumer.commit()
                if len(seen) == 8:
                    break
            end = await consumer.max_offset(_QUEUE)
            assert seen == [b"%d" % number for number in range(8)]
            assert await consumer.committed(_QUEUE) == end - 7
            rest: list[bytes] = []
            while len(rest) < 4:
                rest += [bytes(message.body) for message in await consumer.poll()]
            assert rest == [b"8", b"9", b"10", b"11"]
            assert consumer.position(_QUEUE) == end
            await consumer.seek(_QUEUE, end - 1)
            assert [bytes(message.body) for message in await consumer.poll()] == [b"11"]
            consumer.pause([_QUEUE])
            consumer.resume([_QUEUE])
            await consumer.commit_async()
            assert _QUEUE in consumer.assignment()
            assert len(await consumer.queues("orders")) == 4
            pulled = await consumer.pull(_QUEUE, await consumer.search_offset(_QUEUE, 0), expression="t")
            assert pulled.status is PullStatus.FOUND
            assert "aio.PullConsumer g running" in repr(consumer)
            await consumer.unsubscribe("orders")
            assert consumer.assignment() == []
            with pytest.raises(ClientStateError):
                await consumer.start()
        with pytest.raises(ClientStateError, match="closed"):
            await consumer.poll()
        async with _consumer(name_server, "h") as consumer:
            await consumer.assign([_QUEUE])
            await consumer.seek_to_begin(_QUEUE)
            await consumer.seek_to_time(_QUEUE, 0)
            await consumer.seek_to_end(_QUEUE)
            assert await consumer.min_offset(_QUEUE) == 0
            assert await consumer.poll(20) == []

    with cluster() as running:
        asyncio.run(asyncio.wait_for(main(running.name_server_address), _LIMIT_S))


def test_a_poll_that_is_cancelled_loses_nothing() -> None:
    async def main(name_server: str) -> None:
        async with _consumer(name_server, "g") as consumer:
            await _publish(name_server, 0)
            await consumer.assign([_QUEUE], "t")  # chance picks the queues of other messages
            await consumer.seek_to_end(_QUEUE)
            waiting = asyncio.ensure_future(consumer.poll(60_000))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await _publish(name_server, 1)
            assert [bytes(message.body) for message in await consumer.poll()] == [b"0"]

    with cluster() as running:
        asyncio.run(asyncio.wait_for(main(running.name_server_address), _LIMIT_S))


def test_loop_that_another_task_left_counts_up_to_its_last_message() -> None:
    async def main(name_server: str) -> None:
        await _publish(name_server, 5)
        async with _consumer(name_server, "g") as consumer:
            await consumer.subscribe("orders", "t")
            end = await consumer.max_offset(_QUEUE)

            async def work() -> None:
                count = 0
                async with aclosing(aiter(consumer)) as messages:
                    async for _ in messages:
                        count += 1
                        if count == 3:
                            break

            await asyncio.ensure_future(work())
            await consumer.commit()
            assert await consumer.committed(_QUEUE) == end - 2
            assert consumer.position(_QUEUE) == end - 2

    with cluster() as running:
        asyncio.run(asyncio.wait_for(main(running.name_server_address), _LIMIT_S))
