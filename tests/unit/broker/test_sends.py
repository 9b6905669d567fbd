"""Checks: sends that the loops hand over make their topic and go back, become dead letters, or are refused rightly."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cometmq.errors import DiskFull
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.server import AGAIN
from cometmq.store_config.topic_config import TopicConfig
from support.broker_twins import Caller, Rig, consumer, run
from support.broker_twins import send_fields as members

ANSWER = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


@pytest.mark.parametrize(
    "code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE]
)
def test_a_send_makes_its_topic_and_goes_back_to_its_loop(rig: Rig, code: RequestCode) -> None:
    assert rig.run(code, members(code)) is AGAIN
    made = rig.plane.topics["orders"]
    assert (made.read_queue_nums, made.write_queue_nums, made.perm, made.order) == (4, 4, 6, False)
    assert rig.plane.log == ["topic orders", "announced orders"]


@pytest.mark.parametrize(("asked", "made"), [("4", 4), ("16", 8), ("0", 0), ("-5", 0)])
def test_the_number_of_queues_is_held_by_the_template(rig: Rig, asked: str, made: int) -> None:
    code = RequestCode.SEND_MESSAGE_V2
    assert rig.run(code, members(code, defaultTopicQueueNums=asked)) is AGAIN
    assert rig.plane.topics["orders"].write_queue_nums == made


def test_many_sends_at_once_make_one_topic(rig: Rig) -> None:
    async def all_of_them() -> list[object]:
        code = RequestCode.SEND_MESSAGE_V2
        return await asyncio.gather(*(rig.ask(code, members(code)) for _ in range(50)))

    assert run(all_of_them()) == [AGAIN] * 50
    assert rig.name_servers.announced == [["orders"]]


def test_a_topic_that_the_loops_heard_of_too_late_is_sent_again(rig: Rig) -> None:
    code = RequestCode.SEND_MESSAGE_V2
    rig.run(code, members(code))
    rig.plane.topics.clear()
    assert rig.run(code, members(code)) is AGAIN
    assert "orders" in rig.plane.topics
    assert rig.name_servers.announced == [["orders"]]


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"topic": "a b"}, ResponseCode.INVALID_PARAMETER, "characters other than"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "Sending message to topic[SCHEDULE_TOPIC_XXXX]"),
        (
            {"defaultTopic": "none"},
            ResponseCode.TOPIC_NOT_EXIST,
            "topic[orders] not exist, apply first please!\nSee https",
        ),
        ({"defaultTopic": "BenchmarkTest"}, ResponseCode.TOPIC_NOT_EXIST, "topic[orders] not exist"),
    ],
)
def test_topic_that_cannot_be_created_fails_the_send(
    rig: Rig, changes: dict[str, str], code: ResponseCode, remark: str
) -> None:
    request = RequestCode.SEND_MESSAGE_V2
    answer = rig.run(request, members(request, **changes))
    assert answer.code == code
    assert remark in answer.remark
    assert answer.fields == ANSWER
    assert "orders" not in rig.plane.topics


def test_without_automatic_creation_only_retry_topics_are_made(tmp_path: Path) -> None:
    code = RequestCode.SEND_MESSAGE_V2
    with Rig(tmp_path, settings={"autoCreateTopicEnable": False}) as rig:
        assert rig.run(code, members(code)).code == ResponseCode.TOPIC_NOT_EXIST
        assert rig.run(code, members(code, topic="%RETRY%g")) is AGAIN
        assert rig.plane.topics["%RETRY%g"].write_queue_nums == 1


def test_so_many_topics_make_themselves_and_administration_goes_beyond(tmp_path: Path) -> None:
    code = RequestCode.SEND_MESSAGE_V2

    async def sends(rig: Rig) -> list[Any]:
        return await asyncio.gather(*(rig.ask(code, members(code, topic=f"t{number}")) for number in range(9)))

    with Rig(tmp_path) as rig:
        limit = len(rig.control.topics.all()) + 3
    with Rig(tmp_path, settings={"autoCreateTopicMax": limit}) as rig:
        answers = run(sends(rig))
        assert answers[:3] == [AGAIN] * 3
        assert {answer.code for answer in answers[3:]} == {ResponseCode.TOPIC_NOT_EXIST}
        remark = f"topic[t3] not exist, and with {limit} topics none is made on use (autoCreateTopicMax)"
        assert (answers[3].remark, answers[3].fields) == (remark, ANSWER)
        assert len(rig.control.topics.all()) == limit
        assert rig.run(code, members(code, topic="%RETRY%g")).code == ResponseCode.TOPIC_NOT_EXIST
        assert run(rig.heartbeat(Caller(), consumer("g", "t1"))).code == ResponseCode.SUCCESS
        assert rig.control.topics.get("%RETRY%g") is not None, "a group's own topics are made all the same"
        made = {"topic": "t3", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        made |= {"topicFilterType": "SINGLE_TAG", "order": "false"}
        assert rig.run(RequestCode.UPDATE_AND_CREATE_TOPIC, made).code == ResponseCode.SUCCESS
        assert rig.run(code, members(code, topic="t3")) is AGAIN


def test_a_missing_member_is_named(rig: Rig) -> None:
    for name in ("b", "c", "d"):
        fields = members(RequestCode.SEND_MESSAGE_V2)
        del fields[name]
        answer = rig.run(RequestCode.SEND_MESSAGE_V2, fields)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"the request has no {name}")


# --- Retry topics


def retry_send(
    rig: Rig,
    code: int = RequestCode.SEND_MESSAGE_V2,
    *,
    more: Mapping[str, str] | None = None,
    body: bytes = b"body",
    **changes: str,
) -> Command:
    pairs = {"KEYS": "k", "TAGS": "a", "DELAY": "5", "UNIQ_KEY": "U1"} | dict(more or {})
    properties = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())
    fields = members(code, topic="%RETRY%g", properties=properties, **changes)
    answer: Command = rig.run(code, fields, body, version=479)
    return answer


def test_a_retry_below_the_maximum_goes_back_to_its_loop(rig: Rig) -> None:
    assert retry_send(rig, reconsumeTimes="16") is AGAIN
    assert retry_send(rig, reconsumeTimes="3", maxReconsumeTimes="3") is AGAIN
    assert rig.plane.put_messages == []


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
def test_a_retry_above_the_maximum_is_a_dead_letter(rig: Rig, code: int) -> None:
    answer = retry_send(rig, code, reconsumeTimes="3", maxReconsumeTimes="2")
    assert answer.code == ResponseCode.SUCCESS
    (stored,) = rig.plane.put_messages
    assert (stored.topic, stored.queue_id, stored.body) == ("%DLQ%g", 0, b"body")
    assert (stored.flag, stored.reconsume_times, stored.born_timestamp_ms) == (3, 3, 1_700_000_000_000)
    assert stored.born_host == ("127.0.0.1", 40001)
    assert stored.properties == {
        "KEYS": "k",
        "TAGS": "a",
        "DELAY": "-1",
        "UNIQ_KEY": "U1",
        "CLUSTER": "DefaultCluster",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    found = rig.store.get("%DLQ%g", 0, 0)
    assert answer.fields == {
        **ANSWER,
        "msgId": found.message_id,
        "queueId": "0",
        "queueOffset": "0",
        "transactionId": "U1",
    }
    made = rig.control.topics.get("%DLQ%g")
    assert made is not None
    assert (made.write_queue_nums, made.perm) == (1, 6)


def test_the_groups_maximum_holds_for_clients_that_say_none(rig: Rig) -> None:
    answer = retry_send(rig, reconsumeTimes="17")
    assert answer.code == ResponseCode.SUCCESS
    assert len(rig.plane.put_messages) == 1


def test_a_retry_of_a_locked_group_is_a_dead_letter(rig: Rig) -> None:
    queue = MessageQueue(topic="t", broker_name="broker-a", queue_id=0)
    run(rig.make_topics(TopicConfig(topic_name="t", read_queue_nums=1, write_queue_nums=1)))
    rig.control.locks.lock("g", "c", [queue])
    assert retry_send(rig).code == ResponseCode.SUCCESS
    rig.clock.move(60_001)
    assert retry_send(rig) is AGAIN
    assert len(rig.plane.put_messages) == 1


def test_a_dead_letter_that_cannot_be_stored_is_a_failed_send(rig: Rig) -> None:
    rig.plane.put_fails = DiskFull("no space left")
    answer = retry_send(rig, reconsumeTimes="17")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert answer.fields == ANSWER
    assert "no space left" in (answer.remark or "")


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"sysFlag": "4"}, ResponseCode.NO_PERMISSION, "sending transaction message is forbidden"),
        ({"sysFlag": "12"}, ResponseCode.NO_PERMISSION, "sending transaction message is forbidden"),
        ({"more": {"TRAN_MSG": "True"}}, ResponseCode.NO_PERMISSION, "sending transaction message is forbidden"),
        ({"body": bytes(1001)}, ResponseCode.MESSAGE_ILLEGAL, "msg body length limit 1000B"),
        ({"more": {"x": "y" * 32_700}}, ResponseCode.MESSAGE_ILLEGAL, "msg properties length limit 32KB"),
    ],
)
def test_a_dead_letter_that_no_loop_would_take_is_refused(
    tmp_path: Path, changes: dict[str, Any], code: ResponseCode, remark: str
) -> None:
    with Rig(tmp_path, settings={"maxMessageSize": 1000}) as rig:
        answer = retry_send(rig, reconsumeTimes="17", **changes)
        assert answer.code == code
        assert remark in (answer.remark or "")
        assert answer.fields == ANSWER
        assert rig.plane.put_messages == []
        assert rig.control.topics.get("%DLQ%g") is None, "nothing is made for it"


def test_the_largest_dead_letter_is_taken(tmp_path: Path) -> None:
    with Rig(tmp_path, settings={"maxMessageSize": 1000}) as rig:
        answer = retry_send(rig, reconsumeTimes="17", body=bytes(1000), more={"TRAN_MSG": "false"}, sysFlag="1")
        assert answer.code == ResponseCode.SUCCESS


def test_a_retry_of_an_unknown_group_is_refused(tmp_path: Path) -> None:
    with Rig(tmp_path, settings={"autoCreateSubscriptionGroup": False}) as rig:
        answer = retry_send(rig)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert (answer.remark or "").startswith("subscription group not exist, g \nSee https://rocketmq.apache.org")
