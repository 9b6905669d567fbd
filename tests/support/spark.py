"""A Spark session for tests, and what is needed for one."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.spark import jars
from cometmq.spark.requirements import missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["missing", "new_session", "stop_session"]

# A JVM of a test lives for seconds: with the first compiler alone and a collector without threads it does the same work
# in a quarter to half of the time. Programs that a test starts inherit it.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def new_session(folder: Path) -> SparkSession:
    """Start a session that keeps everything under ``folder`` and listens on loopback only."""
    # Workers take python3 from the path otherwise, which need not be the environment of the tests.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with warnings.catch_warnings():
        # Spark says things about the versions of other libraries.
        warnings.simplefilter("ignore")
        from pyspark.sql import SparkSession

        session: SparkSession = (
            SparkSession.builder.master("local[2]")
            .appName("cometmq-tests")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            .config("spark.local.dir", str(folder))
            .config("spark.jars", ",".join(jars()))
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.streaming.metricsEnabled", "false")
            .config("spark.python.unix.domain.socket.enabled", "true")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled", "false")
            .getOrCreate()
        )
    session.sparkContext.setLogLevel("ERROR")
    return session


def stop_session(session: SparkSession) -> None:
    """Stop the session and its JVM."""
    gateway = session.sparkContext._gateway
    session.stop()
    if gateway is not None:
        gateway.shutdown()
        process = getattr(gateway, "proc", None)
        if process is not None:
            process.stdin.close()
            process.wait(timeout=30)
