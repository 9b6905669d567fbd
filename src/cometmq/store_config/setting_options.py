"""One setting: its upstream name, its kind and range, and how a value given as text or otherwise is checked."""

from __future__ import annotations

import dataclasses
import enum
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from cometmq.store_config.errors import SettingError
from cometmq.store_config.fields import INT32_MAX, INT64_MAX

__all__ = [
    "Checker",
    "Option",
    "SettingValue",
    "delay_levels_ms",
    "hours",
    "long_option",
    "option",
    "option_of",
    "setting_text",
    "text_option",
]

SettingValue: TypeAlias = int | bool | str | tuple[str, ...] | enum.Enum | None
Checker: TypeAlias = Callable[[str], object]

_INTEGER = re.compile(r"[-+]?[0-9]+")
_METADATA_KEY = "cometmq.option"


def setting_text(value: object) -> str:
    """Return a value as Java's brokers write it in properties and tables; None is empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum):
        return str(value.value)
    return ",".join(value) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting.

    Attributes:
        upstream_name: the name in a ``broker.properties``.
        aliases: other names that upstream had for it.
        kind: ``int``, ``bool``, ``str``, ``tuple`` (a list of texts) or an enum.
        minimum, maximum: the range of a number.
        multiple_of: a number must be a multiple of this one.
        separator: separates the parts of a list given as one text.
        check: called with a text; raises ValueError saying what is wrong.
        doc: one line for people.
    """

    upstream_name: str
    kind: type
    doc: str
    aliases: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = INT32_MAX
    multiple_of: int = 1
    separator: str = ","
    check: Checker | None = None

    def convert(self, value: object, *, key: str, source: str) -> SettingValue:
        """Check a value and bring it to the setting's type.

        Args:
            value: a text as in a properties file or the environment, or a value of the setting's own type.
            key: the name it was given under.
            source: where it was given.

        Raises:
            SettingError: the value cannot be used; the text names key, source and the valid values.
        """
        try:
            return self._convert(value)
        except ValueError as error:
            raise SettingError(str(error), key=key, source=source) from error

    def _convert(self, value: object) -> SettingValue:
        if self.kind is bool:
            return _to_bool(value)
        if self.kind is int:
            return self._to_int(value)
        if self.kind is tuple:
            return self._to_texts(value)
        if issubclass(self.kind, enum.Enum):
            return _to_enum(self.kind, value)
        return self._to_text(value)

    def _to_int(self, value: object) -> int:
        if isinstance(value, str) and _INTEGER.fullmatch(value) and len(value) < 30:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{value!r} is not a whole number without unit, blanks or separators")
        if not self.minimum <= value <= self.maximum:
            raise ValueError(f"{value} is outside {self.minimum} to {self.maximum}")
        if value % self.multiple_of:
            raise ValueError(f"{value} is not a multiple of {self.multiple_of}")
        return value

    def _to_text(self, value: object) -> str:
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is not a text")
        text = value.strip()
        if self.check is not None:
            self.check(text)
        return text

    def _to_texts(self, value: object) -> tuple[str, ...]:
        parts = value.split(self.separator) if isinstance(value, str) else value
        if isinstance(parts, os.PathLike):
            parts = (parts,)
        if not isinstance(parts, Iterable):
            raise ValueError(f"{value!r} is not a list of texts")
        return tuple(text for text in map(self._to_text, parts) if text)


def _to_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError(f"{value!r} is neither true nor false")


def _to_enum(kind: type[enum.Enum], value: object) -> enum.Enum:
    if isinstance(value, kind):
        return value
    for member in kind:
        if isinstance(value, str) and str(member.value).lower() == value.strip().lower():
            return member
    raise ValueError(f"{value!r} is none of {', '.join(str(member.value) for member in kind)}")


def option(
    upstream_name: str,
    default: int | bool | enum.Enum | tuple[str, ...],
    doc: str,
    *,
    aliases: tuple[str, ...] = (),
    minimum: int = 0,
    maximum: int = INT32_MAX,
    multiple_of: int = 1,
) -> Any:
    """Declare a setting as a dataclass field; its kind is the type of ``default``."""
    kind = type(default)
    known = Option(
        upstream_name=upstream_name,
        kind=kind,
        doc=doc,
        aliases=aliases,
        minimum=minimum,
        maximum=maximum,
        multiple_of=multiple_of,
    )
    return dataclasses.field(default=default, metadata={_METADATA_KEY: known})


def long_option(upstream_name: str, default: int, doc: str, *, minimum: int = 0) -> Any:
    """Declare a setting that Java keeps as ``long``."""
    return option(upstream_name, default, doc, minimum=minimum, maximum=INT64_MAX)


def text_option(upstream_name: str, default: str | None, doc: str, *, check: Checker | None = None) -> Any:
    """Declare a setting that is a text; None where upstream has none."""
    known = Option(upstream_name=upstream_name, kind=str, doc=doc, check=check)
    return dataclasses.field(default=default, metadata={_METADATA_KEY: known})


def option_of(field: dataclasses.Field[Any]) -> Option:
    """Return what a dataclass field of the settings was declared as."""
    known = field.metadata[_METADATA_KEY]
    if not isinstance(known, Option):
        raise TypeError(f"the field {field.name} was not declared as an option")
    return known


_DELAY_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DELAY = re.compile(r"([0-9]{1,15})([smhd])")


def delay_levels_ms(text: str) -> tuple[int, ...]:
    """Return the delays of ``messageDelayLevel`` in milliseconds, level 1 first. ValueError names a bad level."""
    delays = []
    for level, part in enumerate(text.split(" "), start=1):
        matched = _DELAY.fullmatch(part)
        if matched is None:
            raise ValueError(f"level {level} is {part!r}; write a number and s, m, h or d, levels one blank apart")
        delays.append(int(matched.group(1)) * _DELAY_UNITS_MS[matched.group(2)])
    return tuple(delays)


def hours(text: str) -> tuple[int, ...]:
    """Return the hours of day of ``deleteWhen``, such as ``04;16``. ValueError names a bad one."""
    found = []
    for part in text.split(";"):
        if not re.fullmatch(r"[0-9]{1,2}", part) or int(part) > 23:
            raise ValueError(f"{part!r} is not an hour of the day; write 0 to 23, several with ';' between them")
        found.append(int(part))
    return tuple(found)
