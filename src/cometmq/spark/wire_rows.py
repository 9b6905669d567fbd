"""Rows that brokers send: ranges are pulled in chunks, several at a time and ahead of Spark, and decoded in C.

A pull brings few messages (32, as brokers are set by default), and each costs the way there and back. So a range is cut
into chunks, and that of several chunks pulls are under way at the same time; chunks are handed on in order. The bodies
of answers are whole stored records, which the engine that scans a store makes columns of, without a Python object for
any message.

Every offset is accounted for: messages that brokers no longer have are a reported loss, and where nothing is filtered
the rows are counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final

import pyarrow as pa

from cometmq._engine import RecordColumns
from cometmq.client.pull.pull_policy import PullStatus, pull_status
from cometmq.errors import CorruptRecord, MalformedCommand
from cometmq.spark.fetch import Capsules, ReadPlan, scan_columns
from cometmq.spark.offsets import queue_names
from cometmq.spark.planning import QueueRange
from cometmq.spark.ranges import LossPolicy
from cometmq.spark.wire import EVERYTHING, Retry, Subscription, Wire, subscription_of

__all__ = ["WireRows"]

_log = logging.getLogger("cometmq.spark")

_CHUNKS_AHEAD: Final = 16
_CHUNK_BYTES: Final = 512 << 10
_CHUNK_ROWS_MIN: Final = 32
_CHUNK_ROWS_FIRST: Final = 512
_CHUNK_ROWS_MAX: Final = 1 << 16
_MISSING_PATIENCE_MS: Final = 2_000
"""How long a message is waited for that the broker had when the query was planned."""


@dataclass(slots=True)
class _Chunk:
    """The result of pulls of a part of a queue.

    Attributes:
        part: the part.
        pieces: bodies of answers, each with the offsets that it was asked for and what is added to its own.
        size_bytes: of the bodies.
        missing: offsets that the broker does not have.
        losses: the same in words.
    """

    part: QueueRange
    pieces: list[tuple[bytes, int, int, int]] = field(default_factory=list)
    size_bytes: int = 0
    missing: int = 0
    losses: list[str] = field(default_factory=list)

    def lost(self, start: int, end: int, low: int, high: int) -> None:
        """Note messages that are not there."""
        self.missing += end - start
        self.losses.append(
            f"the messages {start} to {end - 1} of {self.part.key.named} are not there any more: "
            f"the queue has {low} to {high}"
        )


async def _pull_chunk(wire: Wire, part: QueueRange, subscription: Subscription) -> _Chunk:
    chunk = _Chunk(part)
    at, end = part.start, part.end
    retry = Retry(_MISSING_PATIENCE_MS)
    while at < end:
        answer = await wire.pull(part.key, at, max_messages=end - at, subscription=subscription)
        following, low, high = answer.next_begin_offset, answer.min_offset, answer.max_offset
        status = pull_status(answer.code)
        if status is PullStatus.FOUND:
            if following <= at:
                raise MalformedCommand(f"asked for offset {at} of {part.key.named}, the broker goes on at {following}")
            chunk.pieces.append((answer.body, at, min(following, end), answer.offset_delta or 0))
            chunk.size_bytes += len(answer.body)
        elif following <= at or status is PullStatus.NO_NEW_MESSAGE:
            # It was there: a broker that has just started may still be looking at its log.
            if await retry.pause():
                continue
            following = end
            chunk.lost(at, end, low, high)
        elif status is PullStatus.OFFSET_ILLEGAL or subscription == EVERYTHING:
            chunk.lost(at, min(following, end), low, high)
        at = following
    return chunk


class _Ahead:
    """Chunks of ranges, pulled ahead and given in order. On the loop only."""

    def __init__(self, wire: Wire, ranges: Sequence[QueueRange], plan: ReadPlan) -> None:
        self._wire = wire
        self._rest = deque(one for one in ranges if one.rows > 0)
        self._plan = plan
        self._chunk_rows = _CHUNK_ROWS_FIRST
        self._tasks: deque[asyncio.Task[_Chunk]] = deque()

    async def take(self, size_bytes: int) -> list[_Chunk]:
        """Return the next chunks, together about so large; none at the end."""
        taken: list[_Chunk] = []
        self._fill()
        while self._tasks and sum(chunk.size_bytes for chunk in taken) < size_bytes:
            chunk = await self._tasks[0]
            self._tasks.popleft()
            self._adapt(chunk)
            taken.append(chunk)
            self._fill()
        return taken

    def _fill(self) -> None:
        while self._rest and len(self._tasks) < _CHUNKS_AHEAD:
            one = self._rest.popleft()
            cut = min(one.start + self._chunk_rows, one.end)
            if cut < one.end:
                self._rest.appendleft(replace(one, start=cut))
            subscription = subscription_of(one.key.topic, self._plan.tags, self._plan.where)
            work = _pull_chunk(self._wire, replace(one, end=cut), subscription)
            self._tasks.append(asyncio.get_running_loop().create_task(work))

    def _adapt(self, chunk: _Chunk) -> None:
        """Let a chunk have so many offsets that it gets its bytes, but change by steps."""
        wanted = _CHUNK_BYTES * chunk.part.rows // max(chunk.size_bytes, 1)
        wanted = min(max(wanted, self._chunk_rows // 2), self._chunk_rows * 2)
        self._chunk_rows = min(max(wanted, _CHUNK_ROWS_MIN), _CHUNK_ROWS_MAX)

    async def stop(self) -> None:
        """Give up what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()


class WireRows:
    """Rows from brokers; a context manager. One thread at a time."""

    def __init__(self, plan: ReadPlan) -> None:
        """Connect to nobody yet."""
        self._plan = plan
        self._loss = LossPolicy(fail=plan.fail_on_data_loss)
        self._wire = Wire(plan.name_servers, timeout_ms=plan.pull_timeout_ms)
        self._names_broker = any(column.kind == "constant" for column in plan.columns)
        self._scans: dict[str, RecordColumns] = {}

    def batches(self, ranges: Sequence[QueueRange]) -> Iterator[pa.RecordBatch]:
        """See :class:`cometmq.spark.fetch.RowSource`."""
        ahead = _Ahead(self._wire, ranges, self._plan)
        rows = missing = 0
        try:
            while chunks := self._wire.run(ahead.take(self._plan.batch_bytes)):
                for chunk in chunks:
                    missing += chunk.missing
                    for text in chunk.losses:
                        self._loss.lost(text)
                for batch in self._decoded(chunks):
                    rows += batch.num_rows
                    yield batch
        finally:
            self._wire.end(ahead.stop())
        self._account(ranges, rows, missing)

    def _decoded(self, chunks: Sequence[_Chunk]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of chunks; a scan knows one broker's name only."""
        brokers = dict.fromkeys(chunk.part.broker if self._names_broker else "" for chunk in chunks)
        for broker in brokers:
            scan = self._scan_of(broker)
            scan.feed(
                [piece for chunk in chunks if not broker or chunk.part.broker == broker for piece in chunk.pieces]
            )
            try:
                while (capsules := scan.next_batch()) is not None:
                    yield pa.record_batch(Capsules(capsules))
            except CorruptRecord as error:
                queues = queue_names({chunk.part.key for chunk in chunks})
                raise CorruptRecord(
                    f"{error}; it came from {queues}; option onCorrupt=skip goes round damage and reports it",
                    offset=error.offset,
                ) from error

    def _scan_of(self, broker: str) -> RecordColumns:
        scan = self._scans.get(broker)
        if scan is None:
            plan = self._plan
            scan = self._scans[broker] = RecordColumns(
                columns=[
                    (kind, form, name, broker if kind == "constant" else of)
                    for kind, form, name, of in scan_columns(plan.columns)
                ],
                tags=plan.tags,
                where=plan.selector,
                keys=plan.keys,
                batch_rows=plan.batch_rows,
                batch_bytes=plan.batch_bytes,
                skip_corrupt=plan.skip_corrupt,
            )
        return scan

    def _account(self, ranges: Sequence[QueueRange], rows: int, missing: int) -> None:
        """Compare the rows with the offsets, where each has to have one; report damage."""
        queues = queue_names({one.key for one in ranges})
        damaged = sum(scan.skipped()["records"] for scan in self._scans.values())
        if damaged:
            _log.warning("onCorrupt=skip: passed over %d damaged records that came from %s", damaged, queues)
        clamped = sum(scan.skipped()["clamped_times"] for scan in self._scans.values())
        if clamped:
            _log.warning(
                "%d times of %s are outside 0001-01-02 to 9999-12-30; the nearest inside replaces them", clamped, queues
            )
        expected = sum(one.rows for one in ranges) - missing
        if not self._plan.filtered and not damaged and rows != expected:
            self._loss.lost(f"{expected - rows} of {expected} messages of {queues} did not come")

    def __enter__(self) -> WireRows:
        """Return the source itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End all connections."""
        for scan in self._scans.values():
            scan.close()
        self._wire.close()
