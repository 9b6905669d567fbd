"""Checks: Spark reads through brokers what it reads from their files; streams go on where they were, whatever ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cometmq.testing
from cometmq.admin import connect
from cometmq.client import OutgoingMessage, Producer
from cometmq.testing import Cluster
from support.spark_streams import run_to_files, written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = "topic,queueId,queueOffset,body,tags,keys,bornTimestamp,storeTimestamp,properties,msgId,bornHost,storeHost"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Two brokers with 900 messages in topic t."""
    with cometmq.testing.cluster(brokers=2) as running:
        with connect(namesrv=running.name_server_address) as admin:
            admin.topics.create("t", queues=2)
        send(running, 0, 900)
        yield running


def send(cluster: Cluster, start: int, count: int, topic: str = "t") -> None:
    with Producer("makers", name_servers=cluster.name_server_address) as producer:
        for first in range(start, start + count, 50):
            numbers = range(first, min(first + 50, start + count))
            producer.send_batch(
                [OutgoingMessage(b"%d" % number, tags="ab"[number % 2], keys=f"k{number}") for number in numbers],
                topic=topic,
            )


def options_of(cluster: Cluster, **options: str) -> dict[str, str]:
    return {"nameServer": cluster.name_server_address, **options}


def load(spark: SparkSession, cluster: Cluster, **options: str) -> DataFrame:
    return spark.read.format("cometmq").options(**options_of(cluster, **{"topic": "t", **options})).load()


def stream(spark: SparkSession, cluster: Cluster, **options: str) -> DataFrame:
    given = options_of(cluster, startingOffsets="earliest", **options)
    return spark.readStream.format("cometmq").options(**given).load()


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(bytes(row["body"])) for row in frame.select("body").collect())


def rows(*frames: DataFrame) -> list[dict[str, Any]]:
    found = [row for frame in frames for row in frame.toArrow().to_pylist()]
    return sorted(found, key=lambda row: (row["storeHost"], row["queueId"], row["queueOffset"]))


def test_batches(spark: SparkSession, cluster: Cluster) -> None:
    files = [
        spark.read.format("cometmq")
        .options(path=str(cluster.path / broker.config.settings.broker_name), topic="t", columns=COLUMNS)
        .load()
        for broker in cluster.brokers
    ]
    assert rows(load(spark, cluster, columns=COLUMNS)) == rows(*files)
    assert numbers(load(spark, cluster, tags="a", minPartitions="5")) == list(range(0, 900, 2))
    assert len(load(spark, cluster, batchRows="10").limit(5).collect()) == 5
    by_broker = load(spark, cluster, columns="brokerName,queueId").groupBy("brokerName").count().collect()
    assert {row["brokerName"] for row in by_broker} == {"broker-a", "broker-b"}
    assert sum(row["count"] for row in by_broker) == 900
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = load(spark, cluster, pushdown="true").where("tags = 'b' AND queueId = 1 AND queueOffset >= 10")
        expected = load(spark, cluster).where("tags = 'b' AND queueId = 1 AND queueOffset >= 10")
        assert numbers(pushed) == numbers(expected) != []
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def test_stream_continues_with_new_messages(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    def run(**options: str) -> list[int]:
        frame = stream(spark, cluster, **{"subscribePattern": "t.*", **options})
        query = run_to_files(frame, tmp_path)
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    sizes = run(maxOffsetsPerTrigger="400")
    assert (len(sizes), max(sizes), sum(sizes)) == (3, 400, 900)
    with connect(namesrv=cluster.name_server_address) as admin:
        admin.topics.update("t", queues=3)  # queues that were not there when the stream began
        admin.topics.create("t2", queues=1)
    send(cluster, 900, 150)
    send(cluster, 1050, 50, topic="t2")
    run(maxBytesPerTrigger="1m")
    assert written(spark, tmp_path) == list(range(1100))


def test_progress_of_a_group(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    with connect(namesrv=cluster.name_server_address) as admin:
        admin.groups.create("g")
    frame = stream(spark, cluster, topic="t", groupId="g", commitOffsets="true", maxOffsetsPerTrigger="200")
    run_to_files(frame, tmp_path)
    with connect(namesrv=cluster.name_server_address) as admin:
        queues = admin.groups.describe("g").progress.queues
    assert 0 < sum(one.consumer_offset for one in queues if one.topic == "t") <= 900


def test_a_broker_that_is_gone(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    gone = cluster.brokers[1]
    frame = stream(spark, cluster, topic="t", pullTimeoutMs="500")
    run_to_files(frame, tmp_path)
    gone.stop()
    send(cluster, 900, 10)
    with pytest.raises(Exception, match="the stream has read t/broker-b/0, t/broker-b/1, which the brokers"):
        run_to_files(frame, tmp_path)
    run_to_files(stream(spark, cluster, topic="t", pullTimeoutMs="500", failOnDataLoss="false"), tmp_path)
    assert written(spark, tmp_path) == list(range(910))


def test_writing(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    with connect(namesrv=cluster.name_server_address) as admin:
        admin.topics.create("copy", queues=2)
        admin.topics.create("followed", queues=2)
    rows_of = ("body", "CONCAT('t-', tags) AS tags", "ARRAY(keys) AS keys", "keys AS shardKey")
    given = load(spark, cluster).selectExpr(*rows_of)
    for _ in range(2):  # the same job again: twins have one id
        given.repartition(3, "shardKey").sortWithinPartitions("shardKey").write.format("cometmq").options(
            **options_of(cluster, topic="copy", jobId="nightly")
        ).mode("append").save()
    copied = load(spark, cluster, topic="copy", columns="body,tags,keys,uniqueId")
    assert numbers(copied) == sorted([*range(900)] * 2)
    assert numbers(copied.dropDuplicates(["uniqueId"])) == list(range(900))
    assert {row["tags"] for row in copied.select("tags").distinct().collect()} == {"t-a", "t-b"}

    def follow() -> None:
        query = (
            stream(spark, cluster, topic="t", maxOffsetsPerTrigger="400")
            .selectExpr("body", "tags")
            .writeStream.format("cometmq")
            .options(**options_of(cluster, topic="followed"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(100)
        assert query.exception() is None

    follow()
    assert numbers(load(spark, cluster, topic="followed")) == list(range(900))
    # The last micro-batch is run again, as after a crash before Spark had noted that it was done.
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    follow()
    followed = load(spark, cluster, topic="followed", columns="body,uniqueId")
    assert followed.count() > 900
    assert numbers(followed.dropDuplicates(["uniqueId"])) == list(range(900))
