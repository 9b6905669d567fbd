"""Checks: a group goes on where it committed, over restarts; one consumer per queue; the files are upstream's."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from cometmq import Consumer, StartFrom, Store, errors
from cometmq.store_config.subscription_groups import SubscriptionGroups
from support.golden import expected_records
from support.small_store import open_small


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_small(tmp_path / "store") as opened:
        yield opened


def numbered(count: int, *, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def bodies(consumer: Consumer) -> list[bytes]:
    return [bytes(message) for message in consumer]


def stored(store: Store, group: str, topic: str) -> dict[int, int]:
    """Return the progress that another process sees."""
    with open_small(store.path, mode="r") as reader:
        return {found.queue_id: found.offset for found in reader.progress(group, topic)}


def test_goes_on_where_it_committed(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.append_many("t", numbered(10))
        with store.consumer("g", "t") as consumer:
            assert [bytes(next(consumer)) for _ in range(4)] == numbered(4)
            consumer.commit()
            assert [bytes(next(consumer)) for _ in range(2)] == [b"4", b"5"]
        assert stored(store, "g", "t") == {0: 4}
    with open_small(tmp_path / "store") as store:
        with store.consumer("g", "t") as consumer:
            assert consumer.committed() == {("t", 0): 4}
            assert bodies(consumer) == numbered(6, start=4)
            consumer.commit()
        with store.consumer("g", "t") as consumer:
            assert bodies(consumer) == []
        with store.consumer("other", "t") as consumer:
            assert bodies(consumer) == numbered(10)
        (progress,) = store.progress("g")
        assert (progress.topic, progress.queue_id, progress.offset, progress.lag) == ("t", 0, 10, 0)


def test_the_group_is_known_to_a_broker(store: Store) -> None:
    store.append("t", b"x")
    store.consumer("g", "t").close()
    store.close()
    groups = SubscriptionGroups(store.path / "config")
    groups.load()
    assert [group.group_name for group in groups.all()] == ["g"]
    assert store.groups() == ["g"]


def test_several_queues_and_topics(store: Store) -> None:
    store.create_topic("a", queues=3)
    for number in range(30):
        store.append(("a", "b")[number % 2], b"%d" % number)
    with store.consumer("g", ["a", "b"]) as consumer:
        assert [bytes(next(consumer)) for _ in range(11)] == numbered(11)
        consumer.commit()
    assert stored(store, "g", "a") == {0: 2, 1: 2, 2: 2}
    assert stored(store, "g", "b") == {0: 5}
    with store.consumer("g", ["a", "b"]) as consumer:
        assert bodies(consumer) == numbered(19, start=11)


def test_commit_of_one_message(store: Store) -> None:
    store.create_topic("t", queues=2)
    store.append_many("t", numbered(10))
    with store.consumer("g", "t") as consumer:
        messages = consumer.fetch()
        consumer.commit(messages[5])
        assert stored(store, "g", "t") == {1: 3}
        store.append("u", b"x")
        other = store.get("u", 0, 0)
        with pytest.raises(errors.InvalidArgument):
            consumer.commit(other)
    with store.consumer("g", "t") as consumer:
        assert bodies(consumer) == [b"0", b"2", b"4", b"6", b"7", b"8", b"9"]


def test_many_batches(store: Store) -> None:
    """Positions are right at every message, whatever was fetched ahead."""
    store.create_topic("t", queues=3)
    queues = [(number * number) % 3 for number in range(3000)]
    store.append_many("t", numbered(3000), queue=queues)
    with store.consumer("g", "t") as consumer:
        handed_out = {("t", queue): 0 for queue in range(3)}
        for number, message in enumerate(consumer):
            handed_out["t", message.queue_id] = message.queue_offset + 1
            if number % 97 == 0 or number > 2990:
                found = consumer.positions()
                assert {key: offset for key, offset in found.items() if offset} == {
                    key: offset for key, offset in handed_out.items() if offset
                }


def test_messages_that_the_filter_passes_over_count_too(store: Store) -> None:
    store.append_many("t", numbered(1000), tags=["a", "b"] * 500)
    with store.consumer("g", "t", tags="a") as consumer:
        next(consumer)
        assert consumer.positions() == {("t", 0): 1}
        assert len(bodies(consumer)) == 499
        assert consumer.positions() == {("t", 0): 1000}
        consumer.commit()
    assert stored(store, "g", "t") == {0: 1000}


def test_start_of_a_new_group(store: Store) -> None:
    store.create_topic("t", queues=2)
    store.append_many("t", numbered(6))
    time.sleep(0.003)  # so that the time between lies between two store times
    between = datetime.now(timezone.utc)
    time.sleep(0.003)
    store.append_many("t", numbered(4, start=6))
    starts = {
        "earliest": numbered(10),
        StartFrom.EARLIEST: numbered(10),
        "latest": [],
        between: numbered(4, start=6),
        between - timedelta(days=1): numbered(10),
    }
    for number, (start, wanted) in enumerate(starts.items()):
        with store.consumer(f"g{number}", "t", start=start) as consumer:
            assert bodies(consumer) == wanted
    with store.consumer("late", "t", start="latest") as consumer:
        consumer.commit()
    store.append_many("t", [b"new"])
    with store.consumer("late", "t", start="latest") as consumer:
        assert bodies(consumer) == [b"new"]
    with pytest.raises(errors.InvalidArgument):
        store.consumer("g", "t", start="somewhere")  # type: ignore[arg-type]


def test_follow(store: Store) -> None:
    store.create_topic("t", queues=2)
    with store.consumer("g", "t", follow=True, timeout_s=0.0) as consumer:
        assert bodies(consumer) == []
        store.append_many("t", [b"1", b"2", b"3"])
        assert bodies(consumer) == [b"1", b"2", b"3"]
        consumer.commit()
        assert consumer.fetch(timeout_s=0.02) == []
    assert stored(store, "g", "t") == {0: 2, 1: 1}


def test_seek(store: Store) -> None:
    store.create_topic("t", queues=2)
    store.append_many("t", numbered(10))
    with store.consumer("g", "t") as consumer:
        consumer.fetch(6)
        consumer.seek("t", 1, 0)
        assert bodies(consumer) == [b"1", b"3", b"5", b"6", b"7", b"8", b"9"]
        consumer.seek_time(0)
        assert bodies(consumer) == numbered(10)
        consumer.seek("t", 0, 5)
        store.append("t", b"late", queue=0)
        assert bodies(consumer) == [b"late"]
        with pytest.raises(errors.InvalidArgument):
            consumer.seek("t", 0, -1)
        with pytest.raises(errors.InvalidArgument):
            consumer.seek("u", 0, 0)


def test_one_consumer_of_a_group_per_queue(store: Store) -> None:
    store.create_topic("t", queues=2)
    store.append_many("t", numbered(4))
    first = store.consumer("g", "t", queues=[0])
    second = store.consumer("g", "t", queues=[1])
    for queues in ([0], [1], None):
        with pytest.raises(errors.GroupBusy, match="queues of its own"):
            store.consumer("g", "t", queues=queues)
    assert (bodies(first), bodies(second)) == ([b"0", b"2"], [b"1", b"3"])
    with store.consumer("h", "t"), pytest.raises(errors.GroupBusy):
        store.consumer("h", "t", queues=[1])
    first.close()
    first.close()
    assert first.closed
    assert bodies(store.consumer("g", "t", queues=[0])) == [b"0", b"2"]
    del second
    gc.collect()
    assert bodies(store.consumer("g", "t")) == numbered(4)


def test_progress_outside_of_the_queue(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.append_many("t", numbered(5))
        store._commit_progress("far", {("t", 0): 1000})
        with store.consumer("far", "t") as consumer:
            # As after a power loss under asynchronous flush: consumed messages are gone, later ones are new.
            store.append("t", b"new")
            assert bodies(consumer) == [b"new"]
        store.set_progress("far", "t", 0, 2)
        with store.consumer("far", "t") as consumer:
            assert bodies(consumer) == [b"2", b"3", b"4", b"new"]
        with pytest.raises(errors.InvalidArgument):
            store.set_progress("far", "t", 0, -1)


def test_groups_can_be_forgotten(store: Store) -> None:
    store.append("t", b"x")
    store.set_progress("g", "t", 0, 1)
    store.delete_group("g")
    assert (store.groups(), store.progress()) == ([], [])
    with pytest.raises(errors.NotFound):
        store.delete_group("g")


@pytest.mark.parametrize("group", ["", "a b", "a@b", "x" * 121])
def test_wrong_groups(store: Store, group: str) -> None:
    store.append("t", b"x")
    with pytest.raises(errors.InvalidArgument):
        store.consumer(group, "t")
    with pytest.raises(errors.InvalidArgument):
        store.set_progress(group, "t", 0, 1)


def test_unknown_topics(store: Store) -> None:
    with pytest.raises(errors.TopicNotFound):
        store.consumer("g", "t")


def test_a_failed_opening_claims_nothing(store: Store) -> None:
    store.append("t", b"x")
    with pytest.raises(TypeError):
        store.consumer("g", "t", start=object())  # type: ignore[arg-type]
    store.consumer("g", "t").close()


def test_inner_batches_count_by_message(golden_store: object) -> None:
    path = golden_store("apache-5.3.3-rare", "clean")  # type: ignore[operator]
    with open_small(path, settings=None) as store:
        total = sum(queue.messages for queue in store.queues("Bcq"))
        seen = []
        while len(seen) < total:
            # A restart after every third message, which is mostly in the middle of a batch.
            with store.consumer("g", "Bcq") as consumer:
                seen += [(message.queue_id, message.queue_offset) for message in consumer.fetch(3)]
                consumer.commit()
        assert len(set(seen)) == len(seen) == total
        assert any(record["topic"] == "Bcq" for record in expected_records("apache-5.3.3-rare"))
