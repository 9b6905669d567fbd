"""Checks: pushed filters bound the read rows by no more than they say; unknown filters bound nothing."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from cometmq.spark.filters import CLOCK_STEP_MS, Pushed, narrowed, push
from cometmq.spark.options import OptionMap, ReadOptions
from cometmq.spark.planning import QueueRange
from cometmq.spark.schema import chosen_columns

pyspark = pytest.importorskip("pyspark.sql.datasource", reason="pyspark is not installed")

NATIVE = chosen_columns(ReadOptions.of(OptionMap({"path": "/s", "topic": "a"})))
KAFKA = chosen_columns(ReadOptions.of(OptionMap({"path": "/s", "topic": "a", "schema": "kafka"})))
RANGES = [QueueRange("a", 0, 0, 10), QueueRange("a", 1, 5, 9), QueueRange("b", 0, 0, 4)]
NOON = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
NOON_MS = 1_795_262_400_000


def one(name: str, column: str, *value: Any) -> Any:
    return getattr(pyspark, name)((column,), *value)


def pushed(*filters: Any, columns: Any = NATIVE) -> Pushed:
    return push(filters, columns)


def left(*filters: Any) -> list[tuple[str, int, int, int]]:
    return [(r.topic, r.queue_id, r.start, r.end) for r in narrowed(RANGES, pushed(*filters))]


ALL = [("a", 0, 0, 10), ("a", 1, 5, 9), ("b", 0, 0, 4)]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([one("EqualTo", "topic", "a")], ALL[:2]),
        ([one("In", "topic", ("b", "c"))], ALL[2:]),
        ([one("EqualNullSafe", "topic", "b")], ALL[2:]),
        ([one("EqualTo", "queueId", 0)], [ALL[0], ALL[2]]),
        ([one("In", "queueId", (1, 7))], [ALL[1]]),
        ([one("GreaterThan", "queueId", 0)], [ALL[1]]),
        ([one("LessThanOrEqual", "queueId", 0)], [ALL[0], ALL[2]]),
        ([one("EqualTo", "queueOffset", 6)], [("a", 0, 6, 7), ("a", 1, 6, 7)]),
        ([one("In", "queueOffset", (2, 6))], [("a", 0, 2, 7), ("a", 1, 5, 7), ("b", 0, 2, 4)]),
        ([one("GreaterThan", "queueOffset", 3)], [("a", 0, 4, 10), ("a", 1, 5, 9)]),
        ([one("GreaterThanOrEqual", "queueOffset", 3)], [("a", 0, 3, 10), ("a", 1, 5, 9), ("b", 0, 3, 4)]),
        ([one("LessThan", "queueOffset", 6)], [("a", 0, 0, 6), ("a", 1, 5, 6), ("b", 0, 0, 4)]),
        (
            [one("LessThanOrEqual", "queueOffset", 6), one("GreaterThan", "queueOffset", 5)],
            [("a", 0, 6, 7), ("a", 1, 6, 7)],
        ),
        ([one("GreaterThan", "queueOffset", 5), one("LessThan", "queueOffset", 5)], []),
        ([one("EqualTo", "topic", "a"), one("EqualTo", "topic", "b")], []),
        ([one("IsNotNull", "topic")], ALL),
        ([one("EqualTo", "body", b"x")], ALL),
        ([one("EqualTo", "bornTimestamp", NOON)], ALL),
        ([pyspark.Not(one("EqualTo", "topic", "a"))], ALL),
        ([one("StringStartsWith", "topic", "a")], ALL),
        ([pyspark.EqualTo(("properties", "x"), "a")], ALL),
        ([one("EqualTo", "topic", None)], ALL),
    ],
)
def test_ranges(filters: list[Any], expected: list[Any]) -> None:
    assert left(*filters) == expected


def test_times_keep_a_distance() -> None:
    assert pushed(one("GreaterThan", "storeTimestamp", NOON)).time_low_ms == NOON_MS - CLOCK_STEP_MS
    assert pushed(one("LessThanOrEqual", "storeTimestamp", NOON)).time_high_ms == NOON_MS + CLOCK_STEP_MS
    both = pushed(one("EqualTo", "storeTimestamp", NOON))
    assert (both.time_low_ms, both.time_high_ms) == (NOON_MS - CLOCK_STEP_MS, NOON_MS + CLOCK_STEP_MS)
    # Without a time zone it means nothing here.
    assert pushed(one("GreaterThan", "storeTimestamp", NOON.replace(tzinfo=None))) == Pushed()


def test_tags_and_keys() -> None:
    assert pushed(one("In", "tags", ("x", "y"))).tags == {"x", "y"}
    assert pushed(one("In", "tags", ("x", "y")), one("EqualTo", "tags", "y")).tags == {"y"}
    assert pushed(one("EqualTo", "keys", "k")).keys == {"k"}
    for odd in ("a||b", " a", "*", "", "a\ufffd"):
        assert pushed(one("EqualTo", "tags", odd)) == Pushed()
    for odd in ("a b", "", "a\u2003b", "a\ufffd"):
        assert pushed(one("EqualTo", "keys", odd)) == Pushed()


def test_kafkas_names() -> None:
    found = pushed(one("EqualTo", "partition", 3), one("GreaterThan", "offset", 8), columns=KAFKA)
    assert (found.queue_ids, found.offset_low) == ({3}, 9)
    # "keys" is binary there.
    assert pushed(one("EqualTo", "key", b"k"), columns=KAFKA) == Pushed()
