"""Spark's source over the wire against a Java broker: the same rows as from its files, times, tags and losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cometmq.spark.catalog import open_catalog, selected_queues, selected_topics
from cometmq.spark.fetch import ReadPlan, record_batches
from cometmq.spark.options import OptionMap, ReadOptions
from cometmq.spark.ranges import batch_ranges
from cometmq.spark.schema import chosen_columns
from interop.harness import Broker, Peer
from interop.patterns import MessageSpec

pytestmark = pytest.mark.java

TOPIC = "SparkWire"
QUEUES = 3
COUNT = 400
COLUMNS = (
    "topic,queueId,queueOffset,body,tags,keys,bornTimestamp,storeTimestamp,properties,flag,sysFlag,reconsumeTimes,"
    "msgId,uniqueId,commitLogOffset,bornHost,storeHost,bodyCrc,bodyBytes,preparedTransactionOffset"
)


def read(**options: str) -> list[dict[str, Any]]:
    found = ReadOptions.of(OptionMap({"topic": TOPIC, "columns": COLUMNS, **options}))
    with open_catalog(found) as catalog:
        queues = selected_queues(catalog, selected_topics(catalog, found.subscription))
        ranges = batch_ranges(catalog, queues, found)
        assert all(catalog.row_bytes(one, found.tags) > 0 for one in ranges if one.rows)
    plan = ReadPlan(
        path=found.path,
        config=None,
        name_servers=found.name_servers,
        pull_timeout_ms=found.pull_timeout_ms,
        columns=chosen_columns(found),
        tags=found.tags,
        keys=found.keys,
        time_low_ms=None,
        time_high_ms=None,
        batch_rows=found.batch_rows,
        batch_bytes=found.batch_bytes,
        skip_corrupt=False,
        fail_on_data_loss=True,
    )
    rows = [row for batch in record_batches(plan, ranges) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["queueId"], row["queueOffset"]))


def check_reading(peer: Peer, broker: Broker) -> list[dict[str, Any]]:
    client, servers = peer.client, peer.namesrv.address
    client.create_topic(broker, TOPIC, queues=QUEUES)
    specs = [
        # AaAa and BBBB have one hash: the broker takes them for the same, we compare.
        MessageSpec(
            TOPIC, b"body %d " % number * (1 + 700 * (number % 9 == 0)), tag, (f"k{number}",), {}, number % QUEUES
        )
        for number, tag in zip(range(COUNT), ["AaAa", "BBBB", None, "late"] * COUNT, strict=False)
    ]
    sent = list(client.send(specs, compression="ZSTD"))
    assert [row.get("status") for row in sent] == ["SEND_OK"] * COUNT
    by_wire = read(nameServer=servers)
    assert [(row["queueId"], row["queueOffset"]) for row in by_wire] == sorted(
        (row["queue"], row["queue_offset"]) for row in sent
    )
    assert sorted(row["body"] for row in by_wire) == sorted(spec.body for spec in specs)
    tagged = read(nameServer=servers, tags="AaAa || late")
    assert sorted(row["body"] for row in tagged) == sorted(spec.body for spec in specs if spec.tags in ("AaAa", "late"))
    (keyed,) = read(nameServer=servers, keys="k17")
    assert keyed["body"] == specs[17].body
    for moment in {row["storeTimestamp"] for row in by_wire[:: COUNT // 8]}:
        later = read(nameServer=servers, startingTimestamp=moment.isoformat())
        assert later == [row for row in by_wire if row["storeTimestamp"] >= moment]
        earlier = read(nameServer=servers, endingTimestamp=moment.isoformat())
        assert earlier == [row for row in by_wire if row["storeTimestamp"] < moment]
    return by_wire


@pytest.mark.parametrize("version", ["5.3.3", pytest.param("4.9.7", marks=pytest.mark.java(full=True))])
def test_reading_through_a_java_broker(peer: Peer, tmp_path: Path, version: str) -> None:
    with peer.broker(tmp_path / "store", version=version) as broker:
        by_wire = check_reading(peer, broker)
    assert read(path=str(tmp_path / "store")) == by_wire
