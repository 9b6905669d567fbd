"""``redis-py`` with Redis streams: XADD, and XREADGROUP with XACK."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import redis

from clients.measuring import LIMIT_S, Arrivals, Collector, LatencyJob, Stopwatch, Taken, paced_when_ready, stamped
from clients.worker import BATCH, LATENCY_BODY_BYTES, SHARED_BATCH, WINDOW, How, Unsupported, Worker

_FIELD = b"body"
_BLOCK_MS = 100
_MEMBER = "bench"


def _connect(servers: str) -> redis.Redis:
    host, _, port = servers.rpartition(":")
    return redis.Redis(host, int(port), protocol=2)  # answers as lists, as servers of all ages give them


def _read(
    connection: redis.Redis, topic: str, group: str, count: int = BATCH
) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Return the group's next entries; none where none came in time."""
    streams = connection.xreadgroup(group, _MEMBER, {topic: ">"}, count=count, block=_BLOCK_MS)
    return streams[0][1] if streams else []


class RedisWorker(Worker):
    """A stream for each topic."""

    def create(self, servers: str, topic: str) -> None:
        with _connect(servers) as connection:
            connection.ping()  # a stream is made by its first message

    def delete(self, servers: str, topic: str) -> None:
        with _connect(servers) as connection:
            connection.delete(topic)

    def produce(self, servers: str, topic: str, how: How, bodies: list[bytes]) -> Taken:
        with _connect(servers) as connection:
            connection.ping()
            watch = Stopwatch()
            if how is How.ONE_BY_ONE:
                for body in bodies:
                    connection.xadd(topic, {_FIELD: body})
            elif how is How.PIPELINED:
                for first in range(0, len(bodies), WINDOW):
                    pipeline = connection.pipeline(transaction=False)
                    for body in bodies[first : first + WINDOW]:
                        pipeline.xadd(topic, {_FIELD: body})
                    pipeline.execute()
            else:
                raise Unsupported(how.value)
            return watch.taken(len(bodies))

    def consume(self, servers: str, topic: str, group: str, how: How, count: int, body_bytes: int) -> Taken:
        done = threading.Event()
        came = Collector(count, done.set, is_ordered=True)
        with _connect(servers) as connection:
            connection.xgroup_create(topic, group, id="0", mkstream=True)
            waiting = Stopwatch()
            add = came.add
            while not done.is_set() and waiting.seconds < LIMIT_S:
                is_shared = how in (How.SHARED_EACH, How.SHARED_MANY)
                entries = _read(connection, topic, group, SHARED_BATCH if is_shared else BATCH)
                if not entries:
                    continue
                if how is How.SHARED_EACH:
                    for entry_id, _ in entries:
                        connection.xack(topic, group, entry_id)
                    came.add_all([fields[_FIELD] for _, fields in entries])
                    continue
                if how is How.LISTENER:
                    for _, fields in entries:
                        add(fields[_FIELD])
                elif how in (How.BATCH_LISTENER, How.SHARED_MANY):
                    came.add_all([fields[_FIELD] for _, fields in entries])
                else:
                    raise Unsupported(how.value)
                connection.xack(topic, group, *[entry_id for entry_id, _ in entries])
        taken = came.taken()
        came.check(body_bytes)
        return taken

    def latencies_us(self, servers: str, job: LatencyJob) -> list[float]:
        ready, done = threading.Event(), threading.Event()
        came = Arrivals(job.ahead, job.count, on_ready=ready.set, on_done=done.set)

        def listen() -> None:
            with _connect(servers) as connection:
                waiting = Stopwatch()
                while not done.is_set() and waiting.seconds < LIMIT_S:
                    for entry_id, fields in _read(connection, job.topic, job.group):
                        came.add(fields[_FIELD])
                        connection.xack(job.topic, job.group, entry_id)

        def send(number: int) -> None:
            connection.xadd(job.topic, {_FIELD: stamped(number, LATENCY_BODY_BYTES)})

        with _connect(servers) as connection:
            connection.xgroup_create(job.topic, job.group, id="0", mkstream=True)
            listener = threading.Thread(target=listen)
            listener.start()
            paced_when_ready(job, send, ready)
            listener.join()
        return came.latencies_us()

    def read_back(self, servers: str, topic: str, count: int) -> Iterator[tuple[object, list[bytes]]]:
        bodies: list[bytes] = []
        with _connect(servers) as connection:
            after = b"-"
            while entries := connection.xrange(topic, min=after, count=BATCH):
                bodies += [fields[_FIELD] for _, fields in entries]
                after = b"(" + entries[-1][0]
        yield topic, bodies
