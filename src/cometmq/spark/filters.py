"""Filters that Spark pushes down, as bounds of what is read.

Every filter is given back to Spark, which applies it to what comes: here they only take away what cannot match. So
rows are equal with and without pushing, even where a filter is understood in part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from cometmq.spark.catalog import Catalog
from cometmq.spark.planning import QueueRange
from cometmq.spark.schema import Column

__all__ = ["Pushed", "narrowed", "narrowed_by_time", "push"]

CLOCK_STEP_MS = 60_000
"""Store times rise along a queue but where a broker's clock was set back. By so much they are trusted not to: a search
by time keeps this distance."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FAR = 1 << 62
_MENDED = "\ufffd"
"""Stands in a row for bytes that are not UTF-8; the message has other bytes there."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """Bounds, all of which hold. None: no bound.

    Attributes:
        topics: only these.
        queue_ids: only these.
        queue_low: lowest queue id.
        queue_high: highest queue id.
        offset_low: lowest queue offset.
        offset_high: highest queue offset.
        time_low_ms: earliest store time.
        time_high_ms: latest store time.
        tags: only messages with one of these tags.
        keys: only messages with one of these keys.
    """

    topics: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    queue_low: int = 0
    queue_high: int = _FAR
    offset_low: int = 0
    offset_high: int = _FAR
    time_low_ms: int | None = None
    time_high_ms: int | None = None
    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None

    def keeps(self, topic: str, queue_id: int) -> bool:
        """Return whether messages of a queue can match."""
        return (
            (self.topics is None or topic in self.topics)
            and (self.queue_ids is None or queue_id in self.queue_ids)
            and self.queue_low <= queue_id <= self.queue_high
        )


def push(filters: Iterable[object], columns: Sequence[Column]) -> Pushed:
    """Return the bounds that follow from filters, all of which must hold.

    Args:
        filters: ``pyspark.sql.datasource.Filter`` objects; those that are not understood bound nothing.
        columns: the source's columns; a filter names one.
    """
    kinds = {column.name: column.kind for column in columns}
    pushed = Pushed()
    for one in filters:
        path: tuple[str, ...] = getattr(one, "attribute", ())
        kind = kinds.get(path[0]) if len(path) == 1 else None
        if kind is not None:
            pushed = _bounded(pushed, kind, type(one).__name__, getattr(one, "value", None))
    return pushed


def _bounded(pushed: Pushed, kind: str, name: str, value: Any) -> Pushed:
    values = _values(name, value)
    if kind == "topic" and values is not None:
        return replace(pushed, topics=_both(pushed.topics, frozenset(v for v in values if isinstance(v, str))))
    if kind == "tags" and values is not None and all(isinstance(v, str) and _is_plain_tag(v) for v in values):
        return replace(pushed, tags=_both(pushed.tags, values))
    if kind == "keys" and values is not None and all(isinstance(v, str) and _is_one_key(v) for v in values):
        return replace(pushed, keys=_both(pushed.keys, values))
    if kind == "queue_id" and values is not None and all(isinstance(v, int) for v in values):
        return replace(pushed, queue_ids=_both(pushed.queue_ids, values))
    if kind in ("queue_id", "queue_offset") and (span := _whole_span(name, value, values)) is not None:
        low, high = span
        if kind == "queue_id":
            return replace(pushed, queue_low=max(pushed.queue_low, low), queue_high=min(pushed.queue_high, high))
        return replace(pushed, offset_low=max(pushed.offset_low, low), offset_high=min(pushed.offset_high, high))
    if kind == "store_timestamp" and (times := _time_span(name, value, values)) is not None:
        lows = [one for one in (pushed.time_low_ms, times[0]) if one is not None]
        highs = [one for one in (pushed.time_high_ms, times[1]) if one is not None]
        return replace(pushed, time_low_ms=max(lows, default=None), time_high_ms=min(highs, default=None))
    return pushed


def _values(name: str, value: Any) -> frozenset[Any] | None:
    """Return what a filter compares with for equality, or None where it is no such filter."""
    if name in ("EqualTo", "EqualNullSafe"):
        return None if value is None else frozenset((value,))
    if name == "In" and all(_hashable(one) for one in value):
        return frozenset(one for one in value if one is not None)
    return None


def _hashable(value: object) -> bool:
    return isinstance(value, (str, bytes, int, float, datetime)) or value is None


def _both(one: frozenset[Any] | None, other: frozenset[Any]) -> frozenset[Any]:
    return other if one is None else one & other


def _is_plain_tag(tag: str) -> bool:
    """Return whether a subscription can name the tag as it is."""
    return bool(tag) and "|" not in tag and tag == tag.strip() and tag != "*" and _MENDED not in tag


def _is_one_key(keys: str) -> bool:
    """Return whether the column has one key: blanks divide several."""
    return bool(keys) and not any(letter.isspace() for letter in keys) and _MENDED not in keys


def _whole_span(name: str, value: Any, values: frozenset[Any] | None) -> tuple[int, int] | None:
    """Return lowest and highest integer that match, or None where nothing follows."""
    if values is not None:
        numbers = [one for one in values if _is_number(one)]
        if not numbers or len(numbers) < len(values):
            return None
        return math.floor(min(numbers)), math.ceil(max(numbers))
    if not _is_number(value):
        return None
    match name:
        case "GreaterThan":
            return math.floor(value) + 1, _FAR
        case "GreaterThanOrEqual":
            return math.ceil(value), _FAR
        case "LessThan":
            return -_FAR, math.ceil(value) - 1
        case "LessThanOrEqual":
            return -_FAR, math.floor(value)
        case _:
            return None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _time_span(name: str, value: Any, values: frozenset[Any] | None) -> tuple[int | None, int | None] | None:
    """Return earliest and latest store time that can match, widened by a step of the clock."""
    if values is not None:
        if not values or not all(_is_moment(one) for one in values):
            return None
        times = [_milliseconds(one) for one in values]
        return min(times) - CLOCK_STEP_MS, max(times) + CLOCK_STEP_MS
    if not _is_moment(value):
        return None
    time = _milliseconds(value)
    if name in ("GreaterThan", "GreaterThanOrEqual"):
        return time - CLOCK_STEP_MS, None
    if name in ("LessThan", "LessThanOrEqual"):
        return None, time + CLOCK_STEP_MS
    return None


def _is_moment(value: object) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None


def _milliseconds(value: datetime) -> int:
    return (value.astimezone(timezone.utc) - _EPOCH) // timedelta(milliseconds=1)


def narrowed(ranges: Iterable[QueueRange], pushed: Pushed) -> list[QueueRange]:
    """Return what is left of ranges within the bounds of queues and offsets."""
    kept = []
    for one in ranges:
        start, end = max(one.start, pushed.offset_low), min(one.end, pushed.offset_high + 1)
        if pushed.keeps(one.topic, one.queue_id) and start < end:
            kept.append(replace(one, start=start, end=end))
    return kept


def narrowed_by_time(catalog: Catalog, ranges: Iterable[QueueRange], pushed: Pushed) -> list[QueueRange]:
    """Return what is left of ranges within the bounds of time, for a source whose rows are not compared with them."""
    kept = []
    for one in ranges:
        start, end = one.start, one.end
        if pushed.time_low_ms is not None:
            start = max(start, catalog.offset_at(one.key, pushed.time_low_ms))
        if pushed.time_high_ms is not None:
            end = min(end, catalog.offset_at(one.key, pushed.time_high_ms + 1))
        if start < end:
            kept.append(replace(one, start=start, end=end))
    return kept
