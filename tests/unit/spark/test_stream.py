"""Checks: a stream's offsets over a real store, without Spark: limits, replay, new queues and topics, what is lost."""

from __future__ import annotations

import json
import logging
import os
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cometmq
from cometmq.spark.errors import DataLoss, OptionError
from support.any_disk import retention_on_request
from support.small_store import open_small
from support.stream_histories import let_time_pass

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from cometmq.spark.default_source import CometMQSource
from cometmq.spark.stream import StreamReader

SCHEMA = StructType([StructField("topic", StringType()), StructField("queueOffset", LongType())])


OPEN: list[StreamReader] = []


@pytest.fixture(autouse=True)
def _stopped() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().stop()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(path: Path) -> Iterator[cometmq.Store]:
    with open_small(path) as opened:
        opened.create_topic("t", queues=2)
        append(opened, 10)
        yield opened


def append(store: cometmq.Store, count: int, topic: str = "t", queue: int | None = None) -> None:
    store.append_many(topic, [b"x" * 100] * count, queue=queue)


def stream(path: Path, **options: str) -> StreamReader:
    given = {"path": str(path), "topic": "t", "startingOffsets": "earliest", **options}
    if "subscribePattern" in options:
        del given["topic"]
    reader = CometMQSource(given).streamReader(SCHEMA)
    assert isinstance(reader, StreamReader)
    OPEN.append(reader)
    return reader


def through_json(offset: dict[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def positions(offset: dict[str, int]) -> dict[str, int]:
    """Return an offset without the marks beside it."""
    return {name: value for name, value in offset.items() if not name.endswith("@")}


def total(offset: dict[str, int]) -> int:
    return sum(positions(offset).values())


def latest(reader: StreamReader, start: dict[str, int]) -> dict[str, int]:
    return reader.latestOffset(through_json(start), reader.getDefaultReadLimit())


def read(reader: StreamReader, start: dict[str, int], end: dict[str, int]) -> list[tuple[str, int]]:
    """Return topics and offsets of a micro-batch, through pickled partitions and a pickled reader, as in tasks."""
    task: StreamReader = pickle.loads(pickle.dumps(reader))
    found = []
    for partition in reader.partitions(through_json(start), through_json(end)):
        for batch in task.read(pickle.loads(pickle.dumps(partition))):
            found += [(row["topic"], row["queueOffset"]) for row in batch.to_pylist()]
    return sorted(found)


def test_all_messages_then_new_ones(path: Path, store: cometmq.Store) -> None:
    reader = stream(path)
    start = reader.initialOffset()
    assert start == {"t/0": 0, "t/1": 0}
    end = latest(reader, start)
    assert positions(end) == {"t/0": 5, "t/1": 5}
    assert len(read(reader, start, end)) == 10
    assert latest(reader, end) == end
    assert read(reader, end, end) == []
    append(store, 2)
    assert positions(latest(reader, end)) == {"t/0": 6, "t/1": 6}
    assert reader.reportLatestOffset() == {"t/0": 6, "t/1": 6}


def test_a_micro_batch_has_matching_messages_alone(path: Path, store: cometmq.Store) -> None:
    store.append_many("t", [b"x"] * 4, properties=[{"price": price} for price in ("5", "15", "25", "much")], queue=0)
    reader = stream(path, where="price > 10")
    start = reader.initialOffset()
    end = latest(reader, start)
    assert positions(end) == {"t/0": 9, "t/1": 5}
    assert read(reader, start, end) == [("t", 6), ("t", 7)]


def test_a_stream_begins_at_the_end_by_default(path: Path, store: cometmq.Store) -> None:
    reader = CometMQSource({"path": str(path), "topic": "t"}).streamReader(SCHEMA)
    assert reader.initialOffset() == {"t/0": 5, "t/1": 5}
    reader.stop()


def test_replay_gives_the_same(path: Path, store: cometmq.Store) -> None:
    reader = stream(path, maxOffsetsPerTrigger="7")
    start = reader.initialOffset()
    end = latest(reader, start)
    before = read(reader, start, end)
    assert len(before) == 7
    append(store, 50)
    again = stream(path, maxOffsetsPerTrigger="3")
    assert read(again, start, end) == before


def test_limits(path: Path, store: cometmq.Store) -> None:
    append(store, 990)
    reader = stream(path, maxOffsetsPerTrigger="100")
    position, seen = reader.initialOffset(), 0
    while (end := latest(reader, position)) != position:
        rows = total(end) - total(position)
        assert 0 < rows <= 100
        position, seen = end, seen + rows
    assert seen == 1000
    everything = reader.latestOffset({}, ReadAllAvailable())
    assert total(everything) == 1000
    by_bytes = stream(path, maxBytesPerTrigger="20k")
    rows = total(latest(by_bytes, {"t/0": 0, "t/1": 0}))
    assert 50 < rows < 150
    both = stream(path, maxBytesPerTrigger="20k", maxOffsetsPerTrigger="10")
    assert total(latest(both, {"t/0": 0, "t/1": 0})) == 10


def test_waiting_for_enough(path: Path, store: cometmq.Store) -> None:
    reader = stream(path, minOffsetsPerTrigger="11")
    start = reader.initialOffset()
    assert latest(reader, start) == start
    append(store, 1)
    assert total(latest(reader, start)) == 11
    patient = stream(path, minOffsetsPerTrigger="1000", maxTriggerDelay="1ms")
    patient._advanced_at -= 1  # as if a second had passed
    assert total(latest(patient, start)) == 11


def test_available_now(path: Path, store: cometmq.Store) -> None:
    reader = stream(path, maxOffsetsPerTrigger="4", minOffsetsPerTrigger="5000")
    position = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    append(store, 100)
    append(store, 3, topic="other")
    rounds = 0
    while (end := latest(reader, position)) != position:
        position, rounds = end, rounds + 1
    assert (positions(position), rounds) == ({"t/0": 5, "t/1": 5}, 3)


def test_new_queues_and_topics(path: Path, store: cometmq.Store) -> None:
    reader = stream(path, subscribePattern="t.*")
    start = reader.initialOffset()
    first = latest(reader, start)
    store.set_topic_queues("t", 3)
    append(store, 4, queue=2)
    append(store, 3, topic="t2")
    second = latest(reader, first)
    assert positions(second) == {"t/0": 5, "t/1": 5, "t/2": 4, "t2/0": 3}
    assert read(reader, first, second) == [("t", n) for n in range(4)] + [("t2", n) for n in range(3)]
    # A new stream over a checkpoint that knows fewer queues.
    assert read(stream(path, subscribePattern="t.*"), start, second)[-3:] == [("t2", n) for n in range(3)]


def test_the_end_moves_back(path: Path, store: cometmq.Store, caplog: pytest.LogCaptureFixture) -> None:
    ahead = {"t/0": 9, "t/1": 5}
    with pytest.raises(DataLoss, match=r"read queue 0 of 't' up to 9, and it ends at 5.*failOnDataLoss=false"):
        latest(stream(path), ahead)
    with caplog.at_level(logging.WARNING, "cometmq.spark"):
        lenient = stream(path, failOnDataLoss="false")
        assert positions(latest(lenient, ahead)) == {"t/0": 5, "t/1": 5}
    assert "the store was cut" in caplog.text
    assert read(lenient, ahead, {"t/0": 5, "t/1": 5}) == []


def test_checkpoint_of_deleted_data(path: Path, store: cometmq.Store) -> None:
    with pytest.raises(DataLoss, match="t/7"):
        latest(stream(path), {"t/0": 1, "t/7": 3})
    with pytest.raises(DataLoss, match="messages 3 to 7 of queue 0"):
        stream(path).partitions({"t/0": 3}, {"t/0": 8})
    lenient = stream(path, failOnDataLoss="false")
    assert positions(latest(lenient, {"t/0": 1, "t/1": 0, "t/7": 3})) == {"t/0": 5, "t/1": 5, "t/7": 3}
    assert read(lenient, {"t/0": 3}, {"t/0": 8}) == [("t", 3), ("t", 4)]


def remake(store: cometmq.Store, count: int) -> None:
    store.delete_topic("t")
    let_time_pass(store)
    store.create_topic("t", queues=2)
    append(store, count)


def test_a_topic_that_was_made_again(path: Path, store: cometmq.Store, caplog: pytest.LogCaptureFixture) -> None:
    """Eight new messages in a queue that was read up to 5: three of them lie behind that, and all are new."""
    position = latest(stream(path), stream(path).initialOffset())
    assert position["t/0"] == 5
    remake(store, 16)
    with pytest.raises(DataLoss, match=r"queue 0 of 't' up to 5.*deleted and made again.*failOnDataLoss=false"):
        latest(stream(path), position)
    with caplog.at_level(logging.WARNING, "cometmq.spark"):
        lenient = stream(path, failOnDataLoss="false")
        end = latest(lenient, position)
    assert "deleted and made again" in caplog.text
    assert read(lenient, position, end) == sorted([("t", n) for n in range(8)] * 2)
    assert latest(stream(path), end) == end


def test_a_topic_that_was_made_again_with_as_many_messages(path: Path, store: cometmq.Store) -> None:
    position = latest(stream(path), stream(path).initialOffset())
    remake(store, 10)
    with pytest.raises(DataLoss, match="deleted and made again"):
        latest(stream(path), position)


@pytest.mark.parametrize("count", [4, 10])
def test_all_messages_of_a_topic_that_was_made_again_are_read(path: Path, store: cometmq.Store, count: int) -> None:
    """Also where it has fewer than were read, or as many: then nothing seems to be new."""
    lenient = stream(path, failOnDataLoss="false")
    position = latest(lenient, lenient.initialOffset())
    remake(store, count)
    end = latest(lenient, position)
    assert end != position
    assert read(lenient, position, end) == sorted([("t", n) for n in range(count // 2)] * 2)
    assert latest(lenient, end) == end
    append(store, 2)
    assert read(lenient, end, latest(lenient, end)) == [("t", count // 2)] * 2


@pytest.mark.parametrize("position", [9, 20])
def test_messages_behind_a_cut_are_read_once(path: Path, store: cometmq.Store, position: int) -> None:
    """The store lost the end that had been read, from offset 7 on, as by a power loss, and grew again to 9."""
    let_time_pass(store)
    append(store, 4)
    mark = store.get("t", 0, 6).store_timestamp_ms
    begin = {"t/0": position, "t/0@": mark, "t/1": position, "t/1@": mark}
    let_time_pass(store)
    append(store, 4)
    with pytest.raises(DataLoss, match=f"queue 0 of 't' up to {position}"):
        latest(stream(path), begin)
    lenient = stream(path, failOnDataLoss="false")
    end = latest(lenient, begin)
    assert positions(end) == {"t/0": 9, "t/1": 9}
    assert read(lenient, begin, end) == sorted([("t", 7), ("t", 8)] * 2)


def test_a_batch_that_was_planned_before_the_topic_was_made_again_has_none_of_its_messages(
    path: Path, store: cometmq.Store
) -> None:
    """They are the next batch's; here too they would be doubled."""
    lenient = stream(path, failOnDataLoss="false")
    start = lenient.initialOffset()
    end = latest(lenient, start)
    remake(store, 16)
    assert read(lenient, start, end) == []
    assert len(read(lenient, end, latest(lenient, end))) == 16


def test_deleted_topic_does_not_stop_a_stream_without_fail_on_data_loss(path: Path, store: cometmq.Store) -> None:
    append(store, 3, topic="u")
    lenient = stream(path, topic="t,u", failOnDataLoss="false")
    position = latest(lenient, lenient.initialOffset())
    store.delete_topic("t")
    append(store, 2, topic="u")
    with pytest.raises(DataLoss, match="has read t/0, t/1, which the store or the options have no more"):
        latest(stream(path, topic="t,u"), position)
    end = latest(lenient, position)
    assert positions(end) == {"t/0": 5, "t/1": 5, "u/0": 5}
    assert read(lenient, position, end) == [("u", 3), ("u", 4)]
    let_time_pass(store)
    store.create_topic("t", queues=2)
    append(store, 4)
    assert read(lenient, end, latest(lenient, end)) == sorted([("t", 0), ("t", 1)] * 2)
    store.delete_topic("t")
    store.delete_topic("u")
    assert positions(latest(lenient, end)) == {"t/0": 5, "t/1": 5, "u/0": 5}


def test_an_unknown_topic_is_reported(path: Path, store: cometmq.Store) -> None:
    with pytest.raises(OptionError, match="no topic 'tt'"):
        latest(stream(path, topic="t,tt"), {"t/0": 1, "t/1": 1})


def test_a_topic_that_is_made_again_while_a_batch_is_planned(path: Path, store: cometmq.Store) -> None:
    start = stream(path).initialOffset()
    end = latest(stream(path), start)
    remake(store, 16)
    with pytest.raises(DataLoss, match="after the micro-batch was planned"):
        stream(path).partitions(start, end)


def test_a_checkpoint_of_an_earlier_version_goes_on(path: Path, store: cometmq.Store) -> None:
    position = {"t/0": 5, "t/1": 5}
    assert latest(stream(path), position) == position, "no empty micro-batch"
    append(store, 2)
    assert positions(latest(stream(path), position)) == {"t/0": 6, "t/1": 6}


def test_a_checkpoint_of_the_other_form_is_refused(path: Path, store: cometmq.Store) -> None:
    """Its queues would count as lost, and with failOnDataLoss=false all would be read again."""
    lenient = stream(path, failOnDataLoss="false")
    with pytest.raises(OptionError, match="read with option nameServer"):
        latest(lenient, {"t/broker-a/0": 5})
    with pytest.raises(OptionError, match="new checkpointLocation"):
        lenient.partitions({"t/broker-a/0": 1}, {"t/broker-a/0": 5})


def test_expired_messages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "expiring"
    with open_small(path) as store:
        for _ in range(6):
            append(store, 2000)
    for segment in sorted((path / "commitlog").iterdir()):
        os.utime(segment, (1000, 1000))
    with open_small(path, retention=retention_on_request(72), background=False) as store:
        assert store.expire() > 0
        low = store.min_offset("t")
        assert low > 0
        with pytest.raises(DataLoss, match="are not all there any more"):
            stream(path).partitions({"t/0": 0}, {"t/0": 12_000})
        with caplog.at_level(logging.WARNING, "cometmq.spark"):
            lenient = stream(path, failOnDataLoss="false")
            assert len(read(lenient, {"t/0": 0}, {"t/0": 12_000})) == 12_000 - low
        # The earliest offset of a new stream is there.
        assert stream(path).initialOffset() == {"t/0": low}


def test_retention_passes_an_idle_stream(tmp_path: Path) -> None:
    """Its driver has seen less than what was deleted meanwhile: what is left is read, or the loss is reported."""
    path = tmp_path / "expiring"
    with open_small(path) as store:
        append(store, 10)
        strict, lenient = stream(path), stream(path, failOnDataLoss="false")
        begin = latest(lenient, strict.initialOffset())
        assert begin == latest(strict, strict.initialOffset())
        append(store, 12_000)
    for segment in (path / "commitlog").iterdir():
        os.utime(segment, (1000, 1000))
    with open_small(path, retention=retention_on_request(72), background=False) as store:
        assert store.expire() > 0
        low = store.min_offset("t")
        assert low > 10
        end = latest(lenient, begin)
        assert len(read(lenient, begin, end)) == 12_010 - low
        with pytest.raises(DataLoss, match="are not all there any more"):
            strict.partitions(begin, latest(strict, begin))


def test_topic_is_made_again_after_its_read_messages_expired(tmp_path: Path) -> None:
    """No message is left that the stream has read; the new topic's first ones are not taken for it."""
    path = tmp_path / "expiring"
    with open_small(path) as store:
        append(store, 12_000)
        reader = stream(path, failOnDataLoss="false", maxOffsetsPerTrigger="2")
        position = latest(reader, reader.initialOffset())
        append(store, 10, topic="other")
    for segment in (path / "commitlog").iterdir():
        os.utime(segment, (1000, 1000))
    with open_small(path, retention=retention_on_request(72), background=False) as store:
        assert store.expire() > 0
        position = latest(reader, position)
        assert positions(position) == {"t/0": 4}
        assert store.min_offset("t") > 4
        let_time_pass(store)
        store.delete_topic("t")
        append(store, 20)
        found: list[tuple[str, int]] = []
        while (end := latest(reader, position)) != position:
            found += read(reader, position, end)
            position = end
    assert sorted(found) == [("t", offset) for offset in range(20)]


def test_group_offsets(path: Path, store: cometmq.Store) -> None:
    reader = stream(path, groupId="spark", commitOffsets="true")
    reader.commit(through_json({"t/0": 3, "t/1": 2}))
    deadline = time.monotonic() + 20
    while len(store.progress("spark")) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)  # the hand-off waits for nobody
    assert {(one.queue_id, one.offset) for one in store.progress("spark")} == {(0, 3), (1, 2)}
    silent = stream(path)
    silent.commit({"t/0": 5})
    assert {one.group for one in store.progress("spark")} == {"spark"}


def test_group_offsets_never_end_a_stream(
    path: Path, store: cometmq.Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream(path, groupId="spark", commitOffsets="true")

    def fail(*_: object) -> None:
        raise cometmq.StoreLocked("a broker holds it")

    monkeypatch.setattr(cometmq.Store, "_commit_progress", fail)
    with caplog.at_level(logging.WARNING, "cometmq.spark"):
        reader.commit({"t/0": 3})
    assert "a broker holds it" in caplog.text


def test_group_offsets_of_queues_that_are_gone_are_left_out(
    path: Path, store: cometmq.Store, caplog: pytest.LogCaptureFixture
) -> None:
    append(store, 3, "again")
    append(store, 3, "gone")
    reader = stream(path, topic="t,again,gone", groupId="spark", commitOffsets="true")
    latest(reader, reader.initialOffset())
    store.delete_topic("gone")
    store.delete_topic("again")
    append(store, 1, "again")
    with caplog.at_level(logging.WARNING, "cometmq.spark"):
        for offset in (3, 4):
            reader.commit({"t/0": offset, "gone/0": 3, "again/0": 3})
    store.maintain()
    assert [(one.topic, one.offset) for one in store.progress("spark")] == [("t", 4)]
    assert [record.getMessage() for record in caplog.records] == [
        "the offsets of group spark were not committed in queues that are gone: again/0, gone/0"
    ]


def test_pickled_partitions_are_small(path: Path, store: cometmq.Store) -> None:
    reader = stream(path)
    latest(reader, reader.initialOffset())
    assert len(pickle.dumps(reader)) < 4000
    assert len(pickle.dumps(reader.partitions({"t/0": 0}, {"t/0": 5})[0])) < 300


def test_unknown_topics_at_the_start(path: Path, store: cometmq.Store) -> None:
    with pytest.raises(OptionError, match="no topic 'nope'"):
        stream(path, topic="nope").initialOffset()
