"""Checks: where failed messages go, and that what is stored for a sent-back one is what upstream stores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.broker.send_back import Route, route_failed, route_retry_send
from cometmq.errors import DiskFull
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from support.broker_twins import Rig, run


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


@pytest.mark.parametrize(
    ("times", "level", "times_max", "expected"),
    [
        (0, 0, 16, Route("%RETRY%g", 3, False)),
        (15, 0, 16, Route("%RETRY%g", 18, False)),
        (16, 0, 16, Route("%DLQ%g", 0, True)),
        (0, 1, 16, Route("%RETRY%g", 1, False)),
        (1, 1, 1, Route("%DLQ%g", 0, True)),
        (0, -1, 16, Route("%DLQ%g", 0, True)),
        (0, 0, 0, Route("%DLQ%g", 0, True)),
    ],
)
def test_routes_of_sent_back_messages(times: int, level: int, times_max: int, expected: Route) -> None:
    assert route_failed("g", reconsume_times=times, delay_level=level, times_max=times_max) == expected


@pytest.mark.parametrize(
    ("times", "times_max", "locked", "dead"),
    [(2, 2, False, False), (3, 2, False, True), (0, 16, True, True), (0, -1, False, True)],
)
def test_routes_of_sends_to_retry_topics(times: int, times_max: int, locked: bool, dead: bool) -> None:
    route = route_retry_send("%RETRY%g", reconsume_times=times, times_max=times_max, is_group_locked=locked)
    assert route == Route("%DLQ%g" if dead else "%RETRY%g", 0, dead)


def send_back(rig: Rig, **changes: str) -> Command:
    """Send the first message of the topic back, as the Java client of 5.3.3 does."""
    fields = {
        "offset": str(rig.store.get("Plain", 0, 0).physical_offset),
        "group": "g_conc",
        "delayLevel": "1",
        "originMsgId": "FD00000000000000000000000000000230835FFD2B276971E014005B",
        "originTopic": "Plain",
        "maxReconsumeTimes": "1",
        "unitMode": "false",
        "bname": "broker-a",
    }
    answer: Command = rig.run(RequestCode.CONSUMER_SEND_MSG_BACK, {**fields, **changes}, version=479)
    return answer


def test_a_sent_back_message_is_a_copy_in_the_retry_topic(rig: Rig) -> None:
    origin = rig.store.append("Plain", b"body", tags="A", keys="k91", properties={"CLUSTER": "DefaultCluster"})
    answer = send_back(rig)
    assert (answer.code, answer.fields, answer.body) == (ResponseCode.SUCCESS, {}, b"")
    (stored,) = rig.plane.put_messages
    # The set of properties is that of golden/apache-5.3.3, less what its producer and parking have added.
    assert stored.properties == {
        "CLUSTER": "DefaultCluster",
        "DELAY": "1",
        "KEYS": "k91",
        "TAGS": "A",
        "WAIT": "false",
        "ORIGIN_MESSAGE_ID": origin.message_id,
        "RETRY_TOPIC": "Plain",
    }
    assert (stored.topic, stored.queue_id, stored.body, stored.reconsume_times) == ("%RETRY%g_conc", 0, b"body", 1)
    before = rig.store.get("Plain", 0, 0)
    assert (stored.born_host, stored.born_timestamp_ms) == (before.born_host, before.born_timestamp_ms)
    assert (stored.flag, stored.sys_flag) == (before.flag, before.sys_flag)
    assert rig.control.topics.get("%RETRY%g_conc") is not None
    assert rig.control.stats.view("SNDBCK_PUT_NUMS", "Plain@g_conc") is not None


@pytest.mark.parametrize("delay_level", ["0", "-1"])
def test_message_that_is_full_of_properties_loses_the_longest(rig: Rig, delay_level: str) -> None:
    full = {"note": "x" * 32_000, "other": "y" * 600, "UNIQ_KEY": "0" * 32}
    rig.store.append("Plain", b"body", tags="A", keys="k91", properties=full)
    assert send_back(rig, delayLevel=delay_level).code == ResponseCode.SUCCESS
    (stored,) = rig.plane.put_messages
    assert stored.properties.keys() >= {"KEYS", "TAGS", "other", "UNIQ_KEY", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID"}
    assert "note" not in stored.properties


def test_the_first_topic_and_id_are_kept(rig: Rig) -> None:
    rig.store.append("Plain", b"body", properties={"RETRY_TOPIC": "First", "ORIGIN_MESSAGE_ID": "ABCD"})
    send_back(rig)
    (stored,) = rig.plane.put_messages
    assert (stored.properties["RETRY_TOPIC"], stored.properties["ORIGIN_MESSAGE_ID"]) == ("First", "ABCD")


def test_a_message_that_failed_too_often_is_a_dead_letter(rig: Rig) -> None:
    rig.store.append("Plain", b"body")
    assert send_back(rig, maxReconsumeTimes="0").code == ResponseCode.SUCCESS
    (stored,) = rig.plane.put_messages
    assert (stored.topic, stored.queue_id, stored.properties["DELAY"], stored.reconsume_times) == (
        "%DLQ%g_conc",
        0,
        "0",
        1,
    )
    made = rig.control.topics.get("%DLQ%g_conc")
    assert made is not None
    assert (made.read_queue_nums, made.perm) == (1, 6)


def test_the_groups_settings_hold(rig: Rig) -> None:
    rig.store.append("Plain", b"body")
    config = run(rig.control.groups.require("g_conc"))
    run(rig.control.groups._put([replace(config, retry_queue_nums=0)]))
    assert send_back(rig).code == ResponseCode.SUCCESS
    assert rig.plane.put_messages == [], "a group without retries loses its failed messages, as upstream"
    run(rig.control.groups._put([replace(config, retry_queue_nums=5, retry_max_times=0)]))
    old = {"offset": str(rig.store.get("Plain", 0, 0).physical_offset), "group": "g_conc", "delayLevel": "0"}
    answer = rig.run(RequestCode.CONSUMER_SEND_MSG_BACK, {**old, "maxReconsumeTimes": "9"}, version=120)
    assert answer.code == ResponseCode.SUCCESS
    assert rig.plane.put_messages[0].topic == "%DLQ%g_conc", "a client before 3.4.9 cannot say a maximum"
    made = rig.control.topics.get("%RETRY%g_conc")
    assert made is not None
    assert made.write_queue_nums == 5


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"offset": "999999"}, 1, "look message by offset failed, 999999"),
        ({"offset": "-1"}, 1, "look message by offset failed, -1"),
        ({"offset": "x"}, 1, "offset is not a whole number"),
        ({"delayLevel": ""}, 1, "the request has no delayLevel"),
        ({"group": ""}, 1, "the request has no group"),
        ({"group": "a b"}, 26, "subscription group not exist, a b"),
    ],
)
def test_invalid_send_backs_are_refused(rig: Rig, changes: dict[str, str], code: int, remark: str) -> None:
    rig.store.append("Plain", b"body")
    answer = send_back(rig, **changes)
    assert answer.code == code
    assert remark in (answer.remark or "")
    assert rig.plane.put_messages == []


def test_a_broker_or_topic_that_takes_nothing_refuses(rig: Rig) -> None:
    rig.store.append("Plain", b"body")
    send_back(rig)
    retry = rig.control.topics.get("%RETRY%g_conc")
    assert retry is not None
    run(rig.control.topics._put([replace(retry, perm=4)]))
    answer = send_back(rig)
    text = "the topic[%RETRY%g_conc] sending message is forbidden"
    assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, text)
    rig.run(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4")
    answer = send_back(rig)
    text = "the broker[127.0.0.1] sending message is forbidden"
    assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, text)


def test_a_message_that_cannot_be_stored_is_reported(rig: Rig) -> None:
    rig.store.append("Plain", b"body")
    rig.plane.put_fails = DiskFull("no space left")
    answer = send_back(rig)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "no space left")
