"""The base of every worker: one client library in a process of its own, which serves requests one after the other.

A worker lives through the whole run, so that none is measured while it is still warming up; each request gets new
clients. Times are taken here, around the library's calls alone: bodies are made before, and checked behind.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from clients.measuring import LIMIT_S, LatencyJob, Taken
from clients.messages import check_ascending, check_once_each, make_bodies, numbers_of

QUEUES = 8
WINDOW = 1_000
"""Maximum sends in flight where they are pipelined."""
ACCUMULATED_WINDOW = 10_000
"""The same where the client puts them into batches."""
REBALANCE_MS = 50
"""Clients of RocketMQ may share queues out so soon after the last time, so that runs begin without a wait."""
BATCH = 1_000
"""Messages that a batch listener gets at most, and a pull brings."""
SHARED_BATCH = 32
"""Messages that a consumer asks for where any consumer of a group may have any message: RocketMQ's most."""
LATENCY_BODY_BYTES = 128


class How(str, enum.Enum):
    """How messages are sent or consumed."""

    ONE_BY_ONE = "one by one"
    PIPELINED = "pipelined"
    ACCUMULATED = "accumulated"
    LISTENER = "listener"
    DEFAULTS = "listener, defaults"
    BATCH_LISTENER = "batch listener"
    POLL = "poll"
    SHARED_EACH = "shared, an ack each"
    SHARED_MANY = "shared, one ack"


class Unsupported(Exception):
    """The client has nothing of this kind."""


class Worker(ABC):
    """One client library. ``servers`` is what its clients connect to."""

    def create(self, servers: str, topic: str) -> None:
        """Make a topic."""
        raise Unsupported(f"{type(self).__name__} makes no topics; another worker of its servers does")

    def delete(self, servers: str, topic: str) -> None:  # noqa: B027 - a broker with one log needs nothing done
        """Remove a topic where its messages would be in the way."""

    def read_back(self, servers: str, topic: str, count: int) -> Iterator[tuple[object, list[bytes]]]:
        """Yield each queue of a topic with all bodies in it, in their order."""
        raise Unsupported(f"{type(self).__name__} reads nothing back; another worker of its servers does")

    def load(self, servers: str, topic: str, bodies: list[bytes]) -> None:
        """Put messages there to be consumed, in whatever way is quick."""
        self.produce(servers, topic, How.PIPELINED, bodies)

    @abstractmethod
    def produce(self, servers: str, topic: str, how: How, bodies: list[bytes]) -> Taken:
        """Send all and wait until all are acknowledged.

        Raises:
            Exception: one was not.
        """

    @abstractmethod
    def consume(self, servers: str, topic: str, group: str, how: How, count: int, body_bytes: int) -> Taken:
        """Consume a topic from its beginning, as a new group, and check what came."""

    @abstractmethod
    def latencies_us(self, servers: str, job: LatencyJob) -> list[float]:
        """Send so many a second, one after the other, and return how long each took until a listener had it."""

    def serve(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Serve one request; the answer's row."""
        servers, topic = request["servers"], request["topic"]
        match request["op"]:
            case "create":
                self.create(servers, topic)
                return {}
            case "delete":
                self.delete(servers, topic)
                return {}
            case "load":
                self.load(servers, topic, make_bodies(request["count"], request["body_bytes"]))
                return {}
            case "bench_produce":
                bodies = make_bodies(request["count"], request["body_bytes"])
                return asdict(self.produce(servers, topic, How(request["how"]), bodies))
            case "bench_consume":
                how, count, body_bytes = How(request["how"]), request["count"], request["body_bytes"]
                return asdict(self.consume(servers, topic, request["group"], how, count, body_bytes))
            case "bench_latency":
                job = LatencyJob(topic, request["group"], request["ahead"], request["count"], request["per_s"])
                return {"us": self.latencies_us(servers, job)}
            case "read_back":
                self._check_stored(servers, topic, request["count"], request["body_bytes"], request["ordered"])
                return {}
        raise ValueError(f"unknown request {request['op']}")

    def _check_stored(self, servers: str, topic: str, count: int, body_bytes: int, ordered: bool) -> None:
        found = []
        for queue, bodies in self.read_back(servers, topic, count):
            numbers = numbers_of(bodies, body_bytes)
            if ordered:
                check_ascending(numbers, queue)
            found.append(numbers)
        check_once_each(np.concatenate(found) if found else np.empty(0), count)


def not_in_time(what: str) -> TimeoutError:
    """Return the error for an operation that takes too long."""
    return TimeoutError(f"{what} took more than {LIMIT_S:.0f} s")
