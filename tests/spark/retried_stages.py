"""Run by test_retries.py: a cluster of two executors on this machine, whose tasks fail, whose stages run again, and
whose slow tasks have a second attempt. Prints what was read and the tasks' marks, as JSON.

Spark in ``local[2]`` runs each task once. Executors are processes here: one dies with the shuffle files of a stage, so
that the stage runs again. A second attempt of a task goes to another host, so each executor has an address of its own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
from pyspark import TaskContext

PATIENCE_S = 60


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
        if context.partitionId() == 0 and not is_first:
            once(marks, f"{name}-second")
        for batch in batches:
            yield batch
            end_s = time.monotonic() + PATIENCE_S
            while is_first and not (Path(marks) / f"{name}-second").exists() and time.monotonic() < end_s:
                time.sleep(0.01)

    return rows


def ending_executor(marks: str, name: str) -> Any:
    """Let the first task kill its executor, with all shuffle files that lie there."""

    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        if once(marks, name):
            pid = os.getpid()
            while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
                pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            os.kill(pid, signal.SIGKILL)
            time.sleep(PATIENCE_S)
        yield from batches

    return rows


def started(folder: str, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Start a server of Spark's; return it, and its address as its log names it."""
    environment = {**os.environ, "SPARK_WORKER_DIR": f"{folder}/work"}
    command = [f"{os.environ['SPARK_HOME']}/bin/spark-class", *arguments, "--port", "0", "--webui-port", "0"]
    log = Path(folder) / f"{arguments[0]}-{arguments[2]}.log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stderr=file, stdout=file, env=environment, text=True)
    end_s = time.monotonic() + PATIENCE_S
    while (found := re.search(r"spark://[\d.]+:\d+", log.read_text())) is None:
        if process.poll() is not None or time.monotonic() > end_s:
            sys.exit(f"{command} did not start:\n{log.read_text()}")
        time.sleep(0.05)
    return process, found[0]


def main(store: str, folder: str, jars: str) -> None:
    """Start the cluster, read and write, and end it; SIGTERM ends it, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    servers: list[subprocess.Popen[str]] = []
    try:
        master, address = started(folder, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1")
        servers.append(master)
        for host in ("127.0.0.2", "127.0.0.3"):
            room = ("--cores", "2", "--memory", "1g")
            worker, _ = started(folder, "org.apache.spark.deploy.worker.Worker", "--host", host, *room, address)
            servers.append(worker)
        run(address, store, folder, jars)
    finally:
        for server in reversed(servers):
            server.terminate()
        for server in servers:
            server.wait()


def run(address: str, store: str, folder: str, jars: str) -> None:
    """Read and write in every weather."""
    from pyspark.sql import SparkSession

    marks = Path(folder) / "marks"
    marks.mkdir()
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
    print(json.dumps({**results, "marks": sorted(entry.name for entry in marks.iterdir())}), flush=True)
    session.stop()


def write(frame: Any, store: str, topic: str) -> None:
    """Append ids as bodies."""
    rows = frame.selectExpr("CAST(id AS STRING) AS body")
    rows.write.format("cometmq").options(path=store, topic=topic.replace(" ", "-")).mode("append").save()


if __name__ == "__main__":
    main(*sys.argv[1:])
