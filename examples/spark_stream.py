#!/usr/bin/env python3
"""Follow a store with Spark's streaming, into Parquet files, each message exactly once.

python examples/spark_stream.py [FOLDER]    the folder becomes a store; needs: pip install cometmq[spark], Java 17
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import cometmq
import cometmq.spark


def session() -> SparkSession:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    # The engine in Spark's JVM, where it is built; else Python reads and writes.
    return cometmq.spark.session(builder)


def catch_up(spark: SparkSession, folder: str) -> None:
    """Write what is there now; the checkpoint says where the next run goes on."""
    visits = (
        spark.readStream.format("cometmq")
        .option("path", folder)
        .option("topic", "visits")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 1000)
        .load()
    )
    query = (
        visits.selectExpr("tags AS device", "queueOffset", "CAST(body AS STRING) AS page")
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}-visits/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}-visits/files")
    )
    query.awaitTermination()


def append_visits(store: cometmq.Store, first: int, count: int) -> None:
    pages = [b"page %d" % number for number in range(first, first + count)]
    store.append_many("visits", pages, tags=["mobile" if number % 3 else "desktop" for number in range(count)])


def main(folder: str) -> None:
    spark = session()
    # The store stays open, and is written to, while Spark reads it.
    with cometmq.open(folder) as store:
        append_visits(store, 0, 1500)
        catch_up(spark, folder)
        append_visits(store, 1500, 500)
        catch_up(spark, folder)

    files = spark.read.parquet(f"{folder}-visits/files")
    print(f"{files.count()} visits, {files.select('page').distinct().count()} different ones")
    for row in files.groupBy("device").count().orderBy("device").collect():
        print(f"{row['device']}: {row['count']}")
    spark.stop()


if __name__ == "__main__":
    # Every executor must see the store under this path.
    main(str(Path(sys.argv[1] if len(sys.argv) > 1 else "data").resolve()))
