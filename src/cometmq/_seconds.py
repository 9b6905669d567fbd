"""Rejects times in seconds where milliseconds are expected: they would mean January to April 1970."""

from __future__ import annotations

from cometmq.errors import InvalidArgument

__all__ = ["check_milliseconds"]

_SECONDS_MIN, _SECONDS_MAX = 1_000_000_000, 10_000_000_000
"""Seconds since 1970 of the years 2001 to 2286."""


def check_milliseconds(name: str, value: int) -> int:
    """Return a time in milliseconds since 1970.

    Raises:
        InvalidArgument: it looks like seconds.
    """
    if _SECONDS_MIN <= value < _SECONDS_MAX:
        raise InvalidArgument(f"{name} is in milliseconds since 1970, and {value} looks like seconds: {value} * 1000")
    return value
