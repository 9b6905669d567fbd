"""Lists in log lines: a line stays short even if a request names many items."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["listed_names"]

_SHOWN_MAX = 10


def listed_names(names: Iterable[str]) -> str:
    """Return the first names, with commas between them, and how many more there are."""
    found = list(names)
    text = ",".join(found[:_SHOWN_MAX])
    return text if len(found) <= _SHOWN_MAX else f"{text} and {len(found) - _SHOWN_MAX} more"
