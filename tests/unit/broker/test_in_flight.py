"""Checks: a group's messages in flight are reported queue by queue: popped, popped in order, pulled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.broker.plane import PoppedQueue
from cometmq.remoting.bodies.in_flight import GroupInFlightBody, QueueInFlightEntry
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.store_config.order_info import OrderedBatch
from support.broker_twins import NOW_MS, Rig, run


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        run(rig.control.topics.make_for_group("orders", queues=2))
        for number in range(9):
            rig.store.append("orders", b"%d" % number, queue=0)
        run(rig.control.groups.find_or_make("g"))
        yield rig


def told(rig: Rig, group: str = "g") -> GroupInFlightBody:
    answer = rig.run(RequestCode.GET_GROUP_IN_FLIGHT, {"consumerGroup": group})
    assert answer.code == ResponseCode.SUCCESS
    return GroupInFlightBody.from_json(answer.body)


def entry(queue_id: int, topic: str = "orders", **what: int) -> QueueInFlightEntry:
    return QueueInFlightEntry(topic=topic, queue_id=queue_id, **{"oldest_ms": -1, **what})


def test_popped_messages_are_in_flight(rig: Rig) -> None:
    rig.plane.commit_offset("g", "orders", 0, 2)
    rig.plane.pops["g", "orders", 0] = 7
    rig.plane.popped["g"] = [
        PoppedQueue("orders", 0, 3, NOW_MS - 1_500, NOW_MS + 8_500),
        PoppedQueue("%RETRY%g_orders", 0, 1, NOW_MS - 12_000, NOW_MS - 2_000),
    ]
    rig.plane.popped["other"] = [PoppedQueue("orders", 1, 3, NOW_MS, NOW_MS)]
    rig.plane.totals.update(pop_revive_lag_ms_now=2_100, pop_revive_behind_now=4)
    assert told(rig) == GroupInFlightBody(
        queues=(
            entry(0, "%RETRY%g_orders", consumer_offset=-1, in_flight=1, oldest_ms=12_000, overdue_ms=2_000),
            entry(0, broker_offset=9, consumer_offset=2, next_offset=7, in_flight=3, oldest_ms=1_500),
            entry(1, consumer_offset=-1),
        ),
        revive_lag_ms=2_100,
        revive_unread=4,
    )


def test_messages_popped_in_order_are_in_flight(rig: Rig) -> None:
    """Of offsets 2 to 4 the first is consumed, and the last is hidden for longer than the batch."""
    rig.plane.commit_offset("g", "orders", 0, 2)
    batch = OrderedBatch(
        pop_ms=NOW_MS - 1_000,
        invisible_ms=5_000,
        used_ms=NOW_MS - 1_000,
        acked=0b001,
        offsets=(2, 3, 4),
        visible_ms={4: NOW_MS + 60_000},
    )
    rig.plane.ordered["g", "orders", 0] = batch
    out = entry(0, broker_offset=9, consumer_offset=2, next_offset=5, in_flight=2, oldest_ms=1_000)
    assert told(rig).queues[0] == out
    rig.plane.commit_offset("g", "orders", 0, 4)
    out = entry(0, broker_offset=9, consumer_offset=4, next_offset=5, in_flight=1, oldest_ms=1_000)
    assert told(rig).queues[0] == out, "progress has passed offset 3, which nobody acknowledged"
    rig.plane.commit_offset("g", "orders", 0, 2)
    rig.clock.move(60_000)
    assert told(rig).queues[0] == entry(0, broker_offset=9, consumer_offset=2, next_offset=2), "it is redelivered"


def test_pulled_messages_and_unknown_groups_are_not_in_flight(rig: Rig) -> None:
    rig.plane.commit_offset("g", "orders", 0, 4)
    rig.plane.pulls["g", "orders", 0] = 6
    assert told(rig).queues[0] == entry(0, broker_offset=9, consumer_offset=4, next_offset=4)
    assert told(rig, "never").queues == ()


def test_the_group_has_to_be_named(rig: Rig) -> None:
    answer = rig.run(RequestCode.GET_GROUP_IN_FLIGHT, {})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "consumerGroup" in (answer.remark or "")
