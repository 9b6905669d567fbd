"""Typed values of a command's fields, the counterpart of upstream's header classes.

A required member that is missing, and a number that is not one, raise :class:`MalformedCommand` naming the member; a
server answers it with code 1. Empty counts as missing for numbers and booleans, as it does in ROCKETMQ headers, where
an empty value is null; for texts it does so where the member is required.

Source: remoting specification 1.4, 1.5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import overload

from cometmq.errors import MalformedCommand
from cometmq.remoting.command import Command, Language
from cometmq.store_config.fields import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN

__all__ = ["Members", "flag_text", "request"]


_WHOLE_NUMBER = re.compile(r"[-+]?[0-9]{1,20}")


def flag_text(value: bool) -> str:
    """Return a boolean as it stands in a field."""
    return "true" if value else "false"


def request(code: int, *, body: bytes = b"", **fields: object) -> Command:
    """Return a request; fields that are None are left out, and booleans stand as Java writes them."""
    texts = {
        name: flag_text(value) if isinstance(value, bool) else str(value)
        for name, value in fields.items()
        if value is not None
    }
    return Command(code=code, fields=texts, body=body, language=Language.PYTHON)


class Members:
    """The fields of one command. Short-lived; one thread."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, str]) -> None:
        """``fields`` are a command's."""
        self._fields = fields

    def required(self, name: str) -> str:
        """Return a text that must be there and not be empty."""
        value = self._fields.get(name)
        if not value:
            raise MalformedCommand(f"the request has no {name}", member=name)
        return value

    @overload
    def text(self, name: str) -> str | None: ...
    @overload
    def text(self, name: str, default: str) -> str: ...
    def text(self, name: str, default: str | None = None) -> str | None:
        """Return a text, empty as it may be, or the default where it is missing."""
        return self._fields.get(name, default)

    def required_int32(self, name: str) -> int:
        """Return a number that must be there and fit Java's ``int``."""
        return _number(name, self.required(name), INT32_MIN, INT32_MAX)

    def required_int64(self, name: str) -> int:
        """Return a number that must be there and fit Java's ``long``."""
        return _number(name, self.required(name), INT64_MIN, INT64_MAX)

    @overload
    def int32(self, name: str) -> int | None: ...
    @overload
    def int32(self, name: str, default: int) -> int: ...
    def int32(self, name: str, default: int | None = None) -> int | None:
        """Return a number that fits Java's ``int``, or the default where it is missing."""
        value = self._fields.get(name)
        return _number(name, value, INT32_MIN, INT32_MAX) if value else default

    @overload
    def int64(self, name: str) -> int | None: ...
    @overload
    def int64(self, name: str, default: int) -> int: ...
    def int64(self, name: str, default: int | None = None) -> int | None:
        """Return a number that fits Java's ``long``, or the default where it is missing."""
        value = self._fields.get(name)
        return _number(name, value, INT64_MIN, INT64_MAX) if value else default

    def required_boolean(self, name: str) -> bool:
        """Return a flag that must be there; as in Java all but ``true`` is false."""
        return self.required(name).lower() == "true"

    def boolean(self, name: str, default: bool = False) -> bool:
        """Return a flag, or the default where it is missing; as in Java all but ``true`` is false."""
        value = self._fields.get(name)
        return value.lower() == "true" if value else default


def _number(name: str, text: str, minimum: int, maximum: int) -> int:
    if _WHOLE_NUMBER.fullmatch(text):
        number = int(text)
        if minimum <= number <= maximum:
            return number
        raise MalformedCommand(f"{name} is {text[:40]}, outside {minimum} to {maximum}", member=name)
    raise MalformedCommand(f"{name} is not a whole number: {text[:40]!r}", member=name)
