"""Checks: clients do not send into topics that only the broker writes, and what lies parked there goes nowhere else.

A message that somebody put into `rmq_sys_wheel_timer` says by its properties where it is to be delivered: without a
check a client's message came out in any topic, any queue, with or without permission.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import cometmq
from cometmq import errors
from cometmq._engine import encode_properties
from cometmq.broker.config import load_broker_config
from cometmq.broker.server import Broker
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from cometmq.store.handoff_files import HandoffFolder, MessagesWork, new_work_id
from hostile.test_staged_files import content_of, honest, leave
from support.any_disk import ANY_DISK
from support.small_store import open_small
from support.waiting import wait_for_message

TIMEOUT_MS = 10_000
SETTINGS = {"brokerName": "broker-a", "flushDiskType": "ASYNC_FLUSH", "mappedFileSizeCommitLog": 1 << 20}

RESERVED = (
    "rmq_sys_wheel_timer",
    "rmq_sys_REVIVE_LOG_DefaultCluster",
    "rmq_sys_UNDELIVERED",
    "rmq_sys_anything",
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "OFFSET_MOVED_EVENT",
    "SELF_TEST_TOPIC",
)
CLIENTS_OWN = ("RMQ_SYS_TRACE_TOPIC", "rmq_sys_TRACE_DATA_cn", "orders")


def make(path: Path) -> Broker:
    return Broker(load_broker_config(path, listen=":0", settings=SETTINGS, environ=ANY_DISK))


def send(
    channel: Channel,
    topic: str,
    body: bytes = b"forged",
    *,
    properties: str = "",
    queue: int = 0,
    code: int = RequestCode.SEND_MESSAGE,
    sys_flag: int = 0,
) -> Command:
    fields = {
        "producerGroup": "p",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": str(queue),
        "sysFlag": str(sys_flag),
        "bornTimestamp": str(time.time_ns() // 1_000_000),
        "flag": "0",
        "properties": properties,
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    }
    if code != RequestCode.SEND_MESSAGE:  # the later kinds have one letter for each field, in this order
        fields = dict(zip("abcdefghijkm", fields.values(), strict=True))
    return channel.invoke(Command(code=code, fields=fields, body=body), timeout_ms=TIMEOUT_MS)


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_BATCH_MESSAGE])
def test_sends_into_them_are_refused(tmp_path: Path, code: int) -> None:
    with make(tmp_path) as broker, Channel(broker.address) as channel:
        for topic in RESERVED:
            answer = send(channel, topic, code=code)
            assert answer.code == ResponseCode.NO_PERMISSION, (topic, answer)
        if code == RequestCode.SEND_MESSAGE:
            for topic in CLIENTS_OWN:
                assert send(channel, topic).code == ResponseCode.SUCCESS, topic


@pytest.mark.parametrize("topic", RESERVED)
def test_no_other_way_in(tmp_path: Path, topic: str) -> None:
    """Neither for who opens the store, nor for work that other processes left, which may have come over the wire."""
    with open_small(tmp_path, background=False) as store:
        store._topic_book._topics.get_or_create(topic, queue_nums=1)  # a broker has made it
        with pytest.raises(errors.InvalidTopic):
            store.append(topic, b"forged")
        with pytest.raises(errors.InvalidTopic):
            store.append_many(topic, [b"forged"])
        work = MessagesWork(
            work_id=new_work_id(),
            topic=topic,
            bodies=[b"forged"],
            tags=None,
            keys=None,
            properties=None,
            queues=None,
            flag=0,
            born_timestamps_ms=[5],
        )
        for name in (HandoffFolder(tmp_path).leave(work), leave(tmp_path, content_of(honest()), topic=topic)):
            assert store.apply_handoffs() == 0
            assert "RocketMQ's own" in (HandoffFolder(tmp_path).rejection(name) or "")
        assert list(store.read(topic)) == []


REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_DefaultCluster"


def ask(channel: Channel, code: int, **fields: str) -> Command:
    return channel.invoke(Command(code=code, fields=fields), timeout_ms=TIMEOUT_MS)


def test_progress_of_the_brokers_own_groups_is_not_moved(tmp_path: Path) -> None:
    """A commit behind the checkpoints of popped messages lost those: nothing brought them back."""
    with make(tmp_path) as broker, Channel(broker.address) as channel:
        queue = {"topic": REVIVE_TOPIC, "queueId": "0"}
        commit = {"consumerGroup": REVIVE_GROUP, "commitOffset": "1000", **queue}
        pull = {
            **queue,
            "consumerGroup": REVIVE_GROUP,
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "5",  # commits, and brings its expression
            "commitOffset": "1000",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
        }
        pop = {
            "consumerGroup": REVIVE_GROUP,
            "topic": "TBW102",
            "queueId": "-1",
            "maxMsgNums": "1",
            "invisibleTime": "1000",
            "pollTime": "0",
            "bornTime": "0",
            "initMode": "0",
        }
        ask(channel, RequestCode.PULL_MESSAGE, **pull)  # makes the group where the broker has not
        assert ask(channel, RequestCode.UPDATE_CONSUMER_OFFSET, **commit).code == ResponseCode.NO_PERMISSION
        assert ask(channel, RequestCode.POP_MESSAGE, **pop).code == ResponseCode.NO_PERMISSION
        reset = {"topic": REVIVE_TOPIC, "group": REVIVE_GROUP, "timestamp": "-1", "isForce": "true"}
        assert ask(channel, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset).code == ResponseCode.NO_PERMISSION
        clone = {"srcGroup": "g", "destGroup": REVIVE_GROUP, "topic": REVIVE_TOPIC}
        assert ask(channel, RequestCode.CLONE_GROUP_OFFSET, **clone).code == ResponseCode.NO_PERMISSION
        gone = {"groupName": REVIVE_GROUP, "cleanOffset": "true"}
        assert ask(channel, RequestCode.DELETE_SUBSCRIPTIONGROUP, **gone).code == ResponseCode.NO_PERMISSION
        offset = ask(channel, RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=REVIVE_GROUP, **queue)
        assert offset.code == ResponseCode.QUERY_NOT_FOUND or int(offset.fields["offset"]) < 1000


def test_topics_that_only_the_broker_writes_are_not_deleted_or_changed(tmp_path: Path) -> None:
    """Also where `validateSystemTopicWhenUpdateTopic`, which anybody may set, is false."""
    with make(tmp_path) as broker, Channel(broker.address) as channel:
        body = b"validateSystemTopicWhenUpdateTopic=false"
        answer = channel.invoke(Command(code=RequestCode.UPDATE_BROKER_CONFIG, body=body), timeout_ms=TIMEOUT_MS)
        assert answer.code == ResponseCode.SUCCESS
        for topic in ("rmq_sys_wheel_timer", REVIVE_TOPIC, "SCHEDULE_TOPIC_XXXX"):
            answer = ask(channel, RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)
            assert answer.code == ResponseCode.INVALID_PARAMETER, topic
            wanted = {
                "topic": topic,
                "defaultTopic": "TBW102",
                "readQueueNums": "1",
                "writeQueueNums": "1",
                "perm": "0",
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
            }
            answer = ask(channel, RequestCode.UPDATE_AND_CREATE_TOPIC, **wanted)
            assert answer.code == ResponseCode.INVALID_PARAMETER, topic


def ends(store: cometmq.Store) -> dict[tuple[str, int], int]:
    return {(queue.topic, queue.queue_id): queue.max_offset for queue in store.queues()}


def forged(topic: str, queue: int) -> dict[str, str]:
    return {"REAL_TOPIC": topic, "REAL_QID": str(queue), "TIMER_OUT_MS": str(time.time_ns() // 1_000_000)}


def test_forged_messages_are_not_delivered(tmp_path: Path) -> None:
    """An older broker took such sends, and anybody may have written the store."""
    with make(tmp_path) as broker, Channel(broker.address) as channel:
        assert send(channel, "orders").code == ResponseCode.SUCCESS
        fields = {
            "topic": "closed",
            "defaultTopic": "TBW102",
            "readQueueNums": "1",
            "writeQueueNums": "1",
            "perm": "4",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        made = channel.invoke(Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields), timeout_ms=TIMEOUT_MS)
        assert made.code == ResponseCode.SUCCESS
    targets = [("closed", 0), ("nowhere", 0), ("orders", 2**31 - 1), ("rmq_sys_anything", 0), ("orders", 1)]
    with cometmq.open(tmp_path, flush="async", settings=SETTINGS_OF_STORE) as store:
        for topic, queue in targets:
            store._handle.append("rmq_sys_wheel_timer", b"forged", properties=encode_properties(forged(topic, queue)))
    with make(tmp_path) as broker, Channel(broker.address) as channel:
        answer = send(channel, "orders", b"honest", properties="TIMER_DELAY_MS\x01100\x02", queue=2)
        assert answer.code == ResponseCode.SUCCESS
        wait_for_message(channel, "orders", queue=2)
    with cometmq.open(tmp_path, mode="r", settings=SETTINGS_OF_STORE) as store:
        queues = ends(store)
    assert queues.get(("rmq_sys_UNDELIVERED", 0)) == 4, queues
    assert queues.get(("orders", 1)) == 1, "permitted messages are delivered"
    assert queues.get(("orders", 2)) == 1
    assert ("closed", 0) not in queues or queues[("closed", 0)] == 0
    assert ("nowhere", 0) not in queues
    assert ("orders", 2**31 - 1) not in queues


SETTINGS_OF_STORE = {"mappedFileSizeCommitLog": 1 << 20}
