"""The hand-off folder: how a process that is not the store's writer leaves work for the one that is.

Files under ``<store>/cometmq/handoff/``, which no RocketMQ looks into::

    <time>-m-<id>.work     messages of one topic to append; work is applied in the order of names
    <time>-c-<id>.work     a group's progress
    <time>-a-<id>.work     a call about a topic or a group (:mod:`cometmq.store.topic_calls`)
    <time>-s-<id>.work     files of messages, which lie under cometmq/staged (:mod:`cometmq.store.staged_files`)
    .<name>.tmp            being written
    journal                names that the writer is applying, and where the log ended before
    rejected/<name>.work   what cannot be applied, with <name>.json that says why
    wake                   a FIFO: a byte in it says that there is work

A piece of work is a header, a JSON text and the bodies behind each other::

    0   8  b"CMQWORK1"     8   4  bytes of the JSON text     12  8  bytes of the bodies     20  4  crc32 of both

all little-endian. It is written under another name, synced, renamed, and the folder synced: a file of this name is
whole.

Guarantees, and their reasons:

- Durable when left: as above. It does not matter whether the writer lives, or when one comes.
- Messages are applied exactly once. Each gets the property ``CMQ_HANDOFF`` = ``<id>:<index>``. Before a round the
  writer leaves the journal; after it, the log is made durable and only then the files are removed, the journal last.
  A writer that dies in between leaves the journal, and the next one looks through the log from where it says for
  messages with that property, and appends those that are missing. So the log itself is the record of what was applied.
  A round that fails or is cut off again leaves a journal that still reaches back to the first one's beginning.
- A call may be applied twice, by two writers, and nothing differs; :mod:`cometmq.store.topic_calls`.
- Progress is set, so that applying it twice changes nothing; no other commit comes between, since the lock of commits
  is held until the file is removed.
- Order: the work of one process is applied in the order in which it was left; that of two processes by their clocks.
  Work that the writer may not read, being another user's, waits until it may; work behind it is applied meanwhile.

- Messages that went through the door (:mod:`cometmq.store.handoff_door`) without an answer are left here with the place
  in the log from which their marks are looked for, and appended where they are missing.

Not promised: that messages of one piece of work stand next to each other, or in the order of *other* appends.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import stat
import threading
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any

from cometmq.errors import CorruptRecord, Error, LimitReached, MessageTooLarge
from cometmq.store_config.config_file import storage_error
from cometmq.store_config.file_ops import SYSTEM_FILE_OPS, FileOps
from cometmq.store_config.own_json import loads_own

__all__ = [
    "HANDOFF_PROPERTY",
    "CallWork",
    "CommitWork",
    "HandoffFolder",
    "Journal",
    "MessagesWork",
    "NewerWork",
    "StagedFile",
    "StagedWork",
    "Work",
    "new_work_id",
]

HANDOFF_PROPERTY = "CMQ_HANDOFF"

WORK_BYTES_MAX = 256 << 20
"""Largest piece of work."""
WAITING_MAX = 10_000
"""Most pieces of work that may wait; then the next is refused."""
STALE_TEMPORARY_S = 3600.0
"""A file still being written after this time was left by a process that died."""


class NewerWork(Error):
    """A piece of work was left by a newer version of CometMQ. It waits for a writer of that version."""


_MAGIC = b"CMQWORK1"
_HEADER = Struct("<8sIQI")
_VERSION = 1
_LATER_VERSION = 2
"""Of kinds that came later: a version that does not know them leaves them for one that does."""
_LATER_KINDS = frozenset({"staged", "call"})
_COLUMNS: Mapping[str, tuple[type, ...]] = {
    "tags": (str, type(None)),
    "keys": (str, type(None)),
    "properties": (str,),
    "queues": (int,),
    "born": (int,),
}
"""The lists with a value per message, and the types of their values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesWork:
    """Messages of one topic to append.

    Attributes:
        work_id: 32 hexadecimal digits.
        topic: topic.
        bodies: bodies.
        tags: tag per message, or None for none.
        keys: keys per message, joined, or None.
        properties: encoded properties per message, or None.
        queues: queue per message, or None: the writer deals them out.
        flag: the sender's bits.
        born_timestamps_ms: time of making per message.
        sought_from: physical offset from which the log may have some of the messages already, or None: it has none.
    """

    work_id: str
    topic: str
    bodies: Sequence[bytes]
    tags: Sequence[str | None] | None
    keys: Sequence[str | None] | None
    properties: Sequence[bytes] | None
    queues: Sequence[int] | None
    flag: int
    born_timestamps_ms: Sequence[int]
    sought_from: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitWork:
    """A group's progress.

    Attributes:
        work_id: 32 hexadecimal digits.
        group: consumer group.
        offsets: (topic, queue id, next offset to consume) of each queue.
        expected: the offsets required before, in the same order, None where there must be none; or None where they may
            be any.
    """

    work_id: str
    group: str
    offsets: Sequence[tuple[str, int, int]]
    expected: Sequence[int | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallWork:
    """A call about a topic or a group.

    Attributes:
        work_id: 32 hexadecimal digits.
        call: its name in :data:`cometmq.store.topic_calls.CALLS`.
        arguments: its arguments by name, as JSON takes them.
    """

    work_id: str
    call: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """A file of messages: Arrow's IPC file format.

    Attributes:
        name: its name in the folder.
        rows: number of messages.
        size_bytes: its length.
        crc32: zlib's checksum of all of it.
    """

    name: str
    rows: int
    size_bytes: int
    crc32: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedWork:
    """Files of messages to append: too many for one piece of work, or of several topics.

    Attributes:
        work_id: 32 hexadecimal digits.
        folder: name of their folder under ``cometmq/staged``.
        files: the files, in the order in which they are appended.
        topic: topic of rows that name none, or None.
        topic_queues: queues of a topic that is not there yet; 0: none is made.
        done_key: name under which the work is applied only once, even if it is left again; or None.
        done_number: with ``done_key``: applied only where it is above the number applied last under that name.
        born_timestamp_ms: time of making.
    """

    work_id: str
    folder: str
    files: Sequence[StagedFile]
    topic: str | None
    topic_queues: int
    done_key: str | None
    done_number: int
    born_timestamp_ms: int

    @property
    def rows(self) -> int:
        """Number of messages."""
        return sum(file.rows for file in self.files)


Work = MessagesWork | CommitWork | CallWork | StagedWork

_KIND_LETTERS: dict[type, str] = {MessagesWork: "m", CommitWork: "c", CallWork: "a", StagedWork: "s"}


def new_work_id() -> str:
    """Return an id that nobody else has."""
    return uuid.uuid4().hex


def encode_work(work: Work) -> bytes:
    """Return the file's content.

    Raises:
        MessageTooLarge: it would be over :data:`WORK_BYTES_MAX`.
    """
    head: dict[str, Any] = {"version": _VERSION, "id": work.work_id}
    bodies: Sequence[bytes] = ()
    if isinstance(work, MessagesWork):
        bodies = work.bodies
        head |= {
            "kind": "messages",
            "topic": work.topic,
            "sizes": [len(body) for body in bodies],
            "tags": work.tags,
            "keys": work.keys,
            "properties": None if work.properties is None else [_armoured(one) for one in work.properties],
            "queues": work.queues,
            "flag": work.flag,
            "born": work.born_timestamps_ms,
        }
        if work.sought_from is not None:
            head |= {"version": _LATER_VERSION, "sought": work.sought_from}
    elif isinstance(work, CommitWork):
        head |= {"kind": "commit", "group": work.group, "offsets": work.offsets}
        if work.expected is not None:
            head |= {"expected": work.expected}
    elif isinstance(work, CallWork):
        head |= {"version": _LATER_VERSION, "kind": "call", "call": work.call, "arguments": dict(work.arguments)}
    else:
        head |= {"version": _LATER_VERSION, "kind": "staged", **_staged_head(work)}
    text = json.dumps(head, separators=(",", ":")).encode()
    payload = b"".join((text, *bodies))
    if len(payload) > WORK_BYTES_MAX:
        raise MessageTooLarge(
            f"{len(payload)} bytes to hand off at once; at most {WORK_BYTES_MAX} are allowed: hand them off in parts"
        )
    return _HEADER.pack(_MAGIC, len(text), len(payload) - len(text), zlib.crc32(payload)) + payload


def _staged_head(work: StagedWork) -> dict[str, Any]:
    return {
        "folder": work.folder,
        "files": [(file.name, file.rows, file.size_bytes, file.crc32) for file in work.files],
        "topic": work.topic,
        "topicQueues": work.topic_queues,
        "doneKey": work.done_key,
        "doneNumber": work.done_number,
        "born": work.born_timestamp_ms,
    }


def _decode_staged(head: dict[str, Any]) -> StagedWork:
    names = [str(head["folder"]), *(str(file[0]) for file in head["files"])]
    if any(not name or "/" in name or name in (".", "..") for name in names):
        raise ValueError(f"names outside their folder: {names}")
    return StagedWork(
        work_id=str(head["id"]),
        folder=names[0],
        files=tuple(
            StagedFile(name=str(name), rows=int(rows), size_bytes=int(size), crc32=int(crc))
            for name, rows, size, crc in head["files"]
        ),
        topic=None if head["topic"] is None else str(head["topic"]),
        topic_queues=int(head["topicQueues"]),
        done_key=None if head["doneKey"] is None else str(head["doneKey"]),
        done_number=int(head["doneNumber"]),
        born_timestamp_ms=int(head["born"]),
    )


def _armoured(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def decode_work(data: bytes) -> Work:
    """Return the work of a file's content.

    Raises:
        CorruptRecord: damaged.
        NewerWork: made by a newer version.
    """
    if len(data) < _HEADER.size:
        raise CorruptRecord(f"a hand-off file of {len(data)} bytes is shorter than its header", offset=0)
    magic, text_bytes, body_bytes, crc = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptRecord(f"a hand-off file begins with {magic!r}, not {_MAGIC!r}", offset=0)
    payload = memoryview(data)[_HEADER.size :]
    if text_bytes + body_bytes != len(payload):
        raise CorruptRecord(
            f"a hand-off file holds {len(payload):,} bytes and its header says {text_bytes + body_bytes:,}", offset=8
        )
    if zlib.crc32(payload) != crc:
        raise CorruptRecord("a hand-off file's checksum is wrong", offset=20)
    try:
        return _decode_payload(loads_own(bytes(payload[:text_bytes])), payload[text_bytes:])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptRecord(f"a hand-off file's content is not what it should be: {error!r}", offset=24) from error


def _decode_payload(head: dict[str, Any], rest: memoryview) -> Work:
    known = _LATER_VERSION if head["kind"] in _LATER_KINDS or "sought" in head else _VERSION
    if head["version"] != known:
        raise NewerWork(f"a hand-off file has version {head['version']}; this CometMQ knows {known}")
    if head["kind"] == "staged":
        return _decode_staged(head)
    if head["kind"] == "call":
        return CallWork(work_id=str(head["id"]), call=str(head["call"]), arguments=dict(head["arguments"]))
    if head["kind"] == "commit":
        return CommitWork(
            work_id=str(head["id"]),
            group=str(head["group"]),
            offsets=[(str(topic), int(queue), int(offset)) for topic, queue, offset in head["offsets"]],
            expected=None
            if head.get("expected") is None
            else [None if before is None else int(before) for before in head["expected"]],
        )
    if head["kind"] != "messages":
        raise ValueError(f"kind {head['kind']!r}")
    sizes = [int(size) for size in head["sizes"]]
    if sum(sizes) != len(rest) or any(size < 0 for size in sizes):
        raise ValueError("the sizes of the bodies do not fit")
    bodies, at = [], 0
    for size in sizes:
        bodies.append(bytes(rest[at : at + size]))
        at += size
    for name, kinds in _COLUMNS.items():
        column = head[name]
        if column is None:
            continue
        if not isinstance(column, list) or not all(type(value) in kinds for value in column):
            raise TypeError(f"{name} is no list of its values")
        if len(column) != len(sizes):
            raise ValueError(f"{len(column)} {name} for {len(sizes)} bodies")
    properties = head["properties"]
    return MessagesWork(
        work_id=str(head["id"]),
        topic=str(head["topic"]),
        bodies=bodies,
        tags=head["tags"],
        keys=head["keys"],
        properties=None if properties is None else [base64.b64decode(one, validate=True) for one in properties],
        queues=head["queues"],
        flag=int(head["flag"]),
        born_timestamps_ms=[int(born) for born in head["born"]],
        sought_from=None if "sought" not in head else int(head["sought"]),
    )


@dataclass(frozen=True, slots=True)
class Journal:
    """The work that a writer was applying.

    Attributes:
        log_end: physical offset at which the log ended before the first round that began one of these.
        names: names of the files of the round, and of those that an earlier one began and did not end.
    """

    log_end: int
    names: tuple[str, ...]


class HandoffFolder:
    """The files. Threads: any. Processes: any may leave work; only the holder of the store's lock applies it."""

    def __init__(self, root: Path, *, file_ops: FileOps = SYSTEM_FILE_OPS) -> None:
        """Nothing is made yet. ``root`` is the store's directory."""
        self.root = root
        self.path = root / "cometmq" / "handoff"
        self.rejected = self.path / "rejected"
        self._ops = file_ops
        self._leaving = threading.Lock()
        self._last_time_ns = 0

    # --- For those who leave work

    def leave(self, work: Work) -> str:
        """Leave a piece of work, durably, and wake the writer. Returns its name.

        Raises:
            LimitReached: too much waits already.
            MessageTooLarge: the piece is too large.
            StorageError: it could not be written.
        """
        data = encode_work(work)
        with self._leaving, _as_storage_error(f"cannot leave work in {self.path}"):
            self._ops.make_folder(self.path, root=self.root)
            if len(self.waiting()) >= WAITING_MAX:
                raise LimitReached(
                    f"{WAITING_MAX} pieces of work wait in {self.path}; why does the store's writer not apply them?"
                )
            self._last_time_ns = max(time.time_ns(), self._last_time_ns + 1)
            kind = _KIND_LETTERS[type(work)]
            name = f"{self._last_time_ns:020d}-{kind}-{work.work_id}"
            temporary = self.path / f".{name}.tmp"
            self._ops.write_synced(temporary, data)
            self._ops.rename(temporary, self.path / f"{name}.work")
            self._ops.sync_folder(self.path)
        self.wake()
        return name

    def wake(self) -> None:
        """Notify the writer of work. Without a reader, or with a full FIFO, nothing is lost: the writer polls too."""
        with suppress(OSError):
            descriptor = os.open(self.path / "wake", os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                os.write(descriptor, b"w")
            finally:
                os.close(descriptor)

    def is_waiting(self, name: str) -> bool:
        """Return whether a piece of work still waits."""
        return (self.path / f"{name}.work").exists()

    def rejection(self, name: str) -> str | None:
        """Return why a piece of work was rejected, or None where it was not."""
        try:
            data = self._ops.read(self.rejected / f"{name}.json", bytes_max=WORK_BYTES_MAX)
        except FileNotFoundError:
            return None
        if data is None:
            return None
        try:
            return str(loads_own(data)["reason"])
        except (ValueError, KeyError, TypeError) as error:
            return f"the file with the reason is damaged: {error!r}"

    def staged_rejection(self, work: StagedWork) -> str | None:
        """Return why work of this id and folder was rejected, however it was named; None where it was not."""
        for name in sorted((entry.stem for entry in self.rejected.glob(f"*-s-{work.work_id}.work")), reverse=True):
            with suppress(CorruptRecord, NewerWork, FileNotFoundError):
                data = self._ops.read(self.rejected / f"{name}.work", bytes_max=WORK_BYTES_MAX + _HEADER.size)
                found = None if data is None else decode_work(data)
                if isinstance(found, StagedWork) and found.folder == work.folder:
                    return self.rejection(name)
        return None

    # --- For the writer

    def waiting(self) -> list[str]:
        """Return the names of all work that waits, in the order in which it is to be applied."""
        try:
            return sorted(entry.stem for entry in self.path.iterdir() if entry.suffix == ".work")
        except FileNotFoundError:
            return []

    def read(self, name: str) -> Work | None:
        """Return a piece of work, or None where it is gone.

        Raises:
            CorruptRecord: it is damaged.
            NewerWork: it is of a newer version.
        """
        with _as_storage_error(f"cannot read {name} in {self.path}"):
            data = self._ops.read(self.path / f"{name}.work", bytes_max=WORK_BYTES_MAX + _HEADER.size)
        return None if data is None else decode_work(data)

    def waiting_commits(self) -> list[CommitWork]:
        """Return the progress that waits to be applied, oldest first, without unreadable files."""
        found = []
        for name in self.waiting():
            if "-c-" in name:
                with suppress(CorruptRecord, NewerWork):
                    work = self.read(name)
                    if isinstance(work, CommitWork):
                        found.append(work)
        return found

    def reject(self, name: str, reason: str) -> None:
        """Put a piece of work aside, with the reason."""
        with _as_storage_error(f"cannot put {name} aside in {self.path}"):
            self._ops.make_folder(self.rejected, root=self.root)
            text = json.dumps({"reason": reason, "time_ms": time.time_ns() // 1_000_000}, indent=1).encode()
            self._ops.write_synced(self.rejected / f"{name}.json", text)
            self._ops.rename(self.path / f"{name}.work", self.rejected / f"{name}.work")
            self._ops.sync_folder(self.rejected)
            self._ops.sync_folder(self.path)

    def begin_round(self, journal: Journal) -> None:
        """Write the journal, durably."""
        text = json.dumps({"version": _VERSION, "log_end": journal.log_end, "names": journal.names}).encode()
        data = b"%08x\n%s" % (zlib.crc32(text), text)
        with _as_storage_error(f"cannot write the journal in {self.path}"):
            temporary = self.path / ".journal.tmp"
            self._ops.write_synced(temporary, data)
            self._ops.rename(temporary, self.path / "journal")
            self._ops.sync_folder(self.path)

    def remove_work(self, names: Sequence[str]) -> tuple[str, ...]:
        """Remove applied work, durably; return the names that this process may not remove."""
        kept: list[str] = []
        with _as_storage_error(f"cannot remove applied work from {self.path}"):
            for name in names:
                try:
                    self._ops.remove(self.path / f"{name}.work")
                except PermissionError:  # noqa: PERF203 - work of other users
                    kept.append(name)
            self._ops.sync_folder(self.path)
        return tuple(kept)

    def end_round(self, left: Journal | None = None) -> None:
        """Remove the journal, or put ``left`` in its place."""
        if left is not None:
            self.begin_round(left)
            return
        with _as_storage_error(f"cannot remove applied work from {self.path}"):
            self._ops.remove(self.path / "journal")

    def journal(self) -> Journal | None:
        """Return what a writer that died was applying, or None.

        Raises:
            CorruptRecord: the journal is damaged.
        """
        with _as_storage_error(f"cannot read the journal in {self.path}"):
            data = self._ops.read(self.path / "journal", bytes_max=WORK_BYTES_MAX)
        if data is None:
            return None
        checksum, _, text = data.partition(b"\n")
        try:
            if int(checksum, 16) != zlib.crc32(text):
                raise ValueError("wrong checksum")
            content = loads_own(text)
            return Journal(int(content["log_end"]), tuple(str(name) for name in content["names"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptRecord(f"the journal in {self.path} is damaged: {error}") from error

    def sweep(self) -> None:
        """Remove files that a process began to write and never finished."""
        oldest = time.time() - STALE_TEMPORARY_S
        with suppress(FileNotFoundError):
            for entry in os.scandir(self.path):
                if entry.name.startswith(".") and entry.name.endswith(".tmp") and entry.stat().st_mtime < oldest:
                    Path(entry.path).unlink(missing_ok=True)

    def open_wake(self) -> int | None:
        """Make the FIFO and return a descriptor to wait on, or None where the file system has no FIFOs."""
        try:
            self._ops.make_folder(self.path, root=self.root)
            fifo = self.path / "wake"
            # A plain file would always be ready to be read.
            if os.path.lexists(fifo) and not stat.S_ISFIFO(fifo.lstat().st_mode):
                fifo.unlink()
            with suppress(FileExistsError):
                os.mkfifo(fifo)
            return os.open(fifo, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            # Some network file systems; then the writer polls and finds it a little later.
            return None

    def remove_wake(self) -> None:
        """Remove the FIFO: a store that nobody writes is plain files, which any tool can copy."""
        with suppress(OSError):
            (self.path / "wake").unlink()


@contextmanager
def _as_storage_error(action: str) -> Iterator[None]:
    """Turn an OSError into the family's own."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise storage_error(OSError(errno.EIO, str(error)), action) from error
        raise storage_error(error, action) from error
