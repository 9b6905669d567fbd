"""Histories of a store under a stream, and the check that each message comes once.

A history appends, lets segments expire, deletes topics and makes them again, plans micro-batches, reads them with a
reader of their own and restarts the driver. Messages that were deleted may be missing; no message comes twice, and
none of those left is missing.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import cometmq
from support.any_disk import retention_on_request
from support.small_store import SMALL, open_small

__all__ = ["SEEDS", "Driver", "each_message_comes_once", "let_time_pass"]

# In 101 a view looked for files of a topic that had been deleted.
SEEDS = range(2_000) if os.environ.get("CMQ_LONG") else (*range(10), 101)
_SEGMENTS = {**SMALL, "mappedFileSizeCommitLog": 1 << 16, "maxMessageSize": 20_000}
_RETENTION = retention_on_request(72)
_LIMITS: tuple[dict[str, str], ...] = (
    {},
    {"maxOffsetsPerTrigger": "1"},
    {"maxOffsetsPerTrigger": "10"},
    {"maxBytesPerTrigger": "2k"},
)


class Driver(Protocol):
    """An engine's stream under a driver that may be restarted at any time; offsets are JSON texts or values."""

    position: Any

    def plan(self) -> Any:
        """Return the end of the next micro-batch, or the position where there is none."""

    def read(self, end: Any) -> Iterator[int]:
        """Read the micro-batch from the position on, with readers of its own."""

    def restart(self) -> None:
        """Keep nothing but the position."""

    def stop(self) -> None:
        """End the stream."""


def let_time_pass(store: cometmq.Store) -> None:
    """Append elsewhere until store times have risen: no message after it has the time of one before it."""
    store.append("clock", b"x")
    first = store.get("clock", 0, store.max_offset("clock") - 1).store_timestamp_ms
    while store.get("clock", 0, store.max_offset("clock") - 1).store_timestamp_ms == first:
        store.append("clock", b"x")


class _History:
    """A store whose topics come and go, and the messages that a stream has to give."""

    def __init__(self, store: cometmq.Store, dice: random.Random) -> None:
        self.store = store
        self.dice = dice
        self.queues: dict[str, int] = {}
        self.topic_of: dict[int, str] = {}
        """Of the messages that are there, by the number that is their body."""
        self._next = 0
        for topic in ("a", "b"):
            self.create(topic)

    def create(self, topic: str) -> None:
        let_time_pass(self.store)
        self.queues[topic] = self.dice.choice((1, 2, 3, 64))
        self.store.create_topic(topic, queues=self.queues[topic])
        self.append(topic, self.dice.randrange(25))

    def append(self, topic: str, count: int) -> None:
        for _ in range(count):
            # Zeros before the number: a history has several segments.
            self.store.append(topic, b"%02000d" % self._next, queue=self.dice.randrange(self.queues[topic]))
            self.topic_of[self._next] = topic
            self._next += 1

    def delete(self, topic: str) -> None:
        let_time_pass(self.store)
        self.store.delete_topic(topic)
        del self.queues[topic]
        self.topic_of = {number: other for number, other in self.topic_of.items() if other != topic}

    def expire(self) -> None:
        for segment in (Path(self.store.path) / "commitlog").iterdir():
            os.utime(segment, (1000, 1000))
        if self.store.expire():
            left = {int(bytes(message)) for topic in self.queues for message in self.store.read(topic)}
            self.topic_of = {number: topic for number, topic in self.topic_of.items() if number in left}

    def step(self) -> None:
        missing = [topic for topic in ("a", "b", "c") if topic not in self.queues]
        topic = self.dice.choice(sorted(self.queues)) if self.queues else None
        match self.dice.randrange(12):
            case 10:
                self.expire()
            case 0 | 1 if topic is not None:
                self.delete(topic)
                if self.dice.random() < 0.8:
                    self.create(topic)
            case 2 | 3 if missing:
                self.create(self.dice.choice(missing))
            case _ if topic is not None:
                self.append(topic, self.dice.randrange(1, 15))


def each_message_comes_once(store_path: Path, seed: int, driver_of: Callable[[Mapping[str, str]], Driver]) -> None:
    """Play a history; ``driver_of`` makes its driver of the source's options."""
    dice = random.Random(seed)
    seen: Counter[int] = Counter()
    with open_small(store_path, settings=_SEGMENTS, retention=_RETENTION, background=False) as store:
        history = _History(store, dice)
        given = {"failOnDataLoss": "false", "startingOffsets": "earliest", "subscribePattern": "[abc]"}
        driver = driver_of({"path": str(store_path), **given, **dice.choice(_LIMITS)})

        def batch(*, quiet: bool) -> bool:
            end = driver.plan()
            if end == driver.position:
                return False
            if not quiet and dice.random() < 0.2:
                history.step()  # behind the plan, before its tasks
            found = list(driver.read(end))
            if quiet:
                driver.restart()
                assert sorted(driver.read(end)) == sorted(found), "a repeated micro-batch"
            seen.update(found)
            driver.position = end
            return True

        try:
            for _ in range(20):
                history.step()
                for _ in range(dice.randrange(3)):
                    batch(quiet=False)
            while batch(quiet=True):
                pass
        finally:
            driver.stop()
    assert [number for number, count in seen.items() if count > 1] == []
    assert sorted(history.topic_of.keys() - seen.keys()) == []
