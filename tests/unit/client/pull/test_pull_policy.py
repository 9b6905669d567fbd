"""Checks: pulls meet their gates in upstream's order, ask for what upstream asks, and wait as long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from cometmq.client.group.process_queue import ProcessQueue
from cometmq.client.pull.pull_policy import (
    FlowCounters,
    Gate,
    PullLimits,
    PullStatus,
    commit_to_send,
    delay_after_error_ms,
    delay_at_gate_ms,
    next_gate,
    pull_flags,
    pull_status,
    share_of_topic,
)
from cometmq.remoting.bodies.heartbeat import MessageModel
from cometmq.remoting.bodies.message_queue import MessageQueue

MIB = 1 << 20


@dataclass(frozen=True)
class Held:
    queue_offset: int
    body_size: int = 1
    max_offset: int = 0


def queue_with(*, count: int = 0, size_bytes: int = 0, span: int = 0) -> ProcessQueue:
    held = ProcessQueue(MessageQueue(topic="t", broker_name="b", queue_id=0))
    if count:
        held.put([Held(offset) for offset in range(count)])
    if size_bytes:
        held.put([Held(5_000_000, body_size=size_bytes - held.size_bytes)])
    if span:
        held.put([Held(0), Held(span)])
    return held


def gate(held: ProcessQueue, **changed: Any) -> Gate:
    state: dict[str, Any] = {
        "running": True,
        "paused": False,
        "orderly": False,
        "previously_locked": True,
        "subscribed": True,
        "now_ms": 77,
    }
    return next_gate(held, changed.pop("limits", PullLimits()), **(state | changed))


def test_an_open_gate_notes_that_a_pull_was_due() -> None:
    """Promise 24: the time of the last pull is refreshed."""
    held = queue_with()
    assert gate(held) is Gate.OPEN
    assert held.last_pull_ms == 77


def test_a_dropped_queue_ends_its_pull() -> None:
    """Promise 23: and does not count as pulled."""
    held = queue_with()
    held.dropped = True
    assert gate(held, running=False) is Gate.DROPPED
    assert held.last_pull_ms == 0


def test_a_closed_gate_counts_as_pulled_all_the_same() -> None:
    held = queue_with()
    assert gate(held, running=False) is Gate.NOT_RUNNING
    assert held.last_pull_ms == 77


@pytest.mark.parametrize(
    ("held", "changed", "expected"),
    [
        ({}, {"running": False, "paused": True}, Gate.NOT_RUNNING),
        ({}, {"paused": True}, Gate.PAUSED),
        ({"count": 1000}, {}, Gate.OPEN),
        ({"count": 1001}, {}, Gate.TOO_MANY),
        ({"count": 1001}, {"orderly": True}, Gate.TOO_MANY),
        ({"count": 5}, {"limits": PullLimits(messages=4)}, Gate.TOO_MANY),
        ({"size_bytes": 101 * MIB - 1}, {}, Gate.OPEN),
        ({"size_bytes": 101 * MIB}, {}, Gate.TOO_LARGE),
        ({"size_bytes": 2 * MIB}, {"limits": PullLimits(size_mib=1)}, Gate.TOO_LARGE),
        ({"span": 2000}, {}, Gate.OPEN),
        ({"span": 2001}, {}, Gate.TOO_WIDE),
        ({"span": 3}, {"limits": PullLimits(span=2)}, Gate.TOO_WIDE),
        ({}, {"subscribed": False}, Gate.NOT_SUBSCRIBED),
    ],
)
def test_gates_in_order(held: dict[str, int], changed: dict[str, Any], expected: Gate) -> None:
    """Promises 25 to 29 and 31."""
    assert gate(queue_with(**held), **changed) is expected


def test_earlier_gates_win() -> None:
    held = queue_with(count=1001, span=9000)
    assert gate(held, paused=True) is Gate.PAUSED
    assert gate(held) is Gate.TOO_MANY
    held = queue_with(size_bytes=200 * MIB, span=9000)
    assert gate(held) is Gate.TOO_LARGE


def test_orderly_queues_wait_for_their_lock() -> None:
    """Promise 30: no lock, no pull; with the first lock the offset is asked again; there is no span."""
    held = queue_with(span=9000)
    assert gate(held, orderly=True, subscribed=False) is Gate.NOT_LOCKED
    held.locked = True
    assert gate(held, orderly=True, previously_locked=False) is Gate.FIRST_LOCKED
    assert gate(held, orderly=True) is Gate.OPEN
    assert gate(held, orderly=True, subscribed=False) is Gate.NOT_SUBSCRIBED


@pytest.mark.parametrize(
    ("closed", "delay"),
    [
        (Gate.NOT_RUNNING, 1234),
        (Gate.PAUSED, 1000),
        (Gate.TOO_MANY, 50),
        (Gate.TOO_LARGE, 50),
        (Gate.TOO_WIDE, 50),
        (Gate.NOT_LOCKED, 1234),
        (Gate.FIRST_LOCKED, 1234),
        (Gate.NOT_SUBSCRIBED, 1234),
    ],
)
def test_how_long_a_gate_holds(closed: Gate, delay: int) -> None:
    """Promises 25 to 31."""
    assert delay_at_gate_ms(closed, exception_delay_ms=1234) == delay


def test_a_topics_limit_is_shared() -> None:
    assert (share_of_topic(1000, 3), share_of_topic(2, 3)) == (333, 1)


def test_counters_show_and_warn_once_in_a_thousand() -> None:
    counters = FlowCounters()
    warnings = [counters.note(Gate.TOO_MANY) for _ in range(2001)]
    assert [index for index, due in enumerate(warnings) if due] == [0, 1000, 2000]
    assert counters.note(Gate.TOO_LARGE)
    assert counters.note(Gate.TOO_WIDE)
    assert repr(counters) == "FlowCounters(by_count=2001, by_size=1, by_span=1)"


@pytest.mark.parametrize(
    ("asked", "flags"),
    [
        ({}, 0),
        ({"commit": True}, 1),
        ({"suspend": True}, 2),
        ({"subscription": True}, 4),
        ({"class_filter": True}, 8),
        ({"lite": True}, 16),
        ({"commit": True, "suspend": True, "subscription": True, "class_filter": True, "lite": True}, 31),
    ],
)
def test_flags(asked: dict[str, bool], flags: int) -> None:
    """Promise 33."""
    assert pull_flags(**asked) == flags


@pytest.mark.parametrize(
    ("model", "memory", "slave", "expected"),
    [
        (MessageModel.CLUSTERING, -1, False, (-1, False)),
        (MessageModel.CLUSTERING, 0, False, (0, False)),
        (MessageModel.CLUSTERING, 7, False, (7, True)),
        (MessageModel.CLUSTERING, 7, True, (7, False)),
        (MessageModel.BROADCASTING, 7, False, (0, False)),
    ],
)
def test_commit_of_a_pull(model: MessageModel, memory: int, slave: bool, expected: tuple[int, bool]) -> None:
    """Promise 32: from memory, and only above 0."""
    assert commit_to_send(model, memory, from_slave=slave) == expected


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, PullStatus.FOUND),
        (19, PullStatus.NO_NEW_MESSAGE),
        (20, PullStatus.NO_MATCHED_MESSAGE),
        (21, PullStatus.OFFSET_ILLEGAL),
        (1, None),
        (215, None),
        (24, None),
    ],
)
def test_statuses(code: int, status: PullStatus | None) -> None:
    """Promise 46."""
    assert pull_status(code) is status


@pytest.mark.parametrize(("code", "delay"), [(215, 20), (None, 1234), (1, 1234), (26, 1234)])
def test_how_long_a_failed_pull_waits(code: int | None, delay: int) -> None:
    """Promise 42, with the delay that upstream has now."""
    assert delay_after_error_ms(code, exception_delay_ms=1234) == delay
