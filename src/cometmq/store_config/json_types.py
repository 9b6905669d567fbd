"""Values of a fastjson text as Python objects, and the limits of reading them.

=====================  =====================================================================================
JSON                   Python
=====================  =====================================================================================
object                 ``dict``, in the order of the text; a bare integer key is an ``int``, a bare object as key an
                       :class:`ObjectKey`, all others ``str``
array                  ``list``, or :class:`JavaList` where fastjson prints one element a line
integer                ``int``, exact, also beyond 64 bits
number with a point    ``decimal.Decimal``, exact
string, literals       ``str``, ``True``, ``False``, ``None``
=====================  =====================================================================================
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias, Union

__all__ = [
    "BODY_LIMITS",
    "DEFAULT_LIMITS",
    "REQUEST_LIMITS",
    "JavaList",
    "JsonKey",
    "JsonObject",
    "JsonValue",
    "Layout",
    "Limits",
    "ObjectKey",
]

JsonKey: TypeAlias = str | int
JsonValue: TypeAlias = Union["JsonObject", "list[JsonValue]", str, int, Decimal, bool, None]
JsonObject: TypeAlias = "dict[JsonKey, JsonValue]"


class JavaList(list[JsonValue]):
    """A ``java.util.List``: fastjson's pretty form puts each element on a line of its own.

    Java arrays and sets stay on one line, and so does a plain ``list``. The two differ in their printed form alone.
    """

    __slots__ = ()


class ObjectKey(str):
    """The compact text of a bare object in the place of a key, as a Java map with objects as keys is written.

    Equal to the string with the same text, since fastjson takes both: ``{{"queueId":0}:5}`` and the same as a string.
    """

    __slots__ = ()


class Layout(enum.Enum):
    """The three forms in which upstream writes its files and bodies."""

    PRETTY = "pretty"
    """Tabs and line breaks: nearly every file under ``config/``."""
    COMPACT = "compact"
    """No blanks: bodies on the wire."""
    BROWSER = "browser"
    """Compact, ASCII alone, every key quoted: ``timermetrics`` and ``transactionMetrics``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a text. Each is far beyond what upstream writes."""

    text_chars: int = 512 * 1024 * 1024
    """Length of the whole text. 50,000 queues read by ten groups take about 30 million characters."""
    lenient_chars: int = 512 * 1024 * 1024
    """Length of a text that is not strict JSON: the lenient reader takes 2 µs a character, in Python."""
    parts: int = 1 << 60
    """Commas and opening brackets: as many values, at most, which cost memory and time."""
    depth: int = 120
    """Objects and arrays inside each other; upstream's deepest file has six. fastjson itself stops at 512."""
    number_chars: int = 1000
    """Length of one number. Python refuses to convert more than 4,300 digits."""
    exponent: int = 10_000
    """Largest exponent of a number, positive or negative."""


DEFAULT_LIMITS = Limits()
"""Limits of the files, for the reader and for the writer: written files can be read."""

REQUEST_LIMITS = Limits(
    text_chars=16 << 20, lenient_chars=256 << 10, parts=300_000, depth=100, number_chars=900, exponent=8_000
)
"""Limits of a request's body, which anybody may send. 65,536 queues to be locked have 262,000 parts."""

BODY_LIMITS = Limits(text_chars=64 << 20, depth=100, number_chars=900, exponent=8_000)
"""Limits of a body on the wire. Stricter than a file's: a file holds the content of a body some levels deeper, and the
same number may be written longer. A frame's 16 MiB bound the text; an inflated registration may be longer."""
