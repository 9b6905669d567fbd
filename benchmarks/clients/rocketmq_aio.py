"""Our client for asyncio, ``cometmq.aio``, at a broker of ours or of Apache RocketMQ."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from clients.measuring import LIMIT_S, Arrivals, Collector, LatencyJob, Stopwatch, Taken, paced_async, stamped
from clients.rocketmq_sync import FIRST, PULL_OPTIONS, push_options
from clients.worker import ACCUMULATED_WINDOW, LATENCY_BODY_BYTES, SHARED_BATCH, WINDOW, How, Worker
from cometmq.aio import Producer, PullConsumer, PushConsumer, SimpleConsumer
from cometmq.client import ReceivedMessage


class AioWorker(Worker):
    """Producers and consumers on an event loop; topics are made and read back by the blocking ones."""

    def produce(self, servers: str, topic: str, how: How, bodies: list[bytes]) -> Taken:
        return asyncio.run(self._produce(servers, topic, how, bodies))

    async def _produce(self, servers: str, topic: str, how: How, bodies: list[bytes]) -> Taken:
        accumulate = how is How.ACCUMULATED
        async with Producer("bench", name_servers=servers, topics=(topic,), accumulate=accumulate) as producer:
            watch = Stopwatch()
            if how is How.ONE_BY_ONE:
                send = producer.send
                for body in bodies:
                    await send(topic, body)
                return watch.taken(len(bodies))
            window = ACCUMULATED_WINDOW if accumulate else WINDOW
            under_way: deque[Any] = deque()
            send_async, note, oldest = producer.send_async, under_way.append, under_way.popleft
            for body in bodies:
                if len(under_way) >= window:
                    await oldest()
                note(send_async(topic, body))
            for future in under_way:
                await future
            return watch.taken(len(bodies))

    def consume(self, servers: str, topic: str, group: str, how: How, count: int, body_bytes: int) -> Taken:
        came = asyncio.run(self._consume(servers, topic, group, how, count))
        taken = came.taken()
        came.check(body_bytes)
        return taken

    async def _consume(self, servers: str, topic: str, group: str, how: How, count: int) -> Collector:
        done = asyncio.Event()
        came = Collector(count, done.set)
        if how is How.POLL:
            await self._poll(servers, topic, group, came)
            return came
        if how in (How.SHARED_EACH, How.SHARED_MANY):
            await self._receive(servers, topic, group, how, came)
            return came
        consumer = PushConsumer(group, name_servers=servers, consume_from_where=FIRST, **push_options(how))
        await consumer.subscribe(topic)
        if how is How.BATCH_LISTENER:

            @consumer.batch_listener
            async def handle_all(messages: list[ReceivedMessage]) -> None:
                came.add_all([message.body_bytes for message in messages])
        else:

            @consumer.listener
            async def handle(message: ReceivedMessage) -> None:
                came.add(message.body_bytes)

        async with consumer:
            await asyncio.wait_for(done.wait(), LIMIT_S)
        return came

    async def _poll(self, servers: str, topic: str, group: str, came: Collector) -> None:
        async with PullConsumer(group, name_servers=servers, **PULL_OPTIONS) as consumer:
            await consumer.subscribe(topic)
            waiting = Stopwatch()
            while not came.is_done and waiting.seconds < LIMIT_S:
                messages = await consumer.poll(1_000)
                if messages:
                    came.add_from(messages[0].queue_id, [message.body_bytes for message in messages])

    async def _receive(self, servers: str, topic: str, group: str, how: How, came: Collector) -> None:
        async with SimpleConsumer(group, name_servers=servers, consume_from_where=FIRST) as consumer:
            await consumer.subscribe(topic)
            waiting = Stopwatch()
            while not came.is_done and waiting.seconds < LIMIT_S:
                messages = await consumer.receive(SHARED_BATCH, wait_s=1)
                if how is How.SHARED_MANY:
                    await consumer.ack_many(messages)
                else:
                    await asyncio.gather(*(consumer.ack(message) for message in messages))
                came.add_all([message.body_bytes for message in messages])

    def latencies_us(self, servers: str, job: LatencyJob) -> list[float]:
        return asyncio.run(self._latencies_us(servers, job))

    async def _latencies_us(self, servers: str, job: LatencyJob) -> list[float]:
        ready, done = asyncio.Event(), asyncio.Event()
        came = Arrivals(job.ahead, job.count, on_ready=ready.set, on_done=done.set)
        consumer = PushConsumer(job.group, name_servers=servers, consume_from_where=FIRST, **push_options(How.DEFAULTS))
        await consumer.subscribe(job.topic)

        @consumer.listener
        async def handle(message: ReceivedMessage) -> None:
            came.add(message.body_bytes)

        async def send(number: int) -> None:
            await producer.send(job.topic, stamped(number, LATENCY_BODY_BYTES))

        async with consumer, Producer("bench", name_servers=servers, topics=(job.topic,)) as producer:
            await paced_async(job, send, ready)
            await asyncio.wait_for(done.wait(), LIMIT_S)
        return came.latencies_us()
