"""Checks: heartbeats, goodbyes, closed connections and silence keep registry, loops' tables and notices right."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.errors import InvalidArgument, LimitReached
from cometmq.remoting.bodies.connections import GetConsumerListByGroupResponseBody
from cometmq.remoting.bodies.heartbeat import (
    CheckClientRequestBody,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from support.broker_twins import NOW_MS, Caller, Rig, consumer, run

FIRST, SECOND = Caller(1, "127.0.0.1:1001"), Caller(2, "127.0.0.1:1002")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


def members(rig: Rig, group: str) -> list[str]:
    answer: Command = rig.run(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    if answer.code != ResponseCode.SUCCESS:
        assert answer.remark == f"no consumer for this group, {group}"
        return []
    return list(GetConsumerListByGroupResponseBody.from_json(answer.body).consumer_ids)


def leave(rig: Rig, caller: Caller, group: str) -> Command:
    answer: Command = rig.run(
        RequestCode.UNREGISTER_CLIENT, {"clientID": f"c{caller.conn}", "consumerGroup": group}, caller=caller
    )
    return answer


def test_a_first_heartbeat_makes_group_and_retry_topic_before_it_tells_the_members(rig: Rig) -> None:
    answer = run(rig.heartbeat(FIRST, consumer("g", "t"), producers=["p"]))
    assert answer.code == ResponseCode.SUCCESS
    assert answer.fields == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    assert rig.control.groups.get("g") is not None
    retry = rig.control.topics.get("%RETRY%g")
    assert retry is not None
    assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)
    assert rig.plane.log == ["topic %RETRY%g", "announced %RETRY%g", "consumer g, holds end"]
    assert rig.link.notices("g") == [1], "the sender itself is notified too"
    assert members(rig, "g") == ["c1"]
    assert set(rig.plane.consumers["g"][2]) == {"t"}
    assert rig.control.clients.producers.get("p") is not None


def test_every_member_hears_of_a_new_one_and_of_one_that_left(rig: Rig) -> None:
    run(rig.heartbeat(FIRST, consumer("g", "t")))
    rig.link.sent.clear()
    run(rig.heartbeat(SECOND, consumer("g", "t")))
    assert rig.link.notices("g") == [1, 2]
    assert rig.plane.log.count("consumer g, holds end") == 1, "for the loops nothing changed"
    assert members(rig, "g") == ["c1", "c2"]
    rig.link.sent.clear()
    run(rig.heartbeat(SECOND, consumer("g", "t")))
    assert rig.link.sent == [], "nothing changed"
    assert leave(rig, FIRST, "g").code == ResponseCode.SUCCESS
    assert rig.link.notices("g") == [2]
    assert members(rig, "g") == ["c2"]
    leave(rig, SECOND, "g")
    assert members(rig, "g") == []
    assert rig.plane.consumers == {}, "the loops forget a group that nobody is in"


def test_a_newer_subscription_reaches_the_loops_but_is_no_change(rig: Rig) -> None:
    run(rig.heartbeat(FIRST, consumer("g", "t", version=5)))
    rig.link.sent.clear()
    rig.plane.log.clear()
    run(rig.heartbeat(FIRST, consumer("g", "t", version=6)))
    assert rig.plane.log == ["consumer g"], "a rebalance creates it again; held pulls were made for the same"
    assert rig.plane.consumers["g"][2]["t"].sub_version == 6
    rig.plane.log.clear()
    newer = consumer("g", "t", version=7)
    newer = replace(newer, subscriptions=(replace(newer.subscriptions[0], sub_string="a", tags=("a",), codes=(97,)),))
    run(rig.heartbeat(FIRST, newer))
    assert rig.plane.consumers["g"][2]["t"].sub_string == "a"
    assert rig.plane.log == ["consumer g, holds end"]
    assert rig.link.sent == []
    run(rig.heartbeat(FIRST, consumer("g", "t", version=5)))
    assert rig.plane.consumers["g"][2]["t"].sub_string == "a", "an older one is passed over"


def test_a_version_far_in_the_future_keeps_no_other_subscription_away(rig: Rig) -> None:
    run(rig.heartbeat(FIRST, consumer("g", "t", version=2**62)))
    honest = consumer("g", "t", version=NOW_MS)
    honest = replace(
        honest, subscriptions=(replace(honest.subscriptions[0], sub_string="a", tags=("a",), codes=(97,)),)
    )
    run(rig.heartbeat(SECOND, honest))
    assert members(rig, "g") == ["c1", "c2"]
    assert rig.plane.consumers["g"][2]["t"].sub_string == "a"
    run(rig.heartbeat(FIRST, consumer("g", "t", version=NOW_MS - 1)))
    assert rig.plane.consumers["g"][2]["t"].sub_string == "a"


@pytest.mark.parametrize(("topics", "kept"), [(("t", "u"), {"t", "u"}), ((), set())])
def test_topics_that_come_or_go_are_a_change(rig: Rig, topics: tuple[str, ...], kept: set[str]) -> None:
    run(rig.heartbeat(FIRST, consumer("g", "t")))
    rig.link.sent.clear()
    run(rig.heartbeat(FIRST, consumer("g", *topics)))
    assert rig.link.notices("g") == [1]
    assert set(rig.plane.consumers["g"][2]) == kept


def test_members_that_subscribe_differently_are_warned_of(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    def warned() -> list[object]:
        found = [vars(record)["topics"] for record in caplog.records if record.name == "cometmq.broker.clients"]
        caplog.clear()
        return found

    caplog.set_level(logging.WARNING)
    run(rig.heartbeat(FIRST, consumer("g", "t")))
    run(rig.heartbeat(FIRST, consumer("g", "t", "u")))
    run(rig.heartbeat(SECOND, consumer("g", "t", "u")))
    assert warned() == [], "a member may change its own, and others may have the same"
    run(rig.heartbeat(SECOND, consumer("g", "v", "u")))
    assert warned() == ["t,v"]
    run(rig.heartbeat(FIRST, consumer("g", "t", "u")))
    assert warned() == [], "it was said"
    rig.clock.move(600_000)
    run(rig.heartbeat(SECOND, consumer("g", "v", "u")))
    assert warned() == ["t,v"]
    other = consumer("h", "t", version=5)
    run(rig.heartbeat(FIRST, other))
    by_tag = replace(other, subscriptions=(replace(other.subscriptions[0], sub_string="a", tags=("a",), codes=(97,)),))
    run(rig.heartbeat(SECOND, by_tag))
    assert warned() == ["t"], "also where the broker keeps the newer expression"


def test_members_that_select_the_same_are_not_warned_of(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    one = consumer("g", "t", version=5)
    tags = replace(one.subscriptions[0], sub_string="a || b", tags=("a", "b"), codes=(97, 98))
    run(rig.heartbeat(FIRST, replace(one, subscriptions=(tags,))))
    run(rig.heartbeat(SECOND, replace(one, subscriptions=(replace(tags, sub_string="b||a"),))))
    by_hand = replace(consumer("h", "t"), consume_type=ConsumeType.CONSUME_ACTIVELY)
    run(rig.heartbeat(FIRST, by_hand))
    run(rig.heartbeat(SECOND, replace(by_hand, subscriptions=consumer("h", "u").subscriptions)))
    assert caplog.records == []


def test_a_changed_client_id_on_a_connection_is_no_new_member(rig: Rig) -> None:
    run(rig.heartbeat(FIRST, consumer("g", "t"), client_id="old"))
    rig.link.sent.clear()
    run(rig.heartbeat(FIRST, consumer("g", "t"), client_id="new"))
    assert members(rig, "g") == ["new"]
    assert rig.link.sent == []


def test_broadcasting_groups_are_not_notified(rig: Rig) -> None:
    both = consumer("g", "t", model=MessageModel.BROADCASTING)
    run(rig.heartbeat(FIRST, both))
    run(rig.heartbeat(SECOND, both))
    leave(rig, FIRST, "g")
    assert rig.link.sent == []
    assert rig.plane.consumers["g"][0] is MessageModel.BROADCASTING


def test_a_group_without_notifications_gets_none(rig: Rig) -> None:
    run(rig.control.groups.find_or_make("g"))
    found = rig.control.groups.get("g")
    assert found is not None
    quiet = replace(found, notify_consumer_ids_changed_enable=False)
    run(rig.control.groups._put([quiet]))
    run(rig.heartbeat(FIRST, consumer("g", "t")))
    run(rig.heartbeat(SECOND, consumer("g", "t")))
    rig.control.connection_closed(1)
    assert rig.link.sent == []


def test_a_closed_connection_leaves_all_its_groups(rig: Rig) -> None:
    run(rig.heartbeat(FIRST, consumer("g", "t"), consumer("h", "t"), producers=["p"]))
    run(rig.heartbeat(SECOND, consumer("g", "t")))
    rig.link.sent.clear()
    rig.control.connection_closed(1)
    assert members(rig, "g") == ["c2"]
    assert members(rig, "h") == []
    assert rig.control.clients.producers.get("p") is None
    assert rig.link.notices("g") == [2]
    assert rig.link.notices("h") == []
    rig.control.connection_closed(1)
    assert rig.link.notices("g") == [2], "once is enough"


def test_a_connection_that_closes_during_its_heartbeat_stays_out(rig: Rig) -> None:
    async def both() -> None:
        beat = asyncio.ensure_future(rig.heartbeat(FIRST, consumer("g", "t"), producers=["p"]))
        await asyncio.sleep(0)
        rig.control.connection_closed(1)
        await beat

    run(both())
    assert members(rig, "g") == []
    assert rig.control.clients.producers.get("p") is None
    run(rig.heartbeat(SECOND, consumer("g", "t")))
    assert members(rig, "g") == ["c2"]


def heartbeat_request(*consumers: ConsumerData, producers: Sequence[str] = ()) -> Command:
    named = tuple(ProducerData(group_name=name) for name in producers)
    body = HeartbeatData(client_id="c1", consumers=consumers, producers=named).to_json()
    return Command(code=RequestCode.HEART_BEAT, opaque=7, body=body)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_connection_that_closes_before_its_heartbeats_turn_stays_out(rig: Rig, is_known: bool) -> None:
    if is_known:
        run(rig.heartbeat(SECOND, consumer("g", "t")))

    async def both() -> None:
        # As the server does with what it takes at once: every handler is called before the first coroutine runs.
        beat: Any = rig.control.handlers[RequestCode.HEART_BEAT](
            heartbeat_request(consumer("g", "t"), producers=["p"]), FIRST
        )
        rig.control.connection_closed(1)
        assert (await beat).code == ResponseCode.SUCCESS

    run(both())
    assert members(rig, "g") == (["c2"] if is_known else [])
    assert rig.control.clients.producers.get("p") is None
    assert rig.control.clients._beats == {}


@pytest.mark.parametrize("is_known", [False, True])
def test_a_goodbye_right_behind_a_heartbeat_is_obeyed(rig: Rig, is_known: bool) -> None:
    if is_known:
        run(rig.heartbeat(SECOND, consumer("g", "t"), consumer("h", "t")))

    async def both() -> None:
        first: Any = rig.control.handlers[RequestCode.HEART_BEAT](
            heartbeat_request(consumer("g", "t"), consumer("h", "t"), producers=["p", "q"]), FIRST
        )
        goodbye = {"clientID": "c1", "consumerGroup": "g", "producerGroup": "p"}
        await rig.ask(RequestCode.UNREGISTER_CLIENT, goodbye, caller=FIRST)
        await first

    run(both())
    others = ["c2"] if is_known else []
    assert members(rig, "g") == others
    assert members(rig, "h") == [*others, "c1"], "the other group it has not left"
    assert rig.control.clients.producers.get("p") is None
    assert rig.control.clients.producers.get("q") is not None
    run(rig.heartbeat(FIRST, consumer("g", "t"), producers=["p"]))
    assert members(rig, "g") == [*others, "c1"], "a later heartbeat brings it back"
    assert rig.control.clients.producers.get("p") is not None


def test_a_heartbeat_that_fails_leaves_nothing_behind(rig: Rig) -> None:
    odd = SubscriptionData(topic="", sub_string="*")
    answer = run(rig.heartbeat(FIRST, replace(consumer("g", "t"), subscriptions=(odd,))))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert rig.control.clients._beats == {}


def test_groups_refused_by_the_loops_are_not_kept(rig: Rig) -> None:
    rig.plane.consumer_fails = LimitReached("too many subscriptions")
    with pytest.raises(LimitReached):
        run(rig.heartbeat(FIRST, consumer("g", "t")))
    assert members(rig, "g") == []
    rig.plane.consumer_fails = None
    run(rig.heartbeat(FIRST, consumer("g", "t"), fingerprint=11))
    assert set(rig.plane.consumers["g"][2]) == {"t"}, "the next heartbeat is taken"
    rig.link.sent.clear()

    rig.plane.consumer_fails = InvalidArgument("no expression")
    answer = run(rig.heartbeat(SECOND, consumer("g", "u", model=MessageModel.BROADCASTING), fingerprint=12))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "no expression")
    assert members(rig, "g") == ["c1"]
    found = rig.control.clients.consumers.get("g")
    assert found is not None
    assert (set(found.subscriptions), found.message_model) == ({"t"}, MessageModel.CLUSTERING)
    assert rig.link.sent == []
    rig.plane.consumer_fails = None
    answer = run(rig.heartbeat(FIRST, consumer("g", "t"), fingerprint=11))
    assert answer.fields["IS_SUB_CHANGE"] == "false", "the refused fingerprint is not kept either"
    run(rig.heartbeat(SECOND, consumer("g", "u")))
    assert set(rig.plane.consumers["g"][2]) == {"u"}
    rig.control.connection_closed(1)
    rig.control.connection_closed(2)
    assert rig.plane.consumers == {}


def test_silence_of_two_minutes_is_the_end_of_a_client(rig: Rig) -> None:
    run(rig.heartbeat(FIRST, consumer("g", "t"), producers=["p"]))
    rig.clock.move(60_000)
    run(rig.heartbeat(SECOND, consumer("g", "t")))
    rig.clock.move(60_000)
    rig.control.clients.expire()
    assert members(rig, "g") == ["c1", "c2"], "120 s are allowed"
    rig.link.sent.clear()
    rig.clock.move(1)
    rig.control.clients.expire()
    assert members(rig, "g") == ["c2"]
    assert rig.control.clients.producers.get("p") is None
    assert rig.link.closed == [1]
    assert rig.link.sent == [], "upstream's scan tells nobody"


def test_heartbeats_of_the_second_version(rig: Rig) -> None:
    answer = run(rig.heartbeat(FIRST, consumer("g", "t"), fingerprint=11))
    assert answer.fields["IS_SUB_CHANGE"] == "false"
    rig.link.sent.clear()
    rig.plane.log.clear()
    rig.clock.move(100_000)
    answer = run(rig.heartbeat(FIRST, consumer("g"), fingerprint=11, without_sub=True))
    assert answer.fields["IS_SUB_CHANGE"] == "false"
    assert set(rig.plane.consumers["g"][2]) == {"t"}, "subscriptions stay"
    assert rig.plane.log == []
    rig.clock.move(100_000)
    rig.control.clients.expire()
    assert members(rig, "g") == ["c1"], "it refreshes the connection"
    answer = run(rig.heartbeat(SECOND, consumer("g", "t"), fingerprint=12))
    assert answer.fields["IS_SUB_CHANGE"] == "true", "another fingerprint was there"
    answer = run(rig.heartbeat(FIRST, consumer("g"), without_sub=True))
    assert rig.plane.consumers["g"][2] == {}, "without a fingerprint the second version's flag says nothing"


def test_notices_that_wait_are_sent_together(tmp_path: Path) -> None:
    with Rig(tmp_path, settings={"realTimeNotifyConsumerChange": False}) as rig:
        run(rig.heartbeat(FIRST, consumer("g", "t"), consumer("h", "t")))
        run(rig.heartbeat(SECOND, consumer("g", "t")))
        assert rig.link.sent == []
        leave(rig, FIRST, "h")
        rig.control.clients.flush_notices()
        assert rig.link.notices("g") == [1, 2]
        assert rig.link.notices("h") == []
        rig.control.clients.flush_notices()
        assert rig.link.notices("g") == [1, 2]


def test_no_notices_where_they_are_switched_off(tmp_path: Path) -> None:
    with Rig(tmp_path, settings={"notifyConsumerIdsChangedEnable": False}) as rig:
        run(rig.heartbeat(FIRST, consumer("g", "t")))
        assert rig.link.sent == []


def test_pull_consumers_are_passed_over_where_they_are_refused(tmp_path: Path) -> None:
    with Rig(tmp_path, settings={"rejectPullConsumerEnable": True}) as rig:
        pulls = consumer("g", "t", kind=ConsumeType.CONSUME_ACTIVELY)
        answer = run(rig.heartbeat(FIRST, pulls, consumer("h", "t")))
        assert answer.code == ResponseCode.SUCCESS
        assert members(rig, "g") == []
        assert members(rig, "h") == ["c1"]


def test_a_group_that_may_not_be_made_is_passed_over(tmp_path: Path) -> None:
    with Rig(tmp_path, settings={"autoCreateSubscriptionGroup": False}) as rig:
        answer = run(rig.heartbeat(FIRST, consumer("g", "t")))
        assert answer.code == ResponseCode.SUCCESS
        assert members(rig, "g") == []
        assert rig.control.topics.get("%RETRY%g") is None


@pytest.mark.parametrize("name", ["", "with blank", "x" * 249, "a@b"])
def test_a_group_of_a_bad_name_is_passed_over(rig: Rig, name: str) -> None:
    answer = run(rig.heartbeat(FIRST, consumer(name, "t")))
    assert answer.code == ResponseCode.SUCCESS
    assert rig.control.groups.get(name) is None
    assert rig.plane.consumers == {}


def test_an_ordered_topic_makes_an_ordered_retry_topic(rig: Rig) -> None:
    run(rig.control.topics.make_for_group("t", queues=1, order=True))
    run(rig.heartbeat(FIRST, consumer("g", "t")))
    retry = rig.control.topics.get("%RETRY%g")
    assert retry is not None
    assert retry.order


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        (b"", "HeartbeatData"),
        (b"[]", "expected an object"),
        (b"{", "HeartbeatData"),
        (b'{"clientID":""}', "a clientID has 1 to 4096 characters, not 0"),
        (b'{"clientID":"c","consumerDataSet":7}', "consumerDataSet: expected an array"),
        (b'{"clientID":"c","consumerDataSet":[{"messageModel":"BOTH"}]}', "expected one of BROADCASTING, CLUSTERING"),
        (b'{"clientID":"c","producerDataSet":[{"groupName":"a b"}]}', "the group name 'a b'"),
    ],
)
def test_bad_heartbeats_are_refused_with_a_reason(rig: Rig, body: bytes, remark: str) -> None:
    answer = rig.run(RequestCode.HEART_BEAT, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in answer.remark
    assert rig.plane.consumers == {}


@pytest.mark.parametrize(
    ("topic", "expression", "kind", "is_taken"),
    [
        ("t", "", None, True),
        ("t", "a || b", "TAG", True),
        ("t", "||", "SQL92", True),
        ("t", " || ", "TAG", False),
        ("", "*", "TAG", False),
        ("x" * 256, "*", "TAG", False),
    ],
)
def test_subscriptions_that_nobody_can_mean(
    rig: Rig, topic: str, expression: str, kind: str | None, is_taken: bool
) -> None:
    odd = SubscriptionData(topic=topic, sub_string=expression, expression_type=kind)
    answer = run(rig.heartbeat(FIRST, replace(consumer("g", "t"), subscriptions=(odd,))))
    assert (answer.code == ResponseCode.SUCCESS) is is_taken
    assert (members(rig, "g") == ["c1"]) is is_taken
    assert (rig.control.topics.get("%RETRY%g") is not None) is is_taken, "nothing is noted of what is refused"


def test_goodbyes_and_lists_need_their_members(rig: Rig) -> None:
    answer = rig.run(RequestCode.UNREGISTER_CLIENT, {"consumerGroup": "g"})
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "the request has no clientID")
    answer = rig.run(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "the request has no consumerGroup")
    assert leave(rig, FIRST, "unknown").code == ResponseCode.SUCCESS


@pytest.mark.parametrize(("kind", "code"), [(None, 0), ("TAG", 0), ("SQL92", 1), ("other", 1)])
def test_only_filters_by_tag_are_taken_without_property_filters(rig: Rig, kind: str | None, code: int) -> None:
    subscription = SubscriptionData(topic="t", sub_string="a > 1", expression_type=kind)
    body = CheckClientRequestBody(client_id="c", group="g", subscription=subscription)
    answer = rig.run(RequestCode.CHECK_CLIENT_CONFIG, body=body.to_json())
    assert answer.code == code
    if code:
        assert answer.remark == (
            f"The broker does not support consumer to filter message by {kind}; "
            "its setting enablePropertyFilter is false"
        )


@pytest.mark.parametrize(
    ("kind", "expression", "code", "remark"),
    [
        ("SQL92", "a > 1 AND b = 'x'", 0, None),
        ("SQL92", "a > 'x'", 23, "Invalid MessageSelector. SQL92 expression, byte 4: only numbers and properties"),
        ("SQL92", "(" * 100_000, 23, "Invalid MessageSelector. an SQL92 expression has at most 65536 bytes"),
        ("other", "a > 1", 23, "the broker does not filter messages by other"),
    ],
)
def test_sql92_expressions_are_checked(rig: Rig, kind: str, expression: str, code: int, remark: str | None) -> None:
    rig.control.clients.rules = dataclasses.replace(rig.control.clients.rules, property_filter=True)
    subscription = SubscriptionData(topic="t", sub_string=expression, expression_type=kind)
    body = CheckClientRequestBody(client_id="c", group="g", subscription=subscription)
    answer = rig.run(RequestCode.CHECK_CLIENT_CONFIG, body=body.to_json())
    assert answer.code == code
    assert (answer.remark or "").startswith(remark or "")


def test_forbidden_topic_is_passed_to_the_loops(rig: Rig) -> None:
    run(rig.heartbeat(FIRST, consumer("g", "t", "u")))
    fields = {"group": "g", "topic": "t", "readable": "false"}
    answer = rig.run(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, fields)
    assert answer.body == b'{"group":"g","readable":false,"topic":"t"}'
    assert rig.plane.consumers["g"][3] == {"t"}
    rig.run(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, {**fields, "readable": "true"})
    assert rig.plane.consumers["g"][3] == frozenset()


def test_members_of_a_large_group_are_notified_once_for_many_changes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 10,000 members that joined had the others notified one by one, which took 80 ms."""
    monkeypatch.setattr("cometmq.broker.clients._MEMBERS_INLINE", 2)
    monkeypatch.setattr("cometmq.broker.clients._NOTICES_AT_ONCE", 2)
    monkeypatch.setattr("cometmq.broker.clients._NOTIFY_LATER_S", 0)

    async def whole() -> None:
        for conn in range(1, 6):
            await rig.heartbeat(Caller(conn), consumer("g", "orders"))
        await asyncio.gather(*rig.control.clients._notifying.values())

    run(whole())
    notified = rig.link.notices("g")
    assert set(notified) == {1, 2, 3, 4, 5}
    assert notified[-5:] == [1, 2, 3, 4, 5], "the last notice comes after the last change"


def test_a_heartbeat_of_many_subscriptions_lets_others_go_between_its_groups(rig: Rig) -> None:
    def groups(version: int) -> list[ConsumerData]:
        topics = tuple(SubscriptionData(topic=f"t{number}", sub_version=version) for number in range(500))
        return [replace(consumer(f"g{number}", "t"), subscriptions=topics) for number in range(4)]

    async def beat() -> None:
        await rig.heartbeat(FIRST, *groups(1))
        rig.plane.log.clear()
        task = asyncio.ensure_future(rig.heartbeat(FIRST, *groups(2)))
        while not task.done():
            rig.plane.log.append("others")
            await asyncio.sleep(0)

    run(beat())
    served = [entry for entry in rig.plane.log if entry.startswith("consumer")]
    assert len(served) == 4
    between = rig.plane.log[rig.plane.log.index(served[0]) : rig.plane.log.index(served[-1])]
    assert between.count("others") == 3


def test_a_wrong_subscription_of_one_group_leaves_all_as_they_were(rig: Rig) -> None:
    wrong = replace(consumer("h", "t"), subscriptions=(SubscriptionData(topic=""),))
    assert run(rig.heartbeat(FIRST, consumer("g", "t"), wrong)).code == ResponseCode.SYSTEM_ERROR
    assert members(rig, "g") == []


def test_clients_of_one_id_leave_and_expire_apart(rig: Rig) -> None:
    """A client id is the sender's to choose: connections tell clients apart."""
    run(rig.heartbeat(FIRST, consumer("g", "t", "u"), producers=["p"], client_id="same"))
    run(rig.heartbeat(SECOND, consumer("g", "t", "u"), producers=["p"], client_id="same"))
    assert members(rig, "g") == ["same"]
    answer = rig.run(
        RequestCode.UNREGISTER_CLIENT,
        {"clientID": "same", "consumerGroup": "g", "producerGroup": "p"},
        caller=SECOND,
    )
    assert answer.code == ResponseCode.SUCCESS
    assert members(rig, "g") == ["same"]
    group = rig.control.clients.consumers.get("g")
    assert group is not None
    assert (list(group.members), set(group.subscriptions)) == ([1], {"t", "u"})
    assert rig.control.clients.producers.groups_of_conn(1) == {"p"}
    run(rig.heartbeat(SECOND, consumer("g", "t", "u"), client_id="same"))
    rig.control.clients.connection_closed(2)
    assert members(rig, "g") == ["same"]
    assert rig.plane.log.count("consumer g, holds end") == 1, "pulls of the other were not disturbed"
