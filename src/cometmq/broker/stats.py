"""Statistics by minute, hour and day, as code 315 shows them, and the plain counters for a metrics page.

A statistic is a running sum under a name and a key, such as ``TOPIC_PUT_NUMS`` of ``orders``. At set times its state is
remembered, and what a minute, hour or day brought is the difference between the newest and the oldest that is
remembered: every 10 s seven for the minute, every 10 min seven for the hour, every hour 25 for the day.

Threads: any; one lock. Source: upstream's StatsItem, StatsItemSet and BrokerStatsManager.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cometmq.remoting.bodies.stats import BrokerStatsData, BrokerStatsItem

__all__ = ["KEYS_MAX", "Rate", "Statistics"]

_MINUTE_STEP_MS, _MINUTE_STATES = 10_000, 7
_HOUR_STEP_MS, _HOUR_STATES = 600_000, 7
_DAY_STEP_MS, _DAY_STATES = 3_600_000, 25
KEYS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class _State:
    at_ms: int
    total: int
    times: int


@dataclass(frozen=True, slots=True)
class Rate:
    """The events of one span of time.

    Attributes:
        total: the sum over the span.
        per_second: the sum by the span's seconds.
        average: the sum by the number of additions.
    """

    total: int = 0
    per_second: float = 0.0
    average: float = 0.0

    def body(self) -> BrokerStatsItem:
        """Return it as upstream's answer has it."""
        return BrokerStatsItem(sum=self.total, tps=self.per_second, average_per_call=self.average)


class _Item:
    """One sum and its remembered states."""

    __slots__ = ("day", "hour", "minute", "times", "total", "touched_ms")

    def __init__(self, now_ms: int) -> None:
        self.total = 0
        self.times = 0
        self.touched_ms = now_ms
        self.minute: deque[_State] = deque(maxlen=_MINUTE_STATES)
        self.hour: deque[_State] = deque(maxlen=_HOUR_STATES)
        self.day: deque[_State] = deque(maxlen=_DAY_STATES)

    def remember(self, states: deque[_State], now_ms: int) -> None:
        if not states:
            # Upstream puts an empty state first, so that what came before the first look counts.
            states.append(_State(now_ms - _MINUTE_STEP_MS, 0, 0))
        states.append(_State(now_ms, self.total, self.times))


def _rate(states: deque[_State]) -> Rate:
    if not states:
        return Rate()
    first, last = states[0], states[-1]
    total, times, span_ms = last.total - first.total, last.times - first.times, last.at_ms - first.at_ms
    return Rate(total, total * 1000.0 / span_ms if span_ms > 0 else 0.0, total / times if times > 0 else 0.0)


class Statistics:
    """All statistics of a broker."""

    def __init__(self, *, now_ms: Callable[[], int]) -> None:
        """Nothing was counted. ``now_ms`` is the clock."""
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._items: dict[str, dict[str, _Item]] = {}
        self._seen: dict[tuple[str, str], int] = {}
        self._due_ms = {"minute": 0, "hour": 0, "day": 0}
        self.began_ms = now_ms()
        self._day: int | None = None
        self._mornings: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self.counters: dict[str, int] = {}
        """The figures for a metrics page, by name; each only grows, but for those that end in ``_now``."""

    def add(self, name: str, key: str, amount: int, times: int = 1) -> None:
        """Count. Beyond 100,000 keys of a name new ones are not kept, so that nobody fills the memory with names."""
        if amount == 0 and times == 0:
            return
        with self._lock:
            item = self._item(name, key)
            if item is not None:
                item.total += amount
                item.times += times
                item.touched_ms = self._now_ms()

    def follow(self, name: str, key: str, total: int) -> None:
        """Count up to a total that something else keeps, such as the loops; a smaller one restarts the count."""
        before = self._seen.get((name, key), 0)
        grown = total - before if total >= before else total
        if grown:
            self._seen[name, key] = total
            self.add(name, key, grown, grown)

    def _item(self, name: str, key: str) -> _Item | None:
        table = self._items.setdefault(name, {})
        item = table.get(key)
        if item is None and len(table) < KEYS_MAX:
            item = table[key] = _Item(self._now_ms())
        return item

    def sample(self) -> None:
        """Remember the states that are due. Call it every few seconds."""
        now = self._now_ms()
        with self._lock:
            for span, step_ms in (("minute", _MINUTE_STEP_MS), ("hour", _HOUR_STEP_MS), ("day", _DAY_STEP_MS)):
                if now < self._due_ms[span]:
                    continue
                self._due_ms[span] = now - now % step_ms + step_ms
                for table in self._items.values():
                    for item in table.values():
                        item.remember(getattr(item, span), now)

    def view(self, name: str, key: str) -> BrokerStatsData | None:
        """Return minute, hour and day of one statistic, or None where it was never counted."""
        with self._lock:
            item = self._items.get(name, {}).get(key)
            if item is None:
                return None
            return BrokerStatsData(
                minute=_rate(item.minute).body(),
                hour=_rate(item.hour).body(),
                day=_rate(item.day).body(),
            )

    def minute_rate(self, name: str, key: str) -> float:
        """Return what a statistic grows by in a second, over the last minute."""
        with self._lock:
            item = self._items.get(name, {}).get(key)
            return 0.0 if item is None else _rate(item.minute).per_second

    def rates(self, name: str, key: str) -> tuple[float | None, float | None, float | None]:
        """Return a statistic's growth per second over ten seconds, a minute and ten minutes; None: not known yet."""
        with self._lock:
            item = self._items.get(name, {}).get(key)
            if item is None:
                return 0.0, None, None
            ten = list(item.minute)[-2:]
            minute = _rate(item.minute).per_second if len(item.minute) == _MINUTE_STATES else None
            hour = list(item.hour)[-2:]
            return _rate(deque(ten)).per_second, minute, _rate(deque(hour)).per_second if len(hour) == 2 else None

    # --- Totals of days

    def turn_day_at(self, day: int, totals: Mapping[str, int]) -> None:
        """Note the totals where a day has begun since the last call: this morning's become yesterday's."""
        with self._lock:
            if self._day is not None and day != self._day:
                self._mornings = (self._mornings[1], dict(totals))
            self._day = day

    def mornings(self, name: str) -> tuple[int, int]:
        """Return a total as it was yesterday morning and this morning."""
        with self._lock:
            return self._mornings[0].get(name, 0), self._mornings[1].get(name, 0)
