"""The rival: a Python data source as most are written, which yields a tuple for each message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import cometmq


@dataclass
class Queue(InputPartition):
    """One queue, up to an offset."""

    queue_id: int
    end: int


class TupleSource(DataSource):
    """Options: path, topic, queues, end (of each queue)."""

    @classmethod
    def name(cls) -> str:
        return "tuples"

    def schema(self) -> str:
        return "queueId int, queueOffset bigint, bornTimestamp timestamp, storeTimestamp timestamp, body binary"

    def reader(self, schema: Any) -> TupleReader:
        return TupleReader(self.options)


class TupleReader(DataSourceReader):
    """Reads queue by queue."""

    def __init__(self, options: Any) -> None:
        self.path, self.topic = options["path"], options["topic"]
        self.queues, self.end = int(options["queues"]), int(options["end"])

    def partitions(self) -> Sequence[InputPartition]:
        return [Queue(number, self.end) for number in range(self.queues)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, Queue)
        with cometmq.open(self.path, mode="r") as store:
            for message in store.read(self.topic, queues=[partition.queue_id], end=partition.end):
                yield (
                    message.queue_id,
                    message.queue_offset,
                    datetime.fromtimestamp(message.born_timestamp_ms / 1000, timezone.utc),
                    datetime.fromtimestamp(message.store_timestamp_ms / 1000, timezone.utc),
                    message.body_bytes,
                )
