"""The data of the query benchmarks: a store, and the same rows in Parquet, uncompressed and ZSTD.

Bodies look like events as text, mostly of hexadecimal digits, so that ZSTD finds about half of them to spare. One
message of a hundred has the tag that is asked for; every message has a key of its own.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import cometmq

TOPIC = "BenchmarkQuery"
TAG = "Tag7"
"""One of a hundred."""
TAGS = 100
QUEUES = 4
COLUMNS = ("queue_id", "queue_offset", "body", "tags", "keys", "born_timestamp", "store_timestamp")
ROW_GROUP_ROWS = 122_880

_BATCH = 4000
_POOL_BYTES = 64 << 20


@dataclass(frozen=True)
class DataSet:
    """How many messages, and how large."""

    name: str
    messages: int
    body_bytes: int

    @property
    def key(self) -> str:
        """The key of a message in the middle."""
        return f"key-{self.messages // 2}"


FULL = (DataSet("100B", 5_000_000, 100), DataSet("1024B", 500_000, 1024))
QUICK = (DataSet("100B", 20_000, 100), DataSet("1024B", 5_000, 1024))


@dataclass(frozen=True)
class Sources:
    """One data set in all its forms."""

    data: DataSet
    store: Path
    parquet_none: Path
    parquet_zstd: Path


def make(data: DataSet, folder: Path) -> Sources:
    """Write a data set into a folder."""
    sources = Sources(data, folder / "store", folder / "none.parquet", folder / "zstd.parquet")
    with cometmq.open(sources.store, flush="async") as store:
        store.create_topic(TOPIC, queues=QUEUES)
        for first, bodies in _bodies(data):
            numbers = range(first, first + len(bodies))
            store.append_many(
                TOPIC,
                bodies,
                tags=[f"Tag{number % TAGS}" for number in numbers],
                keys=[f"key-{number}" for number in numbers],
            )
        store.flush()
        print(f"{data.name}: Parquet", file=sys.stderr, flush=True)
        _write_parquet(store, sources)
    return sources


def _bodies(data: DataSet) -> Iterator[tuple[int, list[bytes]]]:
    pool = random.Random(data.body_bytes).randbytes(min(_POOL_BYTES // 2, data.messages * data.body_bytes)).hex()
    pool_bytes = pool.encode("ascii")
    room = len(pool_bytes) - data.body_bytes
    for first in range(0, data.messages, _BATCH):
        if first % (50 * _BATCH) == 0:
            print(f"{data.name}: {first:,} messages", file=sys.stderr, flush=True)
        bodies = []
        for number in range(first, min(first + _BATCH, data.messages)):
            head = b'{"id":%d,"user":%d,"note":"' % (number, number * 2654435761 % 1_000_000)
            # Sizes vary by a fifth around the mean.
            size = data.body_bytes * (90 + number * 7919 % 21) // 100 - len(head) - 2
            begin = number * 104729 % room
            bodies.append(head + pool_bytes[begin : begin + size] + b'"}')
        yield first, bodies


def _write_parquet(store: cometmq.Store, sources: Sources) -> None:
    """Dictionaries for tags only: bodies and keys have none to find."""
    scan = store.scan(TOPIC, columns=COLUMNS, body="binary", batch_rows=ROW_GROUP_ROWS, batch_bytes=1 << 28)
    fields = [field.with_type(pa.string()) if field.name == "tags" else field for field in scan.schema]
    plain = pa.schema(fields)
    with (
        pq.ParquetWriter(sources.parquet_none, plain, compression="none", use_dictionary=["tags"]) as none,
        pq.ParquetWriter(sources.parquet_zstd, plain, compression="zstd", use_dictionary=["tags"]) as zstd,
    ):
        for batch in scan:
            table = pa.Table.from_batches([batch]).cast(plain)
            none.write_table(table, row_group_size=ROW_GROUP_ROWS)
            zstd.write_table(table, row_group_size=ROW_GROUP_ROWS)
