"""Appending staged files: the writer's side of :mod:`cometmq.store.staged_files`.

A file's columns: ``body`` (binary), and as far as they are needed ``topic``, ``tags``, ``keys`` (text), ``properties``
(binary, in the stored form), ``queue`` and ``shard`` (int32: a queue, or the hash that chooses one).

Exactly once: the rows are cut into *chunks* in one fixed way (a topic's rows in a record batch of a file). Every
message carries ``CMQ_HANDOFF`` = ``<work id>:<chunk>``, and a chunk's messages are appended in their order by nobody
else. So how many messages of each chunk the log has says where a writer that died stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cometmq._engine import AppendManyResult, StoreHandle, encode_properties
from cometmq.errors import CorruptRecord, Error, InvalidArgument
from cometmq.store.handoff_files import HANDOFF_PROPERTY, StagedFile, StagedWork
from cometmq.store.staged_check import Disks, check_file, read_batches
from cometmq.store.staged_files import StagedFolder
from cometmq.store.topic_book import READ_WRITE, TopicBook, WriteTarget

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

__all__ = ["StagedAppend", "apply_staged"]

_WAIT_EVERY_BYTES = 64 << 20
"""So much is appended before the disk is waited for: bytes not on disk yet are held in memory."""


# On the disk, for one:
_RECORD_BYTES = 224
"""A record without body, tags, keys and topic; CMQ_HANDOFF and the names of properties included."""
_UNIT_BYTES = 24
_ENTRY_BYTES = 20
_SLOT_BYTES = 4
_BLOCKS_BYTES = 32 << 10
"""First blocks of a queue's files and folders."""
_AHEAD_BYTES = 16 << 20
"""A segment is given its blocks as it fills, at most so many ahead."""


@dataclass(slots=True)
class _Chunk:
    """A topic's rows in a record batch."""

    number: int
    topic: str
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class StagedAppend:
    """Staged work on its way into a store.

    Attributes:
        handle: the store, open for writing.
        topics: its topics; new ones are made.
        folder: where the files are.
        work: the work.
        disks: where rows are written to.
    """

    handle: StoreHandle
    topics: TopicBook
    folder: StagedFolder
    work: StagedWork
    disks: Disks

    def chunks(self) -> Iterator[_Chunk]:
        """Yield all chunks, numbered in the same way each time."""
        number = 0
        for file in self.work.files:
            left = file.rows
            for batch in read_batches(self._path(file)):
                left -= batch.num_rows
                for topic, rows in _by_topic(batch, self.work.topic):
                    yield _Chunk(number, topic, rows)
                    number += 1
            if left:
                raise CorruptRecord(f"the staged file {self._path(file)} has {file.rows - left} rows, not {file.rows}")

    def check_files(self, done: Counter[int]) -> None:
        """Compare all files with the commit's sizes and checksums.

        Rows take more room in the log than in their files. So a disk that lacks even that is not worth reading the
        files for, which would be done again and again until there is room.

        Raises:
            CorruptRecord: a file is missing or damaged.
            DiskFull: there is no room for the rows.
        """
        if not done:
            self.disks.check(log_bytes=sum(file.size_bytes for file in self.work.files))
        for file in self.work.files:
            check_file(self._path(file), file)

    def _path(self, file: StagedFile) -> Path:
        return self.folder.path / self.work.folder / file.name


def apply_staged(append: StagedAppend, done: Counter[int]) -> None:
    """Append the messages of staged work that are not in the log yet. Its files have been checked.

    Every row of every file is checked before the first is appended, and before a topic is made: form, lengths, topics,
    queues, and room on the disk. So work is appended whole or not at all. Behind that only the disk can fail; the work
    waits then, and the next attempt goes on where this one stopped.

    Args:
        append: the work, and the store.
        done: messages of each chunk that the log has already.

    Raises:
        InvalidArgument: the rows cannot be appended; nothing was, unless the text says otherwise.
        CorruptRecord: a file is missing or damaged; nothing was appended.
        DiskFull: there is no room for the rows; the work waits. Nothing was appended where the check found it.
    """
    try:
        room = _check_rows(append, done)
        append.disks.check(log_bytes=room.log_bytes, other_bytes=room.other_bytes)
        _append_rows(append, done)
    except Error:
        raise
    except (TypeError, ValueError, KeyError) as error:
        # Whole, by its checksum, but no such file as a task leaves. (Arrow's own errors are ValueErrors.)
        raise CorruptRecord(
            f"a staged file of {append.folder.path / append.work.folder} is not what it should be: {error}"
        ) from error


def _append_rows(append: StagedAppend, done: Counter[int]) -> None:
    targets: dict[str, WriteTarget] = {}
    unsynced = 0
    for chunk in append.chunks():
        target = targets.get(chunk.topic)
        if target is None:
            target = targets[chunk.topic] = _made_target(append, chunk.topic)
        skip = done[chunk.number]
        if skip < chunk.rows.num_rows:
            rows = chunk.rows.slice(skip)
            end = _append(append.handle, chunk, rows, target, append.work)
            unsynced += rows.nbytes
            if unsynced >= _WAIT_EVERY_BYTES:
                append.handle.wait_durable(end)
                unsynced = 0


def _made_target(append: StagedAppend, topic: str) -> WriteTarget:
    """Return a topic's target; the topic is made where it is new."""
    work = append.work
    if append.topics.find(topic) is None:
        append.topics.create(
            topic, queues=work.topic_queues, perm=READ_WRITE, batch=False, attributes={}, exist_ok=True
        )
    return append.topics.target(topic)


def _check_rows(append: StagedAppend, done: Counter[int]) -> _Room:
    """Check every row; return the room that those need which are not appended yet."""
    targets: dict[str, WriteTarget] = {}
    room = _Room(append.handle)
    for chunk in append.chunks():
        target = targets.get(chunk.topic)
        if target is None:
            target = targets[chunk.topic] = _planned_target(append, chunk.topic)
        queues = _numbers(chunk.rows, "queue")
        if queues is not None:
            wrong = queues[(queues < -1) | (queues >= target.queues)]
            if len(wrong):
                raise InvalidArgument(
                    f"the topic {chunk.topic} has the queues 0 to {target.queues - 1}, and no {wrong[0]}; "
                    "set_topic_queues changes their number"
                )
        _call(append.handle, chunk, chunk.rows, target, append.work, 0, -1, only_check=True)
        room.add(chunk.topic, target.queues, chunk.rows.slice(min(done[chunk.number], chunk.rows.num_rows)))
    return room


def _planned_target(append: StagedAppend, topic: str) -> WriteTarget:
    """Return the target that a topic has, or will have; nothing is made.

    Raises:
        InvalidArgument: it takes no messages, or cannot be made.
    """
    if append.topics.find(topic) is not None:
        return append.topics.target(topic)
    queues = append.work.topic_queues
    if queues == 0:
        raise InvalidArgument(
            f"there is no topic {topic}, and this broker does not create topics: create it (cometmq topic create)"
        )
    append.topics.check_new(topic, queues)
    return WriteTarget(queues)


class _Room:
    """Bytes that rows need on the disk: records, units of queues, entries of the index, and what files take ahead."""

    def __init__(self, handle: StoreHandle) -> None:
        """Begin with no rows."""
        info = handle.info()
        self._segment_bytes: int = info["segment_bytes"]
        self._index_slots: int = info["index_slots"]
        self._records = 0
        self._keys = 0
        self._units: Counter[str] = Counter()
        self._queues: dict[str, int] = {}

    def add(self, topic: str, queues: int, rows: pa.RecordBatch) -> None:
        """Count rows of a topic."""
        import pyarrow.compute as pc

        if not rows.num_rows:
            return
        self._units[topic] += rows.num_rows
        self._queues[topic] = queues
        self._records += rows.num_rows * (_RECORD_BYTES + len(topic)) + rows.nbytes
        for name in ("keys", "properties"):  # among properties there may be an id, which is a key too
            if name in rows.schema.names:
                blanks = pc.sum(pc.count_substring(rows.column(name), " ")).as_py() or 0 if name == "keys" else 0
                self._keys += rows.num_rows + blanks

    @property
    def log_bytes(self) -> int:
        """Return the bytes of the log, on the safe side."""
        if not self._units:
            return 0
        return self._records + min(_AHEAD_BYTES, self._segment_bytes, 2 * self._records + _BLOCKS_BYTES)

    @property
    def other_bytes(self) -> int:
        """Return the bytes of queue files and the index, on the safe side."""
        queues = sum(min(self._queues[topic], count) for topic, count in self._units.items())
        index = self._keys * _ENTRY_BYTES + (self._index_slots * _SLOT_BYTES if self._keys else 0)
        return self._units.total() * _UNIT_BYTES + queues * _BLOCKS_BYTES + index


def _by_topic(batch: pa.RecordBatch, default: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield each topic's rows, in their order; rows without a topic are of the default one."""
    import pyarrow.compute as pc

    if batch.num_rows == 0:
        return
    if "topic" not in batch.schema.names:
        yield _required(default), batch
        return
    column = batch.column("topic")
    if column.null_count:
        column = pc.fill_null(column, _required(default))
    found = column.unique().to_pylist()
    for topic in found:
        yield topic, batch if len(found) == 1 else batch.filter(pc.equal(column, topic))


def _required(topic: str | None) -> str:
    if topic is None:
        raise InvalidArgument("a row has no topic, and no topic was given for such rows")
    return topic


def _numbers(rows: pa.RecordBatch, name: str) -> npt.NDArray[np.int64] | None:
    """Return a column as numbers, null as -1; None where there is no such column."""
    import pyarrow.compute as pc

    if name not in rows.schema.names:
        return None
    numbers: npt.NDArray[np.int64] = pc.fill_null(rows.column(name).cast("int64"), -1).to_numpy(zero_copy_only=False)
    return numbers


def _append(handle: StoreHandle, chunk: _Chunk, rows: pa.RecordBatch, target: WriteTarget, work: StagedWork) -> int:
    queue, spread_from = _queues(rows, target)
    result = _call(handle, chunk, rows, target, work, queue, spread_from)
    if spread_from >= 0:
        target.turn = (spread_from + len(result)) % target.queues
    return result.end


def _call(
    handle: StoreHandle,
    chunk: _Chunk,
    rows: pa.RecordBatch,
    target: WriteTarget,
    work: StagedWork,
    queue: Any,
    spread_from: int,
    *,
    only_check: bool = False,
) -> AppendManyResult:
    mark = encode_properties({HANDOFF_PROPERTY: f"{work.work_id}:{chunk.number}"})
    names = rows.schema.names
    return handle.append_many(
        chunk.topic,
        rows.column("body"),
        rows.column("tags") if "tags" in names else None,
        rows.column("keys") if "keys" in names else None,
        _marked(rows.column("properties"), mark) if "properties" in names else mark,
        queue,
        target.queues,
        spread_from=spread_from,
        born_timestamps_ms=work.born_timestamp_ms,
        wait=False,
        only_check=only_check,
    )


def _marked(properties: pa.Array, mark: bytes) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    own = pc.fill_null(properties, b"")
    return pc.binary_join_element_wise(own, pa.scalar(mark, pa.binary()), pa.scalar(b"", pa.binary()))


def _queues(rows: pa.RecordBatch, target: WriteTarget) -> tuple[Any, int]:
    """Return the queue of each row, or where dealing them out begins."""
    import numpy as np

    queues, shards = _numbers(rows, "queue"), None
    if "shard" in rows.schema.names:
        column = rows.column("shard")
        hashes = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        # As upstream's SelectMessageQueueByHash: the remainder of Java's division, made positive.
        shards = np.where(column.is_valid().to_numpy(zero_copy_only=False), np.abs(np.fmod(hashes, target.queues)), -1)
    if queues is None and shards is None:
        return 0, target.turn
    chosen = queues if queues is not None else shards
    if queues is not None and shards is not None:
        chosen = np.where(queues >= 0, queues, shards)
    assert chosen is not None
    left = chosen < 0
    count = int(left.sum())
    if count:
        chosen = chosen.copy()
        chosen[left] = (target.turn + np.arange(count)) % target.queues
        target.turn = (target.turn + count) % target.queues
    return chosen.astype(np.int32), -1
