"""``--rate``: even, without bursts, on a clock that the test moves."""

from __future__ import annotations

from cometmq.cli.pacing import Pace


class Clock:
    """Seconds that pass only by sleeping."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def passed(pace: Pace, clock: Clock, *, until_s: float) -> int:
    count = 0
    while True:
        pace.wait()
        if clock.now_s > until_s:
            return count
        count += 1


def test_messages_come_evenly() -> None:
    clock = Clock()
    pace = Pace(10, sleep=clock.sleep, clock=clock)
    times = []
    for _ in range(4):
        pace.wait()
        times.append(round(clock.now_s - 100, 6))
    assert times == [0.0, 0.1, 0.2, 0.3]


def test_a_high_rate_is_kept_although_sleeps_are_coarse() -> None:
    clock = Clock()
    pace = Pace(50_000, sleep=clock.sleep, clock=clock)
    assert 49_000 < passed(pace, clock, until_s=101.0) < 51_000


def test_a_pause_makes_no_burst() -> None:
    clock = Clock()
    pace = Pace(100, sleep=clock.sleep, clock=clock)
    pace.wait()
    clock.now_s += 60
    assert passed(pace, clock, until_s=clock.now_s) <= 12


def test_no_rate_no_sleep() -> None:
    clock = Clock()
    pace = Pace(None, sleep=clock.sleep, clock=clock)
    for _ in range(1000):
        pace.wait()
    assert clock.now_s == 100.0
