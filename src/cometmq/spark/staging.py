"""A task's writing: check its rows, and write them durably to a file of its own.

Nothing of it is in the store until the driver commits (:mod:`cometmq.spark.journal`). The file is Arrow's IPC format,
since the store's writer takes Arrow arrays as they are.
"""

from __future__ import annotations

import functools
import os
import socket
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from cometmq._engine import encode_properties, java_hash
from cometmq.errors import Error, InvalidArgument
from cometmq.remoting.properties import PROPERTIES_BYTES_MAX
from cometmq.store.handoff_files import HANDOFF_PROPERTY, StagedFile
from cometmq.store.staged_files import StagedFolder
from cometmq.store_config.names import may_send_to, validate_topic

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["RowEncoder", "Sink", "WriteSchema", "plain_pieces", "stage", "write_rows"]

_OWN_PROPERTIES_BYTES = 256
"""Room for the properties' names and those that the store adds."""
_PIECE_BYTES = 64 << 20
_TEXT = ("string", "binary")
_FORMS: dict[str, tuple[str, ...]] = {
    "body": _TEXT,
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "queue": ("int", "bigint", "smallint", "tinyint"),
    "shardKey": ("string",),
}


@dataclass(frozen=True, slots=True)
class WriteSchema:
    """The columns of what is written, checked: each known one by its name in the data frame.

    Attributes:
        names: column's name in the data frame, by our name.
    """

    names: dict[str, str]

    @classmethod
    def of(cls, schema: StructType, topic: str | None) -> WriteSchema:
        """Check a data frame's schema.

        Raises:
            InvalidArgument: a column is missing, unknown or of another type.
        """
        return cls.of_types([(field.name, field.dataType.simpleString()) for field in schema.fields], topic)

    @classmethod
    def of_types(cls, columns: Iterable[tuple[str, str]], topic: str | None) -> WriteSchema:
        """Check columns by their names and Spark's names of their types.

        Raises:
            InvalidArgument: as :meth:`of`.
        """
        ours = {name.lower(): name for name in _FORMS}
        names: dict[str, str] = {}
        for column, given in columns:
            name = ours.get(column.lower())
            if name is None:
                raise InvalidArgument(f"the column {column!r} cannot be written; columns are {', '.join(_FORMS)}")
            if given not in _FORMS[name]:
                raise InvalidArgument(f"the column {name} must be {' or '.join(_FORMS[name])}, not {given}")
            if name in names:
                raise InvalidArgument(f"the column {name} is there twice")
            names[name] = column
        if "body" not in names:
            raise InvalidArgument(
                "there is no column body, which is required (binary or string): "
                "for rows with several fields, to_json(struct(*)) AS body"
            )
        if "topic" not in names and topic is None:
            raise InvalidArgument("there is neither the option topic nor a column topic: where do the rows go?")
        return cls(names)


class RowEncoder:
    """Rows as the store's writer takes them. Everything that could be refused later is refused here."""

    def __init__(self, schema: WriteSchema, *, topic: str | None, body_bytes_max: int) -> None:
        """``topic``: of rows without one. ``body_bytes_max``: the store's limit."""
        self._schema = schema
        self._topic = topic
        self._body_bytes_max = body_bytes_max
        self._checked_topics: set[str] = set()

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the columns of a staged file.

        Raises:
            InvalidArgument: a row cannot be written; the text names the column.
        """
        columns = {name: batch.column(given) for name, given in self._schema.names.items()}
        arrays: dict[str, pa.Array] = {"body": self._bodies(columns["body"])}
        if "topic" in columns:
            arrays["topic"] = self._topics(columns["topic"])
        if "tags" in columns:
            arrays["tags"] = _tags(columns["tags"])
        if "keys" in columns:
            arrays["keys"] = _keys(columns["keys"])
        if "properties" in columns:
            arrays["properties"] = _properties(columns["properties"])
        if "queue" in columns:
            arrays["queue"] = _queue_ids(columns["queue"])
        if "shardKey" in columns:
            arrays["shard"] = _shards(columns["shardKey"])
        _check_properties(arrays)
        return pa.record_batch(list(arrays.values()), names=list(arrays))

    def _bodies(self, column: pa.Array) -> pa.Array:
        if column.null_count:
            raise InvalidArgument("the column body has a null; a message has a body, if an empty one")
        bodies = column if pa.types.is_binary(column.type) else column.cast(pa.binary())
        longest = pc.max(pc.binary_length(bodies)).as_py() or 0
        if longest > self._body_bytes_max:
            raise InvalidArgument(
                f"the column body has one of {longest} bytes; at most {self._body_bytes_max} are allowed "
                "(maxMessageSize of the settings file that the option config names)"
            )
        return bodies

    def _topics(self, column: pa.Array) -> pa.Array:
        for topic in column.unique().to_pylist():
            if topic is None and self._topic is None:
                raise InvalidArgument("the column topic has a null, and there is no option topic for such rows")
            if topic is not None and topic not in self._checked_topics:
                try:
                    validate_topic(topic)
                except InvalidArgument as error:
                    raise InvalidArgument(f"the column topic: {error}") from None
                if not may_send_to(topic):
                    raise InvalidArgument(f"the column topic: {topic} is RocketMQ's own; nothing can be sent to it")
                self._checked_topics.add(topic)
        return column


def _tags(column: pa.Array) -> pa.Array:
    bad = pc.fill_null(pc.match_substring_regex(column, r"^[\x00-\x20]|[\x00-\x20]$|\|\||[\x01\x02]"), False)
    _refuse(column, bad, "tags", "a message has one tag, without blanks around it, without || and control characters")
    return column


def _keys(column: pa.Array) -> pa.Array:
    if pa.types.is_list(column.type):
        single = column.flatten()
        if single.null_count or pc.any(pc.match_substring_regex(single, r"\s")).as_py():
            raise InvalidArgument("the column keys: a key of a list is null or has a blank; blanks divide keys")
        # Arrow has no kernel for lists whose elements are declared not to be null.
        column = pc.binary_join(column.cast(pa.list_(pa.string())), " ")
    _refuse(column, _has_marks(column), "keys", "it has a control character 1 or 2, which divide properties")
    return column


def _has_marks(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.match_substring_regex(column, r"[\x01\x02]"), False)


def _refuse(column: pa.Array, bad: pa.Array, name: str, why: str) -> None:
    if pc.any(bad).as_py():
        example = column.filter(bad)[0].as_py()
        raise InvalidArgument(f"the column {name} has {example[:100]!r}: {why}")


def _properties(column: pa.Array) -> pa.Array:
    encoded = []
    for pairs in column.to_pylist():
        try:
            one = None if pairs is None else encode_properties(_without_nulls(pairs))
        except (Error, TypeError, ValueError) as error:
            raise InvalidArgument(f"the column properties: {error}") from None
        encoded.append(one)
    return pa.array(encoded, pa.binary())


def _check_properties(arrays: dict[str, pa.Array]) -> None:
    """Tags and keys are properties too, and all of them have 32,767 bytes in a record."""
    names = [name for name in ("tags", "keys", "properties") if name in arrays]
    if not names:
        return
    lengths = [pc.fill_null(pc.binary_length(arrays[name]), 0) for name in names]
    longest = pc.max(functools.reduce(pc.add, lengths)).as_py() or 0
    most = PROPERTIES_BYTES_MAX - _OWN_PROPERTIES_BYTES
    if longest > most:
        raise InvalidArgument(
            f"the columns {', '.join(names)} of a row together have {longest} bytes; at most {most} are allowed"
        )


def _without_nulls(pairs: list[tuple[str, str | None]]) -> dict[str, str | bytes]:
    # The mark of handed-off work, in properties of messages that are written on, is not theirs.
    return {name: value for name, value in pairs if value is not None and name != HANDOFF_PROPERTY}


def _queue_ids(column: pa.Array) -> pa.Array:
    lowest, highest = (value.as_py() for value in pc.min_max(column).values())
    if lowest is not None and (lowest < 0 or highest > 65_535):
        raise InvalidArgument(f"the column queue has {lowest if lowest < 0 else highest}; queues are 0 to 65,535")
    return column.cast(pa.int32())


def _shards(column: pa.Array) -> pa.Array:
    """Return Java's hash of each key: as upstream chooses a queue by it."""
    coded = column.dictionary_encode()
    hashes = pa.array([java_hash(key) for key in coded.dictionary.to_pylist()], pa.int32())
    return hashes.take(coded.indices)


class Sink(Protocol):
    """Where a file's bytes go."""

    def write(self, data: memoryview) -> object:
        """Take all of it; it may change afterwards."""


class _Checksummed:
    """A file for Arrow that sums up what is written to it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.crc32 = 0
        self.size = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        """Write all of it."""
        view = memoryview(data).cast("B")
        self.crc32 = zlib.crc32(view, self.crc32)
        self.size += view.nbytes
        self._sink.write(view)
        return view.nbytes

    def flush(self) -> None:
        """Nothing is held back."""


def stage(
    batches: Iterator[pa.RecordBatch], encoder: RowEncoder, folder: StagedFolder, job: str, prefix: str
) -> Sequence[StagedFile]:
    """Write a task's rows to a file of its own, durably. A task without rows leaves none.

    Args:
        batches: the rows.
        encoder: brings them into form.
        folder: the store's folder of staged files.
        job: name of the job's folder.
        prefix: begin of the file's name; it is completed so that no other attempt has it.

    Raises:
        InvalidArgument: a row cannot be written.
        InterruptedError: the job's folder is gone: it was aborted meanwhile.
    """
    name = f"{prefix}-{uuid.uuid4().hex}"
    target = folder.path / job / f"{name}.arrow"
    temporary = target.with_suffix(".tmp")
    try:
        staged = _write(batches, encoder, temporary, target.name)
        if staged is not None:
            temporary.replace(target)
    except FileNotFoundError:
        if (folder.path / job).is_dir():
            raise
        raise InterruptedError(
            f"{folder.path / job} is not there on {socket.gethostname()}: the write was aborted meanwhile, or the "
            "store of option path is not visible on this executor"
        ) from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return () if staged is None else (staged,)


def _write(batches: Iterator[pa.RecordBatch], encoder: RowEncoder, temporary: Path, name: str) -> StagedFile | None:
    with temporary.open("xb") as file:
        staged = write_rows(batches, encoder, file, name)
        file.flush()
        os.fsync(file.fileno())
    if staged is None:
        temporary.unlink()
    return staged


def plain_pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in pieces that the store's writer, which reads one at a time into memory, has room for.

    Spark may be set to make large types (``spark.sql.execution.arrow.useLargeVarTypes``), whose batches may have more
    than 2 GiB in a column; a piece has the types with offsets of 32 bits.
    """
    for batch in batches:
        for piece in _pieces(batch):
            yield _plain(piece)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if not batch.num_rows:
        return
    count = max(min(batch.num_rows, batch.nbytes // _PIECE_BYTES), 1)
    rows = -(-batch.num_rows // count)
    for start in range(0, batch.num_rows, rows):
        piece = batch.slice(start, rows)
        if piece.nbytes > 2 * _PIECE_BYTES and piece.num_rows > 1:
            yield from _pieces(piece)  # the long ones stand together
        else:
            yield piece


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    schema = pa.schema([field.with_type(_plain_type(field.type)) for field in batch.schema])
    if schema == batch.schema:
        return batch
    # A piece keeps the offsets of its batch, which may be beyond 32 bits: only a copy of its own rows can be cast.
    arrays = [pa.concat_arrays([column]).cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    if types.is_map(kind):
        inner = _plain_type(kind.key_type), _plain_type(kind.item_type)
        return kind if inner == (kind.key_type, kind.item_type) else pa.map_(*inner)
    if types.is_list(kind):
        value = _plain_type(kind.value_type)
        return kind if value == kind.value_type else pa.list_(value)
    return kind


def write_rows(batches: Iterator[pa.RecordBatch], encoder: RowEncoder, sink: Sink, name: str) -> StagedFile | None:
    """Write rows as a staged file's content; return the file's entry for a commit, None without rows.

    Raises:
        InvalidArgument: a row cannot be written.
    """
    rows = 0
    checksummed = _Checksummed(sink)
    writer = None
    try:
        for batch in plain_pieces(batches):
            encoded = encoder.encode(batch)
            if writer is None:
                writer = pa.ipc.new_file(checksummed, encoded.schema)
            writer.write_batch(encoded)
            rows += encoded.num_rows
    finally:
        if writer is not None:
            writer.close()
    if rows == 0:
        return None
    return StagedFile(name=name, rows=rows, size_bytes=checksummed.size, crc32=checksummed.crc32)
