"""Inspection: a store directory's content and health. Quick: it reads the first and last records of queues only.

Works on a store that a writer holds, ours or a Java broker, on one that crashed, and on one that nobody has open.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq._engine import Reader, lock_holder
from cometmq.errors import CorruptRecord, Error, TopicNotFound
from cometmq.store.administration import topic_info
from cometmq.store.options import QueueInfo
from cometmq.store.removed import RemovedCut, removed_cuts
from cometmq.store_config.names import is_system_topic

if TYPE_CHECKING:
    from cometmq.store.store import Store

__all__ = [
    "FolderUse",
    "GroupReport",
    "Health",
    "IndexReport",
    "LayoutSize",
    "QueueProgress",
    "QueueReport",
    "StoreReport",
    "TopicReport",
    "inspect",
]

_CHECKPOINT = struct.Struct(">5q")
_INDEX_HEADER = struct.Struct(">4q2i")
_RECORDS_LOOKED_AT = 1000
_FOLDERS = ("commitlog", "consumequeue", "batchconsumequeue", "consumequeue_ext", "index", "config", "cometmq")
_DEFAULT_SIZES = (
    ("mappedFileSizeCommitLog", "segment_bytes", 1 << 30),
    ("mappedFileSizeConsumeQueue", "queue_file_bytes", 6_000_000),
    ("mapperFileSizeBatchConsumeQueue", "batch_file_bytes", 13_800_000),
    ("mappedFileSizeConsumeQueueExt", "ext_file_bytes", 48 << 20),
    ("maxHashSlotNum", "index_slots", 5_000_000),
    ("maxIndexNum", "index_entries", 20_000_000),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReport:
    """One queue.

    Attributes:
        queue_id: number of the queue.
        min_offset: first queue offset that can be read.
        max_offset: the one that the next message will get.
        messages: number of messages that can be read.
        earliest_timestamp_ms: when the first of them was stored, or None.
        latest_timestamp_ms: when the last one was, or None.
    """

    queue_id: int
    min_offset: int
    max_offset: int
    messages: int
    earliest_timestamp_ms: int | None
    latest_timestamp_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReport:
    """One topic.

    Attributes:
        name: name.
        system: one of RocketMQ's own.
        configured: it is in ``topics.json``.
        batch: its queues hold inner batches.
        perm: upstream's bits: 4 read, 2 write.
        write_queues: queues that appends go to.
        read_queues: queues offered to consumers.
        attributes: upstream's topic attributes.
        messages: number of messages that can be read.
        earliest_timestamp_ms: when the oldest of them was stored, or None.
        latest_timestamp_ms: when the newest one was, or None.
        queues: the queues that exist.
    """

    name: str
    system: bool
    configured: bool
    batch: bool
    perm: int
    write_queues: int
    read_queues: int
    attributes: dict[str, str]
    messages: int
    earliest_timestamp_ms: int | None
    latest_timestamp_ms: int | None
    queues: tuple[QueueReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueProgress:
    """How far a group is in one queue.

    Attributes:
        queue_id: number of the queue.
        offset: next queue offset to consume.
        lag: messages from there to the end.
    """

    queue_id: int
    offset: int
    lag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """A consumer group's progress in one topic.

    Attributes:
        group: name of the group.
        topic: topic.
        lag: messages not consumed, in all queues.
        queues: its progress by queue.
    """

    group: str
    topic: str
    lag: int
    queues: tuple[QueueProgress, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderUse:
    """One folder of the store.

    Attributes:
        name: name.
        files: number of files.
        size_bytes: their lengths.
        disk_bytes: their size on disk; less where files are sparse.
    """

    name: str
    files: int
    size_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSize:
    """A size that the files do not name.

    Attributes:
        setting: upstream's name of it.
        value: this store's value.
        default: upstream's.
    """

    setting: str
    value: int
    default: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexReport:
    """The key index.

    Attributes:
        files: number of files.
        keys: number of entries.
        begin_physical_offset: record of the first entry, or None without an entry.
        end_physical_offset: record of the last one, or None.
        gap_from: physical offset from which keys may be missing, or None where nothing says so.
        gap_to: physical offset up to which.
    """

    files: int
    keys: int
    begin_physical_offset: int | None
    end_physical_offset: int | None
    gap_from: int | None
    gap_to: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The store's health, as far as a quick look shows; ``cometmq verify`` checks everything.

    Attributes:
        writer_pid: process that has the store open for writing; 0: nobody; -1: one of another host or container.
        writer_is_ours: that is CometMQ; False: a Java broker, or nobody.
        unclean: ``abort`` is there and nobody writes: the last writer did not close the store.
        repair_interrupted: a repair was cut off; the next opening for writing, or repair, completes it.
        checkpoint_log_ms: store time up to which the log is known to be on disk, or None without a checkpoint.
        checkpoint_queues_ms: … the queues.
        checkpoint_index_ms: … the index.
        kept_repairs: folders under ``cometmq/removed`` that repairs left.
        removed: whole records that recovery cut off and kept there.
        remarks: sentences about what is worth knowing.
    """

    writer_pid: int
    writer_is_ours: bool
    unclean: bool
    repair_interrupted: bool
    checkpoint_log_ms: int | None
    checkpoint_queues_ms: int | None
    checkpoint_index_ms: int | None
    kept_repairs: int
    removed: tuple[RemovedCut, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """A store.

    Attributes:
        path: the directory.
        log_min: physical offset of the oldest record.
        log_end: physical offset behind the newest readable one.
        earliest_timestamp_ms: when the oldest message was stored, or None.
        latest_timestamp_ms: when the newest one was, or None.
        messages: number of messages in all topics, RocketMQ's own included.
        topics: the topics asked for.
        groups: progress of consumer groups in them.
        folders: the folders' sizes.
        layout: sizes of files.
        index: the key index.
        health: how it is.
    """

    path: str
    log_min: int
    log_end: int
    earliest_timestamp_ms: int | None
    latest_timestamp_ms: int | None
    messages: int
    topics: tuple[TopicReport, ...]
    groups: tuple[GroupReport, ...]
    folders: tuple[FolderUse, ...]
    layout: tuple[LayoutSize, ...]
    index: IndexReport
    health: Health


def inspect(store: Store, *, topic: str | None = None, system: bool = True) -> StoreReport:
    """Look at an open store.

    Args:
        store: opened in either mode; mode "r" disturbs nobody.
        topic: only this topic and its groups.
        system: RocketMQ's own topics, too.

    Raises:
        TopicNotFound: there is no such topic.
    """
    info = store.info()
    names = [topic] if topic is not None else store.topics(system=system)
    index = _index(store, info.log_min, info.log_end)
    health = _health(store, index, info.writer_is_ours, info.latest_timestamp_ms)
    return StoreReport(
        path=os.fspath(store.path),
        log_min=info.log_min,
        log_end=info.log_end,
        earliest_timestamp_ms=info.earliest_timestamp_ms,
        latest_timestamp_ms=info.latest_timestamp_ms,
        messages=sum(queue.messages for queue in store.queues()),
        topics=tuple(_topic(store, name, is_listed=topic is None) for name in names),
        groups=tuple(_groups(store, None if topic is None and system else frozenset(names))),
        folders=tuple(_folders(store.path)),
        layout=tuple(
            LayoutSize(setting=setting, value=getattr(info, name), default=default)
            for setting, name, default in _DEFAULT_SIZES
        ),
        index=index,
        health=health,
    )


# --- Topics and groups


def _stored_ms(store: Store, queue: QueueInfo, offset: int) -> int | None:
    """When a message was stored; None where it does not exist or is damaged."""
    if not queue.min_offset <= offset < queue.max_offset:
        return None
    try:
        return store.get(queue.topic, queue.queue_id, offset).store_timestamp_ms
    except Error:
        return None  # a gap, a damaged record, or it expired just now: the span is a help, no promise


def _queue(store: Store, queue: QueueInfo) -> QueueReport:
    return QueueReport(
        queue_id=queue.queue_id,
        min_offset=queue.min_offset,
        max_offset=queue.max_offset,
        messages=queue.messages,
        earliest_timestamp_ms=_stored_ms(store, queue, queue.min_offset),
        latest_timestamp_ms=_stored_ms(store, queue, queue.max_offset - 1),
    )


def _topic(store: Store, name: str, *, is_listed: bool) -> TopicReport:
    try:
        found = store.topic(name)
    except TopicNotFound:
        if not is_listed:
            raise
        # Deleted since it was listed, or its name is not UTF-8, as in somebody else's store: no text finds it.
        found = topic_info(name, None, [queue for queue in store.queues() if queue.topic == name])
    queues = tuple(_queue(store, queue) for queue in found.queues)
    return TopicReport(
        name=name,
        system=is_system_topic(name),
        configured=found.is_configured,
        batch=found.is_batch,
        perm=found.perm,
        write_queues=found.write_queues,
        read_queues=found.read_queues,
        attributes=dict(found.attributes),
        messages=found.messages,
        earliest_timestamp_ms=min((q.earliest_timestamp_ms for q in queues if q.earliest_timestamp_ms), default=None),
        latest_timestamp_ms=max((q.latest_timestamp_ms for q in queues if q.latest_timestamp_ms), default=None),
        queues=queues,
    )


def _groups(store: Store, topics: frozenset[str] | None) -> Iterator[GroupReport]:
    by_pair: dict[tuple[str, str], list[QueueProgress]] = {}
    for one in store.progress():
        if topics is None or one.topic in topics:
            progress = QueueProgress(queue_id=one.queue_id, offset=one.offset, lag=one.lag)
            by_pair.setdefault((one.group, one.topic), []).append(progress)
    for (group, topic), queues in sorted(by_pair.items()):
        yield GroupReport(group=group, topic=topic, lag=sum(queue.lag for queue in queues), queues=tuple(queues))


# --- Files


def _files(folder: str) -> Iterator[os.stat_result]:
    """Every file below a folder. Files that disappear meanwhile are skipped."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield os.lstat(os.path.join(parent, name))  # noqa: PTH118 - there may be 100,000 of them


def _folders(path: Path) -> Iterator[FolderUse]:
    for name in _FOLDERS:
        if not (path / name).is_dir():
            continue
        files = size = disk = 0
        for info in _files(os.fspath(path / name)):
            files += 1
            size += info.st_size
            disk += info.st_blocks * 512
        yield FolderUse(name=name, files=files, size_bytes=size, disk_bytes=disk)


def _index_headers(path: Path) -> Iterator[tuple[int, int, int]]:
    """Begin and end offset and number of keys of each index file, oldest first; files without a key are left out."""
    for file in sorted((path / "index").glob("[0-9]" * 17)):
        header = b""
        # Gone since, or a folder, as somebody else's store may have one.
        with contextlib.suppress(FileNotFoundError, IsADirectoryError), file.open("rb") as opened:
            header = opened.read(_INDEX_HEADER.size)
        if len(header) == _INDEX_HEADER.size:
            _, _, begin, end, _, count = _INDEX_HEADER.unpack(header)
            if count > 1:
                yield begin, end, count - 1


def _index(store: Store, log_min: int, log_end: int) -> IndexReport:
    headers = list(_index_headers(store.path))
    begin = headers[0][0] if headers else None
    end = headers[-1][1] if headers else None
    # A broker drops its newest index file after a crash, and then indexes only what it reads again.
    gap = (log_min, log_end if begin is None else begin)
    for (_, end_before, _), (begin_after, _, _) in itertools.pairwise(headers):
        if gap[0] >= gap[1]:
            gap = (end_before, begin_after)
    has_gap = _has_keys(store, *gap, known={entry for header in headers for entry in header[:2]})
    return IndexReport(
        files=len(headers),
        keys=sum(count for _, _, count in headers),
        begin_physical_offset=begin,
        end_physical_offset=end,
        gap_from=gap[0] if has_gap else None,
        gap_to=gap[1] if has_gap else None,
    )


def _has_keys(store: Store, begin: int, end: int, known: set[int]) -> bool:
    """Return whether one of the first records between two physical offsets, but those known, has a key."""
    if begin >= end:
        return False
    with Reader(store.handle, start_physical=begin) as reader:
        try:
            for message in itertools.islice(reader, _RECORDS_LOOKED_AT):
                if message.physical_offset >= end:
                    return False
                if message.physical_offset not in known and (message.keys or message.unique_id):
                    return True
        except Error:
            return False  # damage, which verify names
    return False


# --- Health


def _checkpoint(path: Path) -> tuple[int, int, int] | None:
    try:
        with (path / "checkpoint").open("rb") as file:
            content = file.read(_CHECKPOINT.size)
    except FileNotFoundError:
        return None
    log_ms, queues_ms, index_ms, _, _ = _CHECKPOINT.unpack(content.ljust(_CHECKPOINT.size, b"\0"))
    return log_ms, queues_ms, index_ms


def _health(store: Store, index: IndexReport, ours: bool, latest_ms: int | None) -> Health:
    path = store.path
    pid = os.getpid() if store.is_writer else lock_holder(path)
    unclean = pid == 0 and (path / "abort").exists()
    interrupted = (path / "cometmq" / "repair").exists()
    removed = path / "cometmq" / "removed"
    kept = len(list(removed.glob("*")))
    checkpoint = _checkpoint(path)
    remarks = []
    if unclean:
        remarks.append(
            "the last writer did not close the store (abort is there): the next opening for writing recovers it"
        )
    try:
        store.handle.check_end()
    except CorruptRecord as error:
        remarks.append(error.reason)
    if interrupted:
        remarks.append("a repair was interrupted: run `cometmq repair` again, or open the store for writing")
    if checkpoint is None or (pid == 0 and latest_ms is not None and checkpoint[0] == 0):
        remarks.append("there is no checkpoint: the next opening for writing reads the whole log")
    elif pid == 0 and latest_ms is not None and checkpoint[0] < latest_ms:
        remarks.append(f"the checkpoint is {(latest_ms - checkpoint[0]) / 1000:.1f} s older than the newest message")
    if index.gap_from is not None:
        remarks.append(
            f"keys of records between {index.gap_from:,} and {index.gap_to:,} may not be in the index: "
            "`cometmq verify` counts them, `cometmq repair` indexes them"
        )
    cuts = removed_cuts(path)
    remarks += [
        f"{cut.text}: `cometmq repair --restore-removed {cut.name}` appends them again"
        for cut in cuts
        if not cut.restored
    ]
    if kept > len(cuts):
        remarks.append(f"files that repairs put aside are in {removed}: delete them when you no longer need them")
    return Health(
        writer_pid=pid,
        writer_is_ours=ours and pid != 0,
        unclean=unclean,
        repair_interrupted=interrupted,
        checkpoint_log_ms=checkpoint[0] if checkpoint else None,
        checkpoint_queues_ms=checkpoint[1] if checkpoint else None,
        checkpoint_index_ms=checkpoint[2] if checkpoint else None,
        kept_repairs=kept - len(cuts),
        removed=cuts,
        remarks=tuple(remarks),
    )
