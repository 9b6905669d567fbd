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
from typing import TYPE_CHECKING, Any

from cometmq._engine import AppendManyResult, StoreHandle, encode_properties
from cometmq.errors import CorruptRecord, Error, InvalidArgument
from cometmq.store.handoff_files import HANDOFF_PROPERTY, StagedWork
from cometmq.store.staged_check import check_file, check_room, read_batches
from cometmq.store.staged_files import StagedFolder
from cometmq.store.topic_book import READ_WRITE, TopicBook, WriteTarget

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

__all__ = ["apply_staged"]

_WAIT_EVERY_BYTES = 64 << 20
"""So much is appended before the disk is waited for: what is not on disk yet is held in memory."""


@dataclass(slots=True)
class _Chunk:
    """A topic's rows in a record batch."""

    number: int
    topic: str
    rows: pa.RecordBatch


def apply_staged(
    handle: StoreHandle, topics: TopicBook, folder: StagedFolder, work: StagedWork, done: Counter[int]
) -> None:
    """Append the messages of staged work that are not in the log yet.

    Every row of every file is checked before the first is appended, so that work is appended whole or not at all: form,
    lengths, topics, queues, and room on the disk. What can fail behind that is the disk; the work waits then, and the
    next attempt goes on where this one stopped.

    Args:
        handle: the store, open for writing.
        topics: its topics; new ones are made.
        folder: where the files are.
        work: the work.
        done: messages of each chunk that the log has already.

    Raises:
        InvalidArgument: the rows cannot be appended; nothing was, unless the text says otherwise.
        CorruptRecord: a file is missing or damaged; nothing was appended.
        DiskFull: there is no room for the rows; the work waits. Nothing was appended where the check found it.
    """
    try:
        for file in work.files:
            check_file(folder.path / work.folder / file.name, file)
        _apply(handle, topics, folder, work, done)
    except Error:
        raise
    except (TypeError, ValueError, KeyError) as error:
        # Whole, by its checksum, but no such file as a task leaves. (Arrow's own errors are ValueErrors.)
        raise CorruptRecord(
            f"a staged file of {folder.path / work.folder} is not what it should be: {error}"
        ) from error


def _apply(handle: StoreHandle, topics: TopicBook, folder: StagedFolder, work: StagedWork, done: Counter[int]) -> None:
    targets = _prepare_targets(handle, topics, folder, work)
    check_room(folder.path, sum(file.size_bytes for file in work.files))
    unsynced = 0
    for chunk in _chunks(folder, work):
        skip = done[chunk.number]
        if skip < chunk.rows.num_rows:
            rows = chunk.rows.slice(skip)
            end = _append(handle, chunk, rows, targets[chunk.topic], work)
            unsynced += rows.nbytes
            if unsynced >= _WAIT_EVERY_BYTES:
                handle.wait_durable(end)
                unsynced = 0


def _prepare_targets(
    handle: StoreHandle, topics: TopicBook, folder: StagedFolder, work: StagedWork
) -> dict[str, WriteTarget]:
    """Check every row, and make what topics are missing, before anything is appended."""
    targets: dict[str, WriteTarget] = {}
    for chunk in _chunks(folder, work):
        target = targets.get(chunk.topic)
        if target is None:
            if topics.find(chunk.topic) is None:
                if work.topic_queues == 0:
                    raise InvalidArgument(
                        f"there is no topic {chunk.topic}, and this broker makes none by itself: make it first "
                        "(cometmq topic create)"
                    )
                topics.create(
                    chunk.topic, queues=work.topic_queues, perm=READ_WRITE, batch=False, attributes={}, exist_ok=True
                )
            target = targets[chunk.topic] = topics.target(chunk.topic)
        queues = _numbers(chunk.rows, "queue")
        if queues is not None:
            wrong = queues[(queues < -1) | (queues >= target.queues)]
            if len(wrong):
                raise InvalidArgument(
                    f"the topic {chunk.topic} has the queues 0 to {target.queues - 1}, and no {wrong[0]}; "
                    "set_topic_queues changes their number"
                )
        _call(handle, chunk, chunk.rows, target, work, 0, -1, only_check=True)
    return targets


def _chunks(folder: StagedFolder, work: StagedWork) -> Iterator[_Chunk]:
    """Yield all chunks, numbered in the same way each time."""
    number = 0
    for file in work.files:
        for batch in read_batches(folder.path / work.folder / file.name):
            for topic, rows in _by_topic(batch, work.topic):
                yield _Chunk(number, topic, rows)
                number += 1


def _by_topic(batch: pa.RecordBatch, default: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    import pyarrow.compute as pc

    if batch.num_rows == 0:
        return
    if "topic" not in batch.schema.names:
        yield _required(default), batch
        return
    column = batch.column("topic")
    found = column.unique().to_pylist()
    for topic in found:
        if len(found) == 1:
            yield _required(topic if topic is not None else default), batch
        else:
            mask = pc.is_null(column) if topic is None else pc.fill_null(pc.equal(column, topic), False)
            yield _required(topic if topic is not None else default), batch.filter(mask)


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
