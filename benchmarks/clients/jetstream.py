"""``nats-py`` at a NATS server with JetStream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import nats
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType, StreamConfig

from clients.measuring import LIMIT_S, Arrivals, Collector, LatencyJob, Stopwatch, Taken, paced_async, stamped
from clients.worker import BATCH, LATENCY_BODY_BYTES, SHARED_BATCH, WINDOW, How, Unsupported, Worker

_FETCH_S = 1.0


@asynccontextmanager
async def _jetstream(servers: str) -> AsyncIterator[JetStreamContext]:
    connection = await nats.connect(f"nats://{servers}")
    try:
        yield connection.jetstream(publish_async_max_pending=WINDOW, timeout=LIMIT_S)
    finally:
        await connection.close()


class JetStreamWorker(Worker):
    """A stream for each topic, with one subject, in files."""

    def create(self, servers: str, topic: str) -> None:
        async def create() -> None:
            async with _jetstream(servers) as stream:
                await stream.add_stream(StreamConfig(name=topic, subjects=[topic], storage=StorageType.FILE))

        asyncio.run(create())

    def delete(self, servers: str, topic: str) -> None:
        async def delete() -> None:
            async with _jetstream(servers) as stream:
                await stream.delete_stream(topic)

        asyncio.run(delete())

    def produce(self, servers: str, topic: str, how: How, bodies: list[bytes]) -> Taken:
        return asyncio.run(self._produce(servers, topic, how, bodies))

    async def _produce(self, servers: str, topic: str, how: How, bodies: list[bytes]) -> Taken:
        async with _jetstream(servers) as stream:
            watch = Stopwatch()
            if how is How.ONE_BY_ONE:
                for body in bodies:
                    await stream.publish(topic, body)
            elif how is How.PIPELINED:
                acknowledged = [await stream.publish_async(topic, body) for body in bodies]
                await asyncio.gather(*acknowledged)
            else:
                raise Unsupported(how.value)
            return watch.taken(len(bodies))

    def consume(self, servers: str, topic: str, group: str, how: How, count: int, body_bytes: int) -> Taken:
        came = asyncio.run(self._consume(servers, topic, group, how, count))
        taken = came.taken()
        came.check(body_bytes)
        return taken

    async def _consume(self, servers: str, topic: str, group: str, how: How, count: int) -> Collector:
        done = asyncio.Event()
        came = Collector(count, done.set, is_ordered=True)
        async with _jetstream(servers) as stream:
            if how is How.LISTENER:

                async def handle(message: Msg) -> None:
                    came.add(message.data)

                await stream.subscribe(topic, durable=group, cb=handle, deliver_policy=DeliverPolicy.ALL)
                await asyncio.wait_for(done.wait(), LIMIT_S)
            elif how is How.BATCH_LISTENER:
                config = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=4 * BATCH)
                subscription = await stream.pull_subscribe(topic, durable=group, config=config)
                waiting = Stopwatch()
                while not done.is_set() and waiting.seconds < LIMIT_S:
                    messages = await subscription.fetch(BATCH, _FETCH_S)
                    came.add_all([message.data for message in messages])
                    await messages[-1].ack()
            elif how is How.SHARED_EACH:
                config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=4 * BATCH)
                subscription = await stream.pull_subscribe(topic, durable=group, config=config)
                waiting = Stopwatch()
                while not done.is_set() and waiting.seconds < LIMIT_S:
                    messages = await subscription.fetch(SHARED_BATCH, _FETCH_S)
                    for message in messages:
                        await message.ack()
                    came.add_all([message.data for message in messages])
            else:
                raise Unsupported(how.value)
        return came

    def latencies_us(self, servers: str, job: LatencyJob) -> list[float]:
        return asyncio.run(self._latencies_us(servers, job))

    async def _latencies_us(self, servers: str, job: LatencyJob) -> list[float]:
        ready, done = asyncio.Event(), asyncio.Event()
        came = Arrivals(job.ahead, job.count, on_ready=ready.set, on_done=done.set)

        async def handle(message: Msg) -> None:
            came.add(message.data)

        async def send(number: int) -> None:
            await stream.publish(job.topic, stamped(number, LATENCY_BODY_BYTES))

        async with _jetstream(servers) as stream:
            await stream.subscribe(job.topic, durable=job.group, cb=handle, deliver_policy=DeliverPolicy.ALL)
            await paced_async(job, send, ready)
            await asyncio.wait_for(done.wait(), LIMIT_S)
        return came.latencies_us()

    def read_back(self, servers: str, topic: str, count: int) -> Iterator[tuple[object, list[bytes]]]:
        yield topic, asyncio.run(self._read_back(servers, topic))

    async def _read_back(self, servers: str, topic: str) -> list[bytes]:
        bodies: list[bytes] = []
        async with _jetstream(servers) as stream:
            stored = (await stream.stream_info(topic)).state.messages
            subscription = await stream.pull_subscribe(topic, config=ConsumerConfig(ack_policy=AckPolicy.NONE))
            while len(bodies) < stored:
                bodies += [message.data for message in await subscription.fetch(BATCH, _FETCH_S)]
        return bodies
