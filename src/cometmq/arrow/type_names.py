"""Names of types in a schema: Arrow's, SQL's and Python's, and nested ones.

==========================================  =========================================================================
written                                     type
==========================================  =========================================================================
``int64``, ``string``, ``date32[day]``, …   Arrow's own names
``timestamp[ms]``, ``timestamp[ms, tz=UTC]``  a time; a number in a body counts units since 1970
``duration[s]``, ``time64[us]``             likewise
``decimal(10, 2)``                          a decimal number
``list<int64>``, ``int64[]``, ``["int64"]``  a list
``struct<city: string>``, ``{"city": …}``   an object
``BIGINT``, ``VARCHAR``, ``DOUBLE``, …       SQL's names, in any case
``float``, ``FLOAT``                        Arrow's, of 32 bits; Python's class ``float`` is 64 bits wide, as ``double``
``int``, ``str``                            Python's names and classes; ``int`` is 64 bits wide
==========================================  =========================================================================
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from typing import Any

from cometmq.arrow.libraries import library
from cometmq.errors import InvalidArgument

__all__ = ["field_of", "fields_of", "fields_text", "type_of"]

_OTHER_NAMES = {
    **dict.fromkeys(("int", "integer", "bigint", "long"), "int64"),
    **dict.fromkeys(("smallint", "short"), "int16"),
    **dict.fromkeys(("tinyint", "byte"), "int8"),
    **dict.fromkeys(("ubigint",), "uint64"),
    **dict.fromkeys(("uinteger",), "uint32"),
    **dict.fromkeys(("real",), "float32"),
    **dict.fromkeys(("double precision", "number"), "float64"),
    **dict.fromkeys(("varchar", "text", "char", "str"), "string"),
    **dict.fromkeys(("blob", "bytea", "bytes", "varbinary"), "binary"),
    **dict.fromkeys(("boolean", "logical"), "bool"),
    "date": "date32",
    "datetime": "timestamp[us]",
    "timestamp": "timestamp[us]",
    "timestamptz": "timestamp[us, tz=UTC]",
    "timestamp with time zone": "timestamp[us, tz=UTC]",
    "time": "time64[us]",
}
_CLASSES: dict[Any, str] = {
    int: "int64",
    float: "float64",
    str: "string",
    bool: "bool",
    bytes: "binary",
    datetime.date: "date32",
    datetime.datetime: "timestamp[us]",
    datetime.time: "time64[us]",
    datetime.timedelta: "duration[us]",
}
_TIMESTAMP = re.compile(r"timestamp\s*\[\s*(s|ms|us|ns)\s*(?:,\s*(?:tz\s*=\s*)?([^\]]+?)\s*)?\]", re.IGNORECASE)
_DECIMAL = re.compile(r"(?:decimal|decimal128|numeric)\s*[(\[]\s*(\d+)\s*(?:,\s*(-?\d+)\s*)?[)\]]", re.IGNORECASE)
_SIZED_TEXT = re.compile(r"(?:var)?char\s*\(\s*\d+\s*\)", re.IGNORECASE)
_LIST = re.compile(r"(?:list|array)\s*<(.*)>", re.IGNORECASE | re.DOTALL)
_STRUCT = re.compile(r"(?:struct|row)\s*<(.*)>", re.IGNORECASE | re.DOTALL)
_FIELD = re.compile(r'\s*(?:"((?:[^"]|"")+)"|`([^`]+)`|([^\s:,"`]+))\s*(?::|\s)\s*(.+?)\s*', re.DOTALL)


def type_of(kind: Any) -> Any:
    """Return a ``pyarrow.DataType``.

    Args:
        kind: a type, its name, a Python class, a mapping of names to types, or a list of one type.

    Raises:
        InvalidArgument: no such type; the text names some.
    """
    pa = library("pyarrow")
    if isinstance(kind, pa.DataType):
        return kind
    if isinstance(kind, Mapping):
        return pa.struct([field_of(name, one) for name, one in kind.items()])
    if isinstance(kind, (list, tuple)) and len(kind) == 1:
        return pa.list_(type_of(kind[0]))
    if isinstance(kind, type) and kind in _CLASSES:
        return type_of(_CLASSES[kind])
    if not isinstance(kind, str):
        raise InvalidArgument(f"{kind!r:.60} is not a type: {_HINT}")
    return _named(pa, kind.strip())


_HINT = "write int64, float64, string, bool, timestamp[ms, tz=UTC], decimal(10, 2), list<int64> or struct<a: int64>"


def _named(pa: Any, name: str) -> Any:
    try:
        return pa.type_for_alias(name)
    except ValueError:
        pass
    if found := _TIMESTAMP.fullmatch(name):
        return pa.timestamp(found[1].lower(), found[2])
    if found := _DECIMAL.fullmatch(name):
        return pa.decimal128(int(found[1]), int(found[2] or 0))
    if found := _LIST.fullmatch(name):
        inner = re.sub(r"^\s*(?:item|element)\s*:", "", found[1])
        return pa.list_(type_of(inner))
    if found := _STRUCT.fullmatch(name):
        return pa.struct(fields_of(found[1]))
    if name.endswith("[]"):
        return pa.list_(type_of(name[:-2]))
    if _SIZED_TEXT.fullmatch(name):
        return pa.string()
    plain = " ".join(name.lower().split())
    other = _OTHER_NAMES.get(plain)
    if other is not None:
        return type_of(other)
    try:
        return pa.type_for_alias(plain)
    except ValueError:
        raise InvalidArgument(f"there is no type {name!r}: {_HINT}") from None


def field_of(name: Any, kind: Any) -> Any:
    """Return a ``pyarrow.Field``.

    Raises:
        InvalidArgument: the name is not a text, or there is no such type.
    """
    if not isinstance(name, str):
        raise InvalidArgument(f"a field's name must be a str, not {type(name).__name__} ({name!r:.60})")
    try:
        return library("pyarrow").field(name, type_of(kind))
    except InvalidArgument as error:
        raise InvalidArgument(f"field {name!r}: {error}") from None


def fields_of(text: str) -> list[Any]:
    """Return the fields of a text: ``id int64, to struct<city: string>``, other names than words in double quotes or
    backquotes.

    Raises:
        InvalidArgument: it is not a list of names with types.
    """
    fields = []
    for piece in _pieces(text):
        found = _FIELD.fullmatch(piece)
        if found is None:
            raise InvalidArgument(f"{piece.strip()!r} is not a name with a type: write id int64, at timestamp[ms]")
        quoted = found[1].replace('""', '"') if found[1] else None
        fields.append(field_of(quoted or found[2] or found[3], found[4]))
    return fields


def fields_text(fields: Iterable[Any]) -> str:
    """Return fields as the text from which :func:`fields_of` makes them again."""
    return ", ".join(f'"{one.name.replace(chr(34), chr(34) * 2)}" {_type_text(one.type)}' for one in fields)


def _type_text(kind: Any) -> str:
    types = library("pyarrow").types
    if types.is_struct(kind):
        return f"struct<{fields_text(kind)}>"
    if types.is_list(kind):
        return f"list<{_type_text(kind.value_type)}>"
    return str(kind)


def _pieces(text: str) -> list[str]:
    """Divide a text by commas outside of brackets and quotes."""
    pieces = [""]
    depth = 0
    quote = ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in '"`':
            quote = sign
        else:
            depth += (sign in "<([") - (sign in ">)]")
        if sign == "," and depth == 0 and not quote:
            pieces.append("")
        else:
            pieces[-1] += sign
    return pieces
