"""Checks: a loop takes what it works off in a moment, one message at first, and never more than it may."""

from __future__ import annotations

import pytest

from cometmq.client.pop.loop_pace import MOMENT_S, LoopPace


def counts(pace: LoopPace, each_s: float, rounds: int) -> list[int]:
    found = []
    for _ in range(rounds):
        found.append(pace.count)
        pace.worked_off(pace.count, taken_s=pace.count * each_s)
    return found


@pytest.mark.parametrize(
    ("each_s", "expected"),
    [
        (0.0, [1, 2, 4, 8, 16, 32, 32]),
        (0.001, [1, 2, 4, 8, 16, 32, 32]),
        (MOMENT_S / 5, [1, 2, 4, 5, 5, 5, 5]),
        (MOMENT_S, [1, 1, 1, 1, 1, 1, 1]),
        (60.0, [1, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_pace_follows_the_rate_of_work(each_s: float, expected: list[int]) -> None:
    assert counts(LoopPace(32), each_s, 7) == expected


def test_it_takes_less_when_the_work_becomes_slow_and_more_again() -> None:
    pace = LoopPace(32)
    counts(pace, 0.0, 6)
    assert counts(pace, 0.1, 3) == [32, 2, 2]
    assert counts(pace, 0.0, 3) == [2, 4, 8]


def test_nothing_to_do_changes_nothing() -> None:
    pace = LoopPace(4)
    counts(pace, 0.0, 3)
    pace.worked_off(0, taken_s=15.0)
    assert pace.count == 4
