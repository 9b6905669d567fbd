"""``df.write`` and ``df.writeStream`` through brokers: tasks send their rows, at least once, under ids that stay.

Spark makes a writer on the driver and sends it to every task, so it holds plain values only. Nothing is left to be
done when all tasks have ended, and nothing can be taken back.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from cometmq.client.outgoing import BODY_BYTES_MAX
from cometmq.errors import InvalidArgument
from cometmq.spark.options import WriteOptions
from cometmq.spark.running import partition_number, refuse_complete, refuse_overwrite, running_query
from cometmq.spark.sent_rows import RowIds, send_rows
from cometmq.spark.staging import RowEncoder, WriteSchema
from cometmq.spark.wire import Wire

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["Sent", "WireBatchWriter", "WireStreamWriter"]

_log = logging.getLogger("cometmq.spark")


class Sent(WriterCommitMessage):
    """What a task tells the driver: rows that were acknowledged, and how many of them may be stored twice."""

    def __init__(self, rows: int, maybe_twice: int) -> None:
        """Plain values; they are pickled."""
        self.rows = rows
        self.maybe_twice = maybe_twice


def _send(options: WriteOptions, schema: WriteSchema, batches: Iterator[pa.RecordBatch], scope: str) -> Sent:
    wire = Wire(options.name_servers, timeout_ms=options.pull_timeout_ms)
    try:
        rows, maybe_twice = send_rows(
            wire,
            batches,
            RowEncoder(schema, topic=options.topic, body_bytes_max=BODY_BYTES_MAX),
            schema,
            RowIds(scope, partition_number()),
            topic=options.topic,
            broker_name=options.broker_name,
        )
    finally:
        wire.close()
    return Sent(rows, maybe_twice)


def _tell(messages: list[WriterCommitMessage | None]) -> None:
    maybe_twice = sum(one.maybe_twice for one in messages if isinstance(one, Sent))
    if maybe_twice:
        _log.warning("%d messages may be stored twice: an answer did not come. Twins have one UNIQ_KEY", maybe_twice)


class WireBatchWriter(DataSourceArrowWriter):
    """``df.write.format("cometmq").option("nameServer", …).mode("append")``."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        """Check, and name the job.

        Raises:
            OptionError: mode("overwrite").
            InvalidArgument: a column cannot be written.
        """
        refuse_overwrite(overwrite)
        self._options = options
        self._schema = WriteSchema.of(schema, options.topic)
        self._scope = f"job\n{options.job_id or uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send a task's rows."""
        return _send(self._options, self._schema, iterator, self._scope)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Say what may be there twice; all rows are stored."""
        _tell(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Say that what was sent stays."""
        _log.warning("the write failed; rows that were sent stay. Written again with the same jobId, twins have one id")


class WireStreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("cometmq").option("nameServer", …)``."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        """Check.

        Raises:
            OptionError: output mode "complete": a log takes nothing back.
            InvalidArgument: a column cannot be written.
        """
        refuse_complete(overwrite)
        self._options = options
        self._schema = WriteSchema.of(schema, options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send a task's rows."""
        query = running_query()
        if query.batch_id is None:
            raise InvalidArgument("Spark did not tell the micro-batch's number; without it ids would not stay the same")
        return _send(self._options, self._schema, iterator, f"query\n{query.query_id}\n{query.batch_id}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Say what may be there twice; all rows are stored."""
        _tell(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Say that what was sent stays."""
        _log.warning("micro-batch %d failed; rows that were sent stay, and come again with the same ids", batchId)
