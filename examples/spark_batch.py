#!/usr/bin/env python3
"""Query a store with Spark: without an export, and including messages appended a moment ago.

python examples/spark_batch.py [FOLDER]    the folder becomes a store; needs: pip install cometmq[spark], Java 17
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import cometmq
import cometmq.spark

CITIES = ("Kiel", "Lima", "Oslo")


def session() -> SparkSession:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    # The engine in Spark's JVM, where it is built; else Python reads and writes.
    return cometmq.spark.session(builder)


def write_orders(folder: str) -> None:
    orders = [json.dumps({"id": n, "city": CITIES[n % 3], "cents": n * 5}).encode() for n in range(3000)]
    with cometmq.open(folder) as store:
        tags = ["paid", "paid", "refused", "paid"] * 750
        store.append_many("orders", orders, tags=tags, keys=[f"order-{n}" for n in range(3000)])


def main(folder: str) -> None:
    write_orders(folder)
    spark = session()

    # Tags, keys, offsets and times given as options are looked for before anything is read.
    paid = spark.read.format("cometmq").options(path=folder, topic="orders", tags="paid").load()
    orders = paid.selectExpr("from_json(CAST(body AS STRING), 'id INT, city STRING, cents INT') AS o").select("o.*")
    for row in orders.groupBy("city").sum("cents").orderBy("city").collect():
        print(f"{row['city']}: {row['sum(cents)'] / 100:,.2f}")

    # Only the columns that are named are made: here no body is touched.
    narrow = spark.read.format("cometmq").options(path=folder, topic="orders", columns="queueId,tags").load()
    print({row["tags"]: row["count"] for row in narrow.groupBy("tags").count().orderBy("tags").collect()})

    # The form that programs for Kafka know.
    kafka = (
        spark.read.format("cometmq").options(path=folder, subscribe="orders", schema="kafka", keys="order-17").load()
    )
    print(kafka.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)").first())
    spark.stop()


if __name__ == "__main__":
    # Every executor must see the store under this path.
    main(str(Path(sys.argv[1] if len(sys.argv) > 1 else "data").resolve()))
