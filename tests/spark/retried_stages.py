"""Run by test_retries.py on a cluster of two executors: tasks fail, stages run again, and slow tasks have a second
attempt. Writes what was read and the tasks' marks to a file, as JSON.

Spark in ``local[2]`` runs each task once. Executors are processes here: one dies with the shuffle files of a stage, so
that the stage runs again.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

SLOW = ("read-slow", "write-slow")


def pipe_of(marks: str, name: str) -> int:
    """Open the pipe over which a second attempt wakes the first one. The driver holds it open, too."""
    return os.open(Path(marks).parent / f"{name}.pipe", os.O_RDWR)


def once(marks: str, name: str) -> bool:
    """Return True to the first caller alone, of all processes."""
    try:
        os.close(os.open(Path(marks) / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def failing(marks: str, name: str) -> Any:
    """Let the first attempt of each task fail behind its first rows."""

    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            if number and once(marks, f"{name}-{context.partitionId()}"):
                raise RuntimeError("the first attempt fails")
            yield batch

    return rows


def slow(marks: str, name: str) -> Any:
    """Let the first attempt of task 0 wait behind its first rows until another one has begun."""

    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        is_first = context.partitionId() == 0 and once(marks, f"{name}-first")
        pipe = pipe_of(marks, name)
        try:
            if context.partitionId() == 0 and not is_first and once(marks, f"{name}-second"):
                os.write(pipe, b"x")
            for number, batch in enumerate(batches):
                yield batch
                if is_first and number == 0:
                    os.read(pipe, 1)
        finally:
            os.close(pipe)

    return rows


def ending_executor(marks: str, name: str) -> Any:
    """Let the first task kill its executor, with all shuffle files that lie there."""

    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        if once(marks, name):
            pid = os.getpid()
            while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
                pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            end = os.pidfd_open(pid)
            os.kill(pid, signal.SIGKILL)
            select.select([end], [], [])
        yield from batches

    return rows


def main(address: str, store: str, folder: str, jars: str) -> None:
    """Read and write in every weather."""
    from pyspark.sql import SparkSession

    marks = Path(folder) / "marks"
    marks.mkdir()
    for name in SLOW:
        os.mkfifo(Path(folder) / f"{name}.pipe")
    pipes = [pipe_of(str(marks), name) for name in SLOW]
    session = (
        SparkSession.builder.master(address)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", folder)
        .config("spark.jars", jars)
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.task.maxFailures", "4")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "50ms")
        .config("spark.speculation.multiplier", "1.01")
        .config("spark.speculation.quantile", "0.3")
        .config("spark.speculation.minTaskRuntime", "10ms")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.cores", "2")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    results: dict[str, list[int]] = {}
    weathers = {"failing": failing, "slow": slow}

    def source() -> Any:
        options = {"path": store, "topic": "t", "minPartitions": "3"}
        frame = session.read.format("cometmq").options(**options).load()
        return frame.selectExpr("CAST(CAST(body AS STRING) AS LONG) AS id")

    def numbers(frame: Any) -> list[int]:
        return sorted(row.id for row in frame.collect())

    for name, weather in weathers.items():
        frame = source()
        results[f"read {name}"] = numbers(frame.mapInArrow(weather(str(marks), f"read-{name}"), "id LONG"))
        written = session.range(0, 2000, 1, 3).mapInArrow(weather(str(marks), f"write-{name}"), "id LONG")
        write(written, store, f"written {name}")
    shuffled = source().repartition(2)
    results["read again"] = numbers(shuffled.mapInArrow(ending_executor(str(marks), "read-again"), "id LONG"))
    shuffled = session.range(0, 2000, 1, 3).repartition(2)
    write(shuffled.mapInArrow(ending_executor(str(marks), "write-again"), "id LONG"), store, "written again")
    found = {**results, "marks": sorted(entry.name for entry in marks.iterdir())}
    (Path(folder) / "results.json").write_text(json.dumps(found))
    session.stop()
    for pipe in pipes:
        os.close(pipe)


def write(frame: Any, store: str, topic: str) -> None:
    """Append ids as bodies."""
    rows = frame.selectExpr("CAST(id AS STRING) AS body")
    rows.write.format("cometmq").options(path=store, topic=topic.replace(" ", "-")).mode("append").save()


if __name__ == "__main__":
    main(*sys.argv[1:])
