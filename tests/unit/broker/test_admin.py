"""Checks: state, settings, members, statistics and cleaning up answer as upstream; only the allow-list can be set."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import cometmq
from cometmq.remoting.bodies.config_tables import GroupList, KVTable, TopicList
from cometmq.remoting.bodies.connections import ConsumerConnection, ProducerConnection, ProducerTableInfo
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.queries import QuerySubscriptionResponseBody
from cometmq.remoting.bodies.stats import BrokerStatsData, TopicStatsTable
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.store_config.java_properties import parse_properties
from support.broker_twins import NOW_MS, Caller, Rig, consumer, run

# The keys of a real 5.3.3 broker's answer (golden/apache-5.3.3-expired), but for the path of its log.
RUNTIME_KEYS = """
EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity ackThreadPoolQueueCapacity
ackThreadPoolQueueHeadWaitTimeMills ackThreadPoolQueueSize bootTimestamp brokerActive brokerVersion
brokerVersionDesc commitLogDirCapacity commitLogDiskRatio commitLogMaxOffset commitLogMinOffset
consumeQueueDiskRatio dispatchBehindBytes dispatchMaxBuffer earliestMessageTimeStamp getFoundTps
getMessageEntireTimeMax getMissTps getTotalTps getTransferredTps litePullThreadPoolQueueCapacity
litePullThreadPoolQueueHeadWaitTimeMills litePullThreadPoolQueueSize msgGetTotalTodayMorning msgGetTotalTodayNow
msgGetTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow msgPutTotalYesterdayMorning
pageCacheLockTimeMills pullThreadPoolQueueCapacity pullThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize
putLatency99 putLatency999 putMessageAverageSize putMessageDistributeTime putMessageEntireTimeMax
putMessageFailedTimes putMessageSizeTotal putMessageTimesTotal putTps queryThreadPoolQueueCapacity
queryThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize remainHowManyDataToFlush
remainTransientStoreBufferNumbs runtime sendThreadPoolQueueCapacity sendThreadPoolQueueHeadWaitTimeMills
sendThreadPoolQueueSize startAcceptSendRequestTimeStamp timerCongestNum timerDequeueTps timerEnqueueTps
timerOffsetBehind timerReadBehind
"""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


def runtime(rig: Rig) -> dict[str, str]:
    return dict(KVTable.from_json(rig.run(RequestCode.GET_BROKER_RUNTIME_INFO).body).table)


def test_the_state_has_all_keys_that_tools_read(rig: Rig) -> None:
    rig.plane.levels = {2: 7}
    table = runtime(rig)
    log = rig.store.path / "commitlog"
    ours = {"cometmqVersion", f"commitLogDiskRatio_{log}", "scheduleMessageOffset_2"}
    assert set(table) == {*RUNTIME_KEYS.split(), *ours}
    assert table["cometmqVersion"] == cometmq.__version__
    assert table["scheduleMessageOffset_2"] == "7,0"
    assert (table["brokerVersionDesc"], table["brokerActive"]) == ("V5_3_3", "true")
    assert (table["putTps"], table["getTotalTps"]) == ("0.0  ", "0.0 0.0 0.0"), "blanks of unknown windows stay"
    assert table["earliestMessageTimeStamp"] == "-1"
    for key in ("commitLogDiskRatio", "consumeQueueDiskRatio", f"commitLogDiskRatio_{log}"):
        assert 0 <= float(table[key]) <= 1


def test_space_reserved_for_root_counts_as_used_in_no_ratio(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    (rig.store.path / "commitlog").mkdir(exist_ok=True)
    space = SimpleNamespace(f_blocks=1000, f_frsize=1024, f_bfree=450, f_bavail=50)
    monkeypatch.setattr("os.statvfs", lambda path: space)
    table = runtime(rig)
    for key in ("commitLogDiskRatio", "consumeQueueDiskRatio", f"commitLogDiskRatio_{rig.store.path / 'commitlog'}"):
        assert table[key] == "0.9167", "df prints 92 %"
    assert table["commitLogDirCapacity"] == "Total : 1000.0 KiB, Free : 50.0 KiB."


def test_state_follows_changes(rig: Rig) -> None:
    rig.store.append("orders", b"1")
    rig.plane.totals = {"messages_in": 40, "message_bytes_in": 4_000, "messages_out": 7, "pulls": 9, "pulls_found": 4}
    rig.control.sample()
    rig.clock.move(3_600_000 + 61_000)
    table = runtime(rig)
    assert table["runtime"] == "[ 0 days, 1 hours, 1 minutes, 1 seconds ]"
    assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("40", "7")
    assert table["putMessageAverageSize"] == "100.0"
    assert float(table["putTps"].split(" ")[0]) == pytest.approx(4.0)
    assert float(table["getMissTps"].split(" ")[0]) == pytest.approx(0.5)
    assert int(table["commitLogMaxOffset"]) > 0
    assert int(table["earliestMessageTimeStamp"]) > 0


def test_settings_are_shown_and_those_of_the_list_can_be_set(rig: Rig) -> None:
    answer = rig.run(RequestCode.GET_BROKER_CONFIG)
    shown = parse_properties(answer.body)
    assert (shown["brokerName"], shown["brokerPermission"], shown["flushDiskType"]) == ("broker-a", "6", "ASYNC_FLUSH")
    assert json.loads(answer.fields["version"]) == {"counter": 0, "stateVersion": 0, "timestamp": NOW_MS}
    body = b"brokerPermission=4\nautoCreateTopicEnable=false\nflushConsumerOffsetInterval=1000\n"
    assert rig.run(RequestCode.UPDATE_BROKER_CONFIG, body=body).code == ResponseCode.SUCCESS
    assert rig.plane.perm == 4
    assert rig.name_servers.everything == 1, "name servers hear of the permission"
    assert not rig.control.topics.rules.auto_create
    assert rig.control.jobs()[0].period_ms() == 1_000
    assert rig.name_servers.pace == (30_000, True)
    body = b"registerNameServerPeriod=20000\nforceRegister=false\n"
    assert rig.run(RequestCode.UPDATE_BROKER_CONFIG, body=body).code == ResponseCode.SUCCESS
    assert rig.name_servers.pace == (20_000, False)
    answer = rig.run(RequestCode.GET_BROKER_CONFIG)
    assert parse_properties(answer.body)["brokerPermission"] == "4"
    assert json.loads(answer.fields["version"])["counter"] == 2


@pytest.mark.parametrize(
    ("body", "code", "remark"),
    [
        (b"storePathRootDir=/tmp\n", 16, "Can not update config in black list: storePathRootDir"),
        (b"brokerPermission=4\nlistenPort=1\n", 16, "listenPort cannot be changed"),
        (b"flushDiskType=ASYNC_FLUSH\n", 16, "flushDiskType"),
        (b"rocketmqHome=/tmp\n", 1, "there is no such setting"),
        (b"brokerPermision=4\n", 1, "did you mean brokerPermission"),
        (b"brokerPermission=99\n", 1, "outside 0 to 7"),
        (b"brokerPermission=\\u00zz\n", 1, "string2Properties error"),
    ],
)
def test_invalid_setting_changes_nothing(rig: Rig, body: bytes, code: int, remark: str) -> None:
    answer = rig.run(RequestCode.UPDATE_BROKER_CONFIG, body=body)
    assert answer.code == code
    assert remark in answer.remark
    assert rig.plane.perm == 6
    assert rig.control.version.counter == 0


def test_an_empty_change_is_fine(rig: Rig) -> None:
    assert rig.run(RequestCode.UPDATE_BROKER_CONFIG).code == ResponseCode.SUCCESS
    assert rig.control.version.counter == 0


def test_a_topics_queues(rig: Rig) -> None:
    run(rig.control.topics.make_for_group("orders", queues=2))
    rig.store.append("orders", b"1", queue=0)
    body = TopicStatsTable.from_json(rig.run(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "orders"}).body)
    first = body.offsets[MessageQueue(topic="orders", broker_name="broker-a", queue_id=0)]
    stored_ms = rig.store.get("orders", 0, 0).store_timestamp_ms
    assert (first.min_offset, first.max_offset, first.last_update_timestamp_ms) == (0, 1, stored_ms)
    second = body.offsets[MessageQueue(topic="orders", broker_name="broker-a", queue_id=1)]
    assert (second.max_offset, second.last_update_timestamp_ms) == (0, 0)
    answer = rig.run(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "none"})
    assert (answer.code, answer.remark) == (ResponseCode.TOPIC_NOT_EXIST, "topic[none] not exist")


def test_connections_are_listed(rig: Rig) -> None:
    caller = Caller(1, "127.0.0.1:5555")
    run(rig.heartbeat(caller, consumer("g", "orders"), producers=["p"]))
    group = ConsumerConnection.from_json(rig.run(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"}).body)
    assert [(one.client_id, one.client_address, one.language) for one in group.connections] == [
        ("c1", "127.0.0.1:5555", "JAVA")
    ]
    assert set(group.subscriptions) == {"orders"}
    producers = ProducerConnection.from_json(
        rig.run(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"}).body
    )
    assert producers.connections == group.connections
    everybody = ProducerTableInfo.from_json(rig.run(RequestCode.GET_ALL_PRODUCER_INFO).body)
    assert [(one.client_id, one.last_update_timestamp_ms) for one in everybody.groups["p"]] == [("c1", NOW_MS)]
    answer = rig.run(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "h"})
    assert (answer.code, answer.remark) == (ResponseCode.CONSUMER_NOT_ONLINE, "the consumer group[h] not online")
    answer = rig.run(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "h"})
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "the producer group[h] not exist")


def test_groups_of_topics_and_topics_of_groups(rig: Rig) -> None:
    run(rig.heartbeat(Caller(), consumer("g", "orders")))
    rig.plane.commit_offset("offline", "orders", 0, 1)
    groups = GroupList.from_json(rig.run(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "orders"}).body).groups
    assert groups == ("g", "offline")
    assert rig.run(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "none"}).body == b'{"groupList":[]}'
    topics = TopicList.from_json(rig.run(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "offline"}).body)
    assert (topics.topics, topics.broker_address) == (("orders",), "127.0.0.1:10911")
    fields = {"group": "g", "topic": "orders"}
    found = QuerySubscriptionResponseBody.from_json(rig.run(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, fields).body)
    assert found.subscription is not None
    answer = rig.run(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, {**fields, "topic": "none"})
    assert answer.body == b'{"group":"g","topic":"none"}'


def test_statistics(rig: Rig) -> None:
    fields = {"statsName": "GROUP_GET_NUMS", "statsKey": "orders@g"}
    answer = rig.run(RequestCode.VIEW_BROKER_STATS_DATA, fields)
    assert (answer.code, answer.remark) == (1, "The stats <GROUP_GET_NUMS> <orders@g> not exist")
    rig.plane.carried = {("orders", "g"): (6, 600), ("orders", ""): (7, 700)}
    rig.control.sample()
    body = BrokerStatsData.from_json(rig.run(RequestCode.VIEW_BROKER_STATS_DATA, fields).body)
    assert (body.minute.sum, body.minute.tps) == (6, 0.6)
    fields = {"statsName": "TOPIC_PUT_SIZE", "statsKey": "orders"}
    body = BrokerStatsData.from_json(rig.run(RequestCode.VIEW_BROKER_STATS_DATA, fields).body)
    assert body.day.sum == 700


def test_cleaning_up(rig: Rig) -> None:
    for code in (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.DELETE_EXPIRED_COMMITLOG):
        answer = rig.run(code)
        assert (answer.code, answer.body) == (ResponseCode.SUCCESS, b"")
    rig.store.append("kept", b"1")
    rig.store.append("unused", b"1")
    rig.store.handle.append("SCHEDULE_TOPIC_XXXX", b"1")
    assert rig.control._parts.topics.table.remove("unused") is not None
    assert rig.run(RequestCode.CLEAN_UNUSED_TOPIC).code == ResponseCode.SUCCESS
    assert {queue.topic for queue in rig.store.queues()} == {"kept", "SCHEDULE_TOPIC_XXXX"}


def test_every_code_that_is_said_to_be_served_is(rig: Rig) -> None:
    from cometmq.remoting.codes import BROKER_REQUESTS

    handed_over = {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
    }
    assert set(rig.control.handlers) == {int(code) for code in BROKER_REQUESTS | handed_over}


def test_a_background_thread_that_waits_and_goes_on_is_logged_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="cometmq.broker"):
        for state in (1, 1, 2, 2, 1, 3):
            rig.plane.totals["timer_state_now"] = state
            rig.control.sample()
    logged = [(record.levelname, vars(record)["state"].split(":")[0]) for record in caplog.records]
    assert logged == [
        ("ERROR", "waits and tries again"),
        ("INFO", "works again"),
        ("ERROR", "has ended"),
    ]
