"""Checks: tasks of about equal bytes, every offset in exactly one; limits of a micro-batch are kept and used."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.spark.admission import limit_bytes, limit_rows
from cometmq.spark.offsets import Position, QueueKey
from cometmq.spark.planning import QueueRange, plan_partitions

MIB = 1 << 20


def plan(
    ranges: list[QueueRange], each: float, max_bytes: int = 256 * MIB, at_least: int | None = None, cores: int = 2
) -> list[tuple[QueueRange, ...]]:
    return plan_partitions(ranges, lambda _: each, max_bytes=max_bytes, min_partitions=at_least, cores=cores)


def queue(rows: int, number: int = 0, start: int = 0) -> QueueRange:
    return QueueRange("t", number, start, start + rows)


def test_nothing() -> None:
    assert plan([queue(0)], 100) == []


def test_small_queues_share_a_task() -> None:
    ranges = [queue(10, number) for number in range(100)]
    assert plan(ranges, 100) == [tuple(ranges)]


def test_a_large_queue_is_divided() -> None:
    tasks = plan([queue(4 * MIB)], 1024, max_bytes=256 * MIB)
    assert len(tasks) >= 16
    assert max(sum(one.rows for one in task) for task in tasks) * 1024 <= 256 * MIB


def test_as_many_as_cores_when_there_is_enough() -> None:
    assert len(plan([queue(MIB)], 64, cores=4)) == 4
    assert len(plan([queue(1000)], 64, cores=4)) == 1


def test_as_many_as_asked_for() -> None:
    assert len(plan([queue(1000)], 64, at_least=7)) >= 7
    assert len(plan([queue(3)], 64, at_least=7)) == 3


def test_no_crumbs() -> None:
    """A rest of a queue that is a little over does not become a task."""
    ranges = [queue(MIB // 8 + number, number) for number in range(16)]
    tasks = plan(ranges, 1024, max_bytes=128 * MIB, cores=1)
    assert min(sum(one.rows for one in task) for task in tasks) * 1024 > 32 * MIB


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.integers(0, 300), max_size=12),
    each=st.floats(1, 1e6),
    max_bytes=st.integers(1, 1 << 24),
    at_least=st.none() | st.integers(1, 50),
)
def test_every_offset_is_in_one_task(rows: list[int], each: float, max_bytes: int, at_least: int | None) -> None:
    ranges = [queue(count, number, start=number * 7) for number, count in enumerate(rows)]
    if sum(rows) * each / max_bytes > 5000:
        max_bytes = int(sum(rows) * each / 5000) + 1
    tasks = plan(ranges, each, max_bytes, at_least)
    flat = [one for task in tasks for one in task]
    assert all(one.rows > 0 for one in flat)
    covered = [(one.queue_id, offset) for one in flat for offset in range(one.start, one.end)]
    assert covered == [(one.queue_id, offset) for one in ranges for offset in range(one.start, one.end)]
    for task in tasks:
        assert sum(one.rows for one in task) * each <= max_bytes * 1.001 + 2 * each
    if at_least is not None:
        assert len(tasks) >= min(at_least, sum(rows))


# --- Limits


def position(*offsets: int) -> Position:
    return {QueueKey("t", number): offset for number, offset in enumerate(offsets)}


def rows_between(start: Position, end: Position) -> int:
    return sum(offset - start.get(key, 0) for key, offset in end.items())


def test_all_fits() -> None:
    assert limit_rows(position(0, 5), position(3, 6), 100) == position(3, 6)


def test_in_proportion() -> None:
    assert limit_rows(position(0, 0), position(900, 100), 100) == position(90, 10)


def test_a_small_queue_is_not_starved() -> None:
    end = limit_rows(position(0, 0), position(1_000_000, 1), 100)
    assert end == position(99, 1)


def test_more_queues_than_rows_take_turns() -> None:
    start, end = position(*[0] * 10), position(*[5] * 10)
    seen = set()
    while start != end:
        after = limit_rows(start, end, 3)
        assert 0 < rows_between(start, after) <= 3
        seen |= {key for key in after if after[key] > start[key]}
        start = after
    assert len(seen) == 10


def test_a_new_queue_begins_at_its_first() -> None:
    assert limit_rows(position(5), position(5, 4), 2) == position(5, 2)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=30), st.integers(1, 10**5))
def test_the_limit_is_kept_and_used(queues: list[tuple[int, int]], most: int) -> None:
    start = position(*(begin for begin, _ in queues))
    end = position(*(begin + waiting for begin, waiting in queues))
    found = limit_rows(start, end, most)
    assert found.keys() == end.keys()
    assert all(start[key] <= found[key] <= end[key] for key in found)
    assert rows_between(start, found) == min(most, rows_between(start, end))


def test_bytes() -> None:
    sizes = {QueueKey("t", 0): 1000.0, QueueKey("t", 1): 10.0}
    found = limit_bytes(position(0, 0), position(1000, 1000), 101_000, lambda key, start, end: sizes[key])
    assert found == position(100, 100)
    assert limit_bytes(position(0), position(10), 1, lambda *_: 5000.0) == position(1)
    assert limit_bytes(position(0), position(10), 1 << 30, lambda *_: 5000.0) == position(10)


@pytest.mark.parametrize("seed", range(5))
def test_a_run_ends(seed: int) -> None:
    chosen = random.Random(seed)
    start = position(*[0] * 8)
    end = position(*(chosen.randrange(2000) for _ in range(8)))
    runs = 0
    while start != end:
        start, runs = limit_rows(start, end, 37), runs + 1
        assert runs < 1000
