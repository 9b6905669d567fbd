"""``spark.readStream.format("cometmq")``.

Spark keeps an offset per micro-batch in its checkpoint and asks again for what lies between two of them, also after a
crash. So the rows of a range must be the same each time: messages that expired in between are a reported loss, never
skipped in silence. Nothing is kept in memory that a restart would miss, and nothing needs an orderly stop.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from cometmq.arrow.cursor import resume_offset
from cometmq.spark.admission import limit_bytes, limit_rows
from cometmq.spark.catalog import Ends, OpenCatalog, open_catalog, selected_queues, selected_topics
from cometmq.spark.errors import OptionError
from cometmq.spark.fetch import record_batches
from cometmq.spark.group_offsets import GroupOffsets
from cometmq.spark.offsets import (
    Marks,
    Position,
    QueueKey,
    decode_marks,
    decode_stream_offset,
    encode_stream_offset,
    queue_names,
)
from cometmq.spark.options import ReadOptions
from cometmq.spark.planning import QueueRange
from cometmq.spark.ranges import EndPolicy, LossPolicy, starting_position
from cometmq.spark.source import RangePartition, partitions_of, read_plan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["StreamReader"]


def _other_queue(key: QueueKey, position: int, ends: Ends) -> str:
    if position > ends.high:
        what = f"and it ends at {ends.high}: the topic was deleted and made again, or the store was cut"
    else:
        what = "and another message lies there now: the topic was deleted and made again"
    return f"the stream has read {key.named} up to {position}, {what}"


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a store or a cluster as a stream. Spark has one for the driver, and copies that only :meth:`read`."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Check the columns. Nothing is opened before it is first asked for."""
        self._options = options
        self._plan = read_plan(options, schema)
        self._loss = LossPolicy(fail=options.fail_on_data_loss)
        self._end = EndPolicy(skip=options.skip_corrupt)
        self._catalog: OpenCatalog | None = None
        self._groups: GroupOffsets | None = None
        self._target: Position | None = None
        self._advanced_at = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        """A copy for tasks: without what is open here."""
        return {**self.__dict__, "_catalog": None, "_groups": None}

    # --- On the driver

    def initialOffset(self) -> dict[str, int]:
        """Return where a stream without a checkpoint begins.

        Raises:
            OptionError, DataLoss: an option does not fit what is there.
        """
        catalog = self._opened()
        queues = selected_queues(catalog, selected_topics(catalog, self._options.subscription))
        return encode_stream_offset(starting_position(catalog, queues, self._options))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit that says that there are some; :meth:`latestOffset` applies all of them."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of a run that stops at what is there now."""
        self._target = {key: ends.high for key, ends in self._queues().items()}

    def reportLatestOffset(self) -> dict[str, int]:
        """Return the ends of all queues, for Spark's report on the stream."""
        return encode_stream_offset({key: ends.high for key, ends in self._queues().items()})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, int]:
        """Return where the next micro-batch ends.

        Raises:
            DataLoss: a queue was read further than it reaches, or is gone.
            CorruptRecord: the stream has read all up to damage.
        """
        begin, marks = decode_stream_offset(start), decode_marks(start)
        end, resumed, lows = self._ends(begin, marks)
        whole = dict(end)
        if not isinstance(limit, ReadAllAvailable):
            end = self._limited(begin, end, limit)
        restarted = {key for key in resumed if end[key] == whole[key]}
        if end == begin and not restarted:
            self._end.check(self._opened())
            return start
        self._advanced_at = time.monotonic()
        return encode_stream_offset(end, self._marks(begin, marks, end, restarted, lows))

    def _marks(
        self, begin: Position, known: Marks, end: Position, restarted: Collection[QueueKey], lows: Position
    ) -> Marks:
        """Return the marks of an end. Queues that did not move keep theirs, except restarted ones."""
        marks: Marks = {}
        for key, high in end.items():
            unmoved = high == begin.get(key) and key in known and key not in restarted
            mark = known[key] if unmoved else self._opened().stored_ms(key, high - 1) if high > 0 else None
            if mark is None and 0 < high <= lows.get(key, 0):
                # That message has expired. Any time before those of a topic that is made again shows the other life.
                mark = known.get(key, 0)
            if mark is not None:
                marks[key] = mark
        return marks

    def _resumed(self, key: QueueKey, position: int, mark: int | None, ends: Ends) -> int | None:
        """As :func:`resume_offset`; a checkpoint of an earlier version has no marks."""
        catalog = self._opened()
        return resume_offset(
            position,
            ends.low,
            ends.high,
            stored_ms=mark,
            is_same=lambda: catalog.stored_ms(key, position - 1) in (mark, None),
            offset_at=lambda time_ms: catalog.offset_at(key, time_ms),
        )

    def _check_form(self, position: Position) -> None:
        """Refuse a checkpoint of the other way of reading: its queues would count as lost, and all be read again."""
        through_brokers = bool(self._options.name_servers)
        if any(bool(key.broker) != through_brokers for key in position):
            was, now = ("path", "nameServer") if through_brokers else ("nameServer", "path")
            raise OptionError(
                now,
                f"the checkpoint's offsets were read with option {was}: go on with that, or begin with a new "
                "checkpointLocation and startingOffsets",
            )

    def _ends(self, begin: Position, marks: Marks) -> tuple[Position, Position, Position]:
        """Return the end of every queue, including those of ``begin`` that no longer exist; the new position of each
        queue whose reading restarts, because its topic was re-created or the log was cut; and where the queues begin.
        """
        self._check_form(begin)
        queues = self._queues(begin)
        end: Position = {}
        resumed: Position = {}
        for key, ends in queues.items():
            at = begin.get(key, 0)
            again = self._resumed(key, at, marks.get(key), ends)
            target = ends.high if self._target is None else min(ends.high, self._target.get(key, at))
            if again is not None:
                self._loss.lost(_other_queue(key, at, ends))
                resumed[key] = again
                end[key] = max(target, again)
            elif self._target is None or key in self._target or key in begin:
                end[key] = max(target, at)
        gone = begin.keys() - queues.keys()
        if gone:
            where = "the brokers" if self._options.name_servers else "the store"
            self._loss.lost(f"the stream has read {queue_names(gone)}, which {where} or the options have no more")
        return end | {key: begin[key] for key in gone}, resumed, {key: ends.low for key, ends in queues.items()}

    def _limited(self, begin: Position, end: Position, limit: ReadLimit) -> Position:
        options = self._options
        rows = sum(end[key] - begin.get(key, 0) for key in end if end[key] > begin.get(key, 0))
        least = limit.min_rows if isinstance(limit, ReadMinRows) else options.min_offsets_per_trigger
        waited_ms = (time.monotonic() - self._advanced_at) * 1000
        # Up to a target nothing comes any more that could be waited for.
        if least is not None and rows < least and waited_ms < options.max_trigger_delay_ms and self._target is None:
            return dict(begin)
        most_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_offsets_per_trigger
        most_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.max_bytes_per_trigger
        if most_rows is not None:
            end = limit_rows(begin, end, most_rows)
        if most_bytes is not None:
            end = limit_bytes(begin, end, most_bytes, self._row_bytes)
        return end

    def _row_bytes(self, key: QueueKey, start: int, end: int) -> float:
        return self._opened().row_bytes(QueueRange.of(key, start, end))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Deal a micro-batch out to tasks; none for an empty one.

        Raises:
            DataLoss: messages of it have expired.
        """
        begin, stop = decode_stream_offset(start), decode_stream_offset(end)
        self._check_form(begin | stop)
        queues = self._queues(stop)
        marks, end_marks = decode_marks(start), decode_marks(end)
        ranges = []
        for key, high in sorted(stop.items()):
            low, ends = begin.get(key, 0), queues.get(key, Ends(0, 0))
            changed = self._resumed(key, high, end_marks.get(key), ends) if key in queues else None
            if changed is not None and key in end_marks:
                # The messages from there on are the next micro-batch's, which notices it too.
                self._loss.lost(
                    f"{_other_queue(key, high, ends)}; it was so after the micro-batch was planned, which lacks "
                    "messages"
                )
                high = changed
            again = self._resumed(key, low, marks.get(key), ends) if key in queues else None
            if again is not None and key in marks:
                low = again  # noticed and reported when the end was looked up
            if low < high:
                ranges.append(self._there(QueueRange.of(key, low, high), ends))
        return partitions_of(self._opened(), [one for one in ranges if one.rows > 0], self._options, self._plan.tags)

    def _there(self, one: QueueRange, ends: Ends) -> QueueRange:
        start, end = min(max(one.start, ends.low), one.end), min(one.end, ends.high)
        if (start, end) == (one.start, one.end):
            return one
        self._loss.lost(
            f"the messages {one.start} to {one.end - 1} of {one.key.named} are not all there any more: "
            f"the queue has {ends.low} to {ends.high}"
        )
        return QueueRange.of(one.key, start, max(start, end))

    def commit(self, end: dict[str, Any]) -> None:
        """Advance the consumer group's offset where ``commitOffsets`` asks for it. Advisory: Spark says it late."""
        if self._options.commit_offsets and self._options.group_id is not None:
            if self._groups is None:
                self._groups = GroupOffsets(self._opened(), self._options.group_id)
            self._groups.commit(decode_stream_offset(end))

    def stop(self) -> None:
        """Let everything go. Spark often ends the process instead, which does the same."""
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            catalog.close()

    def _opened(self) -> OpenCatalog:
        if self._catalog is None:
            self._catalog = open_catalog(self._options)
        return self._catalog

    def _queues(self, known: Collection[QueueKey] | None = None) -> dict[QueueKey, Ends]:
        """Return the queues as they are now; new ones, and new topics that match a pattern, are among them.

        Args:
            known: queues that the stream has read. Their topics may be gone, which the caller reports; others must
                exist unless losses are allowed. None: all may be gone.
        """
        catalog = self._opened()
        catalog.refresh()
        topics = selected_topics(catalog, self._options.subscription, strict=False)
        if known is not None and self._options.fail_on_data_loss:
            missing = {*self._options.subscription.topics} - topics.keys() - {key.topic for key in known}
            if missing:
                selected_topics(catalog, self._options.subscription)
        return selected_queues(catalog, topics, strict=False)

    # --- In tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows."""
        if isinstance(partition, RangePartition) and partition.ranges:
            yield from record_batches(self._plan, partition.queue_ranges())
