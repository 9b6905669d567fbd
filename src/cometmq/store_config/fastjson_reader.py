"""Reads JSON as leniently as fastjson 1.2.83 does, which upstream reads its files and bodies with.

Accepted beyond JSON, each checked against the real library: bare integer keys (``{0:15}``), objects as keys, bare
names, single quotes, ``//`` and ``/* */`` comments, extra and trailing commas, arrays without commas, a leading byte
order mark, control characters as blanks, raw line breaks in strings, ``\\x41``, ``\\v`` and octal escapes, ``+5``,
``5L``, ``1.5D``, and ``NULL``, ``undefined`` and ``NaN`` for null. Of two equal keys the last wins. A number outside
64 bits is kept exactly.

Not accepted, although fastjson does: ``new Date(5)``, ``Set[…]``, ``x'41'``, the suffixes ``S`` and ``B``, an
unterminated comment, and a text of blanks alone. No version of upstream writes them.
``{"$ref": …}`` is an ordinary object here: nothing is looked up, so that a document survives unchanged.

Strict JSON is read with the standard library, 20 times as fast, under the same limits and with the same result.

Threads: any. Nothing is shared.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import NoReturn, cast

from cometmq.store_config.errors import ConfigSyntaxError
from cometmq.store_config.fastjson_writer import dumps
from cometmq.store_config.json_types import (
    DEFAULT_LIMITS,
    JavaList,
    JsonKey,
    JsonObject,
    JsonValue,
    Layout,
    Limits,
    ObjectKey,
)

__all__ = ["loads"]

_BLANK = r"[\x00-\x20\x7f]"
_GAP = re.compile(rf"(?:{_BLANK}+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_$\u0100-\U0010ffff][A-Za-z0-9_\u0100-\U0010ffff]*")
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?([LFD]?)")
_WORD = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
# Unrolled, so that a string without an end is refused in one pass.
_STRING = {
    '"': re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL),
    "'": re.compile(r"'([^'\\]*(?:\\.[^'\\]*)*)'", re.DOTALL),
}
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
# No string of strict JSON has a raw line break, so there it is the beginning of an array.
_BROKEN_ARRAY = re.compile(r"\[[\t\r ]*\n")
# The form of nearly all of a big consumerOffset.json; one match instead of a walk. 18 digits always fit an int64.
_PAIR = r"-?[0-9]{1,18}:-?[0-9]{1,18}"
_INTEGER_MAP = re.compile(rf"\{{({_PAIR}(?:,{_PAIR})*)[\t\n ]*\}}")
_SIMPLE_ESCAPES = {
    **{str(digit): chr(digit) for digit in range(8)},
    "b": "\b",
    "t": "\t",
    "n": "\n",
    "v": "\v",
    "f": "\f",
    "F": "\f",
    "r": "\r",
    '"': '"',
    "'": "'",
    "/": "/",
    "\\": "\\",
}
_WORDS: dict[str, bool | None] = {
    "true": True,
    "false": False,
    "null": None,
    "NULL": None,
    "undefined": None,
    "NaN": None,
}


def loads(text: str | bytes, *, limits: Limits = DEFAULT_LIMITS, keep_layout: bool = True) -> JsonValue:
    """Read one JSON value.

    Args:
        text: the text; bytes are taken as UTF-8 (an invalid sequence is an error, where upstream would put U+FFFD).
        limits: length and depth allowed.
        keep_layout: arrays with a line break after the bracket become :class:`JavaList`, so that they are written in
            the same form; texts with such arrays take the lenient reader. Otherwise all arrays are lists.

    Raises:
        ConfigSyntaxError: the text cannot be read; it carries line and column. Nothing else is ever raised.
    """
    if isinstance(text, bytes):
        text = _decode(text)
    if len(text) > limits.text_chars:
        raise ConfigSyntaxError(f"the text is longer than {limits.text_chars} characters", line=1, column=1)
    if limits.parts < len(text) and sum(map(text.count, ",[{")) > limits.parts:
        raise ConfigSyntaxError(f"the text has more than {limits.parts} values", line=1, column=1)
    if not (keep_layout and _BROKEN_ARRAY.search(text)):
        try:
            return _StrictReader(limits).document(text)
        except (ValueError, RecursionError):
            # Not strict JSON, or beyond a limit: the lenient reader decides, and says where it fails.
            pass
    if len(text) > limits.lenient_chars:
        raise ConfigSyntaxError(
            f"the text is longer than {limits.lenient_chars} characters and is not strict JSON", line=1, column=1
        )
    return _Reader(text, limits).document()


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise ConfigSyntaxError(f"not UTF-8: {error.reason}", line=line, column=column) from error


class _StrictReader:
    """Reads strict JSON. Raises ValueError or RecursionError for every text that the lenient reader has to judge."""

    __slots__ = ("_limits",)

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def document(self, text: str) -> JsonValue:
        value = cast(
            JsonValue,
            json.loads(text, parse_int=self._integer, parse_float=self._decimal, parse_constant=self._constant),
        )
        self._check_depth(value)
        return value

    def _integer(self, digits: str) -> int:
        if len(digits) > self._limits.number_chars:
            raise ValueError(digits[:40])
        return int(digits)

    def _decimal(self, digits: str) -> Decimal:
        # As in the lenient reader, the exponent counts as it is written.
        exponent = digits.lower().partition("e")[2].lstrip("+-")
        if len(digits) > self._limits.number_chars or (exponent and int(exponent) > self._limits.exponent):
            raise ValueError(digits[:40])
        return Decimal(digits)

    def _constant(self, name: str) -> NoReturn:
        raise ValueError(name)

    def _check_depth(self, value: JsonValue) -> None:
        """Look at each object and array once, level by level."""
        level: list[JsonValue] = [value] if isinstance(value, dict | list) else []
        for _ in range(self._limits.depth):
            if not level:
                return
            level = [
                inner
                for container in level
                for inner in (container.values() if type(container) is dict else cast("list[JsonValue]", container))
                if type(inner) is dict or type(inner) is list
            ]
        if level:
            raise ValueError("too deep")


class _Reader:
    """One pass over one text. ``_at`` is the next character to be read."""

    __slots__ = ("_at", "_limits", "_text")

    def __init__(self, text: str, limits: Limits) -> None:
        self._text = text
        self._limits = limits
        self._at = 1 if text.startswith("\ufeff") else 0

    def document(self) -> JsonValue:
        self._skip_gap()
        value = self._value(0)
        self._skip_gap()
        if self._at < len(self._text):
            self._fail("there is text after the end of the value")
        return value

    def _fail(self, reason: str, at: int | None = None) -> NoReturn:
        at = self._at if at is None else at
        line = self._text.count("\n", 0, at) + 1
        raise ConfigSyntaxError(reason, line=line, column=at - self._text.rfind("\n", 0, at))

    def _skip_gap(self) -> None:
        matched = _GAP.match(self._text, self._at)
        if matched is not None:
            self._at = matched.end()
        if self._text.startswith("/", self._at):
            self._fail("a comment begins and does not end")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _value(self, depth: int) -> JsonValue:
        first = self._peek()
        if first == '"' or first == "'":
            return self._string(first)
        if first == "{":
            return self._object(depth + 1)
        if first == "[":
            return self._array(depth + 1)
        if first in "-+0123456789" and first:
            return self._number()
        return self._literal()

    def _literal(self) -> JsonValue:
        matched = _WORD.match(self._text, self._at)
        if matched is None:
            self._fail(f"expected a value, found {self._here()}")
        if matched.group() not in _WORDS:
            self._fail(f"unknown word {matched.group()[:40]!r}; a string needs quotes")
        self._at = matched.end()
        return _WORDS[matched.group()]

    def _here(self) -> str:
        return repr(self._peek()) if self._at < len(self._text) else "the end of the text"

    def _number(self) -> int | Decimal:
        matched = _NUMBER.match(self._text, self._at)
        if matched is None:
            self._fail("expected digits")
        if matched.end() - matched.start() > self._limits.number_chars:
            self._fail(f"a number has more than {self._limits.number_chars} characters")
        fraction, exponent, suffix = matched.groups()
        digits = matched.group()[:-1] if suffix else matched.group()
        if fraction is None and exponent is None and suffix not in ("F", "D"):
            number: int | Decimal = int(digits)
        elif exponent is not None and (suffix == "L" or abs(int(exponent[1:])) > self._limits.exponent):
            self._fail("the exponent is out of range")
        elif suffix == "L":
            self._fail("the suffix L is for whole numbers")
        else:
            number = Decimal(digits)
        self._at = matched.end()
        return number

    def _string(self, quote: str) -> str:
        matched = _STRING[quote].match(self._text, self._at)
        if matched is None:
            self._fail("a string does not end")
        start, raw = self._at + 1, matched.group(1)
        self._at = matched.end()
        return self._unescape(raw, start) if "\\" in raw else raw

    def _unescape(self, raw: str, start: int) -> str:
        def replace(escape: re.Match[str]) -> str:
            body = escape.group(1)
            if len(body) > 1:
                return chr(int(body[1:], 16))
            if body not in _SIMPLE_ESCAPES:
                self._fail(f"unknown escape \\{body}", start + escape.start())
            return _SIMPLE_ESCAPES[body]

        plain = _ESCAPE.sub(replace, raw)
        if _SURROGATE.search(plain) is not None:
            # Two escapes of one character beyond U+FFFF become that character; a lone half stays as it is.
            plain = plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return plain

    def _array(self, depth: int) -> list[JsonValue]:
        self._check_depth(depth)
        opened = self._at
        self._at += 1
        self._skip_gap()
        # Only a java.util.List breaks the line here, so the text itself shows how to write the value again.
        items: list[JsonValue] = JavaList() if "\n" in self._text[opened : self._at] else []
        while True:
            self._skip_commas()
            if self._peek() == "]":
                self._at += 1
                return items
            items.append(self._value(depth))
            self._skip_gap()

    def _skip_commas(self) -> None:
        while self._peek() == ",":
            self._at += 1
            self._skip_gap()

    def _check_depth(self, depth: int) -> None:
        if depth > self._limits.depth:
            self._fail(f"more than {self._limits.depth} objects and arrays inside each other")

    def _object(self, depth: int) -> JsonObject:
        self._check_depth(depth)
        quick = _INTEGER_MAP.match(self._text, self._at)
        if quick is not None:
            self._at = quick.end()
            pairs = (pair.split(":") for pair in quick.group(1).split(","))
            return {int(key): int(value) for key, value in pairs}
        self._at += 1
        self._skip_gap()
        members: JsonObject = {}
        while True:
            self._skip_commas()
            if self._peek() == "}":
                self._at += 1
                return members
            self._member(members, depth)
            self._skip_gap()
            if self._peek() not in (",", "}"):
                self._fail(f"expected ',' or '}}', found {self._here()}")

    def _member(self, members: JsonObject, depth: int) -> None:
        key = self._key(depth)
        self._skip_gap()
        if self._peek() != ":":
            self._fail(f"expected ':' after the name {key!r}, found {self._here()}")
        self._at += 1
        self._skip_gap()
        members[key] = self._value(depth)

    def _key(self, depth: int) -> JsonKey:
        first = self._peek()
        if first == "{":
            return ObjectKey(dumps(self._object(depth + 1), layout=Layout.COMPACT))
        if first == '"' or first == "'":
            return self._string(first)
        if first in "-+0123456789" and first:
            number = self._number()
            return number if isinstance(number, int) else str(number)
        matched = _NAME.match(self._text, self._at)
        if matched is None:
            self._fail(f"expected a name, found {self._here()}")
        self._at = matched.end()
        return matched.group()
