"""A Spark session for the benchmarks, on loopback, and the processor time that it and its workers take."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF = "local[2], driver 4 GiB, Unix sockets"


@contextmanager
def spark_session(folder: Path, more_jars: Sequence[str] = ()) -> Iterator[SparkSession]:
    """Yield a session that keeps everything under ``folder``; its JVM has ended afterwards."""
    # Workers take python3 from the path otherwise, which need not be the environment of the benchmark.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    from cometmq.spark import jars

    session = (
        SparkSession.builder.master("local[2]")
        .appName("cometmq-benchmarks")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "4g")
        .config("spark.jars", ",".join([*jars(), *more_jars]))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    gateway = session.sparkContext._gateway
    try:
        yield session
    finally:
        session.stop()
        if gateway is not None:
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(timeout=60)


def cpu_s() -> float:
    """Seconds of processor time of this process and all below it, the JVM and Python workers; 0 without ``/proc``."""
    children: dict[int, list[int]] = defaultdict(list)
    ticks: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = entry.read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            continue
        fields = text[text.rindex(")") + 2 :].split()
        process = int(entry.parent.name)
        children[int(fields[1])].append(process)
        ticks[process] = sum(map(int, fields[11:15]))
    total, waiting = 0, [os.getpid()]
    while waiting:
        process = waiting.pop()
        total += ticks.get(process, 0)
        waiting += children[process]
    return total / os.sysconf("SC_CLK_TCK")
