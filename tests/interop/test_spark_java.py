"""Spark's source and sink over the wire against a Java broker: the rows of its files, times, tags; rows' own ids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cometmq.client.send.outgoing import BODY_BYTES_MAX
from cometmq.spark.errors import OptionError
from cometmq.spark.options import OptionMap, WriteOptions
from cometmq.spark.sent_rows import RowIds, send_rows
from cometmq.spark.staging import RowEncoder, WriteSchema
from cometmq.spark.wire import Wire
from cometmq.spark.wire_journal import find_door
from interop.patterns import MessageSpec
from interop.processes import PEER_VERSION
from interop.servers import Broker
from interop.sites import Peer
from support.spark_rows import read_rows

pytestmark = pytest.mark.java

TOPIC = "SparkWire"
QUEUES = 3
COUNT = 400
COLUMNS = (
    "topic,queueId,queueOffset,body,tags,keys,bornTimestamp,storeTimestamp,properties,flag,sysFlag,reconsumeTimes,"
    "msgId,uniqueId,commitLogOffset,bornHost,storeHost,bodyCrc,bodyBytes,preparedTransactionOffset"
)


def read(**options: str) -> list[dict[str, Any]]:
    rows = read_rows(**{"topic": TOPIC, "columns": COLUMNS, **options})
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


def check_writing(peer: Peer, broker: Broker) -> None:
    """Rows keep their own ids in batches; sent again, they have the same ones."""
    topic, servers = "SparkWritten", peer.namesrv.address
    peer.client.create_topic(broker, topic, queues=QUEUES)
    given = [{"body": b"row %d" % number, "tags": "t", "shardKey": f"s{number % 5}"} for number in range(300)]
    batch = pa.RecordBatch.from_pylist(given)
    schema = WriteSchema({name: name for name in ("body", "tags", "shardKey")})
    encoder = RowEncoder(schema, topic=topic, body_bytes_max=BODY_BYTES_MAX)
    wire = Wire([servers], timeout_ms=10_000)
    try:
        for _ in range(2):
            ids = RowIds("nightly", 3)
            sent = send_rows(wire, [batch], encoder, schema, ids, topic=topic, broker_name=None)
            assert sent == (300, 0)
    finally:
        wire.close()
    rows = read_rows(nameServer=servers, topic=topic, columns="body,uniqueId,queueId,queueOffset,tags")
    assert len(rows) == 600
    by_body: dict[bytes, set[str]] = {}
    for row in rows:
        by_body.setdefault(row["body"], set()).add(row["uniqueId"])
    assert by_body.keys() == {row["body"] for row in given}
    assert {len(ids) for ids in by_body.values()} == {1}
    assert len(set.union(*by_body.values())) == 300
    assert sorted(row["queue_offset"] for row in peer.client.pull_all(topic)) == sorted(
        row["queueOffset"] for row in rows
    )


def check_no_door(peer: Peer, broker: Broker) -> None:
    """It does not know staged writes, and says so; nothing else happens."""
    given = {"nameServer": peer.namesrv.address, "topic": "SparkWritten", "deliveryGuarantee": "exactly-once"}
    options = WriteOptions.of(OptionMap(given), streaming=False)
    with pytest.raises(OptionError, match=f"broker {broker.name} is not CometMQ's"):
        find_door(options, rows_name_topics=False)
    assert find_door(replace(options, guarantee=None), rows_name_topics=False) is None


@pytest.mark.parametrize("version", [PEER_VERSION, pytest.param("4.9.7", marks=pytest.mark.java(full=True))])
def test_through_a_java_broker(peer: Peer, tmp_path: Path, version: str) -> None:
    with peer.broker(tmp_path / "store", version=version) as broker:
        by_wire = check_reading(peer, broker)
        check_writing(peer, broker)
        check_no_door(peer, broker)
    assert read(path=str(tmp_path / "store")) == by_wire
