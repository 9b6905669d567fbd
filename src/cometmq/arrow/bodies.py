"""Structured bodies: JSON objects or CSV lines into columns, by Arrow's own readers.

Arrow reads a text, not an array of bodies, and a body may hold anything: two objects, none, half of one whose other
half is in the next body. So that no row can slip, each body gets a *marker* that no body can know, and a text is taken
only if what was read is one row and its marker for every body, in order. A text that is not is cut in two and read
again, until the bodies that do not fit stand alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from cometmq.arrow.libraries import library
from cometmq.errors import InvalidArgument

__all__ = ["BodyDecoder", "BodyFormat", "Decoded", "body_schema"]

BodyFormat: TypeAlias = Literal["json", "csv"]

_Rows: TypeAlias = npt.NDArray[np.int64]


def body_schema(schema: Any) -> Any:
    """Return what ``schema=`` says as a ``pyarrow.Schema`` of nullable fields: a body that does not fit is a null row.

    Args:
        schema: a ``pyarrow.Schema``, anything with ``__arrow_c_schema__``, or a mapping of names to ``pyarrow`` types
            or their names (``{"id": "int64", "at": pyarrow.timestamp("ms")}``).

    Raises:
        InvalidArgument: it is not a schema, is empty, or has a name twice.
    """
    pa = library("pyarrow")
    try:
        if isinstance(schema, Mapping):
            pairs = [
                (name, pa.type_for_alias(kind) if isinstance(kind, str) else kind) for name, kind in schema.items()
            ]
            found = pa.schema(pairs)
        else:
            found = pa.schema(schema)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise InvalidArgument(
            f'schema is a pyarrow.Schema, or names with types ({{"id": "int64"}}); this one cannot be used: {error}'
        ) from error
    if len(found) == 0 or len(set(found.names)) != len(found):
        raise InvalidArgument("schema needs at least one field, and no name twice")
    return pa.schema([field.with_nullable(True) for field in found])


@dataclass(frozen=True, slots=True)
class Decoded:
    """The bodies of a batch as columns.

    Attributes:
        columns: a ``pyarrow.Array`` per field, as long as the bodies; null in rows that do not fit.
        bad: the rows that do not fit, rising.
    """

    columns: list[Any]
    bad: _Rows


class _Reader(Protocol):
    """Reads texts of one format."""

    def text(self, bodies: Any) -> Any:
        """Return a binary array with what is to be read for each body."""

    def candidates(self, bodies: Any) -> _Rows:
        """Return the rows that are worth reading."""

    def read(self, text: Any, first: int, count: int) -> Any | None:
        """Return the table of the bodies ``first`` …, or None where not each of them is one row that fits."""


class BodyDecoder:
    """Bodies into the columns of a schema. Any thread; keeps nothing between batches."""

    def __init__(self, schema: Any, body_format: BodyFormat) -> None:
        """``schema`` is :func:`body_schema`'s.

        Raises:
            InvalidArgument: a type that Arrow's reader of this format does not make.
        """
        readers: dict[str, type[_JsonReader] | type[_CsvReader]] = {"json": _JsonReader, "csv": _CsvReader}
        if body_format not in readers:
            raise InvalidArgument(f'body_format is "json" or "csv", not {body_format!r}')
        self.schema = schema
        self._pa = library("pyarrow")
        for field in schema:
            _try_field(readers[body_format], self._pa, field)
        self._reader: _Reader = readers[body_format](schema)

    def decode(self, bodies: Any, *, stop_at_bad: bool = False) -> Decoded:
        """Return the columns of a ``binary`` array of bodies.

        Args:
            bodies: the array; no nulls.
            stop_at_bad: the caller wants only the first row that does not fit; ``bad`` may then lack later ones, and
                columns are not made.
        """
        count = len(bodies)
        rows = self._reader.candidates(bodies)
        skipped = np.setdiff1d(np.arange(count), rows, assume_unique=True)
        whole = bodies if len(rows) == count else bodies.take(self._pa.array(rows))
        pieces, bad = self._pieces(whole, stop_at_bad=stop_at_bad)
        bad_rows = np.union1d(skipped, rows[bad]).astype(np.int64)
        if stop_at_bad and len(bad_rows):
            return Decoded([], bad_rows)
        return Decoded(self._spread(pieces, np.setdiff1d(rows, bad_rows, assume_unique=True), count), bad_rows)

    def _pieces(self, bodies: Any, *, stop_at_bad: bool) -> tuple[list[Any], list[int]]:
        """Read in as few pieces as the bodies allow; returns their tables and the rows that do not fit, in order."""
        text = self._reader.text(bodies)
        tables: list[Any] = []
        bad: list[int] = []
        left = [(0, len(bodies))] if len(bodies) else []
        while left:
            begin, end = left.pop()
            piece = text.slice(begin, end - begin)
            table = self._reader.read(_bytes_of(piece), begin, end - begin)
            if table is not None:
                tables.append(table)
            elif end - begin == 1:
                bad.append(begin)
                if stop_at_bad:
                    break
            else:
                middle = (begin + end) // 2
                left += [(middle, end), (begin, middle)]
        return tables, bad

    def _spread(self, tables: list[Any], good: _Rows, count: int) -> list[Any]:
        """Put what was read into its rows; the others are null."""
        pa = self._pa
        if not tables:
            return [pa.nulls(count, field.type) for field in self.schema]
        found = pa.concat_tables(tables)
        columns = [found.column(name).combine_chunks() for name in self.schema.names]
        if len(good) == count:
            return columns
        places = np.zeros(count, dtype=np.int64)
        places[good] = np.arange(len(good))
        missing = np.ones(count, dtype=bool)
        missing[good] = False
        indices = pa.array(places, mask=missing)
        return [column.take(indices) for column in columns]


def _try_field(reader: type[_JsonReader] | type[_CsvReader], pa: Any, field: Any) -> None:
    """Let the reader read nothing into a field: it refuses types that it never makes."""
    trial = reader(pa.schema([field]))
    try:
        trial.try_type()
    except (pa.ArrowException, ValueError) as error:
        raise InvalidArgument(
            f"the field {field.name!r} of the schema cannot be {field.type}: Arrow's reader says {error}"
        ) from error


def _bytes_of(piece: Any) -> Any:
    """Return the values of a slice of a binary array as one buffer."""
    _, offsets, data = piece.buffers()
    places = np.frombuffer(offsets, dtype=np.int32)
    begin, end = int(places[piece.offset]), int(places[piece.offset + len(piece)])
    return data.slice(begin, end - begin)


def _joined(pa: Any, first: Any, second: Any, last: bytes) -> Any:
    compute = library("pyarrow.compute")
    return compute.binary_join_element_wise(first, second, pa.scalar(last), pa.scalar(b""))


def _fits(pa: Any, table: Any, names: list[str]) -> bool:
    """Check that texts are valid UTF-8: Arrow's JSON reader passes on those that are not."""
    try:
        for name in names:
            table.column(name).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


class _JsonReader:
    """A body is one JSON object. Fields that the schema lacks are passed over; those that are missing are null."""

    def __init__(self, schema: Any) -> None:
        self._pa = library("pyarrow")
        self._json = library("pyarrow.json")
        self._names = list(schema.names)
        self._marker = f"m{secrets.token_hex(12)}"
        self._schema = schema.append(self._pa.field(self._marker, self._pa.int64()))
        self._options = self._json.ParseOptions(
            explicit_schema=self._schema, newlines_in_values=True, unexpected_field_behavior="ignore"
        )

    def text(self, bodies: Any) -> Any:
        """The marker is an object of its own. It comes first: a text that begins with null ends the process."""
        marks = [b'{"%s":%d}\n' % (self._marker.encode(), row) for row in range(len(bodies))]
        return _joined(self._pa, self._pa.array(marks, "binary"), bodies, b"\n")

    def candidates(self, bodies: Any) -> _Rows:
        """Only what begins as an object: a lone ``null`` is read as an object without fields."""
        _, offsets, data = bodies.buffers()
        places = np.frombuffer(offsets, dtype=np.int32)[bodies.offset : bodies.offset + len(bodies) + 1]
        begins, lengths = places[:-1], np.diff(places)
        heads = np.zeros(len(bodies), dtype=np.uint8)
        full = lengths > 0
        if data is not None and full.any():
            heads[full] = np.frombuffer(data, dtype=np.uint8)[begins[full]]
        objects = heads == ord("{")
        for row in np.flatnonzero(full & ~objects & (heads <= 0x20)):  # behind blanks
            body = bytes(memoryview(data)[begins[row] : begins[row] + lengths[row]])
            objects[row] = body.lstrip(b" \t\r\n").startswith(b"{")
        return np.flatnonzero(objects)

    def try_type(self) -> None:
        self._read(self._pa.py_buffer(b'{"%s":0}\n{"%s":1}\n' % ((self._marker.encode(),) * 2)))

    def _read(self, text: Any) -> Any:
        options = self._json.ReadOptions(use_threads=False, block_size=min(text.size + 1, 0x7FFFFFFF))
        return self._json.read_json(self._pa.BufferReader(text), read_options=options, parse_options=self._options)

    def read(self, text: Any, first: int, count: int) -> Any | None:
        try:
            table = self._read(text)
        except self._pa.ArrowInvalid:
            return None
        if table.num_rows != 2 * count:
            return None
        marks = table.column(self._marker).combine_chunks()
        nulls = np.asarray(marks.is_null())
        values = marks.fill_null(-1).to_numpy(zero_copy_only=False)
        if (
            nulls[::2].any()
            or not nulls[1::2].all()
            or not np.array_equal(values[::2], np.arange(first, first + count))
        ):
            return None
        found = table.select(self._names).take(self._pa.array(np.arange(1, 2 * count, 2)))
        return found if _fits(self._pa, found, self._names) else None


class _CsvReader:
    """A body is one line of CSV, its fields in the schema's order; a byte order mark before, a line end behind it."""

    def __init__(self, schema: Any) -> None:
        self._pa = library("pyarrow")
        self._csv = library("pyarrow.csv")
        self._compute = library("pyarrow.compute")
        self._names = list(schema.names)
        self._marker = f"m{secrets.token_hex(12)}"
        types = {field.name: field.type for field in schema}
        self._convert = self._csv.ConvertOptions(column_types={**types, self._marker: self._pa.string()})
        self._parse = self._csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)

    def _marks(self, first: int, count: int) -> list[str]:
        return [f"{self._marker}{row}" for row in range(first, first + count)]

    def text(self, bodies: Any) -> Any:
        """The marker is the last field: a quote that is not closed swallows it."""
        lines = self._compute.replace_substring_regex(bodies, pattern=r"\A\xEF\xBB\xBF|[\r\n]+\z", replacement="")
        marks = [f",{mark}\n".encode() for mark in self._marks(0, len(bodies))]
        return _joined(self._pa, lines, self._pa.array(marks, "binary"), b"")

    def candidates(self, bodies: Any) -> _Rows:
        """Not the empty ones, which hold no line."""
        _, offsets, _ = bodies.buffers()
        places = np.frombuffer(offsets, dtype=np.int32)[bodies.offset : bodies.offset + len(bodies) + 1]
        return np.flatnonzero(np.diff(places) > 0)

    def try_type(self) -> None:
        self._read(self._pa.py_buffer(f",{self._marker}\n".encode()))

    def _read(self, text: Any) -> Any:
        options = self._csv.ReadOptions(
            use_threads=False,
            block_size=min(text.size + 1, 0x7FFFFFFF),
            column_names=[*self._names, self._marker],
        )
        return self._csv.read_csv(
            self._pa.BufferReader(text), read_options=options, parse_options=self._parse, convert_options=self._convert
        )

    def read(self, text: Any, first: int, count: int) -> Any | None:
        try:
            table = self._read(text)
        except self._pa.ArrowInvalid:
            return None
        if table.num_rows != count:
            return None
        if table.column(self._marker).to_pylist() != self._marks(first, count):
            return None
        found = table.select(self._names)
        return found if _fits(self._pa, found, self._names) else None
