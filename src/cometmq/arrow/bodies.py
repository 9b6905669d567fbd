"""Structured bodies: JSON objects or CSV lines into columns, by Arrow's own readers.

Arrow reads a text, not an array of bodies, and a body may hold anything: two objects, none, half of one whose other
half is in the next body. So that no row can slip, each body gets a *marker* that no body can know, and a text is taken
only if what was read is one row and its marker for every body, in order. A text that is not is cut in two and read
again, until the bodies that do not fit stand alone. Then each field is read on its own, in the same manner, as its
type, or as another one that its values may be written in (milliseconds for a timestamp, ``"17"`` for a number): a field
that does not fit costs no other one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from cometmq.arrow.libraries import library
from cometmq.arrow.type_names import field_of, fields_of
from cometmq.errors import InvalidArgument

__all__ = ["BodyDecoder", "BodyFormat", "Decoded", "body_schema"]

BodyFormat: TypeAlias = Literal["json", "csv"]

_Rows: TypeAlias = npt.NDArray[np.int64]


def body_schema(schema: Any) -> Any:
    """Return what ``schema=`` says as a ``pyarrow.Schema`` of nullable fields: a body that does not fit is a null row.

    Args:
        schema: a ``pyarrow.Schema``, anything with ``__arrow_c_schema__``, or names with types, as a mapping
            (``{"id": "int64", "at": pyarrow.timestamp("ms"), "to": {"city": "string"}}``) or as text
            (``"id int64, at timestamp[ms]"``); :mod:`cometmq.arrow.type_names` has the names of types.

    Raises:
        InvalidArgument: it is not a schema, is empty, or has a name twice.
    """
    pa = library("pyarrow")
    try:
        if isinstance(schema, str):
            found = pa.schema(fields_of(schema))
        elif isinstance(schema, Mapping):
            found = pa.schema([field_of(name, kind) for name, kind in schema.items()])
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
        columns: a ``pyarrow.Array`` per field, as long as the bodies; null where a body or its field does not fit.
        bad: the rows of which something does not fit, rising.
        reasons: for each of them the body or the fields at fault.
        fields: for each field how many bodies have one that does not fit.
    """

    columns: list[Any]
    bad: _Rows
    reasons: dict[int, str] = field(default_factory=dict)
    fields: dict[str, int] = field(default_factory=dict)


class _Reader(Protocol):
    """Reads texts of one format."""

    unfit: str
    """The reason for a body that is no row at all."""
    has_numbers: bool
    """A number and a text of digits differ."""

    def text(self, bodies: Any) -> Any:
        """Return a binary array with what is to be read for each body."""

    def candidates(self, bodies: Any) -> _Rows:
        """Return the rows that are worth reading."""

    def read_nothing(self, fields: Mapping[str, Any]) -> None:
        """Raise what Arrow raises where the reader makes no such fields."""

    def read(self, text: Any, first: int, count: int, fields: Mapping[str, Any]) -> Any | None:
        """Return the table of the bodies ``first`` …, or None where not each of them is one row that fits.

        Args:
            text: the text.
            first: number of its first body.
            count: number of bodies.
            fields: the fields to read, by name, with their types.
        """


@dataclass(frozen=True, slots=True)
class _Way:
    """A way to read a field: as a type that the reader makes, then converted to the field's."""

    read_as: Any
    convert: Callable[[Any], Any]


class BodyDecoder:
    """Bodies into the columns of a schema. Any thread.

    Between batches it keeps the way by which each field was read last, which is tried first.
    """

    def __init__(self, schema: Any, body_format: BodyFormat, *, error_column: str | None = None) -> None:
        """``schema`` is :func:`body_schema`'s.

        Args:
            schema: the fields.
            body_format: the format of bodies.
            error_column: name of a column behind the fields that has the reason where something does not fit, or None.

        Raises:
            InvalidArgument: a type that Arrow's reader of this format does not make.
        """
        readers: dict[str, type[_JsonReader] | type[_CsvReader]] = {"json": _JsonReader, "csv": _CsvReader}
        if body_format not in readers:
            raise InvalidArgument(f'body_format is "json" or "csv", not {body_format!r}')
        self._pa = library("pyarrow")
        if error_column is not None and (not isinstance(error_column, str) or error_column in ("", *schema.names)):
            raise InvalidArgument(
                f"error_column is {error_column!r}: give a name that is not empty, nor a field of the schema"
            )
        self._fields = schema
        self.schema = schema if error_column is None else schema.append(self._pa.field(error_column, self._pa.string()))
        self.error_column = error_column
        self._reader: _Reader = readers[body_format](list(schema.names))
        self._ways = {field.name: _usable_ways(self._reader, self._pa, field) for field in schema}

    def only(self, names: Collection[str]) -> BodyDecoder | None:
        """Return a decoder of these of its columns, or None where there is none of them.

        The error column is about all fields, so with it they are all decoded, and there.
        """
        if self.error_column is not None and self.error_column in names:
            return self
        chosen = [field for field in self._fields if field.name in names]
        if not chosen:
            return None
        found = copy(self)
        found.error_column = None
        found.schema = found._fields = self._pa.schema(chosen)
        found._ways = {field.name: self._ways[field.name] for field in chosen}
        return found

    def decode(self, bodies: Any, *, stop_at_bad: bool = False) -> Decoded:
        """Return the columns of a ``binary`` array of bodies.

        Args:
            bodies: the array; no nulls.
            stop_at_bad: the caller wants only the first row that does not fit; ``bad`` may then lack later ones, and
                columns are not made.
        """
        count = len(bodies)
        rows = self._reader.candidates(bodies)
        whole = bodies if len(rows) == count else bodies.take(self._pa.array(rows))
        reasons: dict[int, str] = {
            int(row): self._reader.unfit for row in np.setdiff1d(np.arange(count), rows, assume_unique=True)
        }
        lost: dict[str, int] = {}
        columns = self._read_at_once(whole)
        if columns is None:
            unfit = self._unfit(whole)
            reasons |= {int(rows[at]): self._reader.unfit for at in unfit}
            if unfit:
                rows = np.delete(rows, unfit)
                whole = bodies.take(self._pa.array(rows))
            columns = []
            for name in self._fields.names:
                column, at_fault = self._read_field(whole, name)
                columns.append(column)
                if at_fault:
                    lost[name] = len(at_fault)
                for at in at_fault:
                    row = int(rows[at])
                    text = f"{name}: not {self._fields.field(name).type}"
                    reasons[row] = f"{reasons[row]}; {text}" if row in reasons else text
        bad_rows = np.array(sorted(reasons), dtype=np.int64)
        if stop_at_bad and len(bad_rows):
            return Decoded([], bad_rows, reasons, lost)
        spread = self._spread(columns, rows, count)
        if self.error_column is not None:
            spread.append(self._pa.array([reasons.get(row) for row in range(count)], self._pa.string()))
        return Decoded(spread, bad_rows, reasons, lost)

    def _read_at_once(self, bodies: Any) -> list[Any] | None:
        """Read all fields by the ways of the batch before; None where something does not fit."""
        ways = {name: ways[0] for name, ways in self._ways.items()}
        if not len(bodies):
            return [self._pa.nulls(0, field.type) for field in self._fields]
        text = _bytes_of(self._reader.text(bodies))
        table = self._reader.read(text, 0, len(bodies), {name: way.read_as for name, way in ways.items()})
        if table is None:
            return None
        try:
            return [way.convert(_whole(table.column(name))) for name, way in ways.items()]
        except self._pa.ArrowException:
            return None

    def _unfit(self, bodies: Any) -> list[int]:
        """Return the bodies that are not one row each, whatever its fields are."""

        def read(text: Any, first: int, count: int) -> Any | None:
            return self._reader.read(text, first, count, {})

        return [at for at, table in self._pieces(bodies, read) if table is None]

    def _read_field(self, bodies: Any, name: str) -> tuple[Any, list[int]]:
        """Return one field's column, and the bodies whose field does not fit."""
        ways = self._ways[name]
        kind = self._fields.field(name).type
        taken = [0] * len(ways)

        def read(text: Any, first: int, count: int) -> Any | None:
            for number, way in enumerate(ways):
                column = self._by_way(text, first, count, name, way)
                if column is not None:
                    taken[number] += count
                    return column
            return None

        pieces = self._pieces(bodies, read)
        best = taken.index(max(taken))
        if best:
            # Threads may overwrite each other's order: in each order everything can be read.
            self._ways[name] = [ways[best], *ways[:best], *ways[best + 1 :]]
        chunks = [self._pa.nulls(1, kind) if column is None else column for _, column in pieces]
        column = self._pa.concat_arrays(chunks) if chunks else self._pa.nulls(0, kind)
        return column, [at for at, column in pieces if column is None]

    def _by_way(self, text: Any, first: int, count: int, name: str, way: _Way) -> Any | None:
        table = self._reader.read(text, first, count, {name: way.read_as})
        if table is None:
            return None
        try:
            return way.convert(_whole(table.column(name)))
        except self._pa.ArrowException:
            return None

    def _pieces(self, bodies: Any, read: Callable[[Any, int, int], Any | None]) -> list[tuple[int, Any | None]]:
        """Read in as few pieces as the bodies allow.

        Args:
            bodies: the bodies.
            read: reads the text of some of them, from a number on; None where one does not fit.

        Returns:
            For each piece, in order, where it begins and the result; None for a body that stands alone.
        """
        text = self._reader.text(bodies)
        found: list[tuple[int, Any | None]] = []
        left = [(0, len(bodies))] if len(bodies) else []
        while left:
            begin, end = left.pop()
            result = read(_bytes_of(text.slice(begin, end - begin)), begin, end - begin)
            if result is not None or end - begin == 1:
                found.append((begin, result))
            else:
                middle = (begin + end) // 2
                left += [(middle, end), (begin, middle)]
        return found

    def _spread(self, columns: list[Any], rows: _Rows, count: int) -> list[Any]:
        """Put what was read into its rows; the others are null."""
        if len(rows) == count:
            return columns
        pa = self._pa
        places = np.zeros(count, dtype=np.int64)
        places[rows] = np.arange(len(rows))
        missing = np.ones(count, dtype=bool)
        missing[rows] = False
        indices = pa.array(places, mask=missing)
        return [column.take(indices) if len(column) else pa.nulls(count, column.type) for column in columns]


def _whole(column: Any) -> Any:
    """Return a table's column as one array."""
    found = column.combine_chunks()
    return found.combine_chunks() if hasattr(found, "num_chunks") else found


_EXACT_MAX = 1 << 53
"""Whole numbers below are exact as float64."""
_WRITTEN_TIME_MIN = 10**8
"""Least number that CSV may have for a timestamp: ``20240101`` is a day, epoch seconds are longer."""
_WRITTEN_SECOND_MIN, _WRITTEN_SECOND_MAX = 19_000_101_000_000, 21_000_101_000_000
"""``20240101120000`` is a day and a time; as milliseconds it would lie in the year 2611."""
_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_S = 86_400
_DAY_MIN = -719_162
"""0001-01-01 in days since 1970."""
_DAY_MAX = 2_932_896
"""9999-12-31."""
_DAY_MS = 86_400_000


def _ways_of(pa: Any, kind: Any, *, has_numbers: bool) -> list[_Way]:
    """Return the ways to read a type, the type itself first: other forms in which JSON and CSV have its values.

    Args:
        pa: ``pyarrow``.
        kind: the type.
        has_numbers: the format tells numbers from texts of digits.
    """
    types = pa.types

    def as_is(column: Any) -> Any:
        return column

    def cast(column: Any) -> Any:
        return column.cast(kind)

    def day(column: Any) -> Any:
        found = column.cast(kind)
        days = found.drop_null().view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_numpy()
        unit = 1 if kind.bit_width == 32 else _DAY_MS
        if ((days < _DAY_MIN * unit) | (days >= (_DAY_MAX + 1) * unit)).any():
            raise pa.ArrowInvalid("not in the years 1 to 9999")
        return found

    def day_from_whole(column: Any) -> Any:
        return day(from_whole(column))

    def day_from_float(column: Any) -> Any:
        return day(from_float(column))

    def check_timestamps(values: Any) -> None:
        if not has_numbers:
            written = (values >= _WRITTEN_SECOND_MIN) & (values < _WRITTEN_SECOND_MAX)
            if (((values > -_WRITTEN_TIME_MIN) & (values < _WRITTEN_TIME_MIN)) | written).any():
                raise pa.ArrowInvalid("it may be a day, or a day and a time")
        day = _DAY_S * _SECOND[kind.unit]
        if kind.unit != "ns" and ((values < _DAY_MIN * day) | (values >= (_DAY_MAX + 1) * day)).any():
            raise pa.ArrowInvalid("not in the years 1 to 9999")

    def from_whole(column: Any) -> Any:
        if types.is_timestamp(kind):
            check_timestamps(column.drop_null().to_numpy())
        # A date or time of 32 bits is made from a number of 32 bits.
        return column.cast(pa.int32()).cast(kind) if kind.bit_width == 32 else column.cast(kind)

    def from_float(column: Any) -> Any:
        values = column.drop_null().to_numpy(zero_copy_only=False)
        if len(values) and not (np.abs(values) < _EXACT_MAX).all():
            raise pa.ArrowInvalid("not exact")
        whole = column.cast(pa.int64())
        return whole.cast(kind) if types.is_integer(kind) else from_whole(whole)

    if types.is_date(kind):
        numbers = [_Way(pa.int64(), day_from_whole), _Way(pa.float64(), day_from_float)] if has_numbers else []
        return [_Way(kind, day), *numbers, _Way(pa.string(), day)]
    ways = [_Way(kind, as_is)]
    if types.is_temporal(kind) and not types.is_interval(kind):
        if has_numbers or not types.is_time(kind):  # 120000 in CSV is noon
            ways += [_Way(pa.int64(), from_whole), _Way(pa.float64(), from_float)]
        if not types.is_duration(kind):
            ways.append(_Way(pa.string(), cast))
    elif types.is_integer(kind):
        ways += [_Way(pa.float64(), from_float), _Way(pa.string(), cast)]
    elif types.is_floating(kind):
        ways.append(_Way(pa.string(), cast))
    elif types.is_string(kind) or types.is_large_string(kind):
        ways.append(_Way(pa.int64(), cast))
    return ways


def _usable_ways(reader: _Reader, pa: Any, field: Any) -> list[_Way]:
    """Let the reader read nothing in each way: it refuses types that it never makes."""
    ways = _ways_of(pa, field.type, has_numbers=reader.has_numbers)
    tries = [(way, _refusal(reader, pa, {field.name: way.read_as})) for way in ways]
    found = [way for way, refusal in tries if refusal is None]
    if not found:
        raise InvalidArgument(
            f"the field {field.name!r} of the schema cannot be {field.type}: Arrow's reader says {tries[0][1]}"
        )
    return found


def _refusal(reader: _Reader, pa: Any, fields: Mapping[str, Any]) -> Exception | None:
    try:
        reader.read_nothing(fields)
    except (pa.ArrowException, ValueError) as error:
        return error
    return None


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

    unfit = "not one JSON object"
    has_numbers = True

    def __init__(self, names: list[str]) -> None:
        del names  # an object has its own
        self._pa = library("pyarrow")
        self._json = library("pyarrow.json")
        self._marker = f"m{secrets.token_hex(12)}"

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

    def read_nothing(self, fields: Mapping[str, Any]) -> None:
        self._read(self._pa.py_buffer(b'{"%s":0}\n{"%s":1}\n' % ((self._marker.encode(),) * 2)), fields)

    def _read(self, text: Any, fields: Mapping[str, Any]) -> Any:
        pa = self._pa
        schema = pa.schema([*(pa.field(name, kind) for name, kind in fields.items()), (self._marker, pa.int64())])
        parse = self._json.ParseOptions(
            explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="ignore"
        )
        options = self._json.ReadOptions(use_threads=False, block_size=min(text.size + 1, 0x7FFFFFFF))
        return self._json.read_json(pa.BufferReader(text), read_options=options, parse_options=parse)

    def read(self, text: Any, first: int, count: int, fields: Mapping[str, Any]) -> Any | None:
        try:
            table = self._read(text, fields)
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
        found = table.select(list(fields)).take(self._pa.array(np.arange(1, 2 * count, 2)))
        return found if _fits(self._pa, found, list(fields)) else None


class _CsvReader:
    """A body is one line of CSV, its fields in the schema's order; a byte order mark before, a line end behind it."""

    unfit = "not one line of CSV with a value for each field"
    has_numbers = False

    def __init__(self, names: list[str]) -> None:
        self._pa = library("pyarrow")
        self._csv = library("pyarrow.csv")
        self._compute = library("pyarrow.compute")
        self._names = names
        self._marker = f"m{secrets.token_hex(12)}"
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

    def read_nothing(self, fields: Mapping[str, Any]) -> None:
        self._read(self._pa.py_buffer(f"{',' * len(self._names)}{self._marker}\n".encode()), fields)

    def _read(self, text: Any, fields: Mapping[str, Any]) -> Any:
        options = self._csv.ReadOptions(
            use_threads=False,
            block_size=min(text.size + 1, 0x7FFFFFFF),
            column_names=[*self._names, self._marker],
        )
        convert = self._csv.ConvertOptions(
            column_types={**fields, self._marker: self._pa.string()}, include_columns=[*fields, self._marker]
        )
        return self._csv.read_csv(
            self._pa.BufferReader(text), read_options=options, parse_options=self._parse, convert_options=convert
        )

    def read(self, text: Any, first: int, count: int, fields: Mapping[str, Any]) -> Any | None:
        try:
            table = self._read(text, fields)
        except self._pa.ArrowInvalid:
            return None
        if table.num_rows != count:
            return None
        if table.column(self._marker).to_pylist() != self._marks(first, count):
            return None
        found = table.select(list(fields))
        return found if _fits(self._pa, found, list(fields)) else None
