"""Checks: ordered batches outlive the broker, are written when they changed, and forgotten when nobody can pop them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.errors import StoreFenced
from cometmq.store_config.order_info import OrderedBatch, OrderedQueue, OrderInfo
from cometmq.store_config.topic_config import TopicConfig
from support.broker_twins import NOW_MS, Rig, run

BATCH = OrderedBatch(
    attempt="attempt-1",
    pop_ms=NOW_MS,
    invisible_ms=60_000,
    used_ms=NOW_MS,
    acked=0b101,
    offsets=(100, 101, 105),
    visible_ms={105: NOW_MS + 90_000},
    times={101: 2},
)


def prepared(path: Path) -> Rig:
    rig = Rig(path)
    run(rig.make_topics(TopicConfig(topic_name="t", read_queue_nums=4, write_queue_nums=4)))
    run(rig.control.groups.require("g"))
    return rig


def written(path: Path) -> list[OrderedQueue]:
    info = OrderInfo(path / "config")
    info.load()
    return info.all()


def test_batches_outlive_the_broker(tmp_path: Path) -> None:
    queue = OrderedQueue("g", "t", 1, BATCH)
    with prepared(tmp_path) as rig:
        rig.store.append_many("t", [b"m"] * 106, queue=1)
        rig.plane.restore_ordered(queue)
        rig.control.stop()
    assert written(tmp_path) == [queue]
    with Rig(tmp_path) as again:
        assert again.plane.ordered == {("g", "t", 1): BATCH}


def test_messages_past_the_queues_end_are_in_no_batch(tmp_path: Path) -> None:
    with prepared(tmp_path) as rig:
        rig.store.append_many("t", [b"m"] * 101, queue=1)
        rig.plane.restore_ordered(OrderedQueue("g", "t", 1, BATCH))
        rig.plane.restore_ordered(OrderedQueue("g", "t", 2, BATCH))
        rig.control.stop()
    with Rig(tmp_path) as again:
        assert again.plane.ordered == {("g", "t", 1): replace(BATCH, offsets=(100,), acked=1)}


def test_the_log_is_on_disk_before_the_batches(tmp_path: Path) -> None:
    with prepared(tmp_path) as rig:
        rig.plane.restore_ordered(OrderedQueue("g", "t", 1, BATCH))
        rig.plane.flush_fails = StoreFenced("a write failed before")
        with pytest.raises(StoreFenced):
            rig.control.ordered.persist()
        assert written(tmp_path) == []
        rig.plane.flush_fails = None
        rig.control.ordered.persist()
        assert len(written(tmp_path)) == 1


def test_they_are_written_when_they_changed(tmp_path: Path) -> None:
    path = tmp_path / "config" / "consumerOrderInfo.json"
    with prepared(tmp_path) as rig:
        rig.control.ordered.persist()
        assert not path.exists()
        rig.plane.restore_ordered(OrderedQueue("g", "t", 1, BATCH))
        rig.control.ordered.persist()
        before = path.stat().st_ino
        rig.control.ordered.persist()
        assert path.stat().st_ino == before, "nothing is another since"
        rig.plane.clear_ordered("g", "t", 1)
        rig.control.ordered.persist()
        assert written(tmp_path) == []
        assert path.stat().st_ino != before


def test_unpoppable_entries_are_forgotten(tmp_path: Path) -> None:
    with prepared(tmp_path) as rig:
        kept = OrderedQueue("g", "t", 3, BATCH)
        for queue in (
            kept,
            OrderedQueue("g", "t", 4, BATCH),
            OrderedQueue("g", "gone", 0, BATCH),
            OrderedQueue("gone", "t", 0, BATCH),
        ):
            rig.plane.restore_ordered(queue)
        rig.control.ordered.persist()
        assert rig.plane.ordered_batches() == written(tmp_path) == [kept]
        rig.clock.move(86_400_000)
        rig.control.ordered.persist()
        assert written(tmp_path) == [kept]
        rig.clock.move(3_600_000)
        rig.control.ordered.persist()
        assert rig.plane.ordered_batches() == written(tmp_path) == []
