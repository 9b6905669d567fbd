"""The fault table: which brokers a producer passes over for a while, after slow or failed sends.

A broker that took ``latency`` is passed over for a time that grows with it; one that failed counts as having taken ten
seconds. That a broker is passed over does not forbid it: where all are, the choice is as if none were.

Decisions alone: the time is an argument, in milliseconds of a clock that does not jump. Threads: any may read and
write; each entry is one tuple, which is replaced whole.

Source: consumption specification 2.5; test vectors in its section 8.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

__all__ = ["Fault", "FaultTable", "passed_over_ms"]

_LATENCY_MS = (50, 100, 550, 1_800, 3_000, 5_000, 15_000)
_PASSED_OVER_MS = (0, 0, 2_000, 5_000, 6_000, 10_000, 30_000)
_ISOLATED_LATENCY_MS = 10_000


def passed_over_ms(latency_ms: float, *, is_isolated: bool = False) -> int:
    """Return for how long a broker is passed over after a send that took so long; an isolated one counts as 10 s."""
    step = bisect.bisect_right(_LATENCY_MS, _ISOLATED_LATENCY_MS if is_isolated else latency_ms)
    return _PASSED_OVER_MS[step - 1] if step else 0


class Fault(NamedTuple):
    """The known faults of one broker.

    Attributes:
        latency_ms: duration of its last send.
        available_from_ms: it is passed over until then.
        is_reachable: False after a failure that says that nothing gets there, until a probe does.
        probe_from_ms: when the detector looks again.
    """

    latency_ms: float
    available_from_ms: int
    is_reachable: bool
    probe_from_ms: int


class FaultTable:
    """The faults of all brokers that something was sent to."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._faults: dict[str, Fault] = {}

    def note(
        self, broker_name: str, latency_ms: float, *, now_ms: int, is_isolated: bool = False, is_reachable: bool = True
    ) -> None:
        """Take what a send to a broker took and how it ended. The time until which one is passed over never shrinks."""
        until_ms = now_ms + passed_over_ms(latency_ms, is_isolated=is_isolated)
        known = self._faults.get(broker_name)
        if known is not None:
            until_ms = max(until_ms, known.available_from_ms)
        probe_ms = now_ms if known is None else known.probe_from_ms
        self._faults[broker_name] = Fault(latency_ms, until_ms, is_reachable, probe_ms)

    def is_available(self, broker_name: str, *, now_ms: int) -> bool:
        """Return whether a broker may be chosen; one without a record may."""
        fault = self._faults.get(broker_name)
        return fault is None or now_ms >= fault.available_from_ms

    def is_reachable(self, broker_name: str) -> bool:
        """Return False if a broker is known to be unreachable."""
        fault = self._faults.get(broker_name)
        return fault is None or fault.is_reachable

    def take_probes(self, *, now_ms: int, period_ms: int = 2_000) -> list[str]:
        """Return the brokers that the detector asks now; each is due again after ``period_ms``."""
        due = [name for name, fault in list(self._faults.items()) if now_ms >= fault.probe_from_ms]
        for name in due:
            self._faults[name] = self._faults[name]._replace(probe_from_ms=now_ms + period_ms)
        return due

    def answered(self, broker_name: str) -> None:
        """A probe was answered: the broker can be reached."""
        fault = self._faults.get(broker_name)
        if fault is not None:
            self._faults[broker_name] = fault._replace(is_reachable=True)

    def forget(self, broker_name: str) -> None:
        """Drop what is known of a broker that no route names any more."""
        self._faults.pop(broker_name, None)

    def snapshot(self) -> dict[str, Fault]:
        """Return a copy, for people."""
        return dict(self._faults)

    def __repr__(self) -> str:
        """Return the recorded brokers."""
        return f"FaultTable({', '.join(sorted(self._faults)) or 'empty'})"
