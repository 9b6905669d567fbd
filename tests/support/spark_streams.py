"""Streams into Parquet files or brokers, run to what is there now, and killed on their way."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["kill_and_finish", "run_to_files", "written"]

_PROGRAM = Path(__file__).resolve().parent.parent / "spark" / "stream_to_files.py"


def run_to_files(frame: DataFrame, folder: Path) -> StreamingQuery:
    """Write what is there now into files; returns the ended query."""
    query = (
        frame.selectExpr("topic", "queueId", "queueOffset", "CAST(body AS STRING) AS body")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "files"))
    )
    query.awaitTermination(100)
    assert query.exception() is None
    return query


def written(spark: SparkSession, folder: Path) -> list[int]:
    """Return the bodies that the files have, which are numbers."""
    return sorted(int(row["body"]) for row in spark.read.parquet(str(folder / "files")).collect())


def kill_and_finish(
    options: Mapping[str, str], folder: Path, kills: int, seed: int, *, sink: Mapping[str, str] | None = None
) -> None:
    """Run the program, killing driver and JVM at random moments of a micro-batch, and once more to its end.

    With ``sink``, options of ``writeStream``, rows go there instead of into files.
    """
    chosen = random.Random(seed)
    for _ in range(kills):
        with _start(options, folder, sink) as program:
            goal = _planned(folder) + chosen.randint(1, 3)
            while _planned(folder) < goal and program.poll() is None:
                time.sleep(0.01)
            time.sleep(chosen.uniform(0, 1))
            os.killpg(program.pid, signal.SIGKILL)
    with _start(options, folder, sink) as program:
        assert program.wait(1800) == 0


def _start(options: Mapping[str, str], folder: Path, sink: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    """Start the program as the leader of a group of processes, to which its JVM belongs."""
    command = [sys.executable, str(_PROGRAM), json.dumps(dict(options)), str(folder)]
    if sink is not None:
        command.append(json.dumps(dict(sink)))
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def _planned(folder: Path) -> int:
    """Return how many micro-batches Spark has planned; the newest may have been done or not."""
    return len(list((folder / "checkpoint" / "offsets").glob("[0-9]*")))
