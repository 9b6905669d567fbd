"""``df.write`` and ``df.writeStream`` through brokers, in one of two ways that is chosen when a write begins.

Where one broker takes all rows and staged writes (:func:`cometmq.spark.wire_journal.find_door`), tasks bring files and
the driver commits them: exactly once. Elsewhere tasks send their rows, at least once, under ids that stay; then nothing
is left to be done when all tasks have ended, and nothing can be taken back.

Spark makes a writer on the driver and sends it to every task, so it holds plain values only.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from cometmq.client.send.outgoing import BODY_BYTES_MAX
from cometmq.errors import Error, InvalidArgument
from cometmq.spark import wire_journal
from cometmq.spark.journal import sorted_files, stream_scope
from cometmq.spark.options import WriteOptions
from cometmq.spark.running import partition_number, refuse_complete, refuse_overwrite, running_query, task_prefix
from cometmq.spark.sent_rows import RowIds, send_rows
from cometmq.spark.staging import RowEncoder, WriteSchema
from cometmq.spark.wire import Wire
from cometmq.spark.wire_journal import Door
from cometmq.spark.writer import Staged

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["Sent", "WireBatchWriter", "WireStreamWriter"]

_log = logging.getLogger("cometmq.spark")


class Sent(WriterCommitMessage):
    """A task's message to the driver: rows that were acknowledged, and how many of them may be stored twice."""

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


def _warn(messages: list[WriterCommitMessage | None]) -> None:
    maybe_twice = sum(one.maybe_twice for one in messages if isinstance(one, Sent))
    if maybe_twice:
        _log.warning("%d messages may be stored twice: an answer did not come. Twins have one UNIQ_KEY", maybe_twice)


class _WireJob:
    """The part that both writers share."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Check the columns.

        Raises:
            InvalidArgument: a column cannot be written.
        """
        self.options = options
        self.schema = WriteSchema.of(schema, options.topic)
        self.door: Door | None = None
        self.job = ""

    def find_door(self) -> Door | None:
        """Look for a broker that takes the rows exactly once."""
        return wire_journal.find_door(self.options, rows_name_topics="topic" in self.schema.names)

    def begin(self, scope: str, *, alone: bool) -> None:
        """Choose the way, and begin a job where rows are staged."""
        self.door = self.find_door()
        if self.door is not None:
            self.job = wire_journal.begin(self.options, self.door, scope, alone=alone)

    def stage(self, door: Door, batches: Iterator[pa.RecordBatch], query_id: str | None) -> Staged:
        """Bring a task's rows."""
        encoder = RowEncoder(self.schema, topic=self.options.topic, body_bytes_max=door.body_bytes_max)
        files = wire_journal.stage(self.options, door, self.job, batches, encoder, task_prefix())
        return Staged(self.job, files, query_id, door.broker)

    def abandon(self, broker: str, job: str) -> None:
        """Give a job up. Why Spark aborts is worth more than that the broker does not answer, which is only logged."""
        try:
            wire_journal.abandon(self.options, broker, job)
        except Error as error:
            _log_left(broker, error)


def _log_left(broker: str, error: Error) -> None:
    _log.warning("the staged files stay at broker %s until its stagedJobExpireTime: %s", broker, error)


class WireBatchWriter(DataSourceArrowWriter):
    """``df.write.format("cometmq").option("nameServer", …).mode("append")``."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        """Check, choose the way, and name the job.

        Raises:
            OptionError: mode("overwrite"), or exactly once was asked for and cannot be had.
            InvalidArgument: a column cannot be written.
            Error: no name server or broker answered.
        """
        refuse_overwrite(overwrite)
        self._job = _WireJob(options, schema)
        self._scope = f"job\n{options.job_id or uuid.uuid4().hex}"
        self._job.begin("batch", alone=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged | Sent:
        """Bring, or send, a task's rows."""
        if self._job.door is not None:
            return self._job.stage(self._job.door, iterator, None)
        return _send(self._job.options, self._job.schema, iterator, self._scope)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Have staged rows appended, all or, where a done ``jobId`` is run again, none. Sent rows are stored."""
        if self._job.door is None:
            _warn(messages)
            return
        options = self._job.options
        files = sorted_files(one.files for one in messages if isinstance(one, Staged))
        key = None if options.job_id is None else f"job-{options.job_id}"
        wire_journal.commit(options, self._job.door.broker, self._job.job, files, done_key=key, done_number=0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Give up what was staged; say that what was sent stays."""
        if self._job.door is not None:
            self._job.abandon(self._job.door.broker, self._job.job)
        else:
            _log.warning("the write failed; sent rows stay. Written again with the same jobId, they have the same ids")


class WireStreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("cometmq").option("nameServer", …)``.

    As with files (:class:`cometmq.spark.writer.StreamWriter`) the writer that commits has nothing of the one that was
    sent to tasks but the options: it goes by their messages.
    """

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool, checkpoint: str | None) -> None:
        """Check.

        Raises:
            OptionError: output mode "complete": a log takes nothing back.
            InvalidArgument: a column cannot be written.
        """
        refuse_complete(overwrite)
        self._job = _WireJob(options, schema)
        self._scope = stream_scope(checkpoint)
        self._has_checkpoint = checkpoint is not None
        self._is_sent = False

    def __getstate__(self) -> dict[str, object]:
        """Choose the way and begin the job: this writer is being sent to tasks."""
        if not self._is_sent:
            self._job.begin(self._scope, alone=self._has_checkpoint)
            self._is_sent = True
        return dict(self.__dict__)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged | Sent:
        """Bring, or send, a task's rows."""
        query = running_query()
        if self._job.door is not None:
            return self._job.stage(self._job.door, iterator, query.query_id)
        if query.batch_id is None:
            raise InvalidArgument("Spark did not set the micro-batch's number; without it ids would not stay the same")
        scope = f"query\n{query.query_id}\n{query.batch_id}"
        return _send(self._job.options, self._job.schema, iterator, scope)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Have a staged micro-batch appended; one that was appended before is not appended again."""
        staged = [one for one in messages if isinstance(one, Staged)]
        if not staged:
            _warn(messages)
            return
        broker, key = staged[0].broker, f"query-{staged[0].query_id}"
        assert broker is not None
        files = sorted_files(one.files for one in staged)
        wire_journal.commit(self._job.options, broker, staged[0].job, files, done_key=key, done_number=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Give up what was staged; say that what was sent stays."""
        staged = {(one.broker, one.job) for one in messages if isinstance(one, Staged)}
        for broker, job in staged:
            assert broker is not None
            self._job.abandon(broker, job)
        if not staged and not self._abandon_all():
            _log.warning("micro-batch %d failed; sent rows stay, and are sent again with the same ids", batchId)

    def _abandon_all(self) -> bool:
        """Give up the stream's staged files if its tasks reported none; False where nothing is staged."""
        try:
            door = self._job.find_door()
        except Error as error:
            _log_left("that takes the rows", error)
            return True
        if door is None:
            return False
        if self._has_checkpoint:
            # A stream has one micro-batch at a time, and its checkpoint is nobody else's.
            try:
                wire_journal.abandon_all(self._job.options, door.broker, self._scope)
            except Error as error:
                _log_left(door.broker, error)
        return True
