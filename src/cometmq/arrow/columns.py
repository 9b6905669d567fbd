"""The names of columns, and the engine's column for each."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from cometmq.errors import InvalidArgument, WrongType

__all__ = ["COLUMN_NAMES", "DEFAULT_COLUMNS", "PLACE", "Column", "parse_columns", "plain"]

DEFAULT_COLUMNS = (
    "topic",
    "queue_id",
    "queue_offset",
    "body",
    "tags",
    "keys",
    "born_timestamp",
    "store_timestamp",
)
"""The columns of a scan by default."""

_ON_REQUEST = (
    "properties",
    "flag",
    "sys_flag",
    "reconsume_times",
    "message_id",
    "unique_id",
    "physical_offset",
    "born_host",
    "store_host",
    "body_crc",
    "body_bytes",
    "prepared_transaction_offset",
)

COLUMN_NAMES = DEFAULT_COLUMNS + _ON_REQUEST
"""Every column that can be asked for by its name; ``prop:NAME`` is the property NAME besides."""

_PROPERTY = "prop:"
_KIND_OF = {"prepared_transaction_offset": "prepared_offset"}
_DICTIONARIES = frozenset({"topic", "tags"})
"""Texts that repeat: few different values in a store."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the engine takes it.

    Attributes:
        kind: its content, by the engine's name.
        form: how it is laid out: "default", "view", "plain", "dictionary".
        name: the field's name.
        property: the property's name, of kind "property".
    """

    kind: str
    form: str
    name: str
    property: str | None = None

    def as_tuple(self) -> tuple[str, str, str, str | None]:
        """Return it as ``ColumnScan`` takes it."""
        return self.kind, self.form, self.name, self.property


PLACE = (
    Column("topic", "dictionary", "__cometmq_topic"),
    Column("queue_id", "default", "__cometmq_queue_id"),
    Column("queue_offset", "default", "__cometmq_queue_offset"),
)
"""Where a row comes from, in columns that no user sees."""


def parse_columns(names: Iterable[str] | None, *, view_bodies: bool) -> tuple[Column, ...]:
    """Return the columns with these names, in their order.

    Args:
        names: names, or None for :data:`DEFAULT_COLUMNS`.
        view_bodies: bodies as views into the map; else gathered.

    Raises:
        InvalidArgument: an unknown name, or the same one twice.
    """
    if isinstance(names, str):
        raise InvalidArgument(f"columns are several names: columns=[{names!r}]")
    chosen = DEFAULT_COLUMNS if names is None else tuple(names)
    if len(set(chosen)) != len(chosen):
        twice = next(name for name in chosen if chosen.count(name) > 1)
        raise InvalidArgument(f"the column {twice!r} was asked for twice")
    return tuple(_column(name, view_bodies=view_bodies) for name in chosen)


def _column(name: str, *, view_bodies: bool) -> Column:
    if not isinstance(name, str):
        raise WrongType(f"a column is named by a str, not {type(name).__name__}")
    if name.startswith(_PROPERTY):
        if name == _PROPERTY:
            raise InvalidArgument('a property\'s column is "prop:NAME"; the name is missing')
        return Column("property", "plain", name, name.removeprefix(_PROPERTY))
    if name not in COLUMN_NAMES:
        near = difflib.get_close_matches(name, COLUMN_NAMES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f'a property is "prop:{name}".'
        raise InvalidArgument(f"there is no column {name!r}; {hint} Columns are: {', '.join(COLUMN_NAMES)}, prop:NAME")
    if name == "body":
        return Column("body", "view" if view_bodies else "plain", name)
    return Column(_KIND_OF.get(name, name), "dictionary" if name in _DICTIONARIES else "default", name)


def plain(columns: Iterable[Column]) -> tuple[Column, ...]:
    """Return the same columns for files and wires: no view into the map, no dictionary."""
    return tuple(
        Column(column.kind, "plain", column.name, column.property)
        if column.kind == "body" or column.form in ("dictionary", "plain")
        else column
        for column in columns
    )
