"""Reading staged files that anybody may have written: nothing in one is followed before it was checked.

A file may come over the wire from a client that nobody knows, with any bytes and a checksum that fits them. Arrow's
reader checks the metadata of a file; offsets and lengths inside its buffers, which name memory, it takes as they are.
So each record batch

- has the columns and types that a task writes, and no others (:data:`_COLUMNS`);
- is not compressed, so that its size in memory is bounded by the file's;
- is validated in full, before any other function of Arrow's, or the engine, reads a value.

Files are mapped: a page is in memory when it is read, and no longer than the system likes.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.errors import CorruptRecord, DiskFull
from cometmq.store.handoff_files import StagedFile

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["check_file", "check_room", "read_batches"]

_COLUMNS = {
    "body": ("binary",),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string",),
    "properties": ("binary",),
    "queue": ("int32",),
    "shard": ("int32",),
}
"""The types that each column may have. ``body`` is always there."""

_MAGIC = b"ARROW1\0\0"
_ROOM_FACTOR = 1.25
"""Room that rows take in the log and its queues, per byte of their file: heads and units for bodies of some size."""


def check_file(path: Path, file: StagedFile) -> None:
    """Compare a file with what the commit says of it.

    Raises:
        CorruptRecord: it is gone, of another size, or its checksum is wrong.
    """
    with closing(_map(path, file.size_bytes)) as content:
        checksum = zlib.crc32(content)
    if checksum != file.crc32:
        raise CorruptRecord(f"the staged file {path} is damaged: its checksum is wrong")


def _map(path: Path, size_bytes: int | None = None) -> mmap.mmap:
    """Map a plain file. Links are not followed, and a FIFO is not waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise CorruptRecord(f"the staged file {path} is gone") from None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise CorruptRecord(f"the staged file {path} is not a plain file") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise CorruptRecord(f"the staged file {path} is not a plain file")
        if status.st_size == 0 or size_bytes not in (None, status.st_size):
            raise CorruptRecord(f"the staged file {path} has {status.st_size} bytes, not {size_bytes}")
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)


def check_room(folder: Path, size_bytes: int) -> None:
    """Refuse to begin what the disk has no room for.

    Raises:
        DiskFull: it has not. The work waits, and is tried again.
    """
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    needed = int(size_bytes * _ROOM_FACTOR)
    if free < needed:
        raise DiskFull(
            f"staged rows need {needed:,} bytes and the disk of {folder} has {free:,} free; they wait, durably, and "
            "are appended when there is room. Do not write them again"
        )


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield a file's record batches, each validated in full.

    Raises:
        CorruptRecord: the file is not one that a task writes. What was yielded before is sound.
    """
    import pyarrow as pa

    content = pa.py_buffer(_map(path))
    try:
        _check_messages(pa.BufferReader(content), path)
        # As a stream: the file's footer could name other places than those that were checked.
        with pa.ipc.open_stream(content.slice(len(_MAGIC))) as reader:
            _check_schema(reader.schema, path)
            for batch in reader:
                batch.validate(full=True)
                if batch.column("body").null_count:
                    raise CorruptRecord(f"the staged file {path} has a row without a body")
                yield batch
    except (pa.ArrowException, OSError, MemoryError) as error:
        # Nothing here is read from a disk by a call: Arrow's OSErrors are about the content.
        raise CorruptRecord(f"the staged file {path} is not what it should be: {error}") from error


def _check_schema(schema: pa.Schema, path: Path) -> None:
    names = schema.names
    if "body" not in names or len(set(names)) != len(names):
        raise CorruptRecord(f"the staged file {path} has the columns {', '.join(names)[:200]}")
    for field in schema:
        allowed = _COLUMNS.get(field.name)
        if allowed is None or str(field.type) not in allowed:
            raise CorruptRecord(
                f"the staged file {path} has a column {field.name[:100]!r} of type {str(field.type)[:100]}"
            )


def _check_messages(opened: pa.BufferReader, path: Path) -> None:
    """Walk over the file's messages: record batches behind a schema, none of them compressed."""
    import pyarrow as pa

    if opened.read(len(_MAGIC)) != _MAGIC:
        raise CorruptRecord(f"the staged file {path} does not begin as an Arrow file")
    kinds: list[str] = []
    for message in pa.ipc.MessageReader.open_stream(opened):
        kinds.append(message.type)
        if message.type == "record batch" and _is_compressed(message.metadata.to_pybytes()):
            raise CorruptRecord(f"the staged file {path} is compressed; staged files are not")
    if kinds[:1] != ["schema"] or set(kinds[1:]) - {"record batch"}:
        raise CorruptRecord(f"the staged file {path} is not a schema with record batches behind it")


# Places in Arrow's metadata, a flatbuffer (format/Message.fbs): number of a field in its table.
_MESSAGE_HEADER = 2
_BATCH_COMPRESSION = 3


def _is_compressed(metadata: bytes) -> bool:
    header = _field(metadata, _u32(metadata, 0), _MESSAGE_HEADER)
    return header is None or _field(metadata, header + _u32(metadata, header), _BATCH_COMPRESSION) is not None


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """Return where a table's field lies; None where the table has none. Arrow has verified the flatbuffer."""
    vtable = table - int.from_bytes(metadata[table : table + 4], "little", signed=True)
    at = 4 + 2 * number
    if at >= int.from_bytes(metadata[vtable : vtable + 2], "little"):
        return None
    offset = int.from_bytes(metadata[vtable + at : vtable + at + 2], "little")
    return table + offset if offset else None


def _u32(metadata: bytes, at: int) -> int:
    return int.from_bytes(metadata[at : at + 4], "little")
