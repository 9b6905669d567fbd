"""Checks: progress survives, is shown as upstream shows it, and moves where administration says, here or at clients."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import cometmq
from cometmq import QueueInfo
from cometmq.broker.plane import OffsetChange
from cometmq.errors import StorageError
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.offset_changes import ResetOffsetBody, ResetOffsetBodyForC
from cometmq.remoting.bodies.stats import (
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command, Language
from cometmq.store_config.consumer_offsets import ConsumerOffsets
from support.broker_twins import NOW_MS, Caller, Rig, consumer, run


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        topic(rig, "orders", queues=2)
        for number in range(5):
            rig.store.append("orders", b"%d" % number, queue=0)
        run(rig.control.groups.find_or_make("g"))
        yield rig


def topic(rig: Rig, name: str, *, queues: int, order: bool = False) -> None:
    run(rig.control.topics.make_for_group(name, queues=queues, order=order))


def queue(queue_id: int, name: str = "orders") -> MessageQueue:
    return MessageQueue(topic=name, broker_name="broker-a", queue_id=queue_id)


def stored(path: Path) -> ConsumerOffsets:
    offsets = ConsumerOffsets(path / "config")
    offsets.load()
    return offsets


# --- The table


def test_progress_past_the_queues_end_is_set_back_at_the_start(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.store.append_many("orders", [b"m"] * 5, queue=0)
        rig.control.stop()
    table = ConsumerOffsets(tmp_path / "config")
    table.load()
    table.commit("g", "orders", 0, 100)
    table.persist()
    with Rig(tmp_path) as rig:
        assert rig.plane.committed == {("g", "orders", 0): 5}
    assert stored(tmp_path).all() == [("g", "orders", 0, 5)]


def test_commit_during_a_flush_is_written_by_the_next(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flush() -> None:
        rig.plane.commit_offset("g", "orders", 0, 4)
        rig.control.offsets.sync()

    rig.plane.commit_offset("g", "orders", 0, 3)
    monkeypatch.setattr(rig.store._group_book._journal, "_cover", flush)
    rig.control.offsets.persist()
    assert stored(tmp_path).get("g", "orders", 0) == 3
    monkeypatch.setattr(rig.store._group_book._journal, "_cover", lambda: None)
    rig.control.offsets.persist()
    assert stored(tmp_path).get("g", "orders", 0) == 4


def test_progress_in_a_queue_that_expired_and_was_deleted_restarts(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.store._commit_progress("g", {("orders", 0): 5})
    rig.store._commit_progress("h", {("other", 0): 5})
    expired = [QueueInfo(topic="orders", queue_id=0, min_offset=9, max_offset=9, is_batch=False)]
    monkeypatch.setattr(type(rig.store), "queues", lambda store: expired)
    rig.run(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    rig.control.offsets.sync()
    assert rig.plane.committed == {("g", "orders", 0): 0, ("h", "other", 0): 5}


def test_a_broker_and_embedded_consumers_agree(rig: Rig, tmp_path: Path) -> None:
    """Commits of the embedded API reach the loops, and outlive a killed broker; the broker's own come behind."""
    rig.store.set_progress("g", "orders", 0, 2)
    assert rig.plane.committed[("g", "orders", 0)] == 2
    rig.control.offsets.persist()
    rig.store.set_progress("g", "orders", 0, 3)
    with cometmq.open(tmp_path, mode="r") as reader:
        assert [found.offset for found in reader.progress("g")] == [3]
    shutil.copytree(tmp_path, tmp_path / "killed", ignore=shutil.ignore_patterns("wake", "killed"))
    with Rig(tmp_path / "killed") as again:
        assert again.plane.committed == {("g", "orders", 0): 3}
    rig.plane.commit_offset("g", "orders", 0, 5)
    rig.control.offsets.persist()
    with cometmq.open(tmp_path, mode="r") as reader:
        assert [found.offset for found in reader.progress("g")] == [5]


def test_progress_is_written_and_given_to_the_loops_at_the_next_start(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.store.append("u", b"m")
        rig.plane.commit_offset("g", "t", 3, 7)
        rig.plane.versions = 2
        rig.control.offsets.persist()
        assert stored(tmp_path).all() == [("g", "t", 3, 7)]
        assert stored(tmp_path).data_version.counter == 2
        rig.plane.remove_offsets(group="g")
        rig.plane.commit_offset("g", "u", 0, 1)
        rig.control.stop()
    assert stored(tmp_path).all() == [("g", "u", 0, 1)]
    with Rig(tmp_path) as rig:
        assert rig.plane.committed == {("g", "u", 0): 1}
        assert rig.plane.changes == [], "loading is not a change"


def test_a_failed_write_is_tried_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    table = rig.control.offsets._table
    rig.plane.commit_offset("g", "orders", 0, 3)

    def fail(*_: object, **__: object) -> None:
        raise StorageError("no")

    with monkeypatch.context() as patch:
        patch.setattr(table._file, "persist", fail)
        with pytest.raises(StorageError):
            rig.control.offsets.persist()
    rig.control.offsets.persist()
    assert stored(rig.store.path).get("g", "orders", 0) == 3


def test_an_odd_offset_does_not_stop_the_others(rig: Rig) -> None:
    # A client may commit any number; upstream keeps them all.
    rig.plane.changes += [OffsetChange("g", "orders", 0, -5), OffsetChange("g", "orders", 1, 4)]
    rig.control.offsets.persist()
    assert stored(rig.store.path).queues("g", "orders") == {1: 4}


def test_the_table_as_slaves_read_it(rig: Rig) -> None:
    rig.plane.commit_offset("g", "orders", 1, 4)
    answer = rig.run(RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert b'"offsetTable":{"orders@g":{1:4}}' in answer.body


# --- 208, 317


def stats(rig: Rig, **fields: str) -> dict[MessageQueue, OffsetWrapper]:
    answer = rig.run(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", **fields})
    assert answer.code == ResponseCode.SUCCESS
    return dict(ConsumeStats.from_json(answer.body).offsets)


def test_how_far_a_group_is(rig: Rig) -> None:
    rig.plane.commit_offset("g", "orders", 0, 2)
    rig.plane.pulls["g", "orders", 0] = 4
    stored_ms = rig.store.get("orders", 0, 1).store_timestamp_ms
    expected = {
        queue(0): OffsetWrapper(broker_offset=5, consumer_offset=2, pull_offset=4, last_timestamp_ms=stored_ms),
        queue(1): OffsetWrapper(),
    }
    assert stats(rig) == stats(rig, topic="orders") == stats(rig, topicList="orders;none") == expected
    rig.plane.pops["g", "orders", 0] = 5
    assert stats(rig)[queue(0)].pull_offset == 5, "as Apache's newer POP service has it"
    del rig.plane.pops["g", "orders", 0]
    assert stats(rig, topic="none") == {}
    run(rig.heartbeat(Caller(), consumer("g", "other")))
    assert stats(rig) == stats(rig, topic="orders") == {}, "topics that an online group does not read are left out"
    assert stats(rig, topicList="orders") == expected, "unless they are listed"


def test_how_far_all_groups_are(rig: Rig) -> None:
    rig.plane.commit_offset("g", "orders", 0, 2)
    answer = rig.run(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    body = ConsumeStatsList.from_json(answer.body)
    groups = {name: stats for line in body.groups for name, stats in line.items()}
    assert groups["TOOLS_CONSUMER"] == ()
    (found,) = groups["g"]
    assert found.offsets[queue(0)].consumer_offset == 2
    assert (body.broker_address, body.total_diff, body.total_inflight_diff) == ("127.0.0.1:10911", 3, -2)
    answer = rig.run(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "true"})
    assert ConsumeStatsList.from_json(answer.body).total_diff == 0, "the topic is not ordered"
    answer = rig.run(RequestCode.GET_BROKER_CONSUME_STATS)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "the request has no isOrder")


# --- 222


def reset(rig: Rig, **changes: str) -> Command:
    fields = {"topic": "orders", "group": "g", "timestamp": "-1", "isForce": "true", "queueId": "-1", "offset": "-1"}
    fields = {**fields, **changes}
    language = Language[fields.pop("language", "JAVA")]
    answer: Command = rig.run(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields, language=language)
    return answer


def test_a_reset_waits_at_the_loops_for_the_next_pull(rig: Rig) -> None:
    rig.plane.commit_offset("g", "orders", 0, 2)
    answer = reset(rig)
    assert answer.body == (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:5,'
        b'{"brokerName":"broker-a","queueId":1,"topic":"orders"}:0}}'
    )
    assert rig.plane.resets == {("g", "orders", 0): 5, ("g", "orders", 1): 0}
    rig.plane.commit_offset("g", "orders", 0, 1)
    assert rig.plane.query_offset("g", "orders", 0) == 5


def test_a_reset_by_time_and_by_offset(rig: Rig) -> None:
    third_ms = rig.store.get("orders", 0, 0).store_timestamp_ms
    assert ResetOffsetBody.from_json(reset(rig, timestamp="0").body).offsets[queue(0)] == 0
    assert ResetOffsetBody.from_json(reset(rig, timestamp=str(third_ms + 10**9)).body).offsets[queue(0)] == 5
    assert ResetOffsetBody.from_json(reset(rig, queueId="0", offset="3").body).offsets == {queue(0): 3}
    assert ResetOffsetBody.from_json(reset(rig, queueId="0", offset="6").body).offsets == {queue(0): 6}
    assert ResetOffsetBody.from_json(reset(rig, queueId="0", timestamp="0").body).offsets == {queue(0): 0}


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST, "Topic none does not exist"),
        ({"group": "none"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "Group none does not exist"),
        ({"queueId": "0", "offset": "7"}, 1, "Target offset 7 not in consume queue range [0-5]"),
        ({"queueId": "2"}, 1, "queueId is 2; the topic orders has 2 queues"),
        ({"timestamp": "soon"}, 1, "timestamp is not a whole number"),
        ({"isForce": ""}, 1, "the request has no isForce"),
    ],
)
def test_invalid_reset_is_refused(rig: Rig, changes: dict[str, str], code: int, remark: str) -> None:
    answer = reset(rig, **changes)
    assert answer.code == code
    assert remark in (answer.remark or "")
    assert rig.plane.resets == {}


def test_resets_at_clients(tmp_path: Path) -> None:
    with Rig(tmp_path, settings={"useServerSideResetOffset": False}) as rig:
        topic(rig, "orders", queues=1)
        for number in range(5):
            rig.store.append("orders", b"%d" % number, queue=0)
        assert reset(rig, topic="none").code == ResponseCode.TOPIC_NOT_EXIST
        assert reset(rig).remark == "THe consumer group <g> not exist"
        rig.plane.commit_offset("g", "orders", 0, 3)
        answer = reset(rig)
        assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
        assert answer.remark == "Consumer not online, so can not reset offset, Group: g Topic: orders Timestamp: -1"
        run(rig.heartbeat(Caller(1), consumer("g", "orders")))
        run(rig.heartbeat(Caller(2), consumer("g", "orders")))
        rig.link.sent.clear()
        answer = reset(rig, timestamp="0")
        assert ResetOffsetBody.from_json(answer.body).offsets == {queue(0): 0}
        assert [conn for conn, _ in rig.link.sent] == [1, 2]
        order = rig.link.sent[0][1]
        assert order.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
        assert order.fields["timestamp"] == "0"
        assert ResetOffsetBody.from_json(order.body).offsets == {queue(0): 0}
        assert rig.plane.resets == {}
        assert ResetOffsetBody.from_json(reset(rig, isForce="false").body).offsets == {queue(0): 3}, "never forward"
        reset(rig, language="CPP")
        (place,) = ResetOffsetBodyForC.from_json(rig.link.sent[-1][1].body).offsets
        assert (place.queue_id, place.offset) == (0, 5)
        group = rig.control.clients.consumers.get("g")
        assert group is not None
        group.members[1] = replace(group.members[1], version=27)
        rig.link.sent.clear()
        assert "does not support" in (reset(rig).remark or "")
        assert rig.link.sent == []


# --- 314, 303, 308


def test_a_group_can_be_given_anothers_progress(rig: Rig) -> None:
    topic(rig, "other", queues=1)
    rig.plane.commit_offset("g", "orders", 0, 2)
    rig.plane.commit_offset("g", "other", 0, 9)
    rig.plane.commit_offset("g", "gone", 0, 9)
    fields = {"srcGroup": "g", "destGroup": "h", "topic": "orders", "offline": "false"}
    assert rig.run(RequestCode.CLONE_GROUP_OFFSET, fields).code == ResponseCode.SUCCESS
    assert rig.control.offsets.topics_of("h") == ("orders",)
    rig.run(RequestCode.CLONE_GROUP_OFFSET, {**fields, "topic": "", "destGroup": "i"})
    assert set(rig.control.offsets.topics_of("i")) == {"orders", "other"}
    run(rig.heartbeat(Caller(), consumer("g", "other")))
    rig.run(RequestCode.CLONE_GROUP_OFFSET, {**fields, "topic": "", "destGroup": "j"})
    assert rig.control.offsets.topics_of("j") == ("other",)
    rig.run(RequestCode.CLONE_GROUP_OFFSET, {**fields, "topic": "", "destGroup": "k", "offline": "true"})
    assert set(rig.control.offsets.topics_of("k")) == {"orders", "other"}


def test_store_times_of_a_backlog(rig: Rig) -> None:
    rig.plane.commit_offset("g", "orders", 0, 2)
    times = [rig.store.get("orders", 0, offset).store_timestamp_ms for offset in range(5)]
    answer = rig.run(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "orders", "group": "g"})
    first, empty = QueryConsumeTimeSpanBody.from_json(answer.body).spans
    assert first.queue == queue(0)
    assert (first.min_timestamp_ms, first.max_timestamp_ms, first.consume_timestamp_ms) == (
        times[0],
        times[4],
        times[1],
    )
    assert first.delay_ms == NOW_MS - times[2]
    assert (empty.min_timestamp_ms, empty.max_timestamp_ms, empty.delay_ms) == (-1, -1, 0)
    text = first.min_timestamp_text or ""
    assert (text[4], text[10], text[-3:]) == ("-", "#", f"{times[0] % 1000:03d}")
    answer = rig.run(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "none", "group": "g"})
    assert (answer.code, answer.remark) == (ResponseCode.TOPIC_NOT_EXIST, "topic[none] not exist")


def test_the_least_progress_of_all_groups(rig: Rig) -> None:
    for group, offset in (("g", 4), ("h", 2), ("i", 1)):
        rig.plane.commit_offset(group, "orders", 0, offset)

    def corrections(compared: str, left_out: str) -> dict[int, int]:
        fields = {"topic": "orders", "compareGroup": compared, "filterGroups": left_out}
        answer = rig.run(RequestCode.QUERY_CORRECTION_OFFSET, fields)
        return dict(QueryCorrectionOffsetBody.from_json(answer.body).offsets)

    assert corrections("g", "") == {0: 1}
    assert corrections("g", "i") == {0: 2}
    assert corrections("i", "i") == {0: 2**63 - 1}, "the compared group is behind all others"
    assert rig.plane.committed["i", "orders", 0] == 1, "nothing is deleted"
