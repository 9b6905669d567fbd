"""Checks: a data frame becomes messages, all or none of them, whoever holds the store, through either engine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import cometmq
from cometmq.spark import jars
from support.small_store import open_small

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def numbers(spark: SparkSession, count: int, tasks: int = 3) -> DataFrame:
    return spark.range(0, count, 1, tasks)


@pytest.fixture(autouse=True, params=["python", "jvm"])
def engine(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """Every test writes through both."""
    name: str = request.param
    if name == "jvm" and not jars():
        pytest.skip("the engine for the JVM is not built: Java 17's javac was not found")
    spark.conf.set("spark.datasource.cometmq.engine", name)
    yield name
    spark.conf.unset("spark.datasource.cometmq.engine")


def write(frame: DataFrame, path: Path, **options: str) -> None:
    frame.write.format("cometmq").options(**{"path": str(path), "topic": "t", **options}).mode("append").save()


def bodies(path: Path, topic: str = "t") -> list[int]:
    with cometmq.open(path, mode="r") as store:
        return sorted(int(bytes(message)) for message in store.read(topic))


def left_over(path: Path) -> list[str]:
    folder = path / "cometmq" / "staged"
    return sorted(entry.name for entry in folder.iterdir() if entry.name != "done") if folder.exists() else []


@pytest.fixture
def small(path: Path) -> Path:
    with open_small(path) as store:
        store.append("other", b"0")
    return path


def test_all_columns(spark: SparkSession, small: Path) -> None:
    frame = numbers(spark, 1000).selectExpr(
        "CAST(id AS STRING) AS body",
        "concat('topic', id % 2) AS topic",
        "IF(id % 3 = 0, 'third', NULL) AS tags",
        "array(concat('k', id), 'all') AS keys",
        "map('region', IF(id % 5 = 0, 'eu', 'us'), 'nothing', NULL) AS properties",
        "IF(id < 10, CAST(2 AS INT), NULL) AS queue",
        "IF(id >= 500, 'customer', NULL) AS shardKey",
    )
    write(frame, small, topicQueues="4")
    with cometmq.open(small, mode="r") as store:
        for parity in (0, 1):
            messages = {int(bytes(message)): message for message in store.read(f"topic{parity}")}
            assert sorted(messages) == list(range(parity, 1000, 2))
            for number, message in messages.items():
                assert message.tags == ("third" if number % 3 == 0 else None)
                assert message.keys == (f"k{number}", "all")
                assert message.properties["region"] == ("eu" if number % 5 == 0 else "us")
                assert "nothing" not in message.properties
                assert number >= 10 or message.queue_id == 2
            assert len({message.queue_id for number, message in messages.items() if number >= 500}) == 1
            assert store.topic(f"topic{parity}").write_queues == 4
        assert [bytes(message) for message in store.find("topic1", "k77")] == [b"77"]
    assert left_over(small) == []


def test_there_and_back(spark: SparkSession, small: Path, tmp_path: Path) -> None:
    write(numbers(spark, 500).selectExpr("CAST(id AS STRING) AS body", "'x' AS tags"), small)
    frame = spark.read.format("cometmq").options(path=str(small), topic="t").load()
    write(frame.select("body", "tags"), tmp_path / "new", topic="copy")
    assert bodies(tmp_path / "new", "copy") == list(range(500))


def test_a_path_leads_over_symbolic_links(spark: SparkSession, small: Path, tmp_path: Path) -> None:
    (tmp_path / "above").symlink_to(small.parent)
    (tmp_path / "link").symlink_to(tmp_path / "above" / small.name)
    write(numbers(spark, 5).selectExpr("CAST(id AS STRING) AS body"), tmp_path / "link")
    assert bodies(small) == list(range(5))


def test_order_within_a_task_is_kept(spark: SparkSession, small: Path) -> None:
    write(numbers(spark, 20_000, 2).selectExpr("CAST(id AS STRING) AS body"), small)
    with cometmq.open(small, mode="r") as store:
        assert [int(bytes(message)) for message in store.read("t")] == list(range(20_000))


@pytest.fixture
def held(small: Path) -> Iterator[cometmq.Store]:
    with open_small(small) as store:
        yield store


def test_a_store_that_this_process_holds(spark: SparkSession, small: Path, held: cometmq.Store) -> None:
    write(numbers(spark, 300).selectExpr("CAST(id AS STRING) AS body"), small)
    assert sorted(int(bytes(message)) for message in held.read("t")) == list(range(300))
    held.append("t", b"300")
    assert bodies(small) == list(range(301))


def test_a_job_id_writes_once(spark: SparkSession, small: Path, engine: str) -> None:
    frame = numbers(spark, 50).selectExpr("CAST(id AS STRING) AS body")
    for _ in range(2):
        write(frame, small, jobId="daily:21")
    write(frame, small, jobId="daily:21", engine="auto" if engine == "python" else "python")  # the other one
    assert bodies(small) == list(range(50))
    write(frame, small)
    assert len(bodies(small)) == 100


def test_a_failing_task_leaves_nothing(spark: SparkSession, small: Path) -> None:
    frame = numbers(spark, 40_000, 4).selectExpr(
        "IF(id = 39000, CAST(raise_error('task fails') AS STRING), CAST(id AS STRING)) AS body"
    )
    with pytest.raises(Exception, match="task fails"):
        write(frame, small)
    with cometmq.open(small, mode="r") as store:
        assert "t" not in store.topics()
    assert left_over(small) == []
    write(numbers(spark, 10).selectExpr("CAST(id AS STRING) AS body"), small)
    assert bodies(small) == list(range(10))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing is appended; run again, the job has no room to stage; and the rows come once when there is room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=14m", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a file system cannot be mounted here")
    try:
        with open_small(disk / "store") as store:
            store.append("t", b"0")
        frame = numbers(spark, 100).selectExpr("repeat(CAST(1000 + id AS STRING), 20000) AS body")
        for text in (r"wait.*do not (run|write)", "No space left"):
            with pytest.raises(Exception, match=text):
                write(frame, disk / "store", jobId="once", commitTimeoutMs="500")
            with cometmq.open(disk / "store", mode="r") as store:
                assert [bytes(message) for message in store.read("t")] == [b"0"]
        subprocess.run(["mount", "-o", "remount,size=60m", str(disk)], check=True)
        write(frame, disk / "store", jobId="once")
        with cometmq.open(disk / "store", mode="r") as store:
            found = sorted(int(bytes(message)[:4]) for message in store.read("t"))
        assert found == [0, *range(1000, 1100)]
        assert left_over(disk / "store") == []
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize(
    ("columns", "options", "match"),
    [
        (["CAST(id AS STRING) AS text"], {}, "the column 'text' cannot be written"),
        (["'x' AS tags"], {}, "no column body"),
        (["id AS body"], {}, "the column body must be string or binary, not bigint"),
        (["CAST(id AS STRING) AS body", "'a/b' AS topic"], {}, "the column topic: .*a/b"),
        (["CAST(id AS STRING) AS body"], {"topic": "a/b"}, "option topic: .*a/b"),
        (["CAST(NULL AS STRING) AS body"], {}, "the column body has a null"),
        (["CAST(id AS STRING) AS body", "7 AS queue"], {}, "has the queues 0 to 0, and no 7"),
        (["CAST(id AS STRING) AS body"], {"nameServer": "x"}, "option nameServer|brokers are reached through Python"),
        (["CAST(id AS STRING) AS body", "' x' AS tags"], {}, "the column tags has ' x'"),
        (["repeat('x', 5000000) AS body"], {}, "the column body has one of 5000000 bytes; at most 4194304"),
        (
            ["CAST(id AS STRING) AS body", "repeat('k', 33000) AS keys"],
            {},
            "the columns keys of a row together",
        ),
        (["CAST(id AS STRING) AS body"], {"tags": "x"}, "option tags: is an option of reading"),
    ],
)
def test_invalid_rows_and_options_are_refused(
    spark: SparkSession, small: Path, columns: list[str], options: dict[str, str], match: str
) -> None:
    with pytest.raises(Exception, match=match):
        write(numbers(spark, 3).selectExpr(*columns), small, **options)
    with cometmq.open(small, mode="r") as store:
        assert store.topics() in (["other"], ["other", "t"])
        assert "t" not in store.topics() or store.topic("t").messages == 0
    assert left_over(small) == []


def test_modes(spark: SparkSession, small: Path) -> None:
    writer = numbers(spark, 3).selectExpr("CAST(id AS STRING) AS body").write.format("cometmq")
    writer = writer.options(path=str(small), topic="t")
    with pytest.raises(Exception, match=r'option mode: .* write with mode\("append"\)'):
        writer.mode("overwrite").save()
    for mode in ("error", "ignore"):
        # Spark's own words, before it asks us.
        with pytest.raises(Exception, match=r"cannot be written in the .* mode"):
            writer.mode(mode).save()
