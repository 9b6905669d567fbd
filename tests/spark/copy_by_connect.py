"""Copies a topic by a Spark Connect server, as a batch and as a stream, through each engine.

``python copy_by_connect.py ADDRESS FROM FOLDER``: writes stores ``FOLDER/ENGINE`` with the topics "batch" and "stream",
and prints the plan of a read.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(address: str, source: str, folder: str) -> None:
    """Copy the topic "t"."""
    spark = SparkSession.builder.remote(f"sc://{address}").getOrCreate()
    for engine in ("python", "jvm"):
        target = f"{folder}/{engine}"
        read = {"path": source, "topic": "t", "engine": engine, "startingOffsets": "earliest"}
        written = {"path": target, "engine": engine}
        frame = spark.read.format("cometmq").options(**read).load()
        assert frame.count() == frame.where("tags = 'red'").count()
        frame.select("body").write.format("cometmq").options(topic="batch", **written).mode("append").save()
        stream = spark.readStream.format("cometmq").options(**read).load().select("body").writeStream
        stream = stream.option("checkpointLocation", f"{target}-checkpoint").trigger(availableNow=True)
        query = stream.format("cometmq").options(topic="stream", **written).start()
        query.awaitTermination()
        frame.explain()
    spark.stop()


main(*sys.argv[1:])
