"""``confluent-kafka``, the client that most Python programs use for Apache Kafka."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from clients.measuring import LIMIT_S, Arrivals, Collector, LatencyJob, Stopwatch, Taken, paced_when_ready, stamped
from clients.worker import BATCH, LATENCY_BODY_BYTES, QUEUES, WINDOW, How, Unsupported, Worker, not_in_time

_POLL_S = 0.01
_FLUSH_S = LIMIT_S


class _Acknowledged:
    """Counts what the broker acknowledged."""

    def __init__(self) -> None:
        self.count = 0
        self.failed: KafkaError | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.count += 1
        else:
            self.failed = error

    def check(self, count: int) -> None:
        if self.failed is not None:
            raise KafkaException(self.failed)
        if self.count != count:
            raise not_in_time(f"acknowledging {count - self.count} of {count} messages")


def _body(message: Message) -> bytes:
    error = message.error()
    if error is not None:
        raise KafkaException(error)
    return message.value()


class ConfluentWorker(Worker):
    """Producer and Consumer as they come, but for ``linger.ms`` where batches are not what is measured."""

    def create(self, servers: str, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": servers})  # kept: its pending requests end with it
        admin.create_topics([NewTopic(topic, QUEUES, 1)])[topic].result(LIMIT_S)

    def delete(self, servers: str, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": servers})
        admin.delete_topics([topic])[topic].result(LIMIT_S)

    def load(self, servers: str, topic: str, bodies: list[bytes]) -> None:
        self.produce(servers, topic, How.ACCUMULATED, bodies)

    def produce(self, servers: str, topic: str, how: How, bodies: list[bytes]) -> Taken:
        more = {} if how is How.ACCUMULATED else {"linger.ms": 0}
        producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 100_000, **more})
        producer.list_topics(topic, LIMIT_S)
        acknowledged = _Acknowledged()
        watch = Stopwatch()
        if how is How.ONE_BY_ONE:
            for body in bodies:
                producer.produce(topic, body, on_delivery=acknowledged)
                producer.flush(_FLUSH_S)
        elif how is How.PIPELINED:
            for sent, body in enumerate(bodies):
                while sent - acknowledged.count >= WINDOW and acknowledged.failed is None:
                    producer.poll(_POLL_S)
                producer.produce(topic, body, on_delivery=acknowledged)
                producer.poll(0)
            producer.flush(_FLUSH_S)
        else:
            for body in bodies:
                while True:
                    try:
                        producer.produce(topic, body, on_delivery=acknowledged)
                        break
                    except BufferError:
                        producer.poll(_POLL_S)
                producer.poll(0)
            producer.flush(_FLUSH_S)
        taken = watch.taken(len(bodies))
        acknowledged.check(len(bodies))
        return taken

    def _consumer(self, servers: str, group: str, **more: Any) -> Consumer:
        return Consumer({"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest", **more})

    def consume(self, servers: str, topic: str, group: str, how: How, count: int, body_bytes: int) -> Taken:
        done = threading.Event()
        came = Collector(count, done.set)
        consumer = self._consumer(servers, group)
        consumer.subscribe([topic])
        waiting = Stopwatch()
        if how is How.LISTENER:
            poll, add = consumer.poll, came.add
            while not done.is_set() and waiting.seconds < LIMIT_S:
                for _ in range(BATCH):
                    message = poll(_POLL_S)
                    if message is None:
                        break
                    add(_body(message))
        elif how is How.BATCH_LISTENER:
            while not done.is_set() and waiting.seconds < LIMIT_S:
                messages = consumer.consume(BATCH, _POLL_S)
                if messages:
                    came.add_all([_body(message) for message in messages])
        else:
            raise Unsupported(how.value)
        consumer.close()
        taken = came.taken()
        came.check(body_bytes)
        return taken

    def latencies_us(self, servers: str, job: LatencyJob) -> list[float]:
        ready, done = threading.Event(), threading.Event()
        came = Arrivals(job.ahead, job.count, on_ready=ready.set, on_done=done.set)

        def listen() -> None:
            consumer = self._consumer(servers, job.group)
            consumer.subscribe([job.topic])
            waiting = Stopwatch()
            while not done.is_set() and waiting.seconds < LIMIT_S:
                message = consumer.poll(0.1)
                if message is not None:
                    came.add(_body(message))
            consumer.close()

        def send(number: int) -> None:
            producer.produce(job.topic, stamped(number, LATENCY_BODY_BYTES), on_delivery=acknowledged)
            producer.flush(_FLUSH_S)

        producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
        acknowledged = _Acknowledged()
        listener = threading.Thread(target=listen)
        listener.start()
        paced_when_ready(job, send, ready)
        listener.join()
        acknowledged.check(job.count)
        return came.latencies_us()

    def read_back(self, servers: str, topic: str, count: int) -> Iterator[tuple[object, list[bytes]]]:
        consumer = self._consumer(servers, "bench_reader", **{"enable.auto.commit": False})
        places = [TopicPartition(topic, partition, 0) for partition in range(QUEUES)]
        stored = sum(consumer.get_watermark_offsets(place, LIMIT_S)[1] for place in places)
        consumer.assign(places)
        by_partition: dict[int, list[bytes]] = {}
        waiting, read = Stopwatch(), 0
        while read < stored:
            messages = consumer.consume(BATCH, _POLL_S)
            for message in messages:
                by_partition.setdefault(message.partition(), []).append(_body(message))
            read += len(messages)
            if waiting.seconds > LIMIT_S:
                raise not_in_time(f"reading {stored} messages of {topic}")
        consumer.close()
        yield from by_partition.items()
