"""Spark's batch queries: the log, Parquet of the same rows, and a source of tuples. Answers must agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import cometmq
from cometmq.spark import jars
from query.data import QUEUES, TAG, TOPIC, Sources

Answer = tuple[Any, ...]
Ask = Callable[[], Answer]

FIVE = "queueId,queueOffset,bornTimestamp,storeTimestamp,body"
WHOLE = "five columns"
HASH = "hash every byte"
NOOP = "noop sink"
COUNT = "count"
ENDS = "lowest and highest offset"
EMPTY = "empty job"
JVM = "cometmq jvm"
PARQUET = "parquet none"
NARROW = {HASH: "body", "sum of lengths": "body", COUNT: "queueOffset", ENDS: "queueOffset"}
"""Columns of the questions that are not asked of all five."""
FILTERED = ("tag, 1 %", "one key", "offset range, 1 %", "time range, 1 %")
PLANNED = (COUNT, ENDS, "time range, 1 %")
"""Questions that cost little more than a job without rows, whatever the size of the data."""
GOALS = (WHOLE, HASH, NOOP, "tag, 1 %", *PLANNED)
"""Questions for which the engine in the JVM has goals."""

HASH_FIVE = "bit_xor(xxhash64(CAST(queueId AS INT), CAST(queueOffset AS BIGINT), bornTimestamp, storeTimestamp, body))"
_RENAMED = (
    "queue_id AS queueId",
    "queue_offset AS queueOffset",
    "born_timestamp AS bornTimestamp",
    "store_timestamp AS storeTimestamp",
    "body",
    "tags",
    "keys",
)


@dataclass(frozen=True)
class Question:
    """A query: of the log by columns and options, of Parquet by a condition."""

    name: str
    answer: str
    options: dict[str, str] = field(default_factory=dict)
    condition: str = "true"

    @property
    def columns(self) -> str:
        """The columns read from the log: as the frame is loaded, since Spark asks a Python source for all of it."""
        return NARROW.get(self.name, FIVE)


def questions(sources: Sources) -> list[Question]:
    """Return the questions; ranges are one hundredth of the messages, in the middle."""
    with cometmq.open(sources.store, mode="r") as store:
        count = store.max_offset(TOPIC, 0)
        begin, end = count * 495 // 1000, count * 505 // 1000
        # Up to the millisecond after the last message's: many are stored in one.
        begin_ms, end_ms = (store.get(TOPIC, 0, number).store_timestamp_ms for number in (begin, end))
    end_ms += 1
    offsets = [json.dumps({TOPIC: {str(queue): number for queue in range(QUEUES)}}) for number in (begin, end)]
    times = f"storeTimestamp >= timestamp_millis({begin_ms}) AND storeTimestamp < timestamp_millis({end_ms})"
    return [
        Question(WHOLE, HASH_FIVE),
        Question(HASH, "bit_xor(xxhash64(body))"),
        Question("sum of lengths", "sum(octet_length(body))"),
        Question(COUNT, "0"),
        Question(ENDS, "struct(min(queueOffset), max(queueOffset))"),
        Question(NOOP, ""),
        Question("tag, 1 %", HASH_FIVE, options={"tags": TAG}, condition=f"tags = '{TAG}'"),
        Question(
            "one key",
            HASH_FIVE,
            options={"keys": sources.data.key},
            condition=f"keys = '{sources.data.key}'",
        ),
        Question(
            "offset range, 1 %",
            HASH_FIVE,
            options={"startingOffsets": offsets[0], "endingOffsets": offsets[1]},
            condition=f"queueOffset >= {begin} AND queueOffset < {end}",
        ),
        Question(
            "time range, 1 %",
            HASH_FIVE,
            options={"startingTimestamp": str(begin_ms), "endingTimestamp": str(end_ms)},
            condition=times,
        ),
    ]


def from_log(spark: SparkSession, sources: Sources, **options: str) -> DataFrame:
    """The store as a frame."""
    return spark.read.format("cometmq").options(path=str(sources.store), topic=TOPIC, **options).load()


def from_parquet(spark: SparkSession, path: object) -> DataFrame:
    """A file as a frame with the log's names."""
    return spark.read.parquet(str(path)).selectExpr(*_RENAMED)


def asking(frame: DataFrame, answer: str) -> Ask:
    """Return what asks a frame for the number of its rows and ``answer``."""
    return lambda: tuple(frame.selectExpr("count(*)", answer).collect()[0])


def sinking(frame: DataFrame, messages: int) -> Ask:
    """Return what gives all rows of a frame to Spark's sink that drops them. The rows are known, not counted."""

    def ask() -> Answer:
        frame.select(*FIVE.split(",")).write.format("noop").mode("overwrite").save()
        return messages, None

    return ask


def empty_job(spark: SparkSession) -> Ask:
    """Return what runs two tasks without rows."""
    return asking(spark.range(0, 0, 1, 2).toDF("id"), "bit_xor(id)")


def all_asks(spark: SparkSession, sources: Sources, *, only_goals: bool) -> dict[tuple[str, str], Ask]:
    """Every question by (name, source).

    With ``only_goals`` those of :data:`GOALS`, of the engine in the JVM and uncompressed Parquet. The frames
    are loaded here: that is not measured.
    """
    found: dict[tuple[str, str], Ask] = {}
    files = {PARQUET: from_parquet(spark, sources.parquet_none)}
    if not only_goals:
        files["parquet zstd"] = from_parquet(spark, sources.parquet_zstd)
    for question in questions(sources):
        if only_goals and question.name not in GOALS:
            continue
        frames = {}
        if not only_goals:
            options = {"columns": question.columns, "engine": "python", **question.options}
            frames["cometmq"] = from_log(spark, sources, **options)
        if jars():
            # It prunes columns itself.
            frames[JVM] = from_log(spark, sources, engine="jvm", **question.options)
        frames |= {source: frame.where(question.condition) for source, frame in files.items()}
        for source, frame in frames.items():
            is_sink = question.name == NOOP
            ask = sinking(frame, sources.data.messages) if is_sink else asking(frame, question.answer)
            found[question.name, source] = ask
    found[EMPTY, "spark"] = empty_job(spark)
    return found


def tuple_asks(spark: SparkSession, sources: Sources, rows: int) -> tuple[Ask, Ask]:
    """The same ``rows`` through tuples and through the log's own source, as (tuples, log)."""
    from query.spark_tuples import TupleSource

    spark.dataSource.register(TupleSource)
    end = rows // QUEUES
    tuples = spark.read.format("tuples").options(path=str(sources.store), topic=TOPIC, queues=QUEUES, end=end).load()
    ends = json.dumps({TOPIC: {str(queue): end for queue in range(QUEUES)}})
    return asking(tuples, HASH_FIVE), asking(from_log(spark, sources, columns=FIVE, endingOffsets=ends), HASH_FIVE)
