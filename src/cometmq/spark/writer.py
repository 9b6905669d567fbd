"""``df.write`` and ``df.writeStream`` into a store.

Spark makes a writer on the driver, sends it to every task, and has another process on the driver commit or abort with
it. So it holds plain values only. Names of staged files begin with the partition's number, for one fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from cometmq.spark import journal
from cometmq.spark.options import WriteOptions
from cometmq.spark.running import refuse_complete, refuse_overwrite, running_query, task_prefix
from cometmq.spark.staging import RowEncoder, WriteSchema, stage
from cometmq.store.handoff_files import StagedFile
from cometmq.store.staged_files import StagedFolder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["BatchWriter", "Staged", "StreamWriter"]


class Staged(WriterCommitMessage):
    """A task's message to the driver: its job and files, for a stream the query's id, and by the wire the broker."""

    def __init__(
        self, job: str, files: Sequence[StagedFile], query_id: str | None = None, broker: str | None = None
    ) -> None:
        """Plain values; they are pickled."""
        self.job = job
        self.files = tuple(files)
        self.query_id = query_id
        self.broker = broker


class _Job:
    """The part that both writers share. Everything that can be checked on the driver is checked when it is made."""

    def __init__(self, options: WriteOptions, schema: StructType, scope: str) -> None:
        """Check the columns.

        Raises:
            InvalidArgument: a column cannot be written.
        """
        self.options = options
        self.scope = scope
        self.schema = WriteSchema.of(schema, options.topic)
        self.job: str | None = None
        self.body_bytes_max = 0

    def begin(self) -> None:
        """Make the job's folder.

        Raises:
            StoreLocked: a RocketMQ broker holds the store.
        """
        if self.job is None:
            self.job, self.body_bytes_max = journal.begin(self.options, self.scope)

    def stage(self, batches: Iterator[pa.RecordBatch], query_id: str | None) -> Staged:
        """Write a task's rows down."""
        assert self.job is not None
        assert self.options.path is not None
        encoder = RowEncoder(self.schema, topic=self.options.topic, body_bytes_max=self.body_bytes_max)
        folder = StagedFolder(Path(self.options.path))
        return Staged(self.job, stage(batches, encoder, folder, self.job, task_prefix()), query_id)


class BatchWriter(DataSourceArrowWriter):
    """``df.write.format("cometmq").mode("append")``."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        """Begin a job.

        Raises:
            OptionError: mode("overwrite").
            InvalidArgument: a column cannot be written.
            StoreLocked: a RocketMQ broker holds the store.
        """
        refuse_overwrite(overwrite)
        self._job = _Job(options, schema, journal.BATCH_SCOPE)
        self._job.begin()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a task's rows."""
        return self._job.stage(iterator, None)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Have them appended, all or, where a done ``jobId`` is run again, none."""
        assert self._job.job is not None
        files = journal.sorted_files(one.files for one in messages if isinstance(one, Staged))
        key = journal.batch_key(self._job.options)
        journal.commit(self._job.options, self._job.job, files, done_key=key, done_number=0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove everything. The messages are incomplete: a failed task sends none, and one may still be writing."""
        if self._job.job is not None:
            journal.abandon(self._job.options, self._job.job)


class StreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("cometmq")``.

    For each micro-batch Spark makes two of them: one that it sends to the tasks, and one that commits. They have
    nothing in common but the options. So a job begins where a writer is sent off, its name comes back with the
    messages, and where none comes back it is found by the stream's checkpoint.
    """

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool, checkpoint: str | None) -> None:
        """Check.

        Raises:
            OptionError: output mode "complete": a log takes nothing back.
            InvalidArgument: a column cannot be written.
        """
        refuse_complete(overwrite)
        self._checkpoint = checkpoint
        self._job = _Job(options, schema, journal.stream_scope(checkpoint))

    def __getstate__(self) -> dict[str, object]:
        """Begin the job: this writer is being sent to tasks."""
        self._job.begin()
        return dict(self.__dict__)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a task's rows."""
        return self._job.stage(iterator, running_query().query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Have a micro-batch appended; one that was appended before the driver died is not appended again."""
        staged = [one for one in messages if isinstance(one, Staged)]
        if staged:
            files = journal.sorted_files(one.files for one in staged)
            assert staged[0].query_id is not None
            key = journal.stream_key(staged[0].query_id)
            journal.commit(self._job.options, staged[0].job, files, done_key=key, done_number=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Leave nothing."""
        jobs = {one.job for one in messages if isinstance(one, Staged)}
        journal.abandon_micro_batch(self._job.options, jobs, self._checkpoint)
