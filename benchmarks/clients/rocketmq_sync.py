"""Our blocking client, ``cometmq.client``, at a broker of ours or of Apache RocketMQ."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import cometmq.admin
from clients.measuring import LIMIT_S, Arrivals, Collector, LatencyJob, Stopwatch, Taken, paced_when_ready, stamped
from clients.worker import (
    ACCUMULATED_WINDOW,
    BATCH,
    LATENCY_BODY_BYTES,
    QUEUES,
    REBALANCE_MS,
    SHARED_BATCH,
    WINDOW,
    How,
    Worker,
    not_in_time,
)
from cometmq.client import (
    ConsumeFromWhere,
    OutgoingMessage,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
)

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
_PULL_BYTES = 4 << 20
_LOAD_BATCH = 250
_LAG_S = 20.0
PULL_OPTIONS: dict[str, Any] = {
    "consume_from_where": FIRST,
    "pull_batch_size": BATCH,
    "rebalance_min_interval_ms": REBALANCE_MS,
}


def push_options(how: How) -> dict[str, Any]:
    """Return a push consumer's settings: its defaults, or large pulls and, for a batch listener, large batches."""
    if how is How.DEFAULTS:
        return {"rebalance_min_interval_ms": REBALANCE_MS}
    batch = {"consume_message_batch_max_size": BATCH} if how is How.BATCH_LISTENER else {}
    return {
        "rebalance_min_interval_ms": REBALANCE_MS,
        "pull_batch_size": BATCH,
        "pull_batch_size_bytes": _PULL_BYTES,
        "pull_threshold_for_queue": 4 * BATCH,
        "consume_concurrently_max_span": 8 * BATCH,
        **batch,
    }


class SyncWorker(Worker):
    """Producers and consumers that block."""

    def create(self, servers: str, topic: str) -> None:
        with cometmq.admin.connect(namesrv=servers) as admin:
            admin.topics.create(topic, queues=QUEUES)

    def load(self, servers: str, topic: str, bodies: list[bytes]) -> None:
        with Producer("bench", name_servers=servers) as producer:
            for first in range(0, len(bodies), _LOAD_BATCH):
                producer.send_batch(
                    [OutgoingMessage(body, topic=topic) for body in bodies[first : first + _LOAD_BATCH]]
                )

    def produce(self, servers: str, topic: str, how: How, bodies: list[bytes]) -> Taken:
        accumulate = how is How.ACCUMULATED
        with Producer("bench", name_servers=servers, topics=(topic,), accumulate=accumulate) as producer:
            watch = Stopwatch()
            if how is How.ONE_BY_ONE:
                send = producer.send
                for body in bodies:
                    send(topic, body)
                return watch.taken(len(bodies))
            window = ACCUMULATED_WINDOW if accumulate else WINDOW
            under_way: deque[Any] = deque()
            send_async, note, oldest = producer.send_async, under_way.append, under_way.popleft
            for body in bodies:
                if len(under_way) >= window:
                    oldest().result()
                note(send_async(topic, body))
            for future in under_way:
                future.result()
            return watch.taken(len(bodies))

    def consume(self, servers: str, topic: str, group: str, how: How, count: int, body_bytes: int) -> Taken:
        done = threading.Event()
        came = Collector(count, done.set)
        if how is How.POLL:
            self._poll(servers, topic, group, came)
        elif how in (How.SHARED_EACH, How.SHARED_MANY):
            self._receive(servers, topic, group, how, came)
        else:
            consumer = PushConsumer(group, name_servers=servers, consume_from_where=FIRST, **push_options(how))
            consumer.subscribe(topic)
            if how is How.BATCH_LISTENER:
                add_all = came.add_all

                @consumer.batch_listener
                def handle_all(messages: list[ReceivedMessage]) -> None:
                    add_all([message.body_bytes for message in messages])
            else:
                add = came.add

                @consumer.listener
                def handle(message: ReceivedMessage) -> None:
                    add(message.body_bytes)

            with consumer:
                done.wait(LIMIT_S)
        taken = came.taken()
        came.check(body_bytes)
        return taken

    def _poll(self, servers: str, topic: str, group: str, came: Collector) -> None:
        with PullConsumer(group, name_servers=servers, **PULL_OPTIONS) as consumer:
            consumer.subscribe(topic)
            waiting = Stopwatch()
            while not came.is_done and waiting.seconds < LIMIT_S:
                messages = consumer.poll(1_000)
                if messages:
                    came.add_from(messages[0].queue_id, [message.body_bytes for message in messages])

    def _receive(self, servers: str, topic: str, group: str, how: How, came: Collector) -> None:
        with SimpleConsumer(group, name_servers=servers, consume_from_where=FIRST) as consumer:
            consumer.subscribe(topic)
            waiting = Stopwatch()
            while not came.is_done and waiting.seconds < LIMIT_S:
                messages = consumer.receive(SHARED_BATCH, wait_s=1)
                if how is How.SHARED_MANY:
                    consumer.ack_many(messages)
                else:
                    for message in messages:
                        consumer.ack(message)
                came.add_all([message.body_bytes for message in messages])

    def latencies_us(self, servers: str, job: LatencyJob) -> list[float]:
        ready, done = threading.Event(), threading.Event()
        came = Arrivals(job.ahead, job.count, on_ready=ready.set, on_done=done.set)
        consumer = PushConsumer(job.group, name_servers=servers, consume_from_where=FIRST, **push_options(How.DEFAULTS))
        consumer.subscribe(job.topic)

        @consumer.listener
        def handle(message: ReceivedMessage) -> None:
            came.add(message.body_bytes)

        def send(number: int) -> None:
            producer.send(job.topic, stamped(number, LATENCY_BODY_BYTES))

        with consumer, Producer("bench", name_servers=servers, topics=(job.topic,)) as producer:
            paced_when_ready(job, send, ready)
            if not done.wait(LIMIT_S):
                raise not_in_time("consuming what was sent")
        return came.latencies_us()

    def read_back(self, servers: str, topic: str, count: int) -> Iterator[tuple[object, list[bytes]]]:
        with PullConsumer("bench_reader", name_servers=servers) as consumer:
            queues = consumer.queues(topic)
            waiting = Stopwatch()
            # Apache's broker acknowledges a message before it can be read.
            while sum(ends := [consumer.max_offset(queue) for queue in queues]) < count and waiting.seconds < _LAG_S:
                time.sleep(0.01)
            for queue, end in zip(queues, ends, strict=True):
                bodies: list[bytes] = []
                offset = consumer.min_offset(queue)
                while offset < end:
                    found = consumer.pull(queue, offset, max_messages=BATCH)
                    bodies += [message.body_bytes for message in found.messages]
                    if found.next_begin_offset <= offset:
                        raise not_in_time(f"reading queue {queue.queue_id} at {offset}")
                    offset = found.next_begin_offset
                yield queue.queue_id, bodies
