"""Spark's streams: catching up, micro-batches of a few rows beside its own rate source, and writing."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from query.data import QUEUES, TOPIC, Sources
from query.spark_reads import FIVE, JVM, Answer

TRIGGER_ROWS = 500_000
FLOOR_ROWS = 10
_FLOOR_LIMIT_S = 120


def catch_up(frame: DataFrame, folder: Path) -> tuple[float, Answer]:
    """Read a stream with the column body up to now: seconds from start to end, and (count, hash) of the rows read."""
    # Seen by Spark itself on the way into a sink that drops it.
    frame = frame.observe("seen", f.count("*").alias("rows"), f.bit_xor(f.xxhash64("body")).alias("hash"))
    begin = time.perf_counter()
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(folder / "catch-up"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    taken = time.perf_counter() - begin
    rows, hashed = 0, 0
    for progress in query.recentProgress:
        seen = progress.observedMetrics.get("seen")
        if seen is not None and seen["rows"]:
            rows, hashed = rows + seen["rows"], hashed ^ seen["hash"]
    shutil.rmtree(folder / "catch-up")
    return taken, (rows, hashed)


def rate_stream(spark: SparkSession) -> DataFrame:
    """Return Spark's own source of numbers, a few in each micro-batch."""
    return spark.readStream.format("rate-micro-batch").options(rowsPerBatch=FLOOR_ROWS, numPartitions=1).load()


def micro_batch_ms(frame: DataFrame, folder: Path, batches: int) -> float:
    """Milliseconds that a micro-batch of a few rows takes."""
    query = frame.writeStream.format("noop").option("checkpointLocation", str(folder / "floor")).start()
    limit = time.monotonic() + _FLOOR_LIMIT_S
    while query.isActive and len(query.recentProgress) < batches + 2:
        if time.monotonic() > limit:
            raise SystemExit(f"{len(query.recentProgress)} micro-batches in {_FLOOR_LIMIT_S} s")
        time.sleep(0.05)
    progress = query.recentProgress
    query.stop()
    query.awaitTermination()
    if query.exception() is not None:
        raise SystemExit(str(query.exception()))
    shutil.rmtree(folder / "floor")
    # The first two begin what the others go on with.
    full = [one for one in progress[2:] if one.numInputRows > 0]
    if any(one.numInputRows != FLOOR_ROWS for one in full) or len(full) < batches // 2:
        raise SystemExit(f"micro-batches of {[one.numInputRows for one in progress]} rows")
    return median(one.durationMs["triggerExecution"] for one in full)


def log_stream(spark: SparkSession, sources: Sources, engine: str, rows: int) -> DataFrame:
    """Return the log as a stream with so many rows in each micro-batch."""
    options: dict[str, Any] = {"path": str(sources.store), "topic": TOPIC, "columns": FIVE, "engine": engine}
    return (
        spark.readStream.format("cometmq")
        .options(**options, startingOffsets="earliest", maxOffsetsPerTrigger=rows)
        .load()
    )


def write(spark: SparkSession, bodies: DataFrame, sink: str, folder: Path) -> tuple[float, Answer]:
    """Write bodies into a new store or new Parquet files: seconds, and (rows, hash) of what is there afterwards."""
    path = str(folder / "written")
    begin = time.perf_counter()
    if sink in ("cometmq", JVM):
        engine = "jvm" if sink == JVM else "python"
        options: dict[str, Any] = {"path": path, "topic": "written", "topicQueues": QUEUES, "engine": engine}
        bodies.write.format("cometmq").options(**options).mode("append").save()
        taken = time.perf_counter() - begin
        found = spark.read.format("cometmq").options(path=path, topic="written", columns="body").load()
    else:
        bodies.write.option("compression", "none").parquet(path)
        taken = time.perf_counter() - begin
        found = spark.read.parquet(path)
    answer = tuple(found.selectExpr("count(*)", "bit_xor(xxhash64(body))").collect()[0])
    shutil.rmtree(path)
    return taken, answer
