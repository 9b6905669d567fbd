"""The rows that Spark would read, without Spark: options to rows, as the planner and the tasks do it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from cometmq.spark.catalog import open_catalog, selected_queues, selected_topics
from cometmq.spark.fetch import ReadPlan, record_batches
from cometmq.spark.options import OptionMap, ReadOptions
from cometmq.spark.ranges import batch_ranges
from cometmq.spark.schema import chosen_columns

__all__ = ["plan_of", "read_batches", "read_rows"]


def plan_of(options: ReadOptions) -> ReadPlan:
    """Return what tasks get."""
    return ReadPlan(
        path=options.path,
        config=options.config,
        name_servers=options.name_servers,
        pull_timeout_ms=options.pull_timeout_ms,
        columns=chosen_columns(options),
        tags=options.tags,
        where=options.where,
        keys=options.keys,
        time_low_ms=None,
        time_high_ms=None,
        batch_rows=options.batch_rows,
        batch_bytes=options.batch_bytes,
        skip_corrupt=options.skip_corrupt,
        fail_on_data_loss=options.fail_on_data_loss,
    )


def read_batches(options: ReadOptions) -> list[pa.RecordBatch]:
    """Return all batches."""
    with open_catalog(options) as catalog:
        queues = selected_queues(catalog, selected_topics(catalog, options.subscription))
        ranges = batch_ranges(catalog, queues, options)
    return list(record_batches(plan_of(options), ranges))


def read_rows(**options: str) -> list[dict[str, Any]]:
    """Return all rows."""
    return [row for batch in read_batches(ReadOptions.of(OptionMap(options))) for row in batch.to_pylist()]
