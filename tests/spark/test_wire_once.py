"""Checks: what Spark writes through a broker that takes staged writes is there once, each row, whoever is killed."""

from __future__ import annotations

import os
import pickle
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import cometmq
from cometmq.admin import connect
from cometmq.client import OutgoingMessage, Producer
from support.broker_process import BrokerProcess, broker_process
from support.small_store import open_small
from support.spark_streams import kill_and_finish

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql.types import BinaryType, StructField, StructType

from cometmq.spark import wire_journal
from cometmq.spark.default_source import CometMQSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BODY = StructType([StructField("body", BinaryType())])
ROWS = 20_000


@pytest.fixture
def broker(path: Path) -> Iterator[BrokerProcess]:
    with broker_process(path, stagedWritesEnable="true") as running:
        yield running


def options_of(broker: BrokerProcess, **options: str) -> dict[str, str]:
    given = {"nameServer": broker.name_server_address, "topic": "t", "deliveryGuarantee": "exactly-once"}
    return {**given, **options}


def bodies(path: Path, topic: str = "t") -> list[int]:
    with cometmq.open(path, mode="r") as store:
        return sorted(int(bytes(message)) for message in store.read(topic)) if topic in store.topics() else []


def left_over(path: Path) -> list[str]:
    folder = path / "cometmq" / "staged"
    return sorted(one.name for one in folder.iterdir() if one.name != "done") if folder.exists() else []


def batches(start: int, count: int) -> Iterator[pa.RecordBatch]:
    for first in range(start, start + count, 1000):
        numbers = range(first, min(first + 1000, start + count))
        yield pa.record_batch({"body": pa.array([b"%d" % number for number in numbers], pa.binary())})


# --- The broker is killed: writers as Spark makes them, without Spark


def test_a_broker_that_dies_between_pieces(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_journal, "_PIECE_BYTES_MAX", 20_000)

    def with_deaths() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches(0, ROWS)):
            if number in (3, 11):
                broker.kill_and_start()
            yield batch

    writer = CometMQSource(options_of(broker)).writer(BODY, False)
    message = pickle.loads(pickle.dumps(writer)).write(with_deaths())
    assert bodies(broker.path) == []
    broker.kill_and_start()
    writer.commit([message])
    assert bodies(broker.path) == list(range(ROWS))
    broker.kill_and_start()
    assert (bodies(broker.path), left_over(broker.path)) == (list(range(ROWS)), [])


def test_a_broker_that_dies_around_the_commit(broker: BrokerProcess) -> None:
    seed, kills = 20_261_123, 60 if os.environ.get("CMQ_LONG") else 5
    chosen = random.Random(seed)
    for number in range(kills):
        # Every other job has no name: its own is what is done once.
        options = options_of(broker, jobId=f"job-{number}") if number % 2 else options_of(broker)
        writer = CometMQSource(options).writer(BODY, False)
        message = pickle.loads(pickle.dumps(writer)).write(batches(number * ROWS, ROWS))
        delay_s = chosen.uniform(0, 0.12)

        def kill(delay_s: float = delay_s) -> None:
            time.sleep(delay_s)  # the moment is what is tried out
            broker.kill_and_start()

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            writer.commit([message])
        finally:
            killer.join()
        writer.commit([message])  # asked again, as by a driver that has not heard the answer
        assert bodies(broker.path) == list(range((number + 1) * ROWS)), f"seed {seed}, kill {number} after {delay_s} s"
    broker.kill_and_start()
    assert left_over(broker.path) == []


# --- Spark


def write(frame: DataFrame, broker: BrokerProcess, **options: str) -> None:
    frame.write.format("cometmq").options(**options_of(broker, **options)).mode("append").save()


def test_batches(spark: SparkSession, broker: BrokerProcess) -> None:
    frame = spark.range(0, 3_000, 1, 3).selectExpr("CAST(id AS STRING) AS body", "concat('k', id) AS keys")
    for _ in range(2):
        write(frame, broker, jobId="nightly", topicQueues="2")
    with cometmq.open(broker.path, mode="r") as store:
        messages = {int(bytes(one)): one for one in store.read("t")}
        assert (sorted(messages), store.topic("t").messages) == (list(range(3_000)), 3_000)
        assert messages[17].keys == ("k17",)
        assert store.topic("t").write_queues == 2
    failing = frame.selectExpr("IF(body = '2900', CAST(raise_error('task fails') AS STRING), body) AS body")
    with pytest.raises(Exception, match="task fails"):
        write(failing, broker)
    assert (bodies(broker.path), left_over(broker.path)) == (list(range(3_000)), [])


def test_exactly_once_where_it_cannot_be(spark: SparkSession, path: Path) -> None:
    with broker_process(path) as off, pytest.raises(Exception, match="stagedWritesEnable=true, or give at-least-once"):
        write(spark.range(3).selectExpr("CAST(id AS STRING) AS body"), off)


def test_a_stream_whose_last_micro_batch_is_run_again(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    with open_small(tmp_path / "source") as store:
        store.create_topic("s", queues=2)
        store.append_many("s", [b"%d" % number for number in range(900)])

    def follow() -> None:
        query = (
            spark.readStream.format("cometmq")
            .options(path=str(tmp_path / "source"), topic="s", startingOffsets="earliest", maxOffsetsPerTrigger="400")
            .load()
            .selectExpr("body")
            .writeStream.format("cometmq")
            .options(**options_of(broker))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(100)
        assert query.exception() is None

    follow()
    assert bodies(broker.path) == list(range(900))
    # As after a crash before Spark had noted that the micro-batch was done.
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    broker.kill_and_start()
    follow()
    assert (bodies(broker.path), left_over(broker.path)) == (list(range(900)), [])


@pytest.mark.skipif("CMQ_LONG" not in os.environ, reason="takes minutes: only with CMQ_LONG=1")
@pytest.mark.timeout(7200)
def test_each_row_once_whenever_the_broker_dies(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    seed, kills = 17, 20
    chosen = random.Random(seed)
    rows = 750 * (kills + 1)
    with open_small(tmp_path / "source") as store:
        store.create_topic("s", queues=2)
        store.append_many("s", [b"%d" % number for number in range(rows)])
    query = (
        spark.readStream.format("cometmq")
        .options(path=str(tmp_path / "source"), topic="s", startingOffsets="earliest", maxOffsetsPerTrigger="250")
        .load()
        .selectExpr("body")
        .writeStream.format("cometmq")
        .options(**options_of(broker))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    killed = 0
    while not query.awaitTermination(1):
        done = len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))
        if killed < kills and done > 3 * killed:
            time.sleep(chosen.uniform(0, 1))  # the moment is what is tried out
            broker.kill_and_start()
            killed += 1
    assert (query.exception(), killed) == (None, kills)
    assert bodies(broker.path) == list(range(rows)), f"seed {seed}"
    broker.kill_and_start()
    assert left_over(broker.path) == []


@pytest.mark.timeout(7200)
def test_each_row_once_whenever_the_driver_dies(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    """It reads through the broker, too: a micro-batch that is run again reads the same rows."""
    kills = 50 if os.environ.get("CMQ_LONG") else 1
    rows = 2_500 * kills
    with connect(namesrv=broker.name_server_address) as admin:
        admin.topics.create("s", queues=3)
    with Producer("makers", name_servers=broker.name_server_address) as producer:
        for first in range(0, rows, 50):
            producer.send_batch([OutgoingMessage(b"%d" % number) for number in range(first, first + 50)], topic="s")
    source = {"nameServer": broker.name_server_address, "topic": "s", "startingOffsets": "earliest"}
    kill_and_finish(
        {**source, "maxOffsetsPerTrigger": "500"}, tmp_path / "out", kills, seed=13, sink=options_of(broker)
    )
    assert (bodies(broker.path), left_over(broker.path)) == (list(range(rows)), [])
