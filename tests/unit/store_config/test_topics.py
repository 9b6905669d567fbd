"""Checks: topics and their attributes follow upstream's rules, unknown members survive, names are validated."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from cometmq.errors import InvalidArgument, InvalidTopic, TopicNotFound
from cometmq.store_config.built_in_topics import SCHEDULE_TOPIC, system_topics
from cometmq.store_config.data_version import DataVersion
from cometmq.store_config.errors import ConfigError, ConfigValueError
from cometmq.store_config.fastjson import JsonObject, loads
from cometmq.store_config.names import (
    dead_letter_topic,
    is_light_queue,
    is_system_topic,
    may_send_to,
    retry_topic,
    validate_group,
    validate_made_topic,
    validate_topic,
    validate_used_group,
)
from cometmq.store_config.topic_config import CleanupPolicy, MessageType, Perm, QueueType, TopicConfig, alter_attributes
from cometmq.store_config.topics import Topics

RENAMED = """{"topicConfigTable":{
"orders":{"topicName":"bills","readQueueNums":3,"writeQueueNums":3,"perm":6},
"bills":{"topicName":"bills","readQueueNums":1,"writeQueueNums":1,"perm":6}}}"""

FILE = """{
	"dataVersion":{
		"counter":7,
		"futureCounter":"kept",
		"stateVersion":0,
		"timestamp":1700000000000
	},
	"futureTable":{0:1,1:2
	},
	"topicConfigTable":{
		"orders":{
			"attributes":{
				"cleanup.policy":"COMPACTION",
				"queue.type":"BatchCQ"
			},
			"futureMember":[1,2],
			"order":false,
			"perm":6,
			"readQueueNums":8,
			"topicFilterType":"SINGLE_TAG",
			"topicName":"orders",
			"topicSysFlag":0,
			"writeQueueNums":8
		}
	}
}"""


def clock(*times: int) -> Callable[[], int]:
    left = list(times)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def topics_of(folder: Path, text: str) -> Topics:
    folder.joinpath("topics.json").write_text(text, encoding="utf-8")
    topics = Topics(folder)
    topics.load()
    return topics


def test_unknown_members_survive_a_change(tmp_path: Path) -> None:
    topics = topics_of(tmp_path, FILE)
    orders = topics.get("orders")
    assert orders is not None
    topics.put(replace(orders, read_queue_nums=16))
    assert topics.persist()
    assert not topics.persist(), "nothing is left to write"
    written = (tmp_path / "topics.json").read_text("utf-8")
    expected = FILE.replace('"readQueueNums":8', '"readQueueNums":16').replace('"counter":7', '"counter":8')
    stamp = str(topics.data_version.timestamp_ms)
    assert written == expected.replace("1700000000000", stamp)


def test_typed_attributes(tmp_path: Path) -> None:
    orders = topics_of(tmp_path, FILE).get("orders")
    assert orders is not None
    assert orders.queue_type is QueueType.BATCH
    assert orders.cleanup_policy is CleanupPolicy.COMPACTION
    assert orders.message_type is MessageType.NORMAL
    assert orders.is_readable
    assert orders.is_writable
    assert not replace(orders, perm=Perm.READ).is_writable
    odd = replace(orders, attributes={"queue.type": "RocksCQ"})
    with pytest.raises(ConfigValueError, match=r"topicConfigTable\.orders\.attributes\.queue\.type: 'RocksCQ' is none"):
        _ = odd.queue_type
    with pytest.raises(FrozenInstanceError):
        orders.perm = 2  # type: ignore[misc]


def test_values_are_converted_as_fastjson_converts_them(tmp_path: Path) -> None:
    text = (
        "{topicConfigTable:{t:{perm:'6',order:'TRUE',readQueueNums:4.0,writeQueueNums:null,attributes:{'a':5,b:null}}}}"
    )
    topic = topics_of(tmp_path, text).get("t")
    assert topic == TopicConfig(
        topic_name="t", read_queue_nums=4, write_queue_nums=16, order=True, attributes={"a": "5"}
    )


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{topicConfigTable:{t:{perm:'six'}}}", "topicConfigTable.t.perm: expected a whole number, found 'six'"),
        ("{topicConfigTable:{t:{perm:2147483648}}}", "topicConfigTable.t.perm: 2147483648 is outside"),
        ("{topicConfigTable:{t:{perm:1e9999}}}", "topicConfigTable.t.perm: 1E+9999 is outside"),
        ("{topicConfigTable:{t:{perm:1.5}}}", "topicConfigTable.t.perm: expected a whole number, found 1.5"),
        ("{topicConfigTable:{t:{order:'maybe'}}}", "topicConfigTable.t.order: expected true or false, found 'maybe'"),
        ("{topicConfigTable:{t:[]}}", "topicConfigTable.t: expected an object, found an array"),
        ("{topicConfigTable:{t:{attributes:{a:[]}}}}", "topicConfigTable.t.attributes.a: expected a string, found an"),
        ("{topicConfigTable:5}", "topicConfigTable: expected an object, found 5"),
        ("{dataVersion:{counter:true}}", None),
        ("{dataVersion:{counter:{}}}", "dataVersion.counter: expected a whole number, found an object"),
    ],
)
def test_a_wrong_value_names_its_place_and_changes_nothing(tmp_path: Path, text: str, place: str | None) -> None:
    topics = topics_of(tmp_path, FILE)
    before = topics.encode()
    (tmp_path / "topics.json").write_text(text)
    (tmp_path / "topics.json.bak").write_text(text)
    if place is None:
        topics.load()
        return
    with pytest.raises(ConfigError) as caught:
        topics.load()
    assert place in str(caught.value)
    assert topics.encode() == before


def test_stored_topics_win_over_the_systems(tmp_path: Path) -> None:
    text = "{topicConfigTable:{TBW102:{topicName:'TBW102',perm:6,readQueueNums:3,writeQueueNums:3},mine:{}}}"
    (tmp_path / "topics.json").write_text(text)
    topics = Topics(tmp_path, system=system_topics(broker_cluster_name="c", broker_name="b"))
    assert len(topics) == 13
    topics.load()
    tbw, schedule = topics.get("TBW102"), topics.get(SCHEDULE_TOPIC)
    assert tbw is not None
    assert tbw.read_queue_nums == 3
    assert schedule is not None
    assert schedule.write_queue_nums == 18
    assert [topic.topic_name for topic in topics.all()][:2] == ["TBW102", "mine"]
    assert {"c", "b", "c_REPLY_TOPIC", "rmq_sys_REVIVE_LOG_c", "rmq_sys_SYNC_BROKER_MEMBER_b"} <= {
        topic.topic_name for topic in topics.all()
    }


def test_system_topics_follow_the_brokers_options() -> None:
    few = system_topics(
        auto_create_topic_enable=False, timer_wheel_enable=False, trace_topic_enable=True, cluster_topic_enable=False
    )
    names = {topic.topic_name: topic for topic in few}
    assert "TBW102" not in names
    assert "rmq_sys_wheel_timer" not in names
    assert names["RMQ_SYS_TRACE_TOPIC"].read_queue_nums == 1
    assert names["DefaultCluster"].perm == Perm.INHERIT
    assert names["broker-a"].perm == 7
    assert names["BenchmarkTest"].write_queue_nums == 1024


def test_put_get_remove_and_versions(tmp_path: Path) -> None:
    topics = Topics(tmp_path, now_ms=clock(10, 20, 30, 40))
    assert topics.data_version == DataVersion(timestamp_ms=10)
    assert topics.put(TopicConfig(topic_name="a")) is None
    assert topics.data_version == DataVersion(counter=1, timestamp_ms=20)
    made = topics.get_or_create("b", queue_nums=4)
    assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (4, 4, 6)
    assert topics.get_or_create("b", queue_nums=9) is made
    assert topics.data_version.counter == 2
    assert topics.remove("a") is not None
    assert topics.remove("a") is None
    assert "a" not in topics
    assert topics.persist()
    assert not topics.persist()
    again = Topics(tmp_path)
    again.load()
    assert again.all() == (made,)
    assert again.data_version == DataVersion(counter=3, timestamp_ms=40)
    assert again.data_version.is_newer_than(DataVersion(counter=3, timestamp_ms=39))
    assert not again.data_version.is_newer_than(again.data_version)


def test_a_load_without_a_file_goes_back_to_the_defaults(tmp_path: Path) -> None:
    topics = Topics(tmp_path)
    topics.put(TopicConfig(topic_name="a"))
    topics.load()
    assert len(topics) == 0
    (tmp_path / "topics.json").write_text("null")
    assert topics.load().warning is None


def test_light_queues_have_no_entry(tmp_path: Path) -> None:
    topics = Topics(tmp_path, light_queues=True)
    assert topics.get("%LMQ%x") == TopicConfig(topic_name="%LMQ%x", read_queue_nums=1, write_queue_nums=1)
    assert Topics(tmp_path).get("%LMQ%x") is None
    with pytest.raises(InvalidArgument, match="light queue"):
        topics.put(TopicConfig(topic_name="%LMQ%x"))


def test_put_refuses_the_names_that_upstream_refuses(tmp_path: Path) -> None:
    topics = Topics(tmp_path)
    with pytest.raises(InvalidTopic):
        topics.put(TopicConfig(topic_name="../x"))
    with pytest.raises(InvalidArgument, match="-1 write queues"):
        topics.put(TopicConfig(topic_name="x", write_queue_nums=-1))
    assert not topics.changed


@pytest.mark.parametrize("name", ["a", "A-b_c|d%9", "x" * 127, "%RETRY%" + "x" * 248, "%DLQ%" + "x" * 250])
def test_topic_names_allowed(name: str) -> None:
    assert validate_topic(name) == name


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a/b", "..", "a.b", "a\n", "a\x00", "é", "a+b", "a@b", "x" * 128, "%RETRY%" + "x" * 249, "a\\b"],
)
def test_topic_names_refused(name: str) -> None:
    with pytest.raises(InvalidTopic, match=r"^the topic name "):
        validate_topic(name)


def test_topic_names_that_brokers_make() -> None:
    for name in ("a", "%RETRY%g_T", "%RETRY%g+T", "%RETRY%" + "g" * 120 + "+" + "T" * 127):
        assert validate_made_topic(name) == name
    for name in (
        "a+b",
        "%RETRY%+T",
        "%RETRY%g+",
        "%RETRY%g+T+",
        "%RETRY%g+a/b",
        "%DLQ%g+T",
        "%RETRY%" + "g" * 248 + "+T",
    ):
        with pytest.raises(InvalidTopic, match=r"^the topic name "):
            validate_made_topic(name)


def test_group_names() -> None:
    assert validate_group("g" * 120) == "g" * 120
    for name in ("g" * 121, "", "a/b"):
        with pytest.raises(InvalidArgument, match=r"^the group name "):
            validate_group(name)


def test_groups_that_clients_simply_use_may_be_longer() -> None:
    assert validate_used_group("g" * 248) == "g" * 248
    for name in ("", "g" * 249, "a b"):
        with pytest.raises(InvalidArgument):
            validate_used_group(name)


def test_names_of_values() -> None:
    assert is_system_topic("rmq_sys_wheel_timer")
    assert is_system_topic("SCHEDULE_TOPIC_XXXX")
    assert not is_system_topic("orders")
    assert not may_send_to("SCHEDULE_TOPIC_XXXX")
    assert may_send_to("TBW102")
    assert is_light_queue("%LMQ%a")
    assert (retry_topic("g"), dead_letter_topic("g")) == ("%RETRY%g", "%DLQ%g")


def test_alter(tmp_path: Path) -> None:
    topics = topics_of(tmp_path, FILE)
    altered = topics.alter("orders", {"+message.type": "FIFO"})
    assert altered.message_type is MessageType.FIFO
    assert topics.get("orders") == altered
    with pytest.raises(TopicNotFound):
        topics.alter("none", {})


def test_alter_attributes() -> None:
    assert alter_attributes(None, {"+queue.type": "BatchCQ", "+reserve.time": "-1"}) == {
        "queue.type": "BatchCQ",
        "reserve.time": "-1",
    }
    assert alter_attributes({"message.type": "FIFO"}, {"-message.type": ""}) == {}
    assert alter_attributes({"other": "x"}, {"+reserve.time": "9223372036854775807"})["other"] == "x"


@pytest.mark.parametrize(
    ("current", "changes"),
    [
        (None, {"queue.type": "BatchCQ"}),
        (None, {"-queue.type": "BatchCQ"}),
        (None, {"+nothing": "x"}),
        (None, {"+queue.type": "batch"}),
        (None, {"+": "x"}),
        (None, {"+cleanup.policy": "COMPACTION"}),
        ({}, {"+queue.type": "BatchCQ"}),
        ({}, {"-message.type": ""}),
        ({}, {"+message.type": "FIFO", "-message.type": ""}),
        ({}, {"+reserve.time": "-2"}),
        ({}, {"+reserve.time": "9223372036854775808"}),
        ({}, {"+reserve.time": "5h"}),
        ({}, {"+reserve.time": ""}),
    ],
)
def test_attribute_changes_refused(current: dict[str, str] | None, changes: dict[str, str]) -> None:
    before = dict(current or {})
    with pytest.raises(InvalidArgument):
        alter_attributes(current, changes)
    assert (current or {}) == before


def test_the_file_is_read_by_name_of_its_key_where_it_has_no_name(tmp_path: Path) -> None:
    topic = topics_of(tmp_path, "{topicConfigTable:{t:{}}}").get("t")
    assert topic == TopicConfig(topic_name="t")
    assert loads("{}") == {}


def test_an_entry_has_the_name_that_it_is_found_by(tmp_path: Path) -> None:
    (tmp_path / "topics.json").write_text(RENAMED)
    topics = Topics(tmp_path)
    topics.load()
    assert [(topic.topic_name, topic.read_queue_nums) for topic in topics.all()] == [("orders", 3), ("bills", 1)]
    for topic in topics.all():
        assert topics.get(topic.topic_name) is topic


def test_look_ups_and_changes_do_not_wait_for_the_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 topics take half a second, in which a broker looks topics up for requests."""
    topics = Topics(tmp_path)
    topics.put(TopicConfig(topic_name="orders"))
    encoding, continues = threading.Event(), threading.Event()
    encode = TopicConfig.encode

    def stopped(config: TopicConfig) -> JsonObject:
        encoding.set()
        assert continues.wait(60)
        return encode(config)

    monkeypatch.setattr(TopicConfig, "encode", stopped)
    with ThreadPoolExecutor(2) as threads:
        try:
            written = threads.submit(topics.persist)
            assert encoding.wait(60)
            assert threads.submit(topics.get, "orders").result(60) is not None
            assert threads.submit(topics.put, TopicConfig(topic_name="bills")).result(60) is None
        finally:
            continues.set()
        assert written.result(60)
    assert topics.changed
    stored = Topics(tmp_path)
    stored.load()
    assert [topic.topic_name for topic in stored.all()] == ["orders"]
    assert topics.persist()
    stored.load()
    assert [topic.topic_name for topic in stored.all()] == ["orders", "bills"]
