"""Checks: for any store and any filters, the rows read with pushed filters that match them are all the rows that do."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import cometmq.testing
from cometmq.admin import connect
from cometmq.client import Producer
from cometmq.spark.options import OptionMap, ReadOptions
from cometmq.testing import Cluster
from support.small_store import open_small

pyspark = pytest.importorskip("pyspark.sql.datasource", reason="pyspark is not installed")
types = pytest.importorskip("pyspark.sql.types", reason="pyspark is not installed")

SEEDS = range(2_000 if os.environ.get("CMQ_LONG") else 12)
TOPICS = ("a", "A", "b|c")
# The hashes of AaAa and BBBB are equal. Bytes that are not UTF-8 are shown as U+FFFD.
TAGS = (None, "AaAa", "BBBB", "paid", "x y", "ünï", b"\xff\xfe")
KEYS = (None, "k1", ["k2", "k3"], "k1 k3", "AaAa", "BBBB", b"\xff")
STORE_TIME_AT = 56
"""Where a record with IPv4 hosts has its store time."""

Row: TypeAlias = dict[str, Any]
Condition: TypeAlias = tuple[Any, Callable[[Row], bool]]

SCHEMA = types.StructType(
    [
        types.StructField("topic", types.StringType()),
        types.StructField("queueId", types.IntegerType()),
        types.StructField("queueOffset", types.LongType()),
        types.StructField("tags", types.StringType()),
        types.StructField("keys", types.StringType()),
        types.StructField("storeTimestamp", types.TimestampType()),
    ]
)


def make_store(path: Path, dice: random.Random) -> None:
    """Make a store whose store times fall now and then, as those of a broker whose clock is set."""
    places = []
    with open_small(path) as store:
        for topic in TOPICS:
            store.create_topic(topic, queues=3)
        for _ in range(dice.choice((3, 40, 300))):
            place = store.append(
                dice.choice(TOPICS),
                b"x" * dice.choice((0, 20, 900)),
                tags=dice.choice(TAGS),
                keys=dice.choice(KEYS),
                queue=dice.randrange(3),
            )
            places.append(place.physical_offset)
        time_ms = store.get(TOPICS[0], 0, 0).store_timestamp_ms if store.max_offset(TOPICS[0], 0) else 10**12
    for at in places:
        time_ms += dice.choice((0, 0, 1, 7, 1_000)) if dice.random() < 0.9 else dice.choice((-5, -90_000, 3_600_000))
        with (path / "commitlog" / f"{at - at % (1 << 20):020d}").open("r+b") as file:
            file.seek(at % (1 << 20) + STORE_TIME_AT)
            file.write(struct.pack(">q", time_ms))


def rows_of(reader: Any) -> list[Row]:
    found = [batch.to_pylist() for part in reader.partitions() for batch in reader.read(part)]
    return [row for batch in found for row in batch]


def value_near(dice: random.Random, value: Any) -> Any:
    """Return a value that a row has, or one beside it."""
    if isinstance(value, datetime):
        return value + timedelta(
            milliseconds=dice.choice((0, 0, 1, -1, 60_000, -61_000)), microseconds=dice.choice((0, 1))
        )
    if isinstance(value, int):
        return dice.choice((value, value, value + 1, value - 1, float(value), value + 0.5, 1 << 40))
    if isinstance(value, str):
        return dice.choice((value, value, value.lower(), value[:1], value + " ", ""))
    return "none"


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": lambda one, other: one == other,
    "EqualNullSafe": lambda one, other: one == other,
    "GreaterThan": lambda one, other: one > other,
    "GreaterThanOrEqual": lambda one, other: one >= other,
    "LessThan": lambda one, other: one < other,
    "LessThanOrEqual": lambda one, other: one <= other,
    "In": lambda one, others: one in others,
}


def condition(dice: random.Random, rows: list[Row]) -> Condition:
    """Return a filter, and what it says of a row: as in SQL, a comparison with null is not true."""
    column = dice.choice(SCHEMA.names)
    name = dice.choice((*COMPARISONS, "In", "EqualTo", "IsNull", "IsNotNull"))
    if name in ("IsNull", "IsNotNull"):
        return getattr(pyspark, name)((column,)), lambda row: (row[column] is None) == (name == "IsNull")
    value: Any = value_near(dice, dice.choice(rows)[column])
    if name == "In":
        value = (value, *(value_near(dice, dice.choice(rows)[column]) for _ in range(dice.randrange(3))))
    compare = COMPARISONS[name]

    def holds(row: Row) -> bool:
        return row[column] is not None and compare(row[column], value)

    if dice.random() < 0.15:
        inner = getattr(pyspark, name)((column,), value)
        return pyspark.Not(inner), lambda row: row[column] is not None and not compare(row[column], value)
    return getattr(pyspark, name)((column,), value), holds


def check_pushed(dice: random.Random, given: dict[str, str]) -> None:
    """Compare what 25 sets of filters select, pushed and of all rows."""
    from cometmq.spark.source import BatchReader, PushingReader

    everything = rows_of(BatchReader(ReadOptions.of(OptionMap(given)), SCHEMA))
    for _ in range(25):
        conditions = [condition(dice, everything) for _ in range(dice.randrange(1, 4))]
        sizes = {"minPartitions": dice.choice("125"), "maxPartitionBytes": dice.choice(("4k", "256m"))}
        reader = PushingReader(ReadOptions.of(OptionMap({**given, **sizes, "pushdown": "true"})), SCHEMA)
        filters = [one for one, _ in conditions]
        assert list(reader.pushFilters(filters)) == filters

        def matching(rows: list[Row], conditions: list[Condition] = conditions) -> list[tuple[str, int, int]]:
            return sorted(
                (row["topic"], row["queueId"], row["queueOffset"])
                for row in rows
                if all(holds(row) for _, holds in conditions)
            )

        assert matching(rows_of(reader)) == matching(everything), filters


@pytest.mark.parametrize("seed", SEEDS)
def test_pushed_filters_lose_no_row(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    make_store(tmp_path / "store", dice)
    check_pushed(dice, {"path": str(tmp_path / "store"), "topic": ",".join(TOPICS)})


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two brokers, whose clocks nobody sets."""
    dice = random.Random(0)
    with cometmq.testing.cluster(brokers=2) as running:
        with connect(namesrv=running.name_server_address) as admin:
            for topic in TOPICS:
                admin.topics.create(topic, queues=2)
        with Producer("makers", name_servers=running.name_server_address) as producer:
            for number in range(120):
                tags, keys = dice.choice(TAGS[:-1]), dice.choice((None, "k1", "k1 k3", "AaAa"))
                producer.send(dice.choice(TOPICS), b"%d" % number, tags=tags, keys=keys)
        yield running


@pytest.mark.parametrize("seed", range(2))
def test_filters_pushed_to_brokers_lose_no_row(cluster: Cluster, seed: int) -> None:
    check_pushed(random.Random(seed), {"nameServer": cluster.name_server_address, "topic": ",".join(TOPICS)})
