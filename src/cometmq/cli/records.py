"""Input as messages to be sent: lines, CSV, JSON lines, whose columns may become tags and keys, and whole messages.

Threads: one.
"""

from __future__ import annotations

import csv
import enum
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cometmq.errors import InvalidArgument

if TYPE_CHECKING:
    from cometmq.admin import OutgoingMessage

__all__ = ["InputFormat", "RecordOptions", "format_of", "messages_of"]

_FIELD_CHARS_MAX = 4 << 20


class InputFormat(str, enum.Enum):
    """The content of a file."""

    LINES = "lines"
    """A message per line."""
    CSV = "csv"
    """A message per row; the first row names the columns."""
    JSONL = "jsonl"
    """A message per line, each a JSON object."""
    MESSAGES = "messages"
    """A message per line, each a JSON object with its body, tags, keys and so on, as ``--format json`` prints them."""
    FILE = "file"
    """A message per file."""


_SUFFIXES = {".csv": InputFormat.CSV, ".jsonl": InputFormat.JSONL, ".ndjson": InputFormat.JSONL}


def format_of(name: str) -> InputFormat:
    """Return a file's format by its suffix; lines for an unknown one."""
    return _SUFFIXES.get(Path(name).suffix.lower(), InputFormat.LINES)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """How messages are made from a row.

    Attributes:
        body: ``line``, ``json`` (the row as an object), or the name of a column.
        tags, keys, sharding_key: of all messages.
        tag_column, key_column, shard_column: of each, from its row; before those of all.
        null: a value of a column that counts as none, like the empty one.
        header: the columns of CSV whose first row does not name them.
        properties: of all messages.
        delay_level: of all messages.
        delay_ms, deliver_at_ms: how long all are held back, or until when.
        queue_id: of all messages.
        topic: of all messages, where their sender does not know it.
    """

    body: str = "line"
    tags: str | None = None
    keys: str | None = None
    sharding_key: str | None = None
    tag_column: str | None = None
    key_column: str | None = None
    shard_column: str | None = None
    null: str = ""
    header: tuple[str, ...] | None = None
    properties: dict[str, str] | None = None
    delay_level: int = 0
    queue_id: int | None = None
    topic: str | None = None
    delay_ms: int | None = None
    deliver_at_ms: int | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are named."""
        named = (self.tag_column, self.key_column, self.shard_column)
        body = None if self.body in ("line", "json") else self.body
        return tuple(dict.fromkeys(name for name in (*named, body) if name is not None))


def messages_of(
    batches: Iterator[list[bytes]], kind: InputFormat, options: RecordOptions, *, source: str
) -> Iterator[list[OutgoingMessage]]:
    """Make messages of the lines of one input, each batch as soon as it is there.

    Args:
        batches: lines without their ends, or whole files.
        kind: the input's format.
        options: how messages are made from a row.
        source: names the input in errors.

    Raises:
        typer.BadParameter: a column is named that the input does not have.
        InvalidArgument: a line is not a row or not a JSON object; the lines before it were returned.
    """
    if kind is InputFormat.CSV:
        yield from _csv_messages(batches, options, source)
        return
    if options.header is not None:
        raise typer.BadParameter("--header names the columns of CSV: give --format csv")
    if kind is not InputFormat.JSONL and (options.columns or options.body != "line"):
        raise typer.BadParameter("lines have no columns: give --format csv or jsonl")
    if kind is InputFormat.MESSAGES:
        from cometmq.cli.whole_messages import whole_message

        def message_of(line: bytes, values: dict[str, object], where: str) -> OutgoingMessage:
            return whole_message(values, options, where=where)

        yield from _of_objects(batches, message_of, source)
        return
    if kind is InputFormat.JSONL:
        yield from _json_messages(batches, options, source)
        return
    make = _maker(options)
    for batch in batches:
        yield [make(body, _no_column) for body in batch]


def _no_column(name: str) -> str | None:
    raise KeyError(name)


def _maker(options: RecordOptions) -> Callable[[bytes, Callable[[str], str | None]], OutgoingMessage]:
    """Return the function that makes a message of a line and of its columns' values."""
    from cometmq.admin import OutgoingMessage

    def value(name: str | None, column: Callable[[str], str | None], default: str | None) -> str | None:
        if name is None:
            return default
        found = column(name)
        return default if found is None or found in ("", options.null) else found

    def make(line: bytes, column: Callable[[str], str | None]) -> OutgoingMessage:
        return OutgoingMessage(
            line if options.body in ("line", "json") else (column(options.body) or "").encode(),
            value(options.tag_column, column, options.tags),
            value(options.key_column, column, options.keys),
            options.properties,
            options.delay_level,
            value(options.shard_column, column, options.sharding_key),
            options.queue_id,
            options.topic,
            delay_ms=options.delay_ms,
            deliver_at_ms=options.deliver_at_ms,
        )

    return make


# --- JSON lines -------------------------------------------------------------------------------------------------------


def _json_messages(
    batches: Iterator[list[bytes]], options: RecordOptions, name: str
) -> Iterator[list[OutgoingMessage]]:
    make = _maker(options)

    def message_of(line: bytes, values: dict[str, object], where: str) -> OutgoingMessage:
        return make(line, lambda column: _text(values.get(column)))

    return _of_objects(batches, message_of, name)


def _of_objects(
    batches: Iterator[list[bytes]],
    message_of: Callable[[bytes, dict[str, object], str], OutgoingMessage],
    name: str,
) -> Iterator[list[OutgoingMessage]]:
    """Make a message of each line that is not blank: of the line, its JSON object, and where it stands."""
    number = 0
    for batch in batches:
        messages: list[OutgoingMessage] = []
        for line in batch:
            number += 1
            if not line.strip():
                continue
            where = f"{name}, line {number}"
            try:
                messages.append(message_of(line, _object(line, where), where))
            except InvalidArgument:
                yield messages
                raise
        yield messages


def _object(line: bytes, where: str) -> dict[str, object]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{where}: invalid JSON: {error}") from None
    if not isinstance(values, dict):
        raise InvalidArgument(f"{where}: not a JSON object")
    return values


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


# --- CSV --------------------------------------------------------------------------------------------------------------


class _Source:
    """Lines for ``csv.reader``, which takes as many as a row has; they are kept until the row was made a message."""

    def __init__(self, batches: Iterator[list[bytes]], name: str) -> None:
        self._batches = batches
        self._lines: Iterator[bytes] = iter(())
        self._left = 0
        self._taken: list[bytes] = []
        self._name = name
        self.number = 0

    def __iter__(self) -> _Source:
        return self

    def __next__(self) -> str:
        while self._left == 0:
            batch = next(self._batches)
            self._lines, self._left = iter(batch), len(batch)
        line = next(self._lines)
        self._left -= 1
        self.number += 1
        if self.number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        self._taken.append(line)
        try:
            return line.decode() + "\n"
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"{self._name}, line {self.number}: not UTF-8: {error.reason}") from None

    @property
    def is_at_end_of_batch(self) -> bool:
        return self._left == 0

    def take(self) -> bytes:
        """Return the line, or the lines, of the row that was read last."""
        line = self._taken[0] if len(self._taken) == 1 else b"\n".join(self._taken)
        self._taken.clear()
        return line


def _csv_messages(batches: Iterator[list[bytes]], options: RecordOptions, name: str) -> Iterator[list[OutgoingMessage]]:
    source = _Source(batches, name)
    csv.field_size_limit(_FIELD_CHARS_MAX)
    reader = csv.reader(source, strict=True)
    header = None if options.header is None else list(options.header)
    first = "the first one" if header is None else "--header names"
    if header is None:
        try:
            header = next(reader, None)
        except csv.Error as error:
            raise InvalidArgument(f"{name}, line {source.number}: invalid CSV: {error}") from None
        if header is None:
            return
        source.take()
    missing = [column for column in options.columns if column not in header]
    if missing:
        raise typer.BadParameter(f"{name} has no column {', '.join(missing)}; it has {', '.join(header)}")
    places = {column: at for at, column in enumerate(header)}
    make = _maker(options)
    row: list[str] = []
    messages: list[OutgoingMessage] = []

    def column(name: str) -> str:
        return row[places[name]]

    try:
        for row in reader:
            line = source.take()
            if row and len(row) != len(header):
                raise InvalidArgument(
                    f"{name}, line {source.number}: the row has {len(row)} columns, and {first} {len(header)}"
                )
            if row:
                if options.body == "json":
                    line = json.dumps(dict(zip(header, row, strict=True)), ensure_ascii=False).encode()
                messages.append(make(line, column))
            if source.is_at_end_of_batch:
                yield messages
                messages = []
    except (csv.Error, InvalidArgument) as error:
        yield messages
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(f"{name}, line {source.number}: invalid CSV: {error}") from None
    if messages:
        yield messages
