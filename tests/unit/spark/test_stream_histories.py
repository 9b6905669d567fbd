"""Checks: a stream gives each message once, whatever happens to topics and to the driver meanwhile.

A history appends, lets segments expire, deletes topics and makes them again, plans micro-batches, reads them with a
reader of their own and restarts the driver. Messages that were deleted may be missing; no message comes twice, and
none of those left is missing. ``CMQ_LONG=1`` runs 2,000 histories.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cometmq
from support.any_disk import retention_on_request
from support.small_store import SMALL, open_small

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql.types import BinaryType, StructField, StructType

from cometmq.spark.default_source import CometMQSource
from cometmq.spark.stream import StreamReader
from unit.spark.test_stream import latest, let_time_pass, through_json

# In 101 a view looked for files of a topic that had been deleted.
SEEDS = range(2_000) if os.environ.get("CMQ_LONG") else (*range(10), 101)
SEGMENTS = {**SMALL, "mappedFileSizeCommitLog": 1 << 16, "maxMessageSize": 20_000}
RETENTION = retention_on_request(72)
BODY = StructType([StructField("body", BinaryType())])


class History:
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


class Driver:
    """A driver that may restart at any time; its checkpoint is kept as JSON."""

    def __init__(self, path: Path, options: dict[str, str]) -> None:
        self._given = {"path": str(path), "failOnDataLoss": "false", "startingOffsets": "earliest", **options}
        self._reader = self._started()
        self.position: dict[str, Any] = through_json(self._reader.initialOffset())

    def _started(self) -> StreamReader:
        reader = CometMQSource(self._given).streamReader(BODY)
        assert isinstance(reader, StreamReader)
        return reader

    def stop(self) -> None:
        self._reader.stop()

    def restart(self) -> None:
        self._reader.stop()
        self._reader = self._started()

    def plan(self) -> dict[str, Any]:
        return through_json(latest(self._reader, self.position))

    def read(self, end: dict[str, Any]) -> Iterator[int]:
        for partition in self._reader.partitions(self.position, end):
            for batch in self._reader.read(partition):
                yield from (int(body) for body in batch.column("body").to_pylist())


LIMITS: tuple[dict[str, str], ...] = (
    {},
    {"maxOffsetsPerTrigger": "1"},
    {"maxOffsetsPerTrigger": "10"},
    {"maxBytesPerTrigger": "2k"},
)


@pytest.mark.parametrize("seed", SEEDS)
def test_any_history_of_topics_gives_each_message_once(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    seen: Counter[int] = Counter()
    with open_small(tmp_path / "store", settings=SEGMENTS, retention=RETENTION, background=False) as store:
        history = History(store, dice)
        driver = Driver(tmp_path / "store", {"subscribePattern": "[abc]", **dice.choice(LIMITS)})

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
