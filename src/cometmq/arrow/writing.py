"""Record batches into files: Parquet, Arrow IPC, CSV, JSON lines. A file is there whole or not at all."""

from __future__ import annotations

import base64
import enum
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from cometmq.arrow.libraries import library
from cometmq.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow

__all__ = [
    "PARTIAL",
    "BytesAs",
    "FileFormat",
    "FileKind",
    "OutputFile",
    "Writer",
    "file_kind",
    "make_folder",
    "plain_rows",
    "sync_folder",
    "text_schema",
    "texts",
    "writer_of",
]

PARTIAL = ".partial"
"""Ends the name of a file that is being written."""

_ROW_GROUP_ROWS = 122_880
_ROW_GROUP_BYTES = 64 << 20


class FileFormat(enum.Enum):
    """How a file is written."""

    PARQUET = "parquet"
    ARROW = "arrow"
    CSV = "csv"
    JSONL = "jsonl"

    @property
    def is_text(self) -> bool:
        """True where bytes have to become text."""
        return self in (FileFormat.CSV, FileFormat.JSONL)


class BytesAs(enum.Enum):
    """The form in which bytes (bodies) are written."""

    BINARY = "binary"
    """As they are; not in text files."""
    TEXT = "text"
    """UTF-8; invalid bytes become U+FFFD."""
    BASE64 = "base64"


_SUFFIXES = {
    ".parquet": FileFormat.PARQUET,
    ".arrow": FileFormat.ARROW,
    ".feather": FileFormat.ARROW,
    ".csv": FileFormat.CSV,
    ".jsonl": FileFormat.JSONL,
    ".ndjson": FileFormat.JSONL,
}
_COMPRESSED_SUFFIXES = {".gz": "gzip", ".zst": "zstd"}
_COMPRESSIONS = {
    FileFormat.PARQUET: ("zstd", "snappy", "lz4", "gzip", "brotli", "none"),
    FileFormat.ARROW: ("none", "lz4", "zstd"),
    FileFormat.CSV: ("none", "gzip", "zstd"),
    FileFormat.JSONL: ("none", "gzip", "zstd"),
}
"""The compressions of each format; the first is the default."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """Format and compression of a file."""

    format: FileFormat
    compression: str

    @property
    def suffix(self) -> str:
        """The suffix of such files' names."""
        ends = {compression: suffix for suffix, compression in _COMPRESSED_SUFFIXES.items()}
        return f".{self.format.value}" + (ends.get(self.compression, "") if self.format.is_text else "")


def file_kind(path: Path, format: FileFormat | None, compression: str | None) -> FileKind | None:
    """Return how a file is to be written; None where neither its name nor ``format`` says it.

    Args:
        path: its name; ``orders.jsonl.gz`` says format and compression.
        format: the format, which overrides the name's.
        compression: the compression; None for the name's, or the format's default.

    Raises:
        InvalidArgument: the format has no such compression.
    """
    suffixes = path.suffixes
    of_name = _COMPRESSED_SUFFIXES.get(suffixes[-1].lower()) if suffixes else None
    if of_name is not None:
        suffixes = suffixes[:-1]
    found = format or (_SUFFIXES.get(suffixes[-1].lower()) if suffixes else None)
    if found is None:
        return None
    allowed = _COMPRESSIONS[found]
    chosen = compression or (of_name if found.is_text else None) or allowed[0]
    if chosen not in allowed:
        raise InvalidArgument(f"{found.value} is compressed by {', '.join(allowed)}, not {chosen!r}")
    return FileKind(found, chosen)


# --- Values

_DAY_AND_TIME = r"^(-?\d+-\d\d-\d\d) (.*)$"


def texts(batch: pyarrow.RecordBatch, bytes_as: BytesAs) -> pyarrow.RecordBatch:
    """Return a batch whose bytes are text; the batch itself for ``BytesAs.BINARY``."""
    if bytes_as is BytesAs.BINARY:
        return batch
    pa = library("pyarrow")
    types = pa.types
    arrays, fields = [], []
    for array, field in zip(batch.columns, batch.schema, strict=True):
        if types.is_binary(array.type) or types.is_large_binary(array.type) or types.is_binary_view(array.type):
            array = _as_base64(array) if bytes_as is BytesAs.BASE64 else _as_utf8(array)
            field = pa.field(field.name, array.type, field.nullable)
        arrays.append(array)
        fields.append(field)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def text_schema(schema: pyarrow.Schema, bytes_as: BytesAs) -> pyarrow.Schema:
    """Return the schema of :func:`texts` of batches with a schema."""
    return texts(_no_rows(schema), bytes_as).schema


def _no_rows(schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    pa = library("pyarrow")
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _as_utf8(array: Any) -> Any:
    pa = library("pyarrow")
    with suppress(pa.ArrowInvalid):
        return array.cast(pa.string())
    values = (None if value is None else value.decode("utf-8", "replace") for value in array.to_pylist())
    return pa.array(values, pa.string())


def _as_base64(array: Any) -> Any:
    pa = library("pyarrow")
    values = (None if value is None else base64.b64encode(value).decode("ascii") for value in array.to_pylist())
    return pa.array(values, pa.string())


def _times_as_text(batch: Any) -> Any:
    """Write dates and times as ISO 8601, which every reader of text files knows."""
    pa = library("pyarrow")
    compute = library("pyarrow.compute")
    arrays = []
    for array in batch.columns:
        if pa.types.is_timestamp(array.type):
            # Not by strftime, which has 16 bits for a year: DuckDB's 'infinity' became the year 32103.
            zone = "Z" if array.type.tz is not None else ""
            text = array.cast(pa.timestamp(array.type.unit)).cast(pa.string())
            array = compute.replace_substring_regex(text, _DAY_AND_TIME, rf"\1T\2{zone}")
        elif pa.types.is_date(array.type) or pa.types.is_time(array.type):
            array = array.cast(pa.string())
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _as_json(batch: Any) -> Any:
    """Write values that CSV has no form for as JSON: maps, lists and structs, intervals."""
    pa = library("pyarrow")
    arrays = [
        pa.array((None if value is None else _json(_plain(value, array.type)) for value in array.to_pylist()), "string")
        if pa.types.is_nested(array.type)
        or pa.types.is_interval(array.type)
        or isinstance(array.type, pa.BaseExtensionType)
        else array
        for array in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any, kind: Any) -> Any:
    """Return a value as JSON knows it: maps as objects, no NaN, text for bytes and times."""
    if value is None:
        return None
    types = library("pyarrow").types
    if types.is_map(kind):
        return {str(key): _plain(item, kind.item_type) for key, item in value}
    if types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [_plain(item, kind.value_type) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Decimal):  # DuckDB's sums of integers, for one
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (date, time)):
        return value.isoformat().replace("+00:00", "Z")
    if types.is_interval(kind):
        return {"months": value.months, "days": value.days, "nanoseconds": value.nanoseconds}
    return value if isinstance(value, (str, int, float)) else str(value)


def plain_rows(batch: pyarrow.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch as JSON knows them: times as ISO 8601, maps as objects."""
    batch = _times_as_text(batch)
    fields = list(batch.schema)
    columns = [column.to_pylist() for column in batch.columns]
    for values in zip(*columns, strict=True):
        yield {field.name: _plain(value, field.type) for field, value in zip(fields, values, strict=True)}


# --- Writers


class Writer(Protocol):
    """Writes batches into a file."""

    pending_bytes: int
    """Of batches that are not in the file yet."""

    def write(self, batch: Any) -> None:
        """Take a batch."""

    def close(self) -> None:
        """Write the remaining rows; the file itself stays open."""


class _ParquetWriter:
    """Row groups of many batches, so that readers of the file have little to look up."""

    def __init__(self, file: Any, schema: Any, compression: str) -> None:
        self._pa = library("pyarrow")
        self._writer = library("pyarrow.parquet").ParquetWriter(file, schema, compression=compression)
        self._pending: list[Any] = []
        self._rows = self.pending_bytes = 0

    def write(self, batch: Any) -> None:
        self._pending.append(batch)
        self._rows += batch.num_rows
        self.pending_bytes += batch.nbytes
        if self._rows >= _ROW_GROUP_ROWS or self.pending_bytes >= _ROW_GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        if self._pending:
            table = self._pa.Table.from_batches(self._pending)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self._pending.clear()
        self._rows = self.pending_bytes = 0

    def close(self) -> None:
        self._write_group()
        self._writer.close()


class _ArrowWriter:
    pending_bytes = 0

    def __init__(self, file: Any, schema: Any, compression: str) -> None:
        ipc = library("pyarrow.ipc")
        options = ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
        self._writer = ipc.new_file(file, schema, options=options)

    def write(self, batch: Any) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class _CsvWriter:
    pending_bytes = 0

    def __init__(self, file: Any, schema: Any, compression: str) -> None:
        self._file = file
        self._schema = schema
        self._writer: Any = None

    def write(self, batch: Any) -> None:
        batch = _as_json(_times_as_text(batch))
        if self._writer is None:
            self._writer = library("pyarrow.csv").CSVWriter(self._file, batch.schema)
        self._writer.write_batch(batch)

    def close(self) -> None:
        if self._writer is None:
            self.write(_no_rows(self._schema))
        self._writer.close()


class _JsonLinesWriter:
    pending_bytes = 0

    def __init__(self, file: Any, schema: Any, compression: str) -> None:
        self._file = file

    def write(self, batch: Any) -> None:
        lines = [_json(row) for row in plain_rows(batch)]
        self._file.write("\n".join([*lines, ""]).encode("utf-8", "replace"))

    def close(self) -> None:
        """Nothing is left."""


_WRITERS: dict[FileFormat, Callable[[Any, Any, str], Writer]] = {
    FileFormat.PARQUET: _ParquetWriter,
    FileFormat.ARROW: _ArrowWriter,
    FileFormat.CSV: _CsvWriter,
    FileFormat.JSONL: _JsonLinesWriter,
}


def writer_of(kind: FileKind, file: Any, schema: pyarrow.Schema) -> Writer:
    """Return a writer of batches with this schema into an open file, which it does not close.

    Raises:
        InvalidArgument: the format has no form for one of the columns.
    """
    try:
        return _WRITERS[kind.format](file, schema, kind.compression)
    except library("pyarrow").ArrowNotImplementedError as error:
        raise InvalidArgument(
            f"{kind.format.value} has no form for a column of this query ({error}): cast it to VARCHAR"
        ) from error


class OutputFile:
    """A file of record batches. It gets its name when it is whole and on disk; without :meth:`finish` it goes away."""

    def __init__(self, path: Path, kind: FileKind, schema: pyarrow.Schema) -> None:
        """Begin ``path`` + ``.partial``. ``schema`` is that of the batches to come."""
        self.path = path
        self.rows = 0
        self._partial = path.with_name(path.name + PARTIAL)
        self._file = self._partial.open("wb")
        self._stream: Any = self._file
        self._finished = False
        self._writer: Any = None
        pa = library("pyarrow")
        if kind.format.is_text and kind.compression != "none":
            self._stream = pa.CompressedOutputStream(pa.PythonFile(self._file, mode="w"), kind.compression)
        try:
            self._writer = writer_of(kind, self._stream, schema)
        except BaseException:
            self.abandon()
            raise

    @property
    def bytes_taken(self) -> int:
        """Bytes that reached the file so far, and those that wait, not yet compressed, for theirs."""
        waiting: int = self._writer.pending_bytes
        return self._file.tell() + waiting

    def write(self, batch: pyarrow.RecordBatch) -> None:
        """Append a batch."""
        self._writer.write(batch)
        self.rows += batch.num_rows

    def finish(self) -> int:
        """Make the file whole, durably, under its name; returns its bytes."""
        self._finished = True
        self._writer.close()
        if self._stream is not self._file:
            self._stream.close()
        if self._file.closed:  # a compressing stream closes what it writes to
            size = self._partial.stat().st_size
            sync_folder(self._partial)
        else:
            self._file.flush()
            os.fsync(self._file.fileno())
            size = self._file.tell()
            self._file.close()
        self._partial.replace(self.path)
        sync_folder(self.path.parent)
        return size

    def abandon(self) -> None:
        """Remove what was written. After :meth:`finish`: nothing."""
        if self._writer is not None and not self._finished:
            # Closing may fail as well; the first error is the one that counts.
            with suppress(OSError, ValueError, library("pyarrow").ArrowException):
                self._writer.close()
        with suppress(OSError, ValueError):
            self._file.close()
        self._partial.unlink(missing_ok=True)

    def __enter__(self) -> OutputFile:
        """Return the file itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Abandon what was not finished."""
        self.abandon()


def make_folder(path: Path) -> None:
    """Make a folder and those above it, durably."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
