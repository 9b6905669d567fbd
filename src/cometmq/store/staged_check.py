"""Reading staged files that anybody may have written: nothing in one is followed before it was checked.

A file may come over the wire from a client that nobody knows, with any bytes and a checksum that fits them. Arrow's
reader checks the metadata of a file; offsets and lengths inside its buffers, which name memory, it takes as they are.
So each record batch

- has the columns and types that a task writes, and no others (:data:`_COLUMNS`);
- is not compressed, so that its size in memory is bounded by the file's, and at most :data:`BATCH_BYTES_MAX`;
- is validated in full, before any other function of Arrow's, or the engine, reads a value.

Batches are read into memory, one at a time. Files are not mapped: a program of the same user that cuts or rewrites one
could end the process, or change values behind the validation.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.errors import CorruptRecord, DiskFull
from cometmq.store.disk_space import disk_space
from cometmq.store.handoff_files import StagedFile

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BATCH_BYTES_MAX", "Disks", "check_file", "read_batches"]

BATCH_BYTES_MAX = 1 << 30
"""Most bytes of a record batch. Tasks write batches of some 64 MiB."""

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
_READ_BYTES = 1 << 20


def check_file(path: Path, file: StagedFile) -> None:
    """Compare a file with the commit's size and checksum.

    Raises:
        CorruptRecord: it is gone, of another size, or its checksum is wrong.
    """
    checksum = 0
    with _Content(path, file.size_bytes) as content:
        while data := content.read(_READ_BYTES):
            checksum = zlib.crc32(data, checksum)
    if checksum != file.crc32:
        raise CorruptRecord(f"the staged file {path} is damaged: its checksum is wrong")


class _Content:
    """A plain file's bytes, as a file for Arrow that reads no more than the file has. Links are not followed, and a
    FIFO is not waited for."""

    def __init__(self, path: Path, size_bytes: int | None = None) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise CorruptRecord(f"the staged file {path} is gone") from None
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO):
                raise
            raise CorruptRecord(f"the staged file {path} is not a plain file") from None
        self._path = path
        self._file = FileIO(descriptor)
        status = os.fstat(descriptor)
        self._left = status.st_size
        if not stat.S_ISREG(status.st_mode) or status.st_size == 0 or size_bytes not in (None, status.st_size):
            self._file.close()
            if not stat.S_ISREG(status.st_mode):
                raise CorruptRecord(f"the staged file {path} is not a plain file")
            raise CorruptRecord(f"the staged file {path} has {status.st_size} bytes, not {size_bytes}")

    @property
    def closed(self) -> bool:
        return self._file.closed

    def read(self, size: int = -1) -> bytes:
        """Return that many bytes, or as many as are left."""
        wanted = self._left if size < 0 else min(size, self._left)
        if wanted > BATCH_BYTES_MAX:
            raise CorruptRecord(
                f"the staged file {self._path} has a record batch of {wanted:,} bytes; at most {BATCH_BYTES_MAX:,} are "
                "allowed"
            )
        pieces = []
        while wanted and (data := self._file.read(wanted)):
            pieces.append(data)
            wanted -= len(data)
            self._left -= len(data)
        if wanted:
            raise CorruptRecord(f"the staged file {self._path} was cut while it was read")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> _Content:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Disks:
    """The disks that rows are written to.

    Attributes:
        folder: the store's, for queue files and the index.
        log_folders: those of the commit log, on the same disk or on others.
        full_ratio: share of a disk above which the store refuses appends.
    """

    folder: Path
    log_folders: tuple[Path, ...]
    full_ratio: float

    def check(self, *, log_bytes: int, other_bytes: int = 0) -> None:
        """Refuse to begin an append that the disks have no room for.

        Raises:
            DiskFull: there is no room. The work waits, and is tried again.
        """
        own = _device(self.folder)
        logs = {_device(folder): folder for folder in reversed(self.log_folders)}
        if own in logs:
            log_bytes += other_bytes
        else:
            _require(other_bytes, self._free_bytes(self.folder), self.folder)
        free = sum(self._free_bytes(folder) for folder in logs.values())
        _require(log_bytes, free, self.log_folders[0])

    def _free_bytes(self, folder: Path) -> int:
        return disk_space(_existing(folder)).left_below(self.full_ratio)


def _device(folder: Path) -> int:
    return _existing(folder).stat().st_dev


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest above it that is there: a log folder is made by its first segment."""
    return next(one for one in (folder, *folder.absolute().parents) if one.exists())


def _require(needed: int, free: int, folder: Path) -> None:
    if free < needed:
        raise DiskFull(
            f"staged rows need {needed:,} bytes and the disk of {folder} has {free:,} free; they wait, durably, "
            "and are appended when there is room. Do not write them again"
        )


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield a file's record batches, each validated in full.

    Raises:
        CorruptRecord: the file is not one that a task writes. Batches that were yielded before are sound.
    """
    import pyarrow as pa

    with _Content(path) as content:
        try:
            yield from _batches(content, path)
        except (pa.ArrowException, OSError, MemoryError) as error:
            if getattr(error, "errno", None) is not None:
                raise  # the disk's; Arrow's own OSErrors are about the content and have no number
            raise CorruptRecord(f"the staged file {path} is not what it should be: {error}") from error


def _batches(content: _Content, path: Path) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    if content.read(len(_MAGIC)) != _MAGIC:
        raise CorruptRecord(f"the staged file {path} does not begin as an Arrow file")
    schema: pa.Schema | None = None
    # Message by message, as a stream: the file's footer could name other places than those that were checked.
    for message in pa.ipc.MessageReader.open_stream(pa.PythonFile(content, mode="r")):
        if message.type != ("schema" if schema is None else "record batch"):
            raise CorruptRecord(f"the staged file {path} is not a schema with record batches behind it")
        if schema is None:
            schema = pa.ipc.read_schema(message)
            _check_schema(schema, path)
            continue
        if _is_compressed(message.metadata.to_pybytes()):
            raise CorruptRecord(f"the staged file {path} is compressed; staged files are not")
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
        if batch.column("body").null_count:
            raise CorruptRecord(f"the staged file {path} has a row without a body")
        yield batch
    if schema is None:
        raise CorruptRecord(f"the staged file {path} is not a schema with record batches behind it")


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
