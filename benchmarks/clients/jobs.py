"""The measurements: scenarios, and the clients at their servers."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from clients.worker import ACCUMULATED_WINDOW, BATCH, SHARED_BATCH, WINDOW, How


class Kind(enum.Enum):
    """A client's role."""

    PRODUCE = "produce"
    CONSUME = "consume"


@dataclass(frozen=True)
class Scenario:
    """One job. ``first_count`` messages show how fast a client is."""

    name: str
    kind: Kind
    how: How
    first_count: int
    settings: str
    sizes: tuple[int, ...] = (128, 1024)


SCENARIOS = (
    Scenario(
        "send, one by one",
        Kind.PRODUCE,
        How.ONE_BY_ONE,
        500,
        "send, one by one: each acknowledged before the next",
    ),
    Scenario(
        "send, pipelined",
        Kind.PRODUCE,
        How.PIPELINED,
        5_000,
        f"send, pipelined: up to {WINDOW:,} in flight, none batched on purpose: send_async; Kafka's produce"
        " with linger.ms=0 (its client sends what has queued up together all the same); NATS's publish_async; Redis's"
        f" pipelines of {WINDOW:,} XADD",
    ),
    Scenario(
        "send, accumulated",
        Kind.PRODUCE,
        How.ACCUMULATED,
        10_000,
        f"send, accumulated: single sends that the client puts into batches, up to {ACCUMULATED_WINDOW:,} in flight:"
        f" accumulate=True, in Java autoBatch (both 32 KiB or 10 ms); Kafka's produce with its default linger.ms",
    ),
    Scenario(
        "consume, listener, defaults",
        Kind.CONSUME,
        How.DEFAULTS,
        25_000,
        "consume, listener, defaults: a push consumer with its defaults: pulls of 32, 20 threads (in all lines queues"
        " are shared out at once, not within a second)",
        sizes=(128,),
    ),
    Scenario(
        "consume, listener",
        Kind.CONSUME,
        How.LISTENER,
        25_000,
        f"consume, listener: a push consumer, one message a call, pulls of up to {BATCH:,}, 4 times as many waiting"
        f" for each queue; Kafka's poll(), a message each, offsets committed automatically; NATS's subscribe with a"
        f" callback and an acknowledgement for each; Redis's XREADGROUP of {BATCH:,} with a call for each, and"
        " one XACK",
    ),
    Scenario(
        "consume, batch listener",
        Kind.CONSUME,
        How.BATCH_LISTENER,
        25_000,
        f"consume, batch listener: the same with up to {BATCH:,} messages a call; Kafka's consume({BATCH:,}); NATS's"
        f" fetch({BATCH:,}) of a durable pull consumer, the last acknowledged for all; Redis's XREADGROUP of {BATCH:,}",
    ),
    Scenario(
        "consume, poll",
        Kind.CONSUME,
        How.POLL,
        25_000,
        f"consume, poll: a pull consumer that subscribes and polls, pulls of up to {BATCH:,}; in Java"
        " DefaultLitePullConsumer",
    ),
)

SHARED_SCENARIOS = (
    Scenario(
        "receive, an ack each",
        Kind.CONSUME,
        How.SHARED_EACH,
        6_250,
        f"receive, an ack each: {SHARED_BATCH} messages at a time, which any other consumer of the group could have had"
        " instead, and an acknowledgement of each message before the next are asked for: SimpleConsumer's receive and"
        " ack, answered one by one, in asyncio side by side; Redis's XREADGROUP and an XACK each, answered one by one;"
        " NATS's fetch of a durable pull consumer and an ack each, which nobody answers",
        sizes=(128,),
    ),
    Scenario(
        "receive, one ack",
        Kind.CONSUME,
        How.SHARED_MANY,
        6_250,
        "receive, one ack: the same with one acknowledgement for all: ack_many; one XACK",
        sizes=(128,),
    ),
)
"""Scenarios that only ``make bench-pop`` runs."""


@dataclass(frozen=True)
class Latency:
    """The job that is measured by its times."""

    name: str
    per_s: int
    ahead: int
    count: int
    settings: str


LATENCY = Latency(
    "latency, send to listener",
    1_000,
    1_000,
    3_000,
    "latency: 1,000 messages of 128 B a second, producer and consumer in one process, each sent and acknowledged before"
    " the next, from before the call that sends until the listener has it; the first 1,000, which show that the"
    " consumer has its queues, do not count",
)


@dataclass(frozen=True)
class System:
    """A client at a server. ``keeper`` is the worker that makes topics there and reads them back."""

    name: str
    site: str
    worker: str
    keeper: str


SYSTEMS = (
    System("cometmq.client, our broker", "ours", "sync", "sync"),
    System("cometmq.aio, our broker", "ours", "aio", "sync"),
    System("Java client, our broker", "ours", "java", "sync"),
    System("cometmq.client, Java broker", "Java", "sync", "sync"),
    System("cometmq.aio, Java broker", "Java", "aio", "sync"),
    System("Java client, Java broker", "Java", "java", "sync"),
    System("confluent-kafka, Kafka", "Kafka", "kafka", "kafka"),
    System("nats-py, NATS", "NATS", "nats", "nats"),
    System("redis-py, Redis", "Redis", "redis", "redis"),
)

SHARED_SYSTEMS = tuple(one for one in SYSTEMS if one.worker not in ("java", "kafka"))
"""Those that have such groups, from Python."""

_NO_POLL = "asking for batches is what stands under batch listener"
_NO_DEFAULTS = "the line is about the defaults of RocketMQ's clients"
_ABSENT = {
    ("Kafka", How.POLL): _NO_POLL,
    ("NATS", How.POLL): _NO_POLL,
    ("Redis", How.POLL): _NO_POLL,
    ("Kafka", How.DEFAULTS): _NO_DEFAULTS,
    ("NATS", How.DEFAULTS): _NO_DEFAULTS,
    ("Redis", How.DEFAULTS): _NO_DEFAULTS,
    ("NATS", How.SHARED_MANY): "a durable consumer that acknowledges all before a message has them in order, for one",
    ("NATS", How.ACCUMULATED): "nats-py puts no messages into batches",
    ("Redis", How.ACCUMULATED): "a pipeline of XADD is what stands under pipelined",
}


def why_not(system: System, how: How) -> str | None:
    """Return why a client has no such job, None where it has it."""
    return _ABSENT.get((system.site, how))
