"""Checks: groups are made on first use or by administration, kept, shown and deleted as upstream does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.remoting.bodies.config_tables import SubscriptionGroupList, SubscriptionGroupWrapper
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.server import AGAIN
from cometmq.store_config.fastjson import Layout, encode
from cometmq.store_config.subscription_group_config import SubscriptionGroupConfig
from cometmq.store_config.subscription_groups import SYSTEM_GROUPS, SubscriptionGroups
from support.broker_twins import Caller, Rig, consumer, run

# As mqadmin of 5.3.3 sends it (golden/apache-5.3.3-expired).
WIRE = (
    b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,'
    b'"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"g_new","groupRetryPolicy":{"type":"CUSTOMIZED"},'
    b'"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
    b'"whichBrokerWhenConsumeSlowly":1}'
)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


def stored(rig: Rig) -> SubscriptionGroups:
    groups = SubscriptionGroups(rig.store.path / "config")
    groups.load()
    return groups


def test_the_systems_groups_are_there_from_the_start(rig: Rig) -> None:
    names = {group.group_name for group in stored(rig).all()}
    assert {"TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS", "SELF_TEST_C_GROUP", "CID_ONSAPI_PULL"} <= names
    assert set(rig.plane.groups) == names


def test_make_show_delete(rig: Rig) -> None:
    answer = rig.run(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=WIRE)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    assert rig.plane.groups["g_new"] == SubscriptionGroupConfig(group_name="g_new")
    assert stored(rig).get("g_new") is not None
    assert rig.run(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g_new"}).body == WIRE
    answer = rig.run(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    table = SubscriptionGroupWrapper.from_json(answer.body)
    assert set(table.groups) == set(rig.plane.groups)
    assert answer.fields == {}
    rig.plane.commit_offset("g_new", "t", 0, 5)
    answer = rig.run(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g_new", "cleanOffset": "false"})
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    assert "g_new" not in rig.plane.groups
    assert stored(rig).get("g_new") is None
    assert rig.plane.query_offset("g_new", "t", 0) == 5, "its progress stays unless asked for"
    rig.run(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g_new", "cleanOffset": "true"})
    assert rig.plane.query_offset("g_new", "t", 0) is None
    assert rig.control.offsets.topics_of("g_new") == ()


def test_a_pull_makes_its_group_and_goes_back_to_its_loop(rig: Rig) -> None:
    async def pulls() -> list[object]:
        fields = {"consumerGroup": "g"}
        return await asyncio.gather(*(rig.ask(RequestCode.PULL_MESSAGE, fields) for _ in range(20)))

    assert run(pulls()) == [AGAIN] * 20
    assert "g" in rig.plane.groups
    assert stored(rig).get("g") is not None
    assert rig.run(RequestCode.LITE_PULL_MESSAGE, {"consumerGroup": "g"}) is AGAIN


def test_a_group_that_is_simply_used_may_have_a_longer_name(rig: Rig) -> None:
    name = "x" * 248
    assert rig.run(RequestCode.PULL_MESSAGE, {"consumerGroup": name}) is AGAIN
    assert stored(rig).get(name) is not None
    assert rig.run(RequestCode.PULL_MESSAGE, {"consumerGroup": name + "x"}).code == 26


def test_a_pull_of_a_group_that_may_not_be_made_is_refused(tmp_path: Path) -> None:
    with Rig(tmp_path, settings={"autoCreateSubscriptionGroup": False}) as rig:
        answer = rig.run(RequestCode.PULL_MESSAGE, {"consumerGroup": "g"})
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert answer.remark.startswith("subscription group [g] does not exist, \nSee https://rocketmq")
        assert rig.run(RequestCode.PULL_MESSAGE, {"consumerGroup": "CID_RMQ_SYS_x"}) is AGAIN, "the system's are made"
        assert rig.run(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"}).code == 26


def test_so_many_groups_make_themselves_and_administration_goes_beyond(tmp_path: Path) -> None:
    system = len(SYSTEM_GROUPS)

    async def pulls(rig: Rig) -> list[Any]:
        asked = (rig.ask(RequestCode.PULL_MESSAGE, {"consumerGroup": f"g{number}"}) for number in range(9))
        return await asyncio.gather(*asked)

    with Rig(tmp_path, settings={"autoCreateGroupMax": system + 3}) as rig:
        answers = run(pulls(rig))
        assert answers[:3] == [AGAIN] * 3
        assert {answer.code for answer in answers[3:]} == {ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST}
        assert f"with {system + 3} groups none is made on use (autoCreateGroupMax)" in answers[3].remark
        assert len(rig.control.groups.all()) == system + 3
        assert run(rig.heartbeat(Caller(), consumer("new", "t"), consumer("g1", "t"))).code == ResponseCode.SUCCESS
        assert set(rig.plane.consumers) == {"g1"}, "a heartbeat passes over the one and keeps the other"
        body = encode(SubscriptionGroupConfig(group_name="new").encode(), layout=Layout.COMPACT)
        assert rig.run(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body).code == ResponseCode.SUCCESS
        assert rig.run(RequestCode.PULL_MESSAGE, {"consumerGroup": "new"}) is AGAIN


@pytest.mark.parametrize(
    ("group", "code", "remark"),
    [
        (SubscriptionGroupConfig(group_name="a b"), 29, "characters other than"),
        (SubscriptionGroupConfig(group_name=""), 29, "is empty"),
        (SubscriptionGroupConfig(group_name="x" * 121), 29, "at most 120"),
        (SubscriptionGroupConfig(group_name="g", retry_queue_nums=65_537), 1, "retryQueueNums is 65537"),
        (SubscriptionGroupConfig(group_name="g", attributes={"+a": "b"}), 1, "there is no group attribute '+a'"),
    ],
)
def test_invalid_group_is_refused(rig: Rig, group: SubscriptionGroupConfig, code: int, remark: str) -> None:
    body = encode(group.encode(), layout=Layout.COMPACT)
    for answer in (
        rig.run(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body),
        rig.run(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            body=SubscriptionGroupList(groups=(SubscriptionGroupConfig(group_name="good"), group)).to_json(),
        ),
    ):
        assert answer.code == code
        assert remark in answer.remark
    assert "good" not in rig.plane.groups


def test_several_at_once(rig: Rig) -> None:
    groups = tuple(SubscriptionGroupConfig(group_name=name) for name in ("a", "b"))
    body = SubscriptionGroupList(groups=(groups[0], replace(groups[1], retry_max_times=3)))
    assert rig.run(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=body.to_json()).code == 0
    assert rig.plane.groups["b"].retry_max_times == 3
    assert stored(rig).get("a") is not None


@pytest.mark.parametrize("body", [b"", b"[]", b'{"retryMaxTimes":"many"}'])
def test_a_bad_body_is_refused(rig: Rig, body: bytes) -> None:
    answer = rig.run(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "SubscriptionGroupConfig" in answer.remark


def test_forbidden_topics_of_a_group(rig: Rig) -> None:
    fields = {"group": "g", "topic": "t"}
    answer = rig.run(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, {**fields, "readable": "false"})
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "names of no group would fill the file"
    run(rig.control.groups.find_or_make("g"))
    bad = {**fields, "topic": "a b", "readable": "false"}
    assert rig.run(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, bad).code == ResponseCode.INVALID_PARAMETER
    assert (
        rig.run(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, fields).body == b'{"group":"g","readable":true,"topic":"t"}'
    )
    rig.run(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, {**fields, "readable": "false"})
    assert stored(rig).forbidden_topics("g", 0) == ("t",)
    table = SubscriptionGroupWrapper.from_json(rig.run(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    assert table.forbidden == {"g": {"t": 1}}


def test_groups_that_the_stores_own_side_makes_are_known(rig: Rig) -> None:
    rig.store.append("t", b"1")
    rig.store.set_progress("embedded", "t", 0, 1)
    assert "embedded" in rig.plane.groups
    assert rig.plane.query_offset("embedded", "t", 0) == 1
    rig.store.delete_group("embedded")
    assert "embedded" not in rig.plane.groups
    assert rig.plane.query_offset("embedded", "t", 0) is None


def test_a_group_must_not_read_so_many_topics(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.broker.groups.FORBIDDEN_TOPICS_MAX", 2)
    run(rig.control.groups.find_or_make("g"))
    codes = [
        rig.run(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, {"group": "g", "topic": topic, "readable": "false"}).code
        for topic in ("a", "b", "c", "b")
    ]
    assert codes == [0, 0, ResponseCode.SYSTEM_ERROR, 0]
