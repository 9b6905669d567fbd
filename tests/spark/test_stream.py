"""Checks: streams through Spark end where they should, go on where they were, and write each row once into files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cometmq
from cometmq.spark import jars
from support.small_store import open_small
from support.spark_streams import kill_and_finish, run_to_files, written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def store(path: Path) -> Iterator[cometmq.Store]:
    with open_small(path) as opened:
        opened.create_topic("t", queues=3)
        append(opened, 0, 900)
        yield opened


def append(store: cometmq.Store, start: int, count: int, topic: str = "t") -> None:
    store.append_many(topic, [b"%d" % number for number in range(start, start + count)])


def load(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    given = {"path": str(path), "startingOffsets": "earliest", **options}
    return spark.readStream.format("cometmq").options(**given).load()


def test_available_now_in_pieces_and_again(
    spark: SparkSession, path: Path, store: cometmq.Store, tmp_path: Path
) -> None:
    query = run_to_files(load(spark, path, topic="t", maxOffsetsPerTrigger="400"), tmp_path)
    sizes = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert (len(sizes), max(sizes), sum(sizes)) == (3, 400, 900)
    assert written(spark, tmp_path) == list(range(900))
    append(store, 900, 100)
    run_to_files(load(spark, path, topic="t", maxBytesPerTrigger="1m"), tmp_path)
    assert written(spark, tmp_path) == list(range(1000))


def test_new_topics_while_it_runs(spark: SparkSession, path: Path, store: cometmq.Store, tmp_path: Path) -> None:
    rows: list[Any] = []

    def take(frame: DataFrame, _: int) -> None:
        rows.extend(frame.select("topic", "body").collect())

    query = (
        load(spark, path, subscribePattern="t.*", groupId="g", commitOffsets="true")
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        assert len(rows) == 900
        append(store, 0, 10, topic="t2")
        query.processAllAvailable()
        append(store, 10, 10, topic="t2")
        query.processAllAvailable()
        assert sorted(int(row["body"]) for row in rows if row["topic"] == "t2") == list(range(20))
        assert len(rows) == 920
        # A micro-batch late, and only for those who look.
        assert {one.topic for one in store.progress("g")} >= {"t"}
    finally:
        query.stop()


WITH_JAR = pytest.mark.skipif(not jars(), reason="the engine for the JVM is not built: Java 17's javac was not found")


@pytest.mark.parametrize("engines", [["python"] * 3, pytest.param(["jvm", "python", "jvm"], marks=WITH_JAR)])
def test_a_stream_writes_into_a_store(
    spark: SparkSession, path: Path, store: cometmq.Store, tmp_path: Path, engines: list[str]
) -> None:
    """Also where it is continued by the other engine, and where a micro-batch of one is run again by the other."""
    target = tmp_path / "target"

    def copy(engine: str) -> None:
        query = (
            load(spark, path, topic="t", maxOffsetsPerTrigger="300")
            .selectExpr("body", "concat('q', queueId) AS tags", "CAST(queueOffset AS STRING) AS keys")
            .writeStream.format("cometmq")
            .option("path", str(target))
            .options(topic="copy", engine=engine)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(100)
        assert query.exception() is None

    copy(engines[0])
    append(store, 900, 50)
    copy(engines[1])
    with cometmq.open(target, mode="r") as copied:
        assert sorted(int(bytes(message)) for message in copied.read("copy")) == list(range(950))
    # The last micro-batch is run again, as after a crash between its commit here and its commit in Spark.
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    copy(engines[2])
    with cometmq.open(target, mode="r") as copied:
        assert sorted(int(bytes(message)) for message in copied.read("copy")) == list(range(950))
    staged = target / "cometmq" / "staged"
    assert [entry.name for entry in staged.iterdir()] == ["done"]


def test_a_topic_that_was_made_again(spark: SparkSession, path: Path, store: cometmq.Store, tmp_path: Path) -> None:
    """It has fewer messages than were read of its former life: an error, or all of them, as the option says."""
    run_to_files(load(spark, path, topic="t"), tmp_path)
    store.delete_topic("t")
    store.create_topic("t", queues=3)
    append(store, 900, 30)
    with pytest.raises(Exception, match=r"deleted and made again.*failOnDataLoss=false"):
        run_to_files(load(spark, path, topic="t"), tmp_path)
    run_to_files(load(spark, path, topic="t", failOnDataLoss="false"), tmp_path)
    assert written(spark, tmp_path) == list(range(930))


@pytest.mark.parametrize("engine", ["python", pytest.param("jvm", marks=WITH_JAR)])
def test_complete_mode_is_refused(
    spark: SparkSession, path: Path, store: cometmq.Store, tmp_path: Path, engine: str
) -> None:
    frame = load(spark, path, topic="t").groupBy("topic").count().selectExpr("topic", "CAST(count AS STRING) AS body")
    query = (
        frame.writeStream.format("cometmq")
        .outputMode("complete")
        .options(path=str(tmp_path / "target"), engine=engine)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    with pytest.raises(Exception, match="outputMode"):
        query.start().awaitTermination(60)


@pytest.mark.timeout(7200)
def test_each_row_once_whenever_the_driver_dies(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    kills = 100 if os.environ.get("CMQ_LONG") else 1
    rows = 2500 * kills  # so many that the later kills, too, mostly meet a stream that is running
    with open_small(path) as store:
        store.create_topic("t", queues=3)
        append(store, 0, rows)
    options = {"path": str(path), "topic": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "500"}
    for engine in ("auto", "python") if os.environ.get("CMQ_LONG") else ("auto",):
        target = tmp_path / engine
        kill_and_finish({**options, "engine": engine}, target, kills, seed=7)
        assert written(spark, target) == list(range(rows))


@WITH_JAR
@pytest.mark.timeout(7200)
def test_each_row_is_stored_once_whenever_the_driver_dies(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    """The JVM stages the rows; a driver that dies takes the process along that begins and commits jobs."""
    kills = 50 if os.environ.get("CMQ_LONG") else 1
    rows = 2500 * kills
    with open_small(path) as store:
        store.create_topic("t", queues=3)
        append(store, 0, rows)
    options = {"path": str(path), "topic": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "500"}
    target = tmp_path / "target"
    kill_and_finish(
        options, tmp_path / "out", kills, seed=17, sink={"path": str(target), "topic": "copy", "engine": "jvm"}
    )
    with cometmq.open(target, mode="r") as copied:
        assert sorted(int(bytes(message)) for message in copied.read("copy")) == list(range(rows))
    assert [entry.name for entry in (target / "cometmq" / "staged").iterdir()] == ["done"]
