"""Checks: a simple consumer's messages count as held from arrival until they are finished or their time is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.client.pop import held_messages
from cometmq.client.pop.held_messages import HeldMessages
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.running_info import PopProcessQueueInfo


def message(offset: int, *, topic: str = "T", invisible_ms: int = 60_000) -> Any:
    return SimpleNamespace(
        broker_name="b0",
        stored_topic=topic,
        queue_id=1,
        queue_offset=offset,
        pop_handle=f"{offset} 1000 {invisible_ms} 0 0 b0 1 {offset}",
    )


def queue(topic: str = "T") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name="b0", queue_id=1)


def info(count: int, *, oldest_ms: int, newest_ms: int) -> PopProcessQueueInfo:
    return PopProcessQueueInfo(wait_ack_count=count, oldest_pop_timestamp_ms=oldest_ms, last_pop_timestamp_ms=newest_ms)


def test_messages_are_held_by_queue_until_finished() -> None:
    held = HeldMessages()
    held.came([], now_ms=500)
    assert held.infos(now_ms=500) == {}
    held.came([message(0), message(1)], now_ms=1_000)
    held.came([message(2)], now_ms=2_000)
    held.came([message(0, topic="%RETRY%g_T")], now_ms=3_000)
    assert held.infos(now_ms=3_000) == {
        queue(): info(3, oldest_ms=1_000, newest_ms=2_000),
        queue("%RETRY%g_T"): info(1, oldest_ms=3_000, newest_ms=3_000),
    }
    held.done([message(0), message(1), message(7)])
    assert held.infos(now_ms=3_000)[queue()] == info(1, oldest_ms=2_000, newest_ms=2_000)


def test_a_message_whose_time_is_over_is_not_held() -> None:
    held = HeldMessages()
    held.came([message(0), message(1)], now_ms=1_000)
    for now_ms in (50_000, 100_000):
        held.hidden(message(0), now_ms=now_ms, invisible_ms=60_000)
    held.hidden(message(1), now_ms=2_000, invisible_ms=0)
    assert held.infos(now_ms=159_999) == {queue(): info(1, oldest_ms=1_000, newest_ms=1_000)}
    assert held.infos(now_ms=160_000) == {}
    held.hidden(message(0), now_ms=170_000, invisible_ms=1_000)
    assert held.infos(now_ms=170_000) == {queue(): info(1, oldest_ms=170_000, newest_ms=170_000)}


@pytest.mark.parametrize("is_received", [True, False])
def test_unfinished_messages_are_evicted(is_received: bool) -> None:
    held = HeldMessages()
    for number in range(20 * held_messages._SWEEP_AT_LEAST):
        if is_received:
            held.came([message(number, invisible_ms=1_000)], now_ms=number)
        else:
            held.hidden(message(number), now_ms=number, invisible_ms=1_000)
    assert len(held._held) <= 3 * held_messages._SWEEP_AT_LEAST
    assert held.infos(now_ms=number)[queue()].wait_ack_count == 1_000
