"""Checks: for how long a broker is passed over, and who is asked again."""

from __future__ import annotations

import pytest

from cometmq.client.send.faults import FaultTable, passed_over_ms


@pytest.mark.parametrize(
    ("latency_ms", "expected_ms"),
    [
        (0, 0),
        (49, 0),
        (50, 0),
        (100, 0),
        (549.9, 0),
        (550, 2_000),
        (1_799, 2_000),
        (1_800, 5_000),
        (3_000, 6_000),
        (5_000, 10_000),
        (14_999, 10_000),
        (15_000, 30_000),
        (10**9, 30_000),
    ],
)
def test_the_longer_it_took_the_longer_it_is_passed_over(latency_ms: float, expected_ms: int) -> None:
    assert passed_over_ms(latency_ms) == expected_ms


def test_a_failure_counts_as_ten_seconds() -> None:
    assert passed_over_ms(3, is_isolated=True) == 10_000


def test_a_broker_comes_back_at_its_time_and_not_before() -> None:
    faults = FaultTable()
    assert faults.is_available("a", now_ms=0)
    faults.note("a", 600, now_ms=1_000)
    assert [faults.is_available("a", now_ms=at) for at in (1_000, 2_999, 3_000)] == [False, False, True]
    assert faults.is_available("b", now_ms=1_000)


def test_quick_answer_does_not_end_a_penalty() -> None:
    faults = FaultTable()
    faults.note("a", 15_000, now_ms=0)
    faults.note("a", 1, now_ms=100)
    assert not faults.is_available("a", now_ms=29_999)
    assert faults.is_available("a", now_ms=30_000)
    assert faults.snapshot()["a"].latency_ms == 1


def test_a_probe_makes_a_broker_reachable_again() -> None:
    faults = FaultTable()
    faults.note("a", 10, now_ms=0, is_isolated=True, is_reachable=False)
    faults.note("b", 10, now_ms=0)
    assert (faults.is_reachable("a"), faults.is_reachable("b"), faults.is_reachable("c")) == (False, True, True)
    assert sorted(faults.take_probes(now_ms=0)) == ["a", "b"]
    assert faults.take_probes(now_ms=1_999) == []
    assert sorted(faults.take_probes(now_ms=2_000)) == ["a", "b"]
    faults.answered("a")
    assert faults.is_reachable("a")
    assert not faults.is_available("a", now_ms=9_999)
    faults.answered("nobody")
    faults.forget("a")
    assert list(faults.snapshot()) == ["b"]
