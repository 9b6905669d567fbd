"""Rows as messages for brokers: their ids, which are the same whenever a row is sent, and the senders.

At least once: rows that a task has sent stay even if it fails, and a task that runs again sends its rows again.
A row's unique id (``UNIQ_KEY``) is made of the job or the stream's micro-batch, the partition and the row's number, so
that readers can drop duplicates: of two messages with one id one is enough.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from cometmq.admin.sending import SendLimits
from cometmq.client.send.outgoing import OutgoingMessage
from cometmq.errors import InvalidArgument
from cometmq.spark.staging import RowEncoder, WriteSchema, plain_pieces
from cometmq.spark.wire import Wire

if TYPE_CHECKING:
    import pyarrow as pa

    from cometmq.admin.aio import AsyncSender

__all__ = ["RowIds", "Senders", "send_rows"]

_LIMITS = SendLimits(in_flight=16, retries=10, busy_retries=30)


class RowIds:
    """Ids of a partition's rows: 32 hexadecimal digits, as RocketMQ's own are."""

    def __init__(self, scope: str, partition: int) -> None:
        """``scope`` is what is written: a job, or a stream and its micro-batch."""
        digest = hashlib.sha256(scope.encode()).hexdigest()[:16].upper()
        self._head = f"{digest}{partition & 0xFFFFFF:06X}"
        self._row = 0

    def next(self) -> str:
        """Return the next row's id."""
        row, self._row = self._row, self._row + 1
        return f"{self._head}{row:010X}"


def messages_of(
    batch: pa.RecordBatch, schema: WriteSchema, ids: RowIds
) -> Iterator[tuple[str | None, OutgoingMessage]]:
    """Yield topic and message of each row of a checked batch.

    Raises:
        InvalidArgument: a body is empty.
    """
    nothing = [None] * batch.num_rows
    columns = {name: batch.column(given).to_pylist() for name, given in schema.names.items()}
    order = ("body", "topic", "tags", "keys", "properties", "queue", "shardKey")
    for body, topic, tags, keys, properties, queue, shard in zip(
        *(columns.get(name, nothing) for name in order), strict=True
    ):
        if not body:
            raise InvalidArgument("the column body has an empty one; brokers refuse such a message")
        yield (
            topic,
            OutgoingMessage(
                body if isinstance(body, bytes) else body.encode(),
                tags=tags,
                keys=" ".join(keys) if isinstance(keys, list) else keys,
                properties={"UNIQ_KEY": ids.next(), **_without_nulls(properties or ())},
                queue_id=queue,
                sharding_key=shard,
            ),
        )


def _without_nulls(pairs: Iterable[tuple[str, Any]]) -> dict[str, str]:
    return {name: value for name, value in pairs if value is not None}


class Senders:
    """One sender for each topic of a task."""

    def __init__(self, wire: Wire, *, topic: str | None, broker_name: str | None) -> None:
        """``topic``: of rows that name none."""
        self._wire = wire
        self._topic = topic
        self._broker_name = broker_name
        self._senders: dict[str, AsyncSender] = {}

    def put(self, rows: Iterable[tuple[str | None, OutgoingMessage]]) -> None:
        """Send rows; waits while too many are under way.

        Raises:
            Error: a broker refused, or could not be reached; or a row names a queue that is not there.
        """
        by_topic: dict[str, list[OutgoingMessage]] = {}
        for topic, message in rows:
            chosen = topic if topic is not None else self._topic
            assert chosen is not None  # the encoder has refused such rows
            by_topic.setdefault(chosen, []).append(message)
        for chosen, messages in by_topic.items():
            self._wire.run(self._put(chosen, messages))

    async def _put(self, topic: str, messages: list[OutgoingMessage]) -> None:
        sender = self._senders.get(topic)
        if sender is None:
            sender = self._wire.admin.messages.sender(
                topic, broker_name=self._broker_name, limits=_LIMITS, own_ids=True
            )
            self._senders[topic] = await sender.__aenter__()
        await sender.put(messages)

    def finish(self) -> tuple[int, int]:
        """Wait until all rows are acknowledged.

        Returns:
            How many were, and how many of them may be stored twice.

        Raises:
            Error: a broker refused, or could not be reached.
        """
        return self._wire.run(self._finish())

    async def _finish(self) -> tuple[int, int]:
        reports = []
        for sender in self._senders.values():
            await sender.flush()
            reports.append(sender.report())
        return sum(one.messages for one in reports), sum(one.maybe_twice for one in reports)

    def close(self) -> None:
        """End what is under way, after a failure."""
        self._wire.end(self._close())

    async def _close(self) -> None:
        for sender in self._senders.values():
            await sender.__aexit__(InterruptedError, InterruptedError(), None)


def send_rows(
    wire: Wire,
    batches: Iterable[pa.RecordBatch],
    encoder: RowEncoder,
    schema: WriteSchema,
    ids: RowIds,
    *,
    topic: str | None,
    broker_name: str | None,
) -> tuple[int, int]:
    """Send a task's rows and wait until all are acknowledged.

    Args:
        wire: the cluster.
        batches: the rows.
        encoder: checks them.
        schema: their columns.
        ids: their ids, in order.
        topic: of rows that name none.
        broker_name: only to this broker, or None.

    Returns:
        How many rows were acknowledged, and how many of them may be stored twice.

    Raises:
        InvalidArgument: a row cannot be written.
        Error: a broker refused, or could not be reached.
    """
    senders = Senders(wire, topic=topic, broker_name=broker_name)
    try:
        for batch in plain_pieces(batches):
            encoder.encode(batch)
            senders.put(messages_of(batch, schema, ids))
        return senders.finish()
    finally:
        senders.close()
