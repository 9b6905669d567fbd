"""Checks: topics are made once, durable before the loops and name servers hear of them, and shown as upstream does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.broker.topics import parse_attributes
from cometmq.errors import DiskFull, InvalidArgument
from cometmq.remoting.bodies.config_tables import (
    CreateTopicListRequestBody,
    KVTable,
    TopicConfigAndMappingSerializeWrapper,
    TopicList,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.store_config.topic_config import TopicConfig
from cometmq.store_config.topics import Topics
from support.broker_twins import Rig, run

CREATE = {
    "topic": "orders",
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "3",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
    "attributes": "",
    "force": "false",
}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


def stored(rig: Rig) -> dict[str, TopicConfig]:
    """Return the content of the file now."""
    topics = Topics(rig.store.path / "config")
    topics.load()
    return {topic.topic_name: topic for topic in topics.all()}


def test_a_broker_called_after_its_room_goes_without_the_topics_of_that_name(tmp_path: Path) -> None:
    """``room@broker`` is how upstream's strategies for machine rooms know where a broker stands."""
    with Rig(tmp_path, settings={"brokerName": "west@broker"}) as rig:
        names = set(stored(rig))
        assert {"SELF_TEST_TOPIC", "TBW102", "DefaultCluster"} <= names
        assert not {name for name in names if "@" in name}


def create(rig: Rig, **changes: str) -> Command:
    answer: Command = rig.run(RequestCode.UPDATE_AND_CREATE_TOPIC, {**CREATE, **changes})
    return answer


def test_the_brokers_own_topics_are_there_from_the_start(rig: Rig) -> None:
    # The first registration of a real 5.3.3 broker names these.
    expected = {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "DefaultCluster": (16, 7),
        "broker-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 6),
        "rmq_sys_REVIVE_LOG_DefaultCluster": (8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a": (1, 1),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
        "rmq_sys_wheel_timer": (1, 6),
    }
    assert {name: (topic.write_queue_nums, topic.perm) for name, topic in stored(rig).items()} == expected
    assert set(rig.plane.topics) == set(expected)
    assert rig.plane.perm == 6


def test_create_update_and_show(rig: Rig) -> None:
    answer = create(rig)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "not set any response code")
    assert rig.plane.log == ["topic orders", "announced orders"]
    assert stored(rig)["orders"].read_queue_nums == 4
    version = rig.control.topics.data_version
    assert create(rig).code == ResponseCode.SUCCESS
    assert rig.plane.log == ["topic orders", "announced orders"], "the same again is no change"
    assert rig.control.topics.data_version == version
    assert create(rig, perm="4").code == ResponseCode.SUCCESS
    assert rig.plane.topics["orders"].perm == 4
    assert rig.control.topics.data_version.counter == version.counter + 1
    answer = rig.run(RequestCode.GET_TOPIC_CONFIG, {"topic": "orders", "lo": "true"})
    assert answer.body == (
        b'{"attributes":{},"order":false,"perm":4,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
        b'"topicName":"orders","topicSysFlag":0,"writeQueueNums":3}'
    )
    answer = rig.run(RequestCode.GET_TOPIC_CONFIG, {"topic": "none"})
    assert (answer.code, answer.remark) == (ResponseCode.TOPIC_NOT_EXIST, "No topic in this broker. topic: none")


def test_the_whole_table(rig: Rig) -> None:
    create(rig)
    answer = rig.run(RequestCode.GET_ALL_TOPIC_CONFIG)
    body = TopicConfigAndMappingSerializeWrapper.from_json(answer.body)
    assert dict(body.topics) == stored(rig)
    assert body.data_version == rig.control.topics.data_version
    assert answer.fields == {}, "a total would make clients ask page by page"


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"topic": "a b"}, 29, "characters other than"),
        ({"topic": "x" * 128}, 29, "at most 127"),
        ({"topic": "TBW102"}, 29, "The topic[TBW102] is conflict with system topic."),
        ({"topic": "rmq_sys_own"}, 29, "is conflict with system topic"),
        ({"topic": "%LMQ%t"}, 29, "light queue"),
        ({"topic": ""}, 1, "the request has no topic"),
        ({"readQueueNums": "-1"}, 1, "-1 read queues"),
        ({"writeQueueNums": "65537"}, 1, "65537 write queues"),
        ({"writeQueueNums": "many"}, 1, "writeQueueNums is not a whole number"),
        ({"perm": "16"}, 1, "perm is 16"),
        ({"perm": "99999999999"}, 1, "perm is 99999999999, outside"),
        ({"attributes": "+message.type=MIXED"}, 29, "MIXED message type is not supported."),
        ({"attributes": "+colour=red"}, 1, "there is no topic attribute 'colour'"),
        ({"attributes": "colour"}, 1, "'colour' changes no attribute"),
        ({"attributes": "-queue.type"}, 1, "is written +name"),
    ],
)
def test_invalid_topic_is_refused_with_a_reason(rig: Rig, changes: dict[str, str], code: int, remark: str) -> None:
    answer = create(rig, **changes)
    assert answer.code == code
    assert remark in (answer.remark or "")
    assert rig.plane.log == []


def test_a_missing_member_is_named(rig: Rig) -> None:
    for name in ("topic", "defaultTopic", "readQueueNums", "writeQueueNums", "perm", "topicFilterType", "order"):
        fields = {key: value for key, value in CREATE.items() if key != name}
        answer = rig.run(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"the request has no {name}")


def test_attributes_are_set_and_deleted(rig: Rig) -> None:
    create(rig, attributes="+message.type=FIFO,+queue.type=BatchCQ")
    assert rig.plane.topics["orders"].attributes == {"message.type": "FIFO", "queue.type": "BatchCQ"}
    create(rig, attributes="-message.type")
    assert rig.plane.topics["orders"].attributes == {"queue.type": "BatchCQ"}
    answer = create(rig, attributes="+queue.type=SimpleCQ")
    assert "fixed when the topic is made" in (answer.remark or "")


def test_attribute_changes_are_read_as_upstream_writes_them() -> None:
    assert parse_attributes("") == {}
    assert parse_attributes("+a=1, -b") == {"+a": "1", "-b": ""}
    for text in ("+a", "-b=1", "a=1=2,a=3", "+", "-", "+a=1,+a=2"):
        with pytest.raises(InvalidArgument):
            parse_attributes(text) if text != "a=1=2,a=3" else parse_attributes("+a=1,+a=3")


def test_several_at_once_are_all_or_nothing(rig: Rig) -> None:
    good = [TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1) for name in ("a", "b")]
    bad = TopicConfig(topic_name="TBW102")
    body = CreateTopicListRequestBody(topics=(*good, bad))
    assert rig.run(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body.to_json()).code == 29
    assert rig.plane.log == []
    answer = rig.run(
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=CreateTopicListRequestBody(topics=tuple(good)).to_json()
    )
    assert answer.code == ResponseCode.SUCCESS
    assert rig.name_servers.announced == [["a", "b"]]
    assert {"a", "b"} <= set(stored(rig))


def test_a_topic_that_cannot_be_written_down_is_none(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    create(rig)

    def full(*, only_if_changed: bool = True) -> bool:
        raise DiskFull("no space left")

    monkeypatch.setattr(rig.control.topics._write, "_write", full)
    with pytest.raises(DiskFull):
        create(rig, topic="other")
    with pytest.raises(DiskFull):
        create(rig, perm="4")
    assert rig.control.topics.get("other") is None
    found = rig.control.topics.get("orders")
    assert found is not None
    assert found.perm == 6
    assert "other" not in rig.plane.topics


def test_deletion_takes_queues_progress_and_pop_retry_topics_along(rig: Rig) -> None:
    create(rig)
    rig.store.append("orders", b"1")
    rig.plane.commit_offset("g", "orders", 0, 1)
    retry = "%RETRY%g_orders"
    run(rig.control.topics.make_for_group(retry, queues=1))
    answer = rig.run(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    assert answer.code == ResponseCode.SUCCESS
    assert not {"orders", retry} & set(rig.plane.topics)
    assert not {"orders", retry} & set(stored(rig))
    assert rig.store.queues("orders") == []
    assert rig.plane.committed == {}
    assert rig.control.offsets.groups_of("orders") == ()
    assert rig.run(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}).code == ResponseCode.SUCCESS, (
        "again is fine"
    )
    for name, remark in (("", "The specified topic is blank."), ("TBW102", "is conflict with system topic")):
        answer = rig.run(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert remark in answer.remark


def test_the_systems_names(rig: Rig) -> None:
    names = TopicList.from_json(rig.run(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).body).topics
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "CHECKPOINT_TOPIC"} <= set(names)


def test_an_append_of_this_process_makes_the_topic_for_the_broker_too(rig: Rig) -> None:
    async def append() -> None:
        rig.control.attach(asyncio.get_running_loop())
        await asyncio.to_thread(rig.store.append, "embedded", b"1")
        while not rig.name_servers.announced:
            await asyncio.sleep(0)

    run(append())
    assert rig.plane.topics["embedded"].write_queue_nums == 4
    assert rig.name_servers.announced == [["embedded"]]
    rig.store.delete_topic("embedded")
    assert "embedded" not in rig.plane.topics


def test_more_queues_are_seen_by_this_processs_appends(rig: Rig) -> None:
    create(rig, writeQueueNums="1")
    assert {rig.store.append("orders", b"1").queue_id for _ in range(4)} == {0}
    create(rig, writeQueueNums="3", readQueueNums="3")
    assert {rig.store.append("orders", b"1").queue_id for _ in range(4)} == {0, 1, 2}


def test_order_comes_from_the_name_servers(rig: Rig) -> None:
    create(rig)
    create(rig, topic="other", order="true")
    run(rig.control.order_config(KVTable(table={"orders": "broker-a:4", "gone": "broker-a:1"})))
    assert rig.plane.topics["orders"].order
    assert not rig.plane.topics["other"].order
    assert json.loads((rig.store.path / "config" / "topics.json").read_text())["topicConfigTable"]["orders"]["order"]


def test_an_order_that_cannot_be_written_down_is_taken_later(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    create(rig)
    order = KVTable(table={"orders": "broker-a:4"})

    def full(*, only_if_changed: bool = True) -> bool:
        raise DiskFull("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(rig.control.topics._write, "_write", full)
        with pytest.raises(DiskFull):
            run(rig.control.order_config(order))
    found = rig.control.topics.get("orders")
    assert found is not None
    assert not found.order, "the next time it is still to be done"
    run(rig.control.order_config(order))
    assert rig.plane.topics["orders"].order
    assert stored(rig)["orders"].order


def test_a_topic_that_the_loops_do_not_take_leaves_the_others_in_order(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(rig)
    create(rig, topic="other")
    put_topic = rig.plane.put_topic

    def picky(topic: TopicConfig) -> None:
        if topic.topic_name == "orders":
            raise InvalidArgument("too many queues")
        put_topic(topic)

    monkeypatch.setattr(rig.plane, "put_topic", picky)
    run(rig.control.order_config(KVTable(table={"orders": "broker-a:4", "other": "broker-a:4"})))
    assert rig.plane.topics["other"].order


def test_a_retry_topic_that_cannot_be_made_keeps_no_other_from_being_made(rig: Rig) -> None:
    jobs = {job.name: job for job in rig.control.jobs()}
    rig.plane.wanted_topics = ["%RETRY%" + "g" * 255 + "_orders", "%RETRY%g_orders", "%RETRY%g+orders"]
    asyncio.run(jobs["pop retries"].run())
    for made in ("%RETRY%g_orders", "%RETRY%g+orders"):
        assert rig.plane.topics[made].read_queue_nums == stored(rig)[made].read_queue_nums == 1
    assert rig.plane.wanted_made == 1
