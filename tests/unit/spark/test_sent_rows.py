"""Checks: rows sent through brokers are stored as they are, under ids that stay, in order; bad rows are refused."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql.types import ArrayType, BinaryType, IntegerType, MapType, StringType, StructField, StructType

import cometmq.testing
from cometmq import BrokerError, InvalidArgument
from cometmq.admin import connect
from cometmq.errors import ConnectionLost
from cometmq.spark import wire_writer
from cometmq.spark.default_source import CometMQSource
from cometmq.spark.errors import OptionError
from cometmq.spark.running import RunningQuery
from cometmq.spark.sent_rows import RowIds
from cometmq.spark.wire_writer import Sent, WireBatchWriter, WireStreamWriter
from cometmq.testing import Cluster
from support.spark_rows import read_rows

SCHEMA = StructType(
    [
        StructField("body", BinaryType()),
        StructField("topic", StringType()),
        StructField("tags", StringType()),
        StructField("keys", ArrayType(StringType())),
        StructField("properties", MapType(StringType(), StringType())),
        StructField("queue", IntegerType()),
        StructField("shardKey", StringType()),
    ]
)
ARROW = pa.schema(
    [
        ("body", pa.binary()),
        ("topic", pa.string()),
        ("tags", pa.string()),
        ("keys", pa.list_(pa.string())),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("queue", pa.int32()),
        ("shardKey", pa.string()),
    ]
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cometmq.testing.cluster(brokers=2) as running:
        with connect(namesrv=running.name_server_address) as admin:
            for topic in ("all", "again", "others", "shards", "one", "large"):
                admin.topics.create(topic, queues=2)
        yield running


def writer(cluster: Cluster, **options: str) -> WireBatchWriter:
    made = CometMQSource({"nameServer": cluster.name_server_address, **options}).writer(SCHEMA, overwrite=False)
    assert isinstance(made, WireBatchWriter)
    travelled: WireBatchWriter = pickle.loads(pickle.dumps(made))
    return travelled


def rows(*given: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    """Batches of three rows."""
    for start in range(0, len(given), 3):
        yield pa.RecordBatch.from_pylist(list(given[start : start + 3]), schema=ARROW)


def stored(cluster: Cluster, topic: str, columns: str = "body,uniqueId") -> list[dict[str, Any]]:
    return read_rows(nameServer=cluster.name_server_address, topic=topic, columns=columns)


def test_rows_are_stored_as_they_are(cluster: Cluster) -> None:
    given = [
        {"body": b"1", "tags": "a", "keys": ["k1", "k2"], "properties": {"region": "north", "none": None}},
        {"body": b"2", "topic": "others"},
        {"body": b"3", "properties": {"UNIQ_KEY": "OWN"}},
    ]
    sent = writer(cluster, topic="all").write(rows(*given))
    assert isinstance(sent, Sent)
    assert (sent.rows, sent.maybe_twice) == (3, 0)
    found = {row["body"]: row for row in stored(cluster, "all", "body,tags,keys,uniqueId,prop:region,prop:none")}
    assert found.keys() == {b"1", b"3"}
    first = found[b"1"]
    assert (first["tags"], first["keys"], first["prop:region"], first["prop:none"]) == ("a", "k1 k2", "north", None)
    assert (found[b"3"]["tags"], found[b"3"]["uniqueId"]) == (None, "OWN")
    assert [row["body"] for row in stored(cluster, "others")] == [b"2"]


def test_large_types_of_spark_are_sent(cluster: Cluster) -> None:
    """Spark makes them with spark.sql.execution.arrow.useLargeVarTypes."""
    large = pa.schema(
        [
            ("body", pa.large_binary()),
            ("topic", pa.large_string()),
            ("tags", pa.large_string()),
            ("keys", pa.list_(pa.large_string())),
            ("properties", pa.map_(pa.large_string(), pa.large_string())),
            ("queue", pa.int32()),
            ("shardKey", pa.large_string()),
        ]
    )
    given = [{"body": b"%d" % number, "topic": "large", "keys": [f"k{number}"]} for number in range(4)]
    sent = writer(cluster, topic="all").write(iter([pa.RecordBatch.from_pylist(given, schema=large)]))
    assert isinstance(sent, Sent)
    assert sent.rows == 4
    assert sorted(row["keys"] for row in stored(cluster, "large", "keys")) == ["k0", "k1", "k2", "k3"]


def test_ids_are_the_rows_and_stay(cluster: Cluster) -> None:
    given = [{"body": b"%d" % number} for number in range(500)]
    made = writer(cluster, topic="again", jobId="nightly")
    made.write(rows(*given))
    first = {row["body"]: row["uniqueId"] for row in stored(cluster, "again")}
    assert len(set(first.values())) == 500
    assert all(len(one) == 32 and int(one, 16) >= 0 for one in first.values())
    made.write(rows(*given))  # the task runs again
    writer(cluster, topic="again", jobId="nightly").write(rows(*given))  # the job runs again
    again = [(row["body"], row["uniqueId"]) for row in stored(cluster, "again")]
    assert len(again) == 1500
    assert dict(again) == first
    assert set(again) == set(first.items())
    # Without a name every job has ids of its own.
    writer(cluster, topic="again").write(rows(*given[:5]))
    assert len({row["uniqueId"] for row in stored(cluster, "again")}) == 505


def test_ids_of_partitions_and_rows() -> None:
    one, other = RowIds("a", 0), RowIds("a", 1)
    ids = [one.next() for _ in range(300)] + [other.next() for _ in range(300)] + [RowIds("b", 0).next()]
    assert len(set(ids)) == 601
    assert ids[:300] == sorted(ids[:300])


def test_order_within_a_shard_and_chosen_queues(cluster: Cluster) -> None:
    given = [{"body": b"%d" % number, "shardKey": f"s{number % 7}"} for number in range(700)]
    writer(cluster, topic="shards").write(rows(*given))
    found = stored(cluster, "shards", "body,brokerName,queueId,queueOffset")
    for shard in range(7):
        mine = [row for row in found if int(row["body"]) % 7 == shard]
        assert len({(row["brokerName"], row["queueId"]) for row in mine}) == 1
        in_order = sorted(mine, key=lambda row: row["queueOffset"])
        assert [int(row["body"]) for row in in_order] == list(range(shard, 700, 7))
    chosen = [{"body": b"x", "queue": 1}] * 4
    writer(cluster, topic="one", brokerName="broker-b").write(rows(*chosen))
    places = {(row["brokerName"], row["queueId"]) for row in stored(cluster, "one", "brokerName,queueId")}
    assert places == {("broker-b", 1)}
    with pytest.raises(InvalidArgument, match="queue 1 of topic one is at several brokers"):
        writer(cluster, topic="one").write(rows(*chosen))


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ({"body": None}, "column body has a null"),
        ({"body": b""}, "column body has an empty one"),
        ({"body": b"x", "tags": "a||b"}, "column tags"),
        ({"body": b"x", "topic": "a/b"}, "column topic"),
        ({"body": b"x", "keys": ["a b"]}, "column keys"),
        ({"body": bytes((4 << 20) + 1)}, "column body has one of"),
    ],
)
def test_rows_that_cannot_be_sent(cluster: Cluster, row: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidArgument, match=match):
        writer(cluster, topic="all").write(rows(row))


def test_a_broker_that_refuses_and_one_that_is_not_there(cluster: Cluster) -> None:
    with connect(namesrv=cluster.name_server_address) as admin:
        admin.topics.create("closed", queues=1)
        admin.topics.update("closed", perm=cometmq.store_config.topic_config.Perm.READ)
    with pytest.raises((BrokerError, InvalidArgument), match="closed"):
        writer(cluster, topic="closed").write(rows({"body": b"x"}))
    options = {"nameServer": "127.0.0.1:1", "topic": "t", "deliveryGuarantee": "at-least-once"}
    away = CometMQSource(options).writer(SCHEMA, overwrite=False)
    with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1"):
        away.write(rows({"body": b"x"}))


def test_a_stream_tells_its_micro_batch(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(namesrv=cluster.name_server_address) as admin:
        admin.topics.create("stream", queues=1)
    made = CometMQSource({"nameServer": cluster.name_server_address, "topic": "stream"}).streamWriter(SCHEMA, False)
    assert isinstance(made, WireStreamWriter)
    for batch in (0, 1, 1):
        monkeypatch.setattr(wire_writer, "running_query", lambda batch=batch: RunningQuery("q", batch))
        made.write(rows({"body": b"a"}, {"body": b"b"}))
    found = [row["uniqueId"] for row in stored(cluster, "stream")]
    assert (len(found), len(set(found))) == (6, 4)
    monkeypatch.setattr(wire_writer, "running_query", lambda: RunningQuery("q", None))
    with pytest.raises(InvalidArgument, match="micro-batch's number"):
        made.write(rows({"body": b"a"}))


def test_report_at_the_end(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    made = writer(cluster, topic="all")
    with caplog.at_level(logging.WARNING, "cometmq.spark"):
        made.commit([Sent(5, 0), None])
        assert caplog.text == ""
        made.commit([Sent(5, 2), Sent(5, 1)])
        assert "3 messages may be stored twice" in caplog.text
        made.abort([None])
        assert "sent rows stay" in caplog.text


def test_modes(cluster: Cluster) -> None:
    source = CometMQSource({"nameServer": cluster.name_server_address, "topic": "all"})
    with pytest.raises(OptionError, match="append"):
        source.writer(SCHEMA, overwrite=True)
    with pytest.raises(OptionError, match="outputMode"):
        source.streamWriter(SCHEMA, overwrite=True)
