"""Appending staged files: the writer's side of :mod:`cometmq.store.staged_files`.

A file's columns: ``body`` (binary), and as far as they are needed ``topic``, ``tags``, ``keys`` (text), ``properties``
(binary, in the stored form), ``queue`` and ``shard`` (int32: a queue, or the hash that chooses one).

Exactly once: the rows are cut into *chunks* in one fixed way (a topic's rows in a record batch of a file). Every
message carries ``CMQ_HANDOFF`` = ``<work id>:<chunk>``, and a chunk's messages are appended in their order by nobody
else. So how many messages of each chunk the log has says where a writer that died stopped.
"""

from __future__ import annotations

import mmap
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cometmq._engine import StoreHandle, encode_properties
from cometmq.errors import CorruptRecord, Error, InvalidArgument
from cometmq.store.handoff_files import HANDOFF_PROPERTY, StagedFile, StagedWork
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

    Args:
        handle: the store, open for writing.
        topics: its topics; new ones are made.
        folder: where the files are.
        work: the work.
        done: messages of each chunk that the log has already.

    Raises:
        InvalidArgument: the rows cannot be appended; nothing was, unless the text says otherwise.
        CorruptRecord: a file is missing or damaged; nothing was appended.
    """
    try:
        for file in work.files:
            _check_file(folder.path / work.folder / file.name, file)
        _apply(handle, topics, folder, work, done)
    except Error:
        raise
    except (TypeError, ValueError, KeyError) as error:
        # Whole, by its checksum, but no such file as a task leaves. (Arrow's own errors are ValueErrors.)
        raise CorruptRecord(
            f"a staged file of {folder.path / work.folder} is not what it should be: {error}"
        ) from error


def _apply(handle: StoreHandle, topics: TopicBook, folder: StagedFolder, work: StagedWork, done: Counter[int]) -> None:
    targets = _prepare_targets(topics, folder, work)
    unsynced = 0
    for chunk in _chunks(folder, work, bodies=True):
        skip = done[chunk.number]
        if skip < chunk.rows.num_rows:
            rows = chunk.rows.slice(skip)
            end = _append(handle, chunk, rows, targets[chunk.topic], work)
            unsynced += rows.nbytes
            if unsynced >= _WAIT_EVERY_BYTES:
                handle.wait_durable(end)
                unsynced = 0


def _check_file(path: Path, file: StagedFile) -> None:
    try:
        with path.open("rb") as opened:
            size = opened.seek(0, 2)
            if size != file.size_bytes:
                raise CorruptRecord(f"the staged file {path} has {size} bytes, not {file.size_bytes}")
            with closing(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)) as content:
                checksum = zlib.crc32(content)
    except FileNotFoundError:
        raise CorruptRecord(f"the staged file {path} is gone") from None
    if checksum != file.crc32:
        raise CorruptRecord(f"the staged file {path} is damaged: its checksum is wrong")


def _prepare_targets(topics: TopicBook, folder: StagedFolder, work: StagedWork) -> dict[str, WriteTarget]:
    """Make what topics are missing, and check queues, before anything is appended."""
    targets: dict[str, WriteTarget] = {}
    for chunk in _chunks(folder, work, bodies=False):
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
    return targets


def _chunks(folder: StagedFolder, work: StagedWork, *, bodies: bool) -> Iterator[_Chunk]:
    """Yield all chunks, numbered in the same way each time."""
    import pyarrow as pa

    number = 0
    for file in work.files:
        with pa.memory_map(str(folder.path / work.folder / file.name)) as opened, pa.ipc.open_file(opened) as reader:
            for index in range(reader.num_record_batches):
                batch = reader.get_batch(index)
                for topic, rows in _by_topic(batch if bodies else _without_bodies(batch), work.topic):
                    yield _Chunk(number, topic, rows)
                    number += 1


def _without_bodies(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Leave what topics and queues need, and a column that is always there."""
    small = [name for name in ("topic", "queue") if name in batch.schema.names]
    return batch.select(small) if small else batch.slice(0, min(batch.num_rows, 1))


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
    mark = encode_properties({HANDOFF_PROPERTY: f"{work.work_id}:{chunk.number}"})
    names = rows.schema.names
    queue, spread_from = _queues(rows, target)
    result = handle.append_many(
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
    )
    if spread_from >= 0:
        target.turn = (spread_from + len(result)) % target.queues
    return result.end


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
