#!/usr/bin/env python3
"""Write a data frame into a topic: all rows or none, and only once where the job has a name.

python examples/spark_write.py [FOLDER]    the folder becomes a store; needs: pip install cometmq[spark], Java 17
"""

from __future__ import annotations

import json
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


def write(spark: SparkSession, folder: str) -> None:
    orders = spark.range(1000).selectExpr("id", "CONCAT('c', id % 10) AS customer", "id * 5 AS cents")
    messages = orders.selectExpr(
        "to_json(struct(*)) AS body",
        "IF(cents < 2500, 'small', 'large') AS tags",
        "array(CONCAT('order-', id)) AS keys",
        "customer AS shardKey",  # all orders of a customer in one queue
    )
    writer = messages.write.format("cometmq").option("path", folder).option("topic", "orders")
    # Run again under its name, a job changes nothing.
    writer.option("jobId", "import-2026-11-21").mode("append").save()


def main(folder: str) -> None:
    spark = session()
    # This process may hold the store itself: its writer appends what Spark's tasks have staged.
    with cometmq.open(folder) as store:
        store.create_topic("orders", queues=4, exist_ok=True)
        for _ in range(2):
            write(spark, folder)
        print(f"{store.topic('orders').messages} orders in {len(store.queues('orders'))} queues")
        (order,) = store.find("orders", "order-17")
        print(json.loads(order.body_bytes), order.tags)
    spark.stop()


if __name__ == "__main__":
    # Every executor must see the store under this path.
    main(str(Path(sys.argv[1] if len(sys.argv) > 1 else "data").resolve()))
