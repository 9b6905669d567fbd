"""The questions, as each engine is asked them over each source. Answers are tuples, the same of every source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import duckdb
import polars as pl

import cometmq
from query.data import TAG, TOPIC, Sources

Answer = tuple[Any, ...]
Ask = Callable[[], Answer]


@dataclass(frozen=True)
class Question:
    """A query of the benchmark."""

    name: str
    columns: tuple[str, ...]
    """The columns read from the store."""
    condition: str
    """SQL that the Parquet files are filtered by; the scan has a filter of its own for it."""
    filters: dict[str, Any]
    duckdb: str
    polars: Callable[[pl.LazyFrame], pl.LazyFrame]


def _lengths(frame: pl.LazyFrame) -> pl.LazyFrame:
    return frame.select(pl.len().alias("n"), pl.col("body").bin.size().sum().alias("s"))


def _hashes(frame: pl.LazyFrame) -> pl.LazyFrame:
    return frame.select(pl.len().alias("n"), pl.col("body").hash().sum().alias("h"))


def questions(store: cometmq.Store, sources: Sources) -> list[Question]:
    """Return the questions; times are those of this store: one hundredth of its messages, in the middle."""
    count = sources.data.messages // 4
    begin = store.get(TOPIC, 0, count * 495 // 1000).store_timestamp_ms
    end = store.get(TOPIC, 0, count * 505 // 1000).store_timestamp_ms + 1
    lengths = "select count(*), sum(octet_length(body))::bigint from {source}{where}"
    times = f"store_timestamp >= make_timestamptz({begin}000) and store_timestamp < make_timestamptz({end}000)"
    return [
        Question(
            "hash every byte", ("body",), "", {}, "select count(*), bit_xor(hash(body)) from {source}{where}", _hashes
        ),
        Question("sum of lengths", ("body",), "", {}, lengths, _lengths),
        Question("tag, 1 %", ("body",), f"tags = '{TAG}'", {"tags": TAG}, lengths, _lengths),
        Question("one key", ("body",), f"keys = '{sources.data.key}'", {"keys": [sources.data.key]}, lengths, _lengths),
        Question("time range, 1 %", ("body",), times, {"start_time": begin, "end_time": end}, lengths, _lengths),
        Question(
            "count", ("queue_id",), "", {}, "select count(*) from {source}", lambda f: f.select(pl.len().alias("n"))
        ),
    ]


def duckdb_asks(
    connection: duckdb.DuckDBPyConnection, store: cometmq.Store, sources: Sources, question: Question
) -> dict[str, Ask]:
    """DuckDB over the scan's stream, and over the files; one connection for all."""
    where = f" where {question.condition}" if question.condition else ""

    def over_log() -> Answer:
        connection.register("scan", _scan(store, question))
        return connection.sql(question.duckdb.format(source="scan", where="")).fetchall()[0]

    def over_file(path: str) -> Answer:
        return connection.sql(question.duckdb.format(source=f"'{path}'", where=where)).fetchall()[0]

    return {
        "cometmq": (lambda: (store.scan(TOPIC).count(),)) if question.name == "count" else over_log,
        "parquet none": lambda: over_file(str(sources.parquet_none)),
        "parquet zstd": lambda: over_file(str(sources.parquet_zstd)),
    }


def polars_asks(store: cometmq.Store, sources: Sources, question: Question) -> dict[str, Ask]:
    """Polars over a frame of views, and over the files by its lazy reader, which skips columns and row groups."""

    def over_log() -> Answer:
        frame = pl.DataFrame(_scan(store, question))
        return question.polars(frame.lazy()).collect().row(0)

    def over_file(path: str) -> Answer:
        frame = pl.scan_parquet(path)
        if question.condition:
            frame = frame.filter(_polars_condition(question))
        return question.polars(frame).collect().row(0)

    return {
        "cometmq": (lambda: (store.scan(TOPIC).count(),)) if question.name == "count" else over_log,
        "parquet none": lambda: over_file(str(sources.parquet_none)),
        "parquet zstd": lambda: over_file(str(sources.parquet_zstd)),
    }


def _scan(store: cometmq.Store, question: Question) -> Any:
    return store.scan(TOPIC, columns=question.columns, **question.filters)


def _polars_condition(question: Question) -> pl.Expr:
    filters = question.filters
    if "tags" in filters:
        return pl.col("tags") == filters["tags"]
    if "keys" in filters:
        return pl.col("keys") == filters["keys"][0]
    moment = pl.col("store_timestamp").dt.epoch("ms")
    return (moment >= filters["start_time"]) & (moment < filters["end_time"])
