"""Timers across the two brokers: messages that one parked before a clean stop or kill -9, the other delivers in time.

The official client sends and consumes. The first broker leaves before anything is due, so all is the second one's.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from interop.patterns import MessageSpec
from interop.sites import Maker, Peer

pytestmark = pytest.mark.java

TIMERS = 60
AHEAD_MS = 15_000
"""Time for one broker to leave and the other to start; timers due before are late, and delivered all the same."""
SETTINGS = {"timerWheelEnable": "true"}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize(
    ("first", "second", "end"),
    [
        (Maker.OURS, Maker.JAVA, "clean"),
        pytest.param(Maker.JAVA, Maker.OURS, "kill", marks=pytest.mark.java(full=True)),
        pytest.param(Maker.OURS, Maker.JAVA, "kill", marks=pytest.mark.java(full=True)),
        pytest.param(Maker.JAVA, Maker.OURS, "clean", marks=pytest.mark.java(full=True)),
    ],
)
def test_other_broker_delivers_pending_timers(
    peer: Peer, tmp_path: Path, first: Maker, second: Maker, end: str
) -> None:
    path, client, topic = tmp_path / "store", peer.client, "CrossTimers"
    with peer.broker(path, maker=first, settings=SETTINGS) as broker:
        client.create_topic(broker, topic, queues=2)
        at_ms = now_ms() + AHEAD_MS
        due = {f"timer-{number}": at_ms + number % 5 * 1_000 for number in range(TIMERS)}
        specs = [
            MessageSpec(topic, b"x", keys=(name,), system_properties={"TIMER_DELIVER_MS": str(when)})
            for name, when in due.items()
        ]
        assert {row["status"] for row in client.send(specs)} == {"SEND_OK"}
        assert client.pull_all(topic) == []
        if end == "clean":
            broker.stop()
        else:
            broker.kill()
    with peer.broker(path, maker=second, settings=SETTINGS) as broker:
        rows = client.group_consume("cross_timers", topic, count=TIMERS, timeout_ms=60_000)
        assert sorted(row["keys"] for row in rows) == sorted(due)
        assert len(client.pull_all(topic)) == TIMERS
        broker.kill()
    assert [row for row in rows if row["store_timestamp_ms"] < due[row["keys"]]] == []
