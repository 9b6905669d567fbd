"""Checks: scans of the messages since last time, by cursor, offsets and group: what counts as read, commits, losses."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cometmq
import cometmq.aio
from cometmq import Cursor, GroupBusy, InvalidArgument, OffsetOutOfRange, StaleCursor, Store, TopicNotFound
from cometmq.arrow import Scan
from cometmq.arrow.cursor import Place, next_offsets
from cometmq.store.group_book import GroupBook
from support.any_disk import retention_on_request
from support.small_store import SMALL, open_small, spoil

QUEUES = 3


def append(store: Store, first: int, count: int) -> None:
    numbers = range(first, first + count)
    store.append_many(
        "orders",
        [b"%d" % number for number in numbers],
        tags=["even" if number % 2 == 0 else "odd" for number in numbers],
        queue=[number % QUEUES for number in numbers],
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A hundred orders in three queues."""
    with open_small(tmp_path / "store") as opened:
        opened.create_topic("orders", queues=QUEUES)
        append(opened, 0, 100)
        yield opened


def bodies(scan: Scan) -> list[int]:
    return [int(body) for body in scan.to_table().column("body").to_pylist()]


def progress(store: Store, group: str = "etl") -> dict[int, int]:
    return {one.queue_id: one.offset for one in store.progress(group, "orders")}


# --- Cursors


def test_each_scan_reads_the_messages_since_the_cursor_of_the_scan_before(store: Store) -> None:
    cursor = Cursor()
    for first, count in ((0, 100), (100, 40), (140, 0), (140, 1)):
        if first:
            append(store, first, count)
        scan = store.scan("orders", start=cursor)
        assert bodies(scan) == list(range(first, first + count))
        cursor = Cursor.from_json(scan.cursor.to_json())
        assert cursor == scan.cursor
        assert hash(cursor) == hash(scan.cursor)
    assert cursor.offsets == {("orders", 0): 47, ("orders", 1): 47, ("orders", 2): 47}


def test_passes_of_a_scan_see_the_same_messages(store: Store) -> None:
    scan = store.scan("orders", start=Cursor())
    assert scan.count() == 100
    append(store, 100, 50)
    assert scan.count() == scan.count(exact=True) == 100
    assert bodies(scan) == list(range(100))
    assert pa.table(scan).num_rows == 100
    assert store.scan("orders", start=scan.cursor).count() == 50
    assert repr(scan).startswith("<Scan of 'orders'")


def test_new_queues_and_topics_begin_at_their_first_message(store: Store) -> None:
    cursor = (scan := store.scan(start=Cursor())).to_table() and scan.cursor
    store.append_many("later", [b"x"] * 5)
    append(store, 100, 2)
    scan = store.scan(start=cursor, columns=["topic"])
    assert sorted(scan.to_table().column("topic").to_pylist()) == ["later"] * 5 + ["orders"] * 2
    assert scan.cursor.offsets == cursor.offsets | {("later", 0): 5, ("orders", 1): 34, ("orders", 2): 34}


def test_queues_that_a_scan_leaves_out_stay_in_its_cursor(store: Store) -> None:
    cursor = (scan := store.scan("orders", start=Cursor(), queues=[0])).to_table() and scan.cursor
    assert cursor.offsets == {("orders", 0): 34}
    cursor = (scan := store.scan("orders", start=cursor, queues=[2])).to_table() and scan.cursor
    assert cursor.offsets == {("orders", 0): 34, ("orders", 2): 33}
    assert set(cursor.marks) == set(cursor.offsets)


def test_start_takes_offsets_by_queue(store: Store) -> None:
    found = store.scan("orders", start={0: 30, 2: 33}).to_table().group_by("queue_id").aggregate([("body", "count")])
    assert dict(zip(*found.to_pydict().values(), strict=True)) in ({0: 4, 1: 33}, {1: 33, 0: 4})
    same = store.scan(["orders"], start={("orders", 0): 30, ("orders", 2): 33})
    assert same.count() == 37
    same.to_table()
    assert same.cursor.offsets == {("orders", 0): 34, ("orders", 1): 33, ("orders", 2): 33}
    assert store.scan("orders", start={}).count() == 100


def test_an_end_below_the_cursor_reads_nothing_and_moves_nothing(store: Store) -> None:
    scan = store.scan("orders", start={0: 20, 1: 5, 2: 5}, end=10)
    assert scan.count() == 10
    scan.to_table()
    assert scan.cursor.offsets == {("orders", 0): 20, ("orders", 1): 10, ("orders", 2): 10}


# --- What counts as read


def test_a_loop_counts_the_batches_that_it_was_handed(store: Store) -> None:
    scan = store.scan("orders", start=Cursor(), batch_rows=30)
    seen: list[int] = []
    for batch in scan:
        seen += map(int, batch.column("body").to_pylist())
        assert bodies(store.scan("orders", start=scan.cursor)) == list(range(len(seen), 100))
        if len(seen) == 60:
            break
    assert seen == list(range(60))
    assert bodies(store.scan("orders", start=scan.cursor)) == list(range(60, 100))
    scan.to_table()
    assert store.scan("orders", start=scan.cursor).count() == 0
    next(iter(scan))  # a pass behind the furthest one moves nothing
    assert store.scan("orders", start=scan.cursor).count() == 0


def test_limited_scans_take_turns_over_everything(store: Store) -> None:
    seen: list[int] = []
    cursor = Cursor()
    while found := bodies(scan := store.scan("orders", start=cursor, limit=7)):
        seen += found
        cursor = scan.cursor
    assert seen == list(range(100))


def test_messages_that_a_filter_leaves_out_count_at_the_end(store: Store) -> None:
    scan = store.scan("orders", start=Cursor(), tags="odd")
    assert bodies(scan) == list(range(1, 100, 2))
    assert scan.cursor.offsets == {("orders", 0): 34, ("orders", 1): 33, ("orders", 2): 33}


def test_readers_count_when_they_have_ended(store: Store) -> None:
    scan = store.scan("orders", start=Cursor(), batch_rows=10)
    reader = scan.to_reader()
    reader.read_next_batch()
    with pytest.raises(InvalidArgument, match="nothing was read by this scan"):
        _ = scan.cursor
    reader.read_all()
    assert scan.cursor.offsets == {("orders", 0): 34, ("orders", 1): 33, ("orders", 2): 33}


def test_a_table_that_failed_counts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_small(path) as store:
        store.append_many("orders", [b"x" * 100] * 50)
    spoil(path, "orders", 0, 30)
    with open_small(path, mode="r") as store:
        scan = store.scan("orders", group="etl", batch_rows=10)
        with pytest.raises(cometmq.CorruptRecord):
            scan.to_table()
        with pytest.raises(InvalidArgument, match="nothing was read"):
            scan.commit()
        with pytest.raises(cometmq.CorruptRecord):
            list(scan)
        assert scan.cursor.offsets == {("orders", 0): 30}  # the loop was handed these


def test_decoded_bodies_are_counted_like_others(store: Store) -> None:
    scan = store.scan("orders", start=Cursor(), columns=[], schema="n int", body_format="csv", batch_rows=40)
    assert scan.schema.names == ["n"]
    assert next(iter(scan)).column("n").to_pylist() == list(range(40))
    assert bodies(store.scan("orders", start=scan.cursor)) == list(range(40, 100))


def test_messages_of_inner_batches_are_counted_one_by_one(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.create_topic("orders", attributes={"queue.type": "BatchCQ"})
        for first in range(0, 60, 20):
            store.append_many("orders", [b"%d" % number for number in range(first, first + 20)])
        seen: list[int] = []
        cursor = Cursor()
        while found := bodies(scan := store.scan("orders", start=cursor, limit=7)):
            seen += found
            cursor = Cursor.from_json(scan.cursor.to_json())
        assert seen == list(range(60))


# --- Groups


def test_commit_stores_the_read_position(store: Store) -> None:
    scan = store.scan("orders", group="etl")
    append(store, 100, 10)
    assert bodies(scan) == list(range(100))
    assert progress(store) == {}
    scan.commit()
    assert progress(store) == {0: 34, 1: 33, 2: 33}
    scan.commit()
    scan = store.scan("orders", group="etl", batch_rows=4)
    for batch, left in zip(scan, (6, 2, 0), strict=True):
        assert batch.num_rows == min(4, left + 4 if left else 2)
        scan.commit()
        assert store.scan("orders", group="etl").count() == left
    assert "etl" in store.groups()
    with store.consumer("etl", "orders") as consumer:
        assert consumer.fetch() == []


def test_a_scan_of_nothing_new_can_be_committed(store: Store) -> None:
    for _ in range(2):
        scan = store.scan("orders", group="etl")
        scan.to_table()
        scan.commit()
    assert store.scan("orders", group="etl").count() == 0


def test_a_view_hands_its_commit_to_the_writer(store: Store, tmp_path: Path) -> None:
    with open_small(tmp_path / "store", mode="r") as view:
        scan = view.scan("orders", group="etl")
        assert bodies(scan) == list(range(100))
        scan.commit()
        assert progress(view) == {0: 34, 1: 33, 2: 33}
        assert view.scan("orders", group="etl").count() == 0


@pytest.mark.parametrize("mode", ["a", "r"])
def test_two_scans_at_the_same_time_do_not_move_a_group_back(store: Store, tmp_path: Path, mode: str) -> None:
    slow = store.scan("orders", group="etl", limit=10)
    slow.to_table()
    fast = store.scan("orders", group="etl")
    fast.to_table()
    if mode == "r":
        with open_small(tmp_path / "store", mode="r") as view:
            slow = view.scan("orders", group="etl", limit=10)
            slow.to_table()
            fast.commit()
            with pytest.raises(GroupBusy, match="changed from none to"):
                slow.commit()
    else:
        fast.commit()
        with pytest.raises(GroupBusy, match="changed from none to"):
            slow.commit()
    assert progress(store) == {0: 34, 1: 33, 2: 33}


def test_commits_that_views_leave_at_the_same_time_do_not_move_a_group_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both look at the group's progress before either leaves its commit: the writer looks again."""
    path = tmp_path / "store"
    with open_small(path, background=False) as store:
        store.create_topic("orders", queues=QUEUES)
        append(store, 0, 100)
        with open_small(path, mode="r") as view:
            fast, slow = view.scan("orders", group="etl"), view.scan("orders", group="etl", limit=10)
            for scan in (fast, slow):
                scan.to_table()
            fast.commit()
            with monkeypatch.context() as patched:
                patched.setattr(GroupBook, "check_progress", lambda *_: None)
                slow.commit()
            store.apply_handoffs()
            assert progress(store) == progress(view) == {0: 34, 1: 33, 2: 33}
            append(store, 100, 3)
            scan = view.scan("orders", group="etl", batch_rows=1)
            for _ in scan:
                scan.commit()
            store.apply_handoffs()
            assert progress(store) == {0: 35, 1: 34, 2: 34}


def test_a_commit_is_there_after_reopening(tmp_path: Path) -> None:
    for first in (0, 30):
        with open_small(tmp_path / "store", flush="sync") as store:
            if not first:
                store.create_topic("orders", queues=QUEUES)
            append(store, first, 30)
            scan = store.scan("orders", group="etl")
            assert bodies(scan) == list(range(first, first + 30))
            scan.commit()


def test_asyncio(tmp_path: Path) -> None:
    async def main() -> None:
        async with cometmq.aio.open(tmp_path / "store", settings=SMALL, flush="async") as store:
            await store.append_many("orders", [b"%d" % number for number in range(50)])
            scan = store.scan("orders", group="etl", batch_rows=20)
            async for _ in scan:
                await scan.commit()
                break
            assert (await scan.cursor()).offsets == {("orders", 0): 20}
            assert await store.scan("orders", group="etl").count() == 30
            scan = store.scan("orders", start=await scan.cursor())
            assert (await scan.to_table()).num_rows == 30
            assert (await scan.cursor()).offsets == {("orders", 0): 50}

    asyncio.run(main())


def test_a_batch_whose_task_was_cancelled_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leaving = threading.Event(), threading.Event()

    def slow_next_offsets(batch: pa.RecordBatch) -> dict[Place, int]:
        entered.set()
        assert leaving.wait(60)
        return next_offsets(batch)

    async def main() -> None:
        async with cometmq.aio.open(tmp_path / "store", settings=SMALL, flush="async") as store:
            await store.append_many("orders", [b"%d" % number for number in range(50)])
            scan = store.scan("orders", group="etl", batch_rows=20)
            with monkeypatch.context() as patched:
                patched.setattr("cometmq.arrow.scan.next_offsets", slow_next_offsets)
                reading = asyncio.ensure_future(anext(scan.batches()))
                assert await asyncio.to_thread(entered.wait, 60)
                try:
                    for _ in range(3):
                        reading.cancel()
                        for _ in range(10):
                            await asyncio.sleep(0)
                        assert not reading.done(), "the thread still reads from the pass"
                finally:
                    leaving.set()
                with pytest.raises(asyncio.CancelledError):
                    await reading
            with pytest.raises(InvalidArgument, match="nothing was read by this scan"):
                await scan.commit()
            assert await store.scan("orders", group="etl").count() == 50

    asyncio.run(main())


# --- Losses


@pytest.mark.parametrize("count", [1, 100, 150])
def test_a_topic_that_was_made_again_is_noticed(store: Store, count: int) -> None:
    """Also where it has fewer messages, or more, than were read."""
    cursor = (scan := store.scan("orders", start=Cursor())).to_table() and scan.cursor
    store.delete_topic("orders")
    store.create_topic("orders", queues=QUEUES)
    append(store, 1000, count)
    with pytest.raises(StaleCursor, match="made again") as caught:
        store.scan("orders", start=cursor)
    assert caught.value.topic == "orders"
    scan = store.scan("orders", start=cursor, on_loss="skip")
    assert bodies(scan) == list(range(1000, 1000 + count))
    assert sum(scan.cursor.offsets.values()) == count
    append(store, 2000, 3)
    assert bodies(store.scan("orders", start=scan.cursor)) == [2000, 2001, 2002]


def test_a_topic_made_again_without_messages_is_noticed(store: Store) -> None:
    cursor = (scan := store.scan("orders", start=Cursor())).to_table() and scan.cursor
    store.delete_topic("orders")
    store.create_topic("orders", queues=QUEUES)
    for topic in ("orders", None):
        with pytest.raises(StaleCursor, match="is empty"):
            store.scan(topic, start=cursor)
    scan = store.scan("orders", start=cursor, on_loss="skip")
    assert bodies(scan) == []
    assert set(scan.cursor.offsets.values()) <= {0}


def test_the_places_of_a_deleted_topic_are_dropped_among_all_topics(store: Store) -> None:
    store.append_many("others", [b"7"] * 5)
    cursor = (scan := store.scan(start=Cursor())).to_table() and scan.cursor
    store.delete_topic("orders")
    store.append("others", b"8")
    scan = store.scan(start=cursor)
    assert bodies(scan) == [8]
    assert scan.cursor.offsets == {("others", 0): 6}
    with pytest.raises(TopicNotFound):
        store.scan("orders", start=cursor)


def test_offsets_behind_the_end_of_a_topic_that_was_made_again_can_be_skipped(store: Store) -> None:
    with pytest.raises(OffsetOutOfRange):
        store.scan("orders", start={0: 500})
    for start in ({0: 500}, {0: 500, 17: 3}):
        scan = store.scan("orders", start=start, on_loss="skip")
        assert scan.count() == 66
        scan.to_table()
        assert scan.cursor.offsets == {("orders", 0): 34, ("orders", 1): 33, ("orders", 2): 33}


def test_a_topic_that_was_made_again_under_a_scan_is_not_committed(store: Store) -> None:
    scan = store.scan("orders", group="etl")
    scan.to_table()
    store.delete_topic("orders")
    store.create_topic("orders", queues=QUEUES)
    append(store, 0, 100)
    with pytest.raises(StaleCursor, match="made again since this scan was made"):
        scan.commit()
    with pytest.raises(StaleCursor):
        _ = scan.cursor
    assert progress(store) == {}


def test_a_groups_progress_behind_the_end_is_noticed(store: Store) -> None:
    """As after a power loss, or where another program made the topic again."""
    store._commit_progress("etl", {("orders", 0): 500})
    with pytest.raises(StaleCursor, match=r"orders/0 ends at offset 34, and the group 'etl' has read it up to 500"):
        store.scan("orders", group="etl")
    scan = store.scan("orders", group="etl", on_loss="skip")
    assert scan.count() == 66
    scan.to_table()
    scan.commit()
    assert progress(store) == {0: 34, 1: 33, 2: 33}


def test_messages_that_expired_unread_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_small(path) as store:
        store.append_many("orders", [b"x" * 1000] * 5000)
        scan = store.scan("orders", group="etl", limit=10, columns=["queue_offset"])
        scan.to_table()
        scan.commit()
        cursor = scan.cursor
    for segment in (path / "commitlog").iterdir():
        os.utime(segment, (0, 0))
    with open_small(path, retention=retention_on_request(1)) as store:
        assert store.expire() > 0
        low = store.min_offset("orders")
        starts: list[dict[str, Any]] = [{"group": "etl"}, {"start": cursor}, {"start": {0: 10}}]
        for start in starts:
            with pytest.raises(StaleCursor, match=f"begins at offset {low:,} now: {low - 10:,} messages behind"):
                store.scan("orders", **start)
            scan = store.scan("orders", on_loss="skip", **start)
            assert scan.count() == scan.to_table().num_rows == 5000 - low
            assert scan.report.expired == low - 10
            assert scan.cursor.offsets == {("orders", 0): 5000}
        store.scan("orders", start=Cursor())  # never read: nothing is lost


def expire(store: Store) -> None:
    """Let all segments expire that were there when the store was opened, but the last."""
    for segment in (Path(store.path) / "commitlog").iterdir():
        os.utime(segment, (1000, 1000))
    assert store.expire() > 0


@pytest.mark.parametrize("when", ["before the scan", "since the cursor", "during a pass", "after a pass", "never"])
def test_a_topic_made_again_after_its_messages_expired_is_noticed(tmp_path: Path, when: str) -> None:
    """No message is left that was read; those of the new topic are not taken for it, and none is passed over."""
    path = tmp_path / "store"
    with open_small(path) as store:
        store.append_many("orders", [b"x" * 1000] * 3000)
        store.append_many("others", [b"x" * 1000] * 2000)
    with open_small(path, retention=retention_on_request(72), background=False) as store:
        scan = store.scan("orders", start={0: 3000} if when == "never" else {0: 10}, batch_rows=100)
        if when == "before the scan":
            expire(store)
            scan = store.scan("orders", start=Cursor())
        elif when == "since the cursor":
            expire(store)
            scan = store.scan("orders", start={0: 10}, on_loss="skip")
        elif when == "during a pass":
            assert next(iter(scan)).num_rows
            expire(store)
        if when != "during a pass":
            scan.to_table()
        if when == "after a pass":
            expire(store)
        assert (store.min_offset("orders") == 3000) == (when != "never")
        cursor = Cursor.from_json(scan.cursor.to_json())
        assert store.scan("orders", start=cursor, on_loss="skip").count() == 0
        store.delete_topic("orders")
        store.append_many("orders", [b"%d" % number for number in range(6000)])
        with pytest.raises(StaleCursor, match="made again since this scan was made"):
            _ = scan.cursor
        with pytest.raises(StaleCursor, match="has another message at offset"):
            store.scan("orders", start=cursor)
        again = store.scan("orders", start=cursor, on_loss="skip")
        assert bodies(again) == list(range(6000))
        assert store.scan("orders", start=again.cursor).count() == 0


def test_a_scan_of_expired_messages_is_not_committed_to_a_topic_made_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with open_small(path) as store:
        store.append_many("orders", [b"x" * 1000] * 3000)
        store.append_many("others", [b"x" * 1000] * 2000)
    with open_small(path, retention=retention_on_request(72), background=False) as store:
        expire(store)
        scan = store.scan("orders", group="etl")
        assert bodies(scan) == []
        store.delete_topic("orders")
        store.append_many("orders", [b"%d" % number for number in range(6000)])
        with pytest.raises(StaleCursor, match="made again since this scan was made"):
            scan.commit()
        assert progress(store) == {}


# --- Cursors' JSON


def test_cursor_json_is_stable(store: Store) -> None:
    cursor = (scan := store.scan("orders", start=Cursor())).to_table() and scan.cursor
    document = json.loads(cursor.to_json())
    assert document["cometmq_cursor"] == 1
    assert list(document["queues"]) == ["orders/0", "orders/1", "orders/2"]
    last = store.get("orders", 0, 33)
    assert document["queues"]["orders/0"] == {"offset": 34, "after": [last.physical_offset, last.store_timestamp_ms]}
    assert Cursor.from_json(cursor.to_json().encode()).to_json() == cursor.to_json()
    assert repr(cursor) == "<Cursor orders/0: 34, orders/1: 33, orders/2: 33>"
    assert repr(Cursor()) == "<Cursor at the beginning>"
    assert Cursor({("orders", 0): 34}) != cursor


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '"x"',
        '{"cometmq_cursor":1}',
        '{"cometmq_cursor":1,"queues":[]}',
        '{"cometmq_cursor":1,"queues":{"t":{"offset":1}}}',
        '{"cometmq_cursor":1,"queues":{"t/0":5}}',
        '{"cometmq_cursor":1,"queues":{"t/0":{"offset":-1}}}',
        '{"cometmq_cursor":1,"queues":{"t/0":{"offset":1,"after":[1]}}}',
        '{"cometmq_cursor":2,"queues":{}}',
        '{"cometmq_cursor":1,"queues":{"t/0":{"offset":1,"after":[Infinity,1]}}}',
        '{"cometmq_cursor":1,"queues":{"t/0":{"offset":1,"after":[1.5,1]}}}',
        '{"cometmq_cursor":1,"queues":{"t/0":{"offset":1,"after":[9223372036854775808,1]}}}',
        '{"cometmq_cursor":1,"queues":{"t/0":{"offset":1,"after":[1,9223372036854775808]}}}',
        '{"cometmq_cursor":1,"queues":{"t/0":{"offset":9223372036854775808}}}',
        "[" * 100_000,
    ],
)
def test_other_texts_are_not_cursors(text: str) -> None:
    with pytest.raises(InvalidArgument):
        Cursor.from_json(text)


def test_repr_says_that_a_scan_reads_since_last_time(tmp_path: Path) -> None:
    with open_small(tmp_path) as store:
        store.append("t", b"x")
        assert repr(store.scan("t", columns=["body"], group="g")) == "<Scan of 't'; columns body; since last time>"
