"""Writes JSON byte for byte as fastjson 1.2.83 does for upstream's files and bodies.

Pretty form: tabs; ``"key":value`` without a blank; a member with a string key begins a line, one with an integer key
does not and stays unquoted, so ``{0:1,1:2`` and then a line break, tabs and ``}``; nor does one with an object as key,
which is written like any object; ``{}`` and ``[]`` when empty; arrays on one line, :class:`JavaList` one element a
line; no line break at the end. Members whose value is None are left out.

Members are written in the order of the dict: for a bean give them sorted (:func:`bean`), for a table as they come.

Threads: any. Nothing is shared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

from cometmq.errors import InvalidArgument
from cometmq.store_config.json_types import (
    DEFAULT_LIMITS,
    JavaList,
    JsonKey,
    JsonObject,
    JsonValue,
    Layout,
    ObjectKey,
)

__all__ = ["bean", "dumps", "encode"]

_SAFE_INTEGER_MAX = 2**53 - 1
"""Beyond this the browser form quotes a number, since JavaScript could not hold it."""

_SHORT_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_SPECIAL = re.compile('[\x00-\x1f"\\\\\x7f-\x9f\u2028\u2029]')
_SPECIAL_BROWSER = re.compile('[\x00-\x1f"\\\\/\x7f-\U0010ffff]')


_BITS_SURE = 3000
"""No number of so many bits has more digits than the limit."""
_DIGITS_PER_BIT = 0.30103
_NAMES_KEPT = 256


def _check_digits(digits: float) -> None:
    if digits > DEFAULT_LIMITS.number_chars - 2:
        raise InvalidArgument(f"cannot write a number of {digits:.0f} digits as JSON")


def bean(known: Mapping[str, JsonValue], unknown: Mapping[JsonKey, JsonValue] | None = None) -> JsonObject:
    """Members of a Java bean in the order fastjson gives them: by name, without nulls. A known member wins."""
    merged: JsonObject = dict(unknown or {})
    for name, value in known.items():
        merged[name] = value
    return {name: merged[name] for name in sorted(merged, key=str) if merged[name] is not None}


def dumps(value: JsonValue, *, layout: Layout = Layout.PRETTY) -> str:
    """Write ``value`` as text.

    Raises:
        InvalidArgument: the value has a type that JSON does not know (floats too: use Decimal), contains itself, or is
            beyond :data:`DEFAULT_LIMITS`, so that it could not be read again.
    """
    writer = _Writer(layout)
    writer.value(value, 0)
    return "".join(writer.parts)


def encode(value: JsonValue, *, layout: Layout = Layout.PRETTY) -> bytes:
    """Write ``value`` as UTF-8. Half of a surrogate pair becomes ``?``, as in Java.

    Raises:
        InvalidArgument: as :func:`dumps`.
    """
    return dumps(value, layout=layout).encode("utf-8", "replace")


def _hex_escape(char: str) -> str:
    code = ord(char)
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04X}\\u{0xDC00 + (code & 0x3FF):04X}"
    return f"\\u{code:04X}"


def _escape(matched: re.Match[str]) -> str:
    char = matched.group()
    return _SHORT_ESCAPES.get(char) or _hex_escape(char)


def _escape_browser(matched: re.Match[str]) -> str:
    return "\\/" if matched.group() == "/" else _escape(matched)


class _Writer:
    """Collects the pieces of one text. ``indent`` is the number of tabs before a member, ``_level`` the nesting."""

    __slots__ = ("_browser", "_level", "_names", "_pretty", "parts")

    def __init__(self, layout: Layout) -> None:
        self.parts: list[str] = []
        self._pretty = layout is Layout.PRETTY
        self._browser = layout is Layout.BROWSER
        self._level = 0
        self._names: dict[str, str] = {}  # quoted names of beans' members, which come again and again

    def value(self, value: JsonValue, indent: int) -> None:
        if value is None:
            self.parts.append("null")
        elif value is True or value is False:
            self.parts.append("true" if value else "false")
        elif isinstance(value, str):
            self.parts.append(self._quoted(value))
        elif isinstance(value, int):
            self.parts.append(self._integer(value))
        elif isinstance(value, Decimal) and value.is_finite():
            self.parts.append(self._decimal(value))
        elif isinstance(value, dict):
            self._enter()
            self._object(value, indent)
        elif isinstance(value, list):
            self._enter()
            self._array(value, indent)
        else:
            raise InvalidArgument(f"cannot write {value!r} as JSON: {type(value).__name__} has no form in it")

    def _enter(self) -> None:
        self._level += 1
        if self._level > DEFAULT_LIMITS.depth:
            raise InvalidArgument(f"the value has more than {DEFAULT_LIMITS.depth} levels, or contains itself")

    def _quoted(self, text: str) -> str:
        if self._browser:
            return f'"{_SPECIAL_BROWSER.sub(_escape_browser, text)}"'
        return f'"{_SPECIAL.sub(_escape, text)}"'

    def _integer(self, number: int) -> str:
        if number.bit_length() > _BITS_SURE:
            _check_digits(number.bit_length() * _DIGITS_PER_BIT)
        return f'"{number}"' if self._browser and abs(number) > _SAFE_INTEGER_MAX else str(number)

    def _decimal(self, number: Decimal) -> str:
        digits = str(number)
        _check_digits(len(digits))
        if abs(number.adjusted()) > DEFAULT_LIMITS.exponent:
            raise InvalidArgument(f"cannot write a number with the exponent {number.adjusted()} as JSON")
        return digits

    def _key(self, key: object) -> str:
        if isinstance(key, ObjectKey) and not self._browser:
            return key
        if isinstance(key, str):
            quoted = self._names.get(key)
            if quoted is None:
                quoted = self._quoted(key)
                if len(self._names) < _NAMES_KEPT:
                    self._names[key] = quoted
            return quoted
        if isinstance(key, int) and not isinstance(key, bool):
            return f'"{key}"' if self._browser else str(key)
        raise InvalidArgument(f"cannot write {key!r} as a JSON key: keys are strings or integers")

    def _pretty_key(self, key: ObjectKey, indent: int) -> None:
        from cometmq.store_config.fastjson_reader import loads  # which needs this module to make such keys

        self.value(loads(key), indent)

    def _break_line(self, indent: int) -> None:
        if self._pretty:
            self.parts.append("\n" + "\t" * indent)

    def _object(self, members: JsonObject, indent: int) -> None:
        parts = self.parts
        parts.append("{")
        comma, lead = "", "\n" + "\t" * (indent + 1) if self._pretty else ""
        for key, value in members.items():
            if value is None:
                continue
            if self._pretty and isinstance(key, ObjectKey):
                parts.append(comma)
                self._pretty_key(key, indent + 1)
                parts.append(":")
            else:
                parts.append(f"{comma}{lead if isinstance(key, str) else ''}{self._key(key)}:")
            comma = ","
            # The commonest kinds at once: tables of 100,000 entries are written while others need the interpreter.
            if type(value) is str:
                parts.append(self._quoted(value))
            elif type(value) is int:
                parts.append(self._integer(value))
            else:
                self.value(value, indent + 1)
        if members:
            self._break_line(indent)
        self.parts.append("}")
        self._level -= 1

    def _array(self, items: list[JsonValue], indent: int) -> None:
        broken = isinstance(items, JavaList) and bool(items)
        self.parts.append("[")
        for index, item in enumerate(items):
            if index:
                self.parts.append(",")
            if broken:
                self._break_line(indent + 1)
            # Arrays and sets do not indent what they hold.
            self.value(item, indent + 1 if broken else indent)
        if broken:
            self._break_line(indent)
        self.parts.append("]")
        self._level -= 1
