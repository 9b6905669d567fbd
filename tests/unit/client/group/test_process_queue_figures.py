"""Checks: a process queue's figures: new, filled, and with one message beyond its last pull."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from cometmq.client.group.process_queue import LOCK_LIVES_MS, PULL_IDLE_MS, ProcessQueue
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.running_info import ProcessQueueInfo

QUEUE = MessageQueue(topic="t", broker_name="b", queue_id=0)


@dataclass(frozen=True)
class Held:
    queue_offset: int
    body_size: int = 1
    max_offset: int = 0


def test_new_queue_shows_nothing() -> None:
    held = ProcessQueue(QUEUE)
    nothing = ProcessQueueInfo(
        commit_offset=7,
        cached_msg_min_offset=0,
        cached_msg_max_offset=0,
        cached_msg_count=0,
        cached_msg_size_mib=0,
        transaction_msg_min_offset=0,
        transaction_msg_max_offset=0,
        transaction_msg_count=0,
        locked=False,
        try_unlock_times=0,
        last_lock_timestamp_ms=0,
        dropped=False,
        last_pull_timestamp_ms=0,
        last_consume_timestamp_ms=0,
    )
    assert held.info(commit_offset=7, wall_ahead_ms=1_000) == nothing
    assert (held.behind, held.consuming_now, held.listeners) == (0, False, 0)
    assert "held" in repr(held)


def test_filled_queue_shows_waiting_and_taken_messages() -> None:
    held = ProcessQueue(QUEUE)
    held.put([Held(offset, body_size=1 << 19) for offset in range(3, 9)])
    held.take(2, now_ms=50)
    held.locked, held.last_lock_ms, held.last_pull_ms, held.try_unlock_times = True, 20, 40, 2
    info = held.info(commit_offset=3, wall_ahead_ms=1_000)
    assert (info.cached_msg_min_offset, info.cached_msg_max_offset, info.cached_msg_count) == (5, 8, 4)
    assert (info.transaction_msg_min_offset, info.transaction_msg_max_offset, info.transaction_msg_count) == (3, 4, 2)
    assert info.cached_msg_size_mib == 3
    assert (info.locked, info.try_unlock_times, info.dropped) == (True, 2, False)
    times = (info.last_lock_timestamp_ms, info.last_pull_timestamp_ms, info.last_consume_timestamp_ms)
    assert times == (1_020, 1_040, 1_050)


@pytest.mark.parametrize(("max_offset", "behind"), [(5, 9), (6, 1), (8, 3)])
def test_backlog_is_that_of_the_last_pull_that_had_one(max_offset: int, behind: int) -> None:
    held = ProcessQueue(QUEUE)
    held.put([Held(1, max_offset=10)])
    assert held.behind == 9
    held.put([Held(4, max_offset=99), Held(5, max_offset=max_offset)])
    assert held.behind == behind


def test_leases_end_behind_their_time() -> None:
    held = ProcessQueue(QUEUE)
    assert not held.pull_expired(PULL_IDLE_MS * 9), "its first pull is not due yet"
    held.last_pull_ms, held.last_lock_ms = 1, 2
    assert (held.pull_expired(PULL_IDLE_MS + 1), held.pull_expired(PULL_IDLE_MS + 2)) == (False, True)
    assert (held.lock_expired(LOCK_LIVES_MS + 2), held.lock_expired(LOCK_LIVES_MS + 3)) == (False, True)
