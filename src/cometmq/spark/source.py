"""``spark.read.format("cometmq")``: the batch reader, without and with Spark's pushed filters.

Two classes, since Spark refuses to plan a reader that has ``pushFilters`` while its configuration forbids pushing.
The reader travels to the executors once per query; a partition is only its ranges.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from cometmq.spark.catalog import Catalog, open_catalog, selected_queues, selected_topics
from cometmq.spark.fetch import ReadPlan, record_batches
from cometmq.spark.filters import Pushed, narrowed, narrowed_by_time, push
from cometmq.spark.options import ReadOptions
from cometmq.spark.planning import QueueRange, plan_partitions
from cometmq.spark.ranges import EndPolicy, batch_ranges
from cometmq.spark.schema import columns_of_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

__all__ = ["BatchReader", "PushingReader", "RangePartition", "partitions_of", "read_plan"]


class RangePartition(InputPartition):
    """The ranges of queues that one task reads."""

    def __init__(self, ranges: Sequence[QueueRange]) -> None:
        """Keep plain values: they are pickled for every task."""
        self.ranges = [(one.topic, one.queue_id, one.start, one.end, one.broker) for one in ranges]

    def __repr__(self) -> str:
        """Say the ranges."""
        return f"RangePartition({self.ranges})"

    def queue_ranges(self) -> list[QueueRange]:
        """Return the ranges."""
        return [QueueRange(*one) for one in self.ranges]


def read_plan(options: ReadOptions, schema: StructType) -> ReadPlan:
    """Return what tasks need of the options.

    Raises:
        OptionError: a column is unknown or of another type.
    """
    return ReadPlan(
        path=options.path,
        config=options.config,
        name_servers=options.name_servers,
        pull_timeout_ms=options.pull_timeout_ms,
        columns=columns_of_schema(schema, options),
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


def partitions_of(
    catalog: Catalog, ranges: Sequence[QueueRange], options: ReadOptions, tags: Collection[str]
) -> list[InputPartition]:
    """Deal ranges out to tasks, by what has to be read for messages with ``tags`` (empty: all)."""
    tasks = plan_partitions(
        ranges,
        partial(catalog.row_bytes, tags=tags),
        max_bytes=options.max_partition_bytes,
        min_partitions=options.min_partitions,
    )
    return [RangePartition(task) for task in tasks]


class BatchReader(DataSourceReader):
    """Reads what was there when the query was planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Check the columns. Nothing is opened yet."""
        self._options = options
        self._plan = read_plan(options, schema)
        self._pushed = Pushed()

    def partitions(self) -> Sequence[InputPartition]:
        """Fix the ends of all queues, and deal the ranges out. Spark asks once per ``load()``, in its first query.

        Raises:
            OptionError, DataLoss: an option does not fit what is there.
            CorruptRecord: messages behind damage cannot be read.
        """
        options = self._options
        with open_catalog(options) as catalog:
            queues = selected_queues(catalog, selected_topics(catalog, options.subscription))
            EndPolicy(skip=options.skip_corrupt).check(catalog)
            ranges = narrowed(batch_ranges(catalog, queues, options), self._pushed)
            if options.name_servers:
                ranges = narrowed_by_time(catalog, ranges, self._pushed)
            elif self._plan.keys:
                # The index finds them at once: a single small task.
                return [RangePartition([one for one in ranges if one.rows])]
            return partitions_of(catalog, ranges, options, self._plan.tags)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows. For no partitions at all Spark makes one of its own, which is empty."""
        if isinstance(partition, RangePartition) and partition.ranges:
            yield from record_batches(self._plan, partition.queue_ranges())


class PushingReader(BatchReader):
    """The same, and takes what follows from Spark's filters away before it is read.

    Spark (4.2, 4.3) keeps what the latest ``pushFilters`` of a loaded frame made, and uses it for all later queries of
    that frame, those without filters too. So a frame with ``pushdown=true`` is good for one query.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Note the bounds; every filter goes back to Spark, which applies it again."""
        pushed = push(filters, self._plan.columns)
        tags = _both(pushed.tags, self._plan.tags)
        # A message may have a key of each: with the option, the filters' are left to Spark.
        keys = frozenset(self._plan.keys) or pushed.keys
        if tags == frozenset() or keys == frozenset():
            pushed = replace(pushed, topics=frozenset())
        self._pushed = pushed
        self._plan = replace(
            self._plan,
            tags=tuple(sorted(tags or ())),
            keys=tuple(sorted(keys or ())),
            time_low_ms=pushed.time_low_ms,
            time_high_ms=pushed.time_high_ms,
        )
        return filters


def _both(pushed: frozenset[str] | None, asked: Sequence[str]) -> frozenset[str] | None:
    """Return what the filters and the option allow together; None for all."""
    if pushed is None:
        return frozenset(asked) or None
    return pushed & frozenset(asked) if asked else pushed
