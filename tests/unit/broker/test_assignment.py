"""Checks: the assignment of queues, against upstream's vectors; modes and where they are kept; the three codes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import cometmq.admin
from cometmq.broker.assignment import ALL_QUEUES, allocate_for_pop, share_out
from cometmq.client.group.allocation import Averagely, AveragelyByCircle
from cometmq.errors import DiskFull, InvalidArgument
from cometmq.remoting.bodies.assignments import (
    MessageRequestModeSerializeWrapper,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from cometmq.remoting.bodies.heartbeat import HeartbeatData, MessageModel
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.routes import QueueData, TopicRouteData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from cometmq.store_config.request_modes import MessageRequestMode, RequestMode
from cometmq.store_config.topic_config import TopicConfig
from cometmq.testing import cluster
from support.broker_twins import Caller, Rig, consumer, run


def queues_of(count: int, *, broker: str = "broker-a", topic: str = "t") -> list[MessageQueue]:
    return [MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id) for queue_id in range(count)]


def ids_of(queues: Sequence[MessageQueue] | None) -> list[int] | None:
    return None if queues is None else [queue.queue_id for queue in queues]


# --- Who gets what


@pytest.mark.parametrize(
    ("queues", "members", "share", "expected"),
    [
        (8, 4, 1, [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [6, 7, 0, 1]]),
        (8, 4, 2, [[0, 1, 2, 3, 4, 5], [2, 3, 4, 5, 6, 7], [4, 5, 6, 7, 0, 1], [6, 7, 0, 1, 2, 3]]),
        (8, 4, 3, [[-1]] * 4),
        (8, 4, 0, [[-1]] * 4),
        (8, 4, -1, [[-1]] * 4),
        (8, 1, 1, [[-1]]),
        (4, 4, 1, [[0, 1], [1, 2], [2, 3], [3, 0]]),
        (3, 5, 1, [[0], [1], [2], [0], [1]]),
        (2, 6, 2, [[0], [1], [0], [1], [0], [1]]),
    ],
)
def test_pops_are_shared_as_upstream_shares_them(
    queues: int, members: int, share: int, expected: list[list[int]]
) -> None:
    ids = [f"c{number}" for number in range(members)]
    mode = RequestMode(mode=MessageRequestMode.POP, pop_share_queue_num=share)
    found = [
        # In no order: every member sorts them alike.
        share_out("AVG", mode, group="g", client_id=own, queues=queues_of(queues)[::-1], client_ids=ids[::-1])
        for own in ids
    ]
    assert [ids_of(one) for one in found] == expected


def test_each_queue_is_popped_by_one_member_more_than_the_share() -> None:
    ids = [f"c{number}" for number in range(5)]
    for strategy in (Averagely(), AveragelyByCircle()):
        taken = [
            queue for own in ids for queue in set(allocate_for_pop(strategy, "g", own, queues_of(12), ids, share=2))
        ]
        assert {taken.count(queue) for queue in queues_of(12)} == {3}


def test_all_queues_are_one_entry_for_each_broker() -> None:
    mode = RequestMode(mode=MessageRequestMode.POP)
    queues = [*queues_of(3), *queues_of(2, broker="broker-b")]
    found = share_out("AVG", mode, group="g", client_id="c", queues=queues, client_ids=["c", "d"])
    assert found is not None
    assert [(one.broker_name, one.queue_id) for one in found] == [("broker-a", ALL_QUEUES), ("broker-b", ALL_QUEUES)]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("AVG", [[0, 1, 2], [3, 4, 5], [6, 7]]),
        ("AVG_BY_CIRCLE", [[0, 3, 6], [1, 4, 7], [2, 5]]),
        ("CONSISTENT_HASH", [None, None, None]),
        ("", [None, None, None]),
    ],
)
def test_pulls_are_shared_by_two_strategies_and_no_other(strategy: str, expected: list[list[int] | None]) -> None:
    ids = ["c0", "c1", "c2"]
    found = [
        share_out(strategy, RequestMode(), group="g", client_id=own, queues=queues_of(8), client_ids=ids) for own in ids
    ]
    assert [ids_of(one) for one in found] == expected


def test_unlisted_member_gets_no_queue_and_member_without_id_keeps_its_queues() -> None:
    for mode in (RequestMode(), RequestMode(mode=MessageRequestMode.POP, pop_share_queue_num=1)):
        for queues in (8, 2):
            given = {"group": "g", "queues": queues_of(queues), "client_ids": ["c0", "c1", "c2", "c3"]}
            assert share_out("AVG", mode, client_id="other", **given) == ()
            assert share_out("AVG", mode, client_id="", **given) is None
        assert share_out("AVG", mode, group="g", client_id="c0", queues=[], client_ids=["c0", "c1", "c2"]) is None
    with pytest.raises(InvalidArgument):
        allocate_for_pop(Averagely(), "g", "c0", [], ["c0", "c1", "c2"], share=1)


# --- The requests


def assignment(answer: Command) -> list[tuple[int, str]] | None:
    assert answer.code == ResponseCode.SUCCESS
    found = QueryAssignmentResponseBody.from_json(answer.body).assignments
    if found is None:
        return None
    return [(one.queue.queue_id, one.mode.value) for one in found if one.queue is not None]


async def asked(
    rig: Rig, topic: str = "t", *, client: str = "c1", model: MessageModel = MessageModel.CLUSTERING, group: str = "g"
) -> Command:
    body = QueryAssignmentRequestBody(topic=topic, consumer_group=group, client_id=client, message_model=model)
    answer = await rig.ask(RequestCode.QUERY_ASSIGNMENT, body=body.to_json())
    assert isinstance(answer, Command)
    return answer


async def set_mode(rig: Rig, topic: str, mode: MessageRequestMode, share: int = 0, *, group: str = "g") -> Command:
    body = SetMessageRequestModeRequestBody(topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=share)
    answer = await rig.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body.to_json())
    assert isinstance(answer, Command)
    return answer


def rig_with_topic(path: Path, *, settings: dict[str, object] | None = None) -> Rig:
    rig = Rig(path, settings=settings)
    rig.control.assignments.rules = replace(rig.control.assignments.rules, serves_pops=True)
    run(rig.make_topics(TopicConfig(topic_name="t", read_queue_nums=4, write_queue_nums=4)))
    return rig


def test_members_share_the_queues_of_a_broker_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        assert assignment(await asked(rig)) is None, "nobody of the group is there"
        for conn in (1, 2):
            await rig.heartbeat(Caller(conn), consumer("g", "t"))
        assert [assignment(await asked(rig, client=f"c{number}")) for number in (1, 2, 3)] == [
            [(0, "PULL"), (1, "PULL")],
            [(2, "PULL"), (3, "PULL")],
            [],
        ]
        assert assignment(await asked(rig, "nowhere")) is None
        assert assignment(await asked(rig, "%RETRY%g")) == [(0, "PULL")]
        assert assignment(await asked(rig, "%LMQ%light")) == [(0, "PULL")]
        everything = [(queue, "PULL") for queue in range(4)]
        assert assignment(await asked(rig, group="none", model=MessageModel.BROADCASTING)) == everything

    with rig_with_topic(tmp_path) as rig:
        run(scenario())


def test_a_mode_is_set_kept_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "config" / "messageRequestMode.json"

    async def scenario() -> None:
        await rig.heartbeat(Caller(1), consumer("g", "t"))
        answer = await set_mode(rig, "t", MessageRequestMode.POP, 8)
        assert (answer.code, answer.remark, answer.fields, answer.body) == (ResponseCode.SUCCESS, None, {}, b"")
        assert path.read_text() == (
            '{\n\t"messageRequestModeMap":{\n\t\t"t":{\n\t\t\t"g":{\n\t\t\t\t"consumerGroup":"g",\n\t\t\t\t"mode":"POP",'
            '\n\t\t\t\t"popShareQueueNum":8,\n\t\t\t\t"topic":"t"\n\t\t\t}\n\t\t}\n\t}\n}'
        ), "written at once, as upstream writes it"
        answer = await asked(rig)
        assert answer.body == (
            b'{"messageQueueAssignments":[{"messageQueue":{"brokerName":"broker-a","queueId":-1,"topic":"t"},"mode":"POP"}]}'
        )
        assert assignment(await asked(rig, "%RETRY%g")) == [(0, "PULL")]
        assert (await set_mode(rig, "t", MessageRequestMode.PULL, group="made")).code == ResponseCode.SUCCESS
        assert rig.control.groups.get("made") is not None
        answer = await rig.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        assert MessageRequestModeSerializeWrapper.from_json(answer.body).modes == {
            "t": {
                name: SetMessageRequestModeRequestBody(
                    topic="t", consumer_group=name, mode=mode, pop_share_queue_num=share
                )
                for name, mode, share in (("g", MessageRequestMode.POP, 8), ("made", MessageRequestMode.PULL, 0))
            }
        }

    with rig_with_topic(tmp_path) as rig:
        run(scenario())
        rig.control.stop()
    with Rig(tmp_path) as again:
        assert again.control.assignments.mode_of("t", "g") == RequestMode(
            mode=MessageRequestMode.POP, pop_share_queue_num=8
        )


def test_invalid_mode_is_refused_like_upstream(tmp_path: Path) -> None:
    async def scenario() -> None:
        for topic, group, code, remark in (
            ("%RETRY%g", "g", ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode"),
            ("nowhere", "g", ResponseCode.TOPIC_NOT_EXIST, "topic[nowhere] not exist"),
            ("t", "nobody", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist"),
        ):
            answer = await set_mode(rig, topic, MessageRequestMode.POP, group=group)
            assert (answer.code, answer.remark) == (code, remark)
        for body in (b"", b"nonsense", b'{"topic":"t","mode":"PUSH"}'):
            answer = await rig.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "SetMessageRequestModeRequestBody" in answer.remark
        answer = await rig.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        assert answer.body == b'{"messageRequestModeMap":{}}'

    with rig_with_topic(tmp_path, settings={"autoCreateSubscriptionGroup": False}) as rig:
        run(scenario())
    assert not (tmp_path / "config" / "messageRequestMode.json").exists()


def test_a_mode_that_could_not_be_written_is_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        def full() -> bool:
            raise DiskFull("no space", errno=28)

        monkeypatch.setattr(rig.control.assignments._write, "_write", full)
        with pytest.raises(DiskFull):
            await set_mode(rig, "t", MessageRequestMode.POP)
        assert rig.control.assignments.mode_of("t", "g").mode is MessageRequestMode.PULL

    with rig_with_topic(tmp_path) as rig:
        run(scenario())


def test_settings_are_the_default_mode(tmp_path: Path) -> None:
    settings = {"defaultMessageRequestMode": "POP", "serverLoadBalancerEnable": False}

    async def scenario() -> None:
        await rig.heartbeat(Caller(1), consumer("g", "t"))
        assert assignment(await asked(rig)) == [(queue, "POP") for queue in range(4)]
        change = b"serverLoadBalancerEnable=true\ndefaultPopShareQueueNum=1\n"
        assert (await rig.ask(RequestCode.UPDATE_BROKER_CONFIG, body=change)).code == ResponseCode.SUCCESS
        rig.control.assignments.rules = replace(rig.control.assignments.rules, serves_pops=True)
        assert assignment(await asked(rig)) == [(-1, "POP")]
        for conn in (2, 3):
            await rig.heartbeat(Caller(conn), consumer("g", "t"))
        assert assignment(await asked(rig)) == [(0, "POP"), (1, "POP"), (2, "POP")]
        assert assignment(await asked(rig, "%RETRY%g")) == [(0, "PULL")], "retry topics are pulled"

    with rig_with_topic(tmp_path, settings=settings) as rig:
        run(scenario())


def test_popping_member_pulls_where_pops_are_not_served(tmp_path: Path) -> None:
    async def scenario() -> None:
        await rig.heartbeat(Caller(1), consumer("g", "t"))
        assert (await set_mode(rig, "t", MessageRequestMode.POP)).code == ResponseCode.SUCCESS
        assert assignment(await asked(rig)) == [(-1, "POP")]
        rig.control.assignments.rules = replace(rig.control.assignments.rules, serves_pops=False)
        assert assignment(await asked(rig)) == [(queue, "PULL") for queue in range(4)]
        assert rig.control.assignments.mode_of("t", "g").mode is MessageRequestMode.POP, "the mode that was set stays"

    with rig_with_topic(tmp_path) as rig:
        run(scenario())


def test_queues_of_the_whole_cluster_are_shared_out(tmp_path: Path) -> None:
    parts = [QueueData(broker_name=name, read_queue_nums=2, write_queue_nums=2, perm=6) for name in ("b", "a")]

    async def scenario() -> None:
        rig.name_servers.routes = {"t": TopicRouteData(queue_datas=tuple(parts))}
        await rig.heartbeat(Caller(1), consumer("g", "t"))
        found = QueryAssignmentResponseBody.from_json((await asked(rig)).body).assignments
        assert found is not None
        assert [(one.queue.broker_name, one.queue.queue_id) for one in found if one.queue is not None] == [
            (name, queue) for name in ("a", "b") for queue in (0, 1)
        ]
        many = await asyncio.gather(*(asked(rig, "elsewhere") for _ in range(5)))
        assert {assignment(answer) is None for answer in many} == {True}
        assert rig.name_servers.asked == ["t", "elsewhere"], "those who wait for one answer ask once"

    with rig_with_topic(tmp_path) as rig:
        run(scenario())


def test_all_brokers_of_a_cluster_assign_alike() -> None:
    """Over sockets: the members are at both brokers, and the route comes from a name server."""
    with cluster(brokers=2) as running, contextlib.ExitStack() as open_channels:
        with cometmq.admin.connect(namesrv=running.name_server_address) as admin:
            admin.topics.create("t", queues=3)
        told: dict[str, set[bytes]] = {}
        for client in ("c1", "c2"):
            for broker in running.brokers:
                channel = open_channels.enter_context(Channel(broker.address))
                beat = HeartbeatData(client_id=client, consumers=(consumer("g", "t"),))
                channel.invoke(Command(code=RequestCode.HEART_BEAT, body=beat.to_json()), timeout_ms=10_000)
        for client in ("c1", "c2"):
            for broker in running.brokers:
                channel = open_channels.enter_context(Channel(broker.address))
                body = QueryAssignmentRequestBody(topic="t", consumer_group="g", client_id=client)
                question = Command(code=RequestCode.QUERY_ASSIGNMENT, body=body.to_json())
                told.setdefault(client, set()).add(channel.invoke(question, timeout_ms=10_000).body)
    assert [len(answers) for answers in told.values()] == [1, 1]
    shares = [QueryAssignmentResponseBody.from_json(answers.pop()).assignments or () for answers in told.values()]
    assert [len(share) for share in shares] == [3, 3]
    assert {one.queue for share in shares for one in share} == {
        *queues_of(3, broker="broker-a"),
        *queues_of(3, broker="broker-b"),
    }
