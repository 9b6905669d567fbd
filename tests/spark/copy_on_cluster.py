"""Copies a topic on a cluster, through the engine in the executors' JVMs, each row a little late.

``python copy_on_cluster.py MASTER FROM TO FOLDER``: stores with the topics "t" and "copy".
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import cometmq.spark


def main(master: str, source: str, target: str, folder: str) -> None:
    """Copy all rows as one job."""
    from pyspark.sql import SparkSession

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "true",  # the test waits for a task's end
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": folder,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        # A second attempt of a slow task must not write its rows again.
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "0",
    }
    builder = SparkSession.builder.master(master).appName("copy")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = cometmq.spark.session(builder)
    frame = spark.read.format("cometmq").options(path=source, topic="t", engine="jvm", minPartitions="8").load()
    late = frame.selectExpr("IF(java_method('java.lang.Thread', 'sleep', 2L) = 'x', NULL, body) AS body")
    writer = late.write.format("cometmq").options(path=target, topic="copy", engine="jvm", jobId="copy")
    writer.mode("append").save()
    spark.stop()


main(*sys.argv[1:])
