"""The rows of a task's ranges as Arrow batches of exactly the types that Spark takes.

Where records come from only a :class:`RowSource` knows: :class:`StoreRows` reads a store's files,
:class:`cometmq.spark.wire_rows.WireRows` asks brokers. Planning, types and everything else are the same for both.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from cometmq._engine import ColumnScan, Selector
from cometmq.errors import CorruptRecord
from cometmq.spark.catalog import open_store
from cometmq.spark.planning import QueueRange
from cometmq.spark.ranges import LossPolicy
from cometmq.spark.schema import Column, spark_arrow_schema

if TYPE_CHECKING:
    from types import TracebackType

    import cometmq
    from cometmq._engine import StoreHandle

__all__ = [
    "Capsules",
    "ReadPlan",
    "RecordScan",
    "RowSource",
    "StoreRows",
    "conformed",
    "record_batches",
    "scan_columns",
]

_log = logging.getLogger("cometmq.spark")

_LOG_APPEND_TIME = 1
"""Kafka's number for "the time at which it was stored", which ``timestamp`` is in the Kafka form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """The plan that every task of a query needs; it travels with the reader, once.

    Attributes:
        path: the store's directory; None where brokers are asked.
        config: the broker's settings file, or None.
        name_servers: name servers of the brokers; none where a store is read.
        pull_timeout_ms: how long a broker that does not answer is tried again.
        columns: the columns.
        tags: only messages with one of these tags; empty: all.
        where: only messages for whose properties this SQL92 expression is true; None: all.
        keys: only messages with one of these keys, through the index; empty: all.
        time_low_ms: earliest store time, or None.
        time_high_ms: latest store time, or None.
        batch_rows: most rows of a batch.
        batch_bytes: most bytes of bodies of a batch, but for a single larger one.
        skip_corrupt: count damaged records and go on.
        fail_on_data_loss: fail where messages of a range have expired.
    """

    path: str | None
    config: str | None
    name_servers: tuple[str, ...] = ()
    pull_timeout_ms: int = 0
    columns: tuple[Column, ...]
    tags: tuple[str, ...]
    where: str | None
    keys: tuple[str, ...]
    time_low_ms: int | None
    time_high_ms: int | None
    batch_rows: int
    batch_bytes: int
    skip_corrupt: bool
    fail_on_data_loss: bool

    @property
    def filtered(self) -> bool:
        """True where messages of the ranges may be left out by their properties."""
        return bool(self.tags or self.keys or self.where is not None)

    @property
    def selector(self) -> Selector | None:
        """``where``, compiled."""
        return None if self.where is None else Selector(self.where)


class RecordScan(Protocol):
    """The used methods of ``cometmq._engine.ColumnScan`` and ``RecordColumns``."""

    def next_batch(self) -> tuple[object, object] | None:
        """Return the capsules of schema and array of the next batch, or None at the end."""
        ...

    def skipped(self) -> Mapping[str, Any]:
        """Return what did not come as it was stored: records, offsets, invalid_texts, expired."""
        ...

    def close(self) -> None:
        """End the scan."""
        ...


class Capsules:
    """A batch as pyarrow takes it."""

    def __init__(self, capsules: tuple[object, object]) -> None:
        """Keep the capsules of schema and array."""
        self._capsules = capsules

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """Return the capsules of schema and array."""
        return self._capsules


class RowSource(Protocol):
    """Where the rows of ranges come from; a context manager."""

    def batches(self, ranges: Sequence[QueueRange]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ranges, with one array per column of the plan that is scanned, in its order.

        Raises:
            DataLoss: messages of the ranges are not there, and must be.
        """
        ...

    def __enter__(self) -> RowSource:
        """Return the source itself."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        ...


def open_rows(plan: ReadPlan) -> RowSource:
    """Return where the rows of a plan come from."""
    if plan.name_servers:
        from cometmq.spark.wire_rows import WireRows

        return WireRows(plan)
    return StoreRows(plan)


def record_batches(plan: ReadPlan, ranges: Sequence[QueueRange]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ranges in Spark's types."""
    schema = spark_arrow_schema(plan.columns)
    with open_rows(plan) as source:
        for batch in source.batches(ranges):
            yield conformed(batch, plan.columns, schema)


class StoreRows:
    """Rows from a store's files, also while another process writes. One thread at a time."""

    def __init__(self, plan: ReadPlan) -> None:
        """Open the store.

        Raises:
            PathMissing: the directory is not there; the text names this host.
        """
        assert plan.path is not None
        self._plan = plan
        self._loss = LossPolicy(fail=plan.fail_on_data_loss)
        self._store: cometmq.Store = open_store(plan.path, plan.config, on_executor=True)

    def _check(self, ranges: Sequence[QueueRange]) -> int:
        """Return how many rows the ranges have, where nothing is filtered."""
        rows = 0
        for one in ranges:
            found = self._store.handle.queue(one.topic, one.queue_id)
            low, high = (0, 0) if found is None else (found[1], found[2])
            if one.rows and (low > one.start or high < one.end):
                self._loss.lost(
                    f"the messages {one.start} to {one.end - 1} of {one.key.named} are not all there any more: "
                    f"the queue has {low} to {high}"
                )
            rows += max(min(high, one.end) - max(low, one.start), 0)
        return rows

    def batches(self, ranges: Sequence[QueueRange]) -> Iterator[pa.RecordBatch]:
        """See :class:`RowSource`."""
        plan = self._plan
        planned, rows = self._check(ranges), 0
        scan = _open_scan(self._store.handle, plan, ranges)
        try:
            while (capsules := scan.next_batch()) is not None:
                batch = pa.record_batch(Capsules(capsules))
                rows += batch.num_rows
                yield batch
        except CorruptRecord as error:
            raise CorruptRecord(
                f"{error}; option onCorrupt=skip goes round damage and reports it, and cometmq verify {plan.path} "
                "shows all of it",
                offset=error.offset,
            ) from error
        else:
            self._account(scan, ranges, planned - rows)
        finally:
            scan.close()

    def _account(self, scan: RecordScan, ranges: Sequence[QueueRange], missing: int) -> None:
        """Report damage, and offsets without a row; where rows are filtered, these cannot be known."""
        plan = self._plan
        report = scan.skipped()
        queues = ", ".join(sorted({f"{one.topic}/{one.queue_id}" for one in ranges}))
        if report["records"]:
            offsets: list[int] = report["offsets"]
            _log.warning(
                "onCorrupt=skip: passed over %d damaged records while reading %s of %s, at the physical offsets %s%s",
                report["records"],
                queues,
                self._plan.path,
                ", ".join(map(str, offsets)),
                "" if len(offsets) == report["records"] else ", …",
            )
        if report["clamped_times"]:
            _log.warning(
                "%d times of %s are outside 0001-01-02 to 9999-12-30; the nearest inside replaces them",
                report["clamped_times"],
                queues,
            )
        if report["expired"]:
            self._loss.lost(f"{report['expired']} messages of {queues} expired before they were read")
        filtered = plan.filtered or plan.time_low_ms is not None or plan.time_high_ms is not None
        missing -= report["expired"]
        if not filtered and not report["records"] and missing:
            self._loss.lost(f"{missing} of the planned messages of {queues} did not come: their offsets have none")

    def close(self) -> None:
        """Let the store go."""
        self._store.close()

    def __enter__(self) -> StoreRows:
        """Return the source itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


# --- Questions to the engine


_FORMS = {"string": "plain", "binary": "plain", "timestamp": "us"}
"""Spark takes neither views nor dictionaries, and microseconds only."""

_NOT_SCANNED = frozenset({"timestamp_type"})


def scan_columns(columns: Sequence[Column]) -> list[tuple[str, str, str, str | None]]:
    """Return what a scan is asked for: kind, form, name, property of each column that is read."""
    asked = [
        (column.kind, "plain" if column.kind in ("body", "keys") else _FORMS.get(column.spark_type, "default"))
        for column in columns
        if column.kind not in _NOT_SCANNED
    ]
    properties = [column.property for column in columns if column.kind not in _NOT_SCANNED]
    found = [(kind, form, f"c{at}", properties[at]) for at, (kind, form) in enumerate(asked)]
    # Only to count rows.
    return found or [("queue_offset", "default", "c0", None)]


def _open_scan(handle: StoreHandle, plan: ReadPlan, ranges: Sequence[QueueRange]) -> RecordScan:
    return ColumnScan(
        handle,
        columns=scan_columns(plan.columns),
        tags=plan.tags,
        where=plan.selector,
        keys=plan.keys,
        ranges=[(one.topic, one.queue_id, one.start, one.end) for one in ranges],
        start_time_ms=plan.time_low_ms,
        end_time_ms=None if plan.time_high_ms is None else plan.time_high_ms + 1,
        batch_rows=plan.batch_rows,
        batch_bytes=plan.batch_bytes,
        skip_corrupt=plan.skip_corrupt,
    )


# --- Spark's types


def conformed(batch: pa.RecordBatch, columns: Sequence[Column], schema: pa.Schema) -> pa.RecordBatch:
    """Return a scan's batch with exactly the schema that Spark compares it with. Bodies are not copied.

    Args:
        batch: with one array for each column that is scanned, in their order.
        columns: all columns.
        schema: theirs, of :func:`spark_arrow_schema`.
    """
    scanned = iter(batch.columns)
    arrays = []
    for column, field in zip(columns, schema, strict=True):
        if column.kind == "timestamp_type":
            arrays.append(pa.array([_LOG_APPEND_TIME], field.type).take(pa.array([0] * batch.num_rows, pa.int32())))
        else:
            arrays.append(_as_type(next(scanned), field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _as_type(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if array.type == wanted and not pa.types.is_nested(wanted):
        return array
    if pa.types.is_map(wanted):
        # The names of a map's inner fields differ between writers, and Spark compares them.
        buffers = array.buffers()[:2]
        entries = pa.StructArray.from_arrays([array.keys, array.items], fields=[wanted.key_field, wanted.item_field])
        return _rewrapped(array, wanted, buffers, entries)
    if pa.types.is_list(wanted):
        # Kafka's headers: the same pairs with binary values.
        fields = wanted.value_type
        pairs = pa.StructArray.from_arrays(
            [array.keys, array.items.cast(pa.binary())], fields=[fields.field("key"), fields.field("value")]
        )
        return _rewrapped(array, wanted, array.buffers()[:2], pairs)
    return array.cast(wanted)


def _rewrapped(array: pa.Array, wanted: pa.DataType, buffers: list[pa.Buffer | None], children: pa.Array) -> pa.Array:
    """Return the same lists over other children."""
    return pa.Array.from_buffers(wanted, len(array), buffers, array.null_count, array.offset, children=[children])
