"""The messages that the interop tests send, in either direction, and the equality by which both sides are compared."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

SYSTEM_PROPERTIES = frozenset(
    {
        "KEYS", "TAGS", "WAIT", "UNIQ_KEY", "CLUSTER", "MSG_REGION", "TRACE_ON", "MIN_OFFSET", "MAX_OFFSET", "__CRC32#",
        "CONSUME_START_TIME",
    }
)  # fmt: skip
"""Names that the client or the broker adds. Tags and keys are compared on their own."""

TAGS = ("paid", "open", "AaAa", "BBBB", None, "αβγ", "late")
"""AaAa and BBBB have the same Java hash code: only the exact comparison tells them apart."""


PULL_PROPERTIES = ("MIN_OFFSET", "MAX_OFFSET")
"""Properties that the client adds to each pulled message; they are not in the store."""


@dataclass(frozen=True, slots=True)
class MessageSpec:
    """A sender's parameters of one message. ``queue`` None leaves the choice to the client."""

    topic: str
    body: bytes
    tags: str | None = None
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    queue: int | None = None
    hash_key: str | None = None
    """Where the client's selector by hash sends it; not together with ``queue``."""
    delay_level: int | None = None
    system_properties: Mapping[str, str] = field(default_factory=dict)
    """Names that the client keeps for itself, set past its checks."""


@dataclass(frozen=True, slots=True)
class Content:
    """The content that both sides must agree on, in a form that can be compared and sorted."""

    topic: str
    queue: int
    queue_offset: int
    tags: str | None
    keys: tuple[str, ...]
    properties: tuple[tuple[str, str], ...]
    body_sha256: str


def content_of_spec(spec: MessageSpec, queue: int, queue_offset: int) -> Content:
    return Content(
        spec.topic,
        queue,
        queue_offset,
        spec.tags,
        spec.keys,
        tuple(sorted(spec.properties.items())),
        hashlib.sha256(spec.body).hexdigest(),
    )


def content_of_row(row: Mapping[str, Any]) -> Content:
    """Of a message as the Java client reported it."""
    return Content(
        row["topic"],
        row["queue"],
        row["queue_offset"],
        row["tags"],
        tuple((row["keys"] or "").split()),
        tuple(sorted((k, v) for k, v in row["properties"].items() if k not in SYSTEM_PROPERTIES)),
        row["body_sha256"],
    )


def stored_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A message as the Java client reported it, without what the client has added."""
    properties = {name: value for name, value in row["properties"].items() if name not in PULL_PROPERTIES}
    return {**row, "properties": properties}


def mixed(topic: str, count: int, *, queues: int, seed: int = 1) -> Iterator[MessageSpec]:
    """Messages of every ordinary kind, the same for the same seed.

    Bodies from one byte to 40 KiB, some of which a client compresses (repetitive, over 4 KiB) and some of which do not
    get smaller; no, one or several keys; tags that collide; properties in several scripts.
    """
    chooser = random.Random(seed)
    for number in range(count):
        kind = number % 8
        if kind == 0:
            body = b"x"
        elif kind == 1:
            body = f"message {number} of {topic}: Grüße, 你好, καλημέρα".encode()
        elif kind == 2:
            body = f"line {number} of a long and dull text\n".encode() * chooser.randrange(200, 1000)
        elif kind == 3:
            body = chooser.randbytes(chooser.randrange(5_000, 20_000))
        else:
            body = chooser.randbytes(chooser.randrange(1, 300))
        keys = tuple(f"k{seed}-{number}-{part}" for part in range(number % 4))
        properties = (
            {} if number % 3 else {"region": f"eu-{number % 5}", "数量": str(number), "Größe": "ü ö", "dot": "."}
        )
        yield MessageSpec(topic, body, TAGS[number % len(TAGS)], keys, properties, number % queues)


def bulk(topic: str, count: int, *, queues: int, seed: int) -> Iterator[MessageSpec]:
    """Many small messages, so that few of them cross the seams of small files; every other one has a key."""
    chooser = random.Random(f"bulk {seed}")
    for number in range(count):
        yield MessageSpec(
            topic,
            chooser.randbytes(chooser.choice((10, 50, 200, 900))),
            chooser.choice(TAGS),
            (f"b{seed}-{number}",) if number % 2 else (),
            {"n": str(number)},
            0 if number % 10 == 0 else number % queues,
        )


def in_batches(specs: Iterator[MessageSpec], size: int) -> Iterator[list[MessageSpec]]:
    """Groups messages into batches for one queue each, as the client demands: one topic, one queue, no big body."""
    pending: dict[int | None, list[MessageSpec]] = {}
    for spec in specs:
        group = pending.setdefault(spec.queue, [])
        group.append(spec)
        if len(group) == size:
            yield pending.pop(spec.queue)
    yield from pending.values()
