"""Typed members of a decoded object, converted as leniently as fastjson converts into a Java bean.

A number may come as a string (``"8"``), a boolean as a string or a number; null counts as missing. A value that cannot
be converted is a :class:`ConfigValueError` that names the member, for instance ``topicConfigTable.orders.perm``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal

from cometmq.store_config.errors import ConfigValueError
from cometmq.store_config.json_types import JsonKey, JsonObject, JsonValue

__all__ = ["INT32_MAX", "INT32_MIN", "INT64_MAX", "INT64_MIN", "Fields", "as_int"]

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

_INTEGER = re.compile(r"[-+]?[0-9]{1,20}")


def as_int(value: JsonValue, *, minimum: int, maximum: int, member: str) -> int:
    """Convert to a whole number in the given range, or raise ConfigValueError for ``member``."""
    number: int | Decimal | None = None
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        number = int(value)
    elif isinstance(value, int) or (isinstance(value, Decimal) and value == value.to_integral_value()):
        number = value
    if number is None:
        raise ConfigValueError(f"expected a whole number, found {_shown(value)}", member=member)
    if not minimum <= number <= maximum:
        raise ConfigValueError(f"{_shown(value)} is outside {minimum} to {maximum}", member=member)
    return int(number)


def _shown(value: JsonValue) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    return str(value)[:60] if isinstance(value, Decimal) else repr(value)[:60]


class Fields:
    """One decoded object and the path that leads to it. Short-lived; one thread."""

    __slots__ = ("_members", "_path")

    def __init__(self, value: JsonValue, path: str = "") -> None:
        """``path`` is where the object lies, empty for the whole file. Not an object: ConfigValueError."""
        if not isinstance(value, dict):
            raise ConfigValueError(f"expected an object, found {_shown(value)}", member=path)
        self._members = value
        self._path = path

    def member(self, name: JsonKey) -> str:
        """Return the dotted path of a member."""
        return f"{self._path}.{name}" if self._path else str(name)

    def has(self, name: JsonKey) -> bool:
        """Return True where the member is there and not null."""
        return self._members.get(name) is not None

    def value(self, name: JsonKey) -> JsonValue:
        """Return a member as it is, or None."""
        return self._members.get(name)

    def names(self) -> Iterable[JsonKey]:
        """Return the members' names in the order of the text."""
        return self._members.keys()

    def renamed(self, members: JsonObject) -> Fields:
        """Return the same object with other members in the same place."""
        return Fields(members, self._path)

    def int32(self, name: JsonKey, default: int) -> int:
        """Return a member that Java keeps as ``int``."""
        return self._int(name, default, INT32_MIN, INT32_MAX)

    def int64(self, name: JsonKey, default: int) -> int:
        """Return a member that Java keeps as ``long``."""
        return self._int(name, default, INT64_MIN, INT64_MAX)

    def _int(self, name: JsonKey, default: int, minimum: int, maximum: int) -> int:
        value = self._members.get(name)
        if value is None:
            return default
        return as_int(value, minimum=minimum, maximum=maximum, member=self.member(name))

    def boolean(self, name: JsonKey, default: bool) -> bool:
        """Return a boolean member."""
        value = self._members.get(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if value == 0 or value == 1:
            return value == 1
        raise ConfigValueError(f"expected true or false, found {_shown(value)}", member=self.member(name))

    def text(self, name: JsonKey, default: str) -> str:
        """Return a string member; a number becomes its digits."""
        value = self._members.get(name)
        if value is None:
            return default
        return self._text(name, value)

    def _text(self, name: JsonKey, value: JsonValue) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int | Decimal):
            return str(value)
        raise ConfigValueError(f"expected a string, found {_shown(value)}", member=self.member(name))

    def fields(self, name: JsonKey) -> Fields | None:
        """Return an object member, or None where it is missing."""
        value = self._members.get(name)
        return None if value is None else Fields(value, self.member(name))

    def items(self, name: JsonKey) -> Iterator[tuple[str, JsonValue, str]]:
        """Iterate over an object member: key as string, value, and the value's path. Null values are left out."""
        inner = self.fields(name)
        if inner is not None:
            for key, value in inner._members.items():
                if value is not None:
                    yield str(key), value, inner.member(key)

    def array(self, name: JsonKey) -> list[JsonValue] | None:
        """Return an array member, or None where it is missing."""
        value = self._members.get(name)
        if value is None or isinstance(value, list):
            return value
        raise ConfigValueError(f"expected an array, found {_shown(value)}", member=self.member(name))

    def texts(self, name: JsonKey) -> dict[str, str]:
        """Return an object member of strings; empty where it is missing."""
        return {key: Fields({key: value}, self.member(name)).text(key, "") for key, value, _ in self.items(name)}

    def integers(self, name: str) -> dict[int, int]:
        """Return an object member with integer keys (bare or quoted) and int64 values; empty where it is missing."""
        inner = self.fields(name)
        return {} if inner is None else inner.as_integers()

    def as_integers(self) -> dict[int, int]:
        """Convert the object itself: integer keys, bare or quoted, to int64 values."""
        converted: dict[int, int] = {}
        for key, value in self._members.items():
            if type(key) is int and type(value) is int and 0 <= key <= INT32_MAX and 0 <= value <= INT64_MAX:
                converted[key] = value
            elif value is not None:
                number = as_int(key, minimum=INT32_MIN, maximum=INT32_MAX, member=f"key of {self.member(key)}")
                converted[number] = as_int(value, minimum=INT64_MIN, maximum=INT64_MAX, member=self.member(key))
        return converted

    def as_int32s(self) -> dict[str, int]:
        """Convert the object itself: any keys to int32 values."""
        return {
            str(key): as_int(value, minimum=INT32_MIN, maximum=INT32_MAX, member=self.member(key))
            for key, value in self._members.items()
            if value is not None
        }

    def others(self, known: Iterable[str]) -> JsonObject:
        """Return the members not named in ``known``, which a rewrite must keep."""
        names = frozenset(known)
        return {key: value for key, value in self._members.items() if key not in names}
