"""Spark's state for both writers: its modes, and which stream and micro-batch a task works for."""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.errors import InvalidArgument
from cometmq.spark.errors import OptionError

__all__ = ["RunningQuery", "partition_number", "refuse_complete", "refuse_overwrite", "running_query", "task_prefix"]

_QUERY_ID = "sql.streaming.queryId"
"""The local property in which Spark gives a task its stream's id, which is its checkpoint's."""
_BATCH_ID = "streaming.sql.batchId"


def refuse_overwrite(overwrite: bool) -> None:
    """Refuse ``mode("overwrite")``.

    Raises:
        OptionError: it was asked for.
    """
    if overwrite:
        raise OptionError("mode", 'a log is only ever appended to: write with mode("append")')


def refuse_complete(overwrite: bool) -> None:
    """Refuse the output mode "complete".

    Raises:
        OptionError: it was asked for.
    """
    if overwrite:
        raise OptionError(
            "outputMode", 'a log is only ever appended to: use outputMode("append") or outputMode("update")'
        )


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """The stream that a task works for.

    Attributes:
        query_id: its id, which its checkpoint keeps.
        batch_id: number of the micro-batch, or None where Spark does not say.
    """

    query_id: str
    batch_id: int | None


def running_query() -> RunningQuery:
    """Return the stream of the task that runs.

    Raises:
        InvalidArgument: Spark did not set it.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    query_id = None if context is None else context.getLocalProperty(_QUERY_ID)
    if context is None or query_id is None:
        raise InvalidArgument("Spark did not set the stream's id; without it nothing can be written exactly once")
    batch_id = context.getLocalProperty(_BATCH_ID)
    return RunningQuery(query_id, None if batch_id is None else int(batch_id))


def partition_number() -> int:
    """Return the number of the task's partition, 0 outside of one."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def task_prefix() -> str:
    """Return how names of the task's staged files begin: with its partition, for one fixed order of all of them."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return "00000000" if context is None else f"{context.partitionId():08d}-{context.taskAttemptId():010d}"
