"""Checks: streams of the engine in the JVM, and that each engine continues the other's checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cometmq
from cometmq.spark import jars
from support.small_store import open_small
from support.spark_streams import run_to_files, written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.skipif(not jars(), reason="the engine for the JVM is not built: Java 17's javac was not found")

ENGINES = ("python", "jvm")


@pytest.fixture
def store(path: Path) -> Iterator[cometmq.Store]:
    with open_small(path) as opened:
        opened.create_topic("t", queues=3)
        append(opened, 0, 900)
        yield opened


def append(store: cometmq.Store, start: int, count: int, topic: str = "t", **more: Any) -> None:
    store.append_many(topic, [b"%d" % number for number in range(start, start + count)], **more)


def load(spark: SparkSession, path: Path, engine: str, **options: str) -> DataFrame:
    given = {"path": str(path), "startingOffsets": "earliest", "engine": engine, **options}
    if "startingTimestamp" in options:
        del given["startingOffsets"]
    return spark.readStream.format("cometmq").options(**given).load()


def offsets(target: Path) -> list[str]:
    """Return the text of each micro-batch's offset in a checkpoint."""
    files = sorted((target / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    return [file.read_text().splitlines()[-1] for file in files]


def test_engines_plan_the_same_micro_batches(
    spark: SparkSession, path: Path, store: cometmq.Store, tmp_path: Path
) -> None:
    append(store, 900, 100, queue=1)
    plans = []
    for engine in ENGINES:
        run_to_files(load(spark, path, engine, topic="t", maxBytesPerTrigger="80k"), tmp_path / engine)
        assert written(spark, tmp_path / engine) == list(range(1000))
        plans.append(offsets(tmp_path / engine))
    assert plans[0] == plans[1]
    assert len(plans[0]) > 1
    assert set(json.loads(plans[0][-1])) == {"t/0", "t/1", "t/2", "t/0@", "t/1@", "t/2@"}


def test_each_engine_continues_the_others_checkpoint(
    spark: SparkSession, path: Path, store: cometmq.Store, tmp_path: Path
) -> None:
    options = {"subscribePattern": "t.*", "maxOffsetsPerTrigger": "600"}
    run_to_files(load(spark, path, "python", **options), tmp_path)
    append(store, 900, 100)
    append(store, 1000, 50, topic="t2")
    run_to_files(load(spark, path, "jvm", **options), tmp_path)
    append(store, 1050, 50)
    run_to_files(load(spark, path, "python", **options), tmp_path)
    assert written(spark, tmp_path) == list(range(1100))
    # A micro-batch that was planned and not committed, as after a crash, is the same range for the other engine.
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    planned = offsets(tmp_path)
    run_to_files(load(spark, path, "jvm", **options), tmp_path)
    assert offsets(tmp_path) == planned
    assert written(spark, tmp_path) == list(range(1100))
    # A topic that was made again is known by the mark that the other engine left.
    store.delete_topic("t")
    store.create_topic("t", queues=3)
    append(store, 1100, 1050)
    with pytest.raises(Exception, match=r"deleted and made again.*failOnDataLoss=false"):
        run_to_files(load(spark, path, "jvm", **options), tmp_path)
    run_to_files(load(spark, path, "jvm", failOnDataLoss="false", **options), tmp_path)
    append(store, 2150, 10)
    run_to_files(load(spark, path, "python", **options), tmp_path)
    assert written(spark, tmp_path) == list(range(2160))


def test_streams_start_at_times_and_refuse_options_of_batches(
    spark: SparkSession, path: Path, store: cometmq.Store, tmp_path: Path
) -> None:
    append(store, 900, 20, tags="red", properties={"n": "5"})
    options = {"startingTimestamp": "2020-01-01", "tags": "red", "where": "n = 5"}
    run_to_files(load(spark, path, "jvm", topic="t", **options), tmp_path)
    assert written(spark, tmp_path) == list(range(900, 920))
    for option, value in (("endingOffsets", "latest"), ("keys", "k"), ("pushdown", "true")):
        with pytest.raises(Exception, match=f"option {option}: is an option of read;"):
            run_to_files(load(spark, path, "jvm", topic="t", **{option: value}), tmp_path / "refused")
    with pytest.raises(Exception, match="is an option of readStream"):
        spark.read.format("cometmq").options(
            path=str(path), topic="t", engine="jvm", maxOffsetsPerTrigger="5"
        ).load().collect()


def test_a_stream_needs_no_sizes_of_a_batch(
    spark: SparkSession, path: Path, store: cometmq.Store, tmp_path: Path
) -> None:
    """Spark asks for a stream's size wherever it is joined; what a batch refuses is a stream's everyday life."""
    names = spark.range(100_000).selectExpr("CAST(id AS INT) AS queueId")
    options = {"topic": "t,u", "failOnDataLoss": "false"}
    store.create_topic("u", queues=1)

    def joined(**more: str) -> DataFrame:
        return load(spark, path, "jvm", **options, **more).join(names, "queueId")

    run_to_files(joined(startingOffsets="latest"), tmp_path)
    append(store, 900, 30)
    append(store, 930, 10, topic="u")
    query = run_to_files(joined(startingOffsets="latest"), tmp_path)
    assert written(spark, tmp_path) == list(range(900, 940))
    # Few rows now say nothing of later micro-batches: the other side is the one that every task gets.
    plan = query._jsq.explainInternal(False)
    assert "BuildRight" in plan, plan
    store.delete_topic("t")
    append(store, 940, 10, topic="u")
    run_to_files(joined(startingOffsets='{"t": {"0": 5}}'), tmp_path)
    assert written(spark, tmp_path) == list(range(900, 950))


def test_a_first_micro_batch_that_is_run_again_begins_where_it_began(
    spark: SparkSession, path: Path, store: cometmq.Store, tmp_path: Path
) -> None:
    run_to_files(load(spark, path, "jvm", topic="t"), tmp_path)
    assert len(offsets(tmp_path)) == 1
    # As after a crash before its commit. The options find another start by then, as latest or an expired earliest do.
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    shutil.rmtree(tmp_path / "files")
    append(store, 900, 10)
    run_to_files(load(spark, path, "jvm", topic="t", startingOffsets="latest"), tmp_path)
    assert written(spark, tmp_path) == list(range(910))
