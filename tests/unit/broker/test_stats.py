"""Checks: minute, hour and day by upstream's rule; totals that others keep; keys have a limit."""

from __future__ import annotations

import pytest

from cometmq.broker import stats as module
from cometmq.broker.stats import Statistics
from support.broker_twins import Clock


def ticking(statistics: Statistics, clock: Clock, steps: int, *, add: int = 0) -> None:
    for _ in range(steps):
        if add:
            statistics.add("TOPIC_PUT_NUMS", "t", add)
        statistics.sample()
        clock.move(10_000)


def test_a_minute_is_the_difference_of_seven_states() -> None:
    clock = Clock()
    statistics = Statistics(now_ms=clock)
    assert statistics.view("TOPIC_PUT_NUMS", "t") is None
    statistics.add("TOPIC_PUT_NUMS", "t", 30, times=3)
    view = statistics.view("TOPIC_PUT_NUMS", "t")
    assert view is not None
    assert (view.minute.sum, view.minute.tps, view.day.sum) == (0, 0.0, 0), "nothing was sampled yet"
    statistics.sample()
    view = statistics.view("TOPIC_PUT_NUMS", "t")
    assert view is not None
    assert (view.minute.sum, view.minute.tps, view.minute.average_per_call) == (30, 3.0, 10.0)
    assert (view.hour.sum, view.day.sum) == (30, 30)
    clock.move(10_000)
    ticking(statistics, clock, 6)
    view = statistics.view("TOPIC_PUT_NUMS", "t")
    assert view is not None
    assert view.minute.sum == 0, "it was a minute ago"
    assert view.hour.sum == 30


def test_rates() -> None:
    clock = Clock()
    statistics = Statistics(now_ms=clock)
    assert statistics.rates("TOPIC_PUT_NUMS", "t") == (0.0, None, None)
    ticking(statistics, clock, 7, add=50)
    ten_seconds, minute, ten_minutes = statistics.rates("TOPIC_PUT_NUMS", "t")
    assert ten_seconds == pytest.approx(5.0)
    assert minute == pytest.approx(5.0)
    assert ten_minutes is not None
    assert statistics.minute_rate("TOPIC_PUT_NUMS", "t") == pytest.approx(5.0)
    assert statistics.minute_rate("TOPIC_PUT_NUMS", "none") == 0.0


def sum_of(statistics: Statistics, name: str, key: str) -> int:
    view = statistics.view(name, key)
    return -1 if view is None else view.minute.sum


def test_totals_that_others_keep() -> None:
    clock = Clock()
    statistics = Statistics(now_ms=clock)
    for total in (5, 5, 9):
        statistics.follow("BROKER_PUT_NUMS", "c", total)
    statistics.sample()
    assert sum_of(statistics, "BROKER_PUT_NUMS", "c") == 9
    statistics.follow("BROKER_PUT_NUMS", "c", 2)
    clock.move(10_000)
    statistics.sample()
    assert sum_of(statistics, "BROKER_PUT_NUMS", "c") == 11, "a restarted counter goes on counting"


def test_keys_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEYS_MAX", 2)
    statistics = Statistics(now_ms=Clock())
    for key in ("a", "b", "c", "a"):
        statistics.add("TOPIC_PUT_NUMS", key, 1)
    statistics.sample()
    assert [sum_of(statistics, "TOPIC_PUT_NUMS", key) for key in ("a", "b", "c")] == [2, 1, -1]


def test_days() -> None:
    statistics = Statistics(now_ms=Clock())
    statistics.turn_day_at(1, {"messages_in": 5})
    assert statistics.mornings("messages_in") == (0, 0), "the first day has no morning"
    statistics.turn_day_at(2, {"messages_in": 7})
    statistics.turn_day_at(2, {"messages_in": 8})
    statistics.turn_day_at(3, {"messages_in": 9})
    assert statistics.mornings("messages_in") == (7, 9)
