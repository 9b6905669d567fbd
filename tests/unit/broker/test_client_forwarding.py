"""Checks: a client gets the admin's own request, its answer comes back, and silence has its code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.errors import ConnectionLost, RequestTimeout
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.offset_changes import GetConsumerStatusBody
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from support.broker_twins import Caller, Rig, consumer, run

QUEUE = MessageQueue(topic="orders", broker_name="broker-a", queue_id=0)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        run(rig.heartbeat(Caller(1), consumer("g", "orders")))
        run(rig.heartbeat(Caller(2), consumer("g", "orders")))
        for conn, member in enumerate(members(rig), start=1):
            group = rig.control.clients.consumers.get("g")
            assert group is not None
            group.members[conn] = replace(member, version=479)
        yield rig


def members(rig: Rig) -> list:  # type: ignore[type-arg]
    group = rig.control.clients.consumers.get("g")
    assert group is not None
    return list(group.members.values())


def failing(error: Exception) -> object:
    def answer(request: Command) -> Command:
        raise error

    return answer


def test_running_info_is_the_clients_own_answer(rig: Rig) -> None:
    rig.link.answers[2] = lambda request: replace(
        request.response(0, remark="not set any response code", fields={"a": "b"}, body=b"{}"), opaque=99
    )
    fields = {"consumerGroup": "g", "clientId": "c2", "jstackEnable": "false", "AccessKey": "x"}
    answer = rig.run(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    assert (answer.code, answer.remark, answer.body) == (0, "not set any response code", b"{}")
    ((conn, passed, timeout_ms),) = rig.link.asked
    assert (conn, passed.code, passed.fields, timeout_ms) == (2, 307, fields, 10_000)


@pytest.mark.parametrize(
    ("error", "code", "remark"),
    [
        (RequestTimeout("too late"), ResponseCode.CONSUME_MSG_TIMEOUT, "consumer <g> <c1> Timeout: too late"),
        (ConnectionLost("gone"), ResponseCode.SYSTEM_ERROR, "invoke consumer <g> <c1> Exception: gone"),
    ],
)
def test_a_client_that_does_not_answer(rig: Rig, error: Exception, code: int, remark: str) -> None:
    rig.link.answers[1] = failing(error)  # type: ignore[assignment]
    answer = rig.run(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": "c1"})
    assert (answer.code, answer.remark) == (code, remark)


def test_a_client_that_is_not_there_or_too_old(rig: Rig) -> None:
    for group, client in (("g", "c3"), ("h", "c1")):
        answer = rig.run(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": group, "clientId": client})
        assert (answer.code, answer.remark) == (1, f"The Consumer <{group}> <{client}> not online")
    members(rig)[0].version = 61
    answer = rig.run(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": "c1"})
    assert answer.code == 1
    assert "too low to finish, please upgrade it to V3_1_8_SNAPSHOT" in answer.remark
    assert rig.link.asked == []


def test_a_message_is_given_to_a_client_directly(rig: Rig) -> None:
    rig.store.append("orders", b"body")
    message = rig.store.get("orders", 0, 0)
    rig.link.answers[1] = lambda request: request.response(0, body=b'{"consumeResult":"CR_SUCCESS"}')
    fields = {"consumerGroup": "g", "clientId": "c1", "msgId": message.message_id, "topic": "orders"}
    answer = rig.run(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    assert answer.body == b'{"consumeResult":"CR_SUCCESS"}'
    ((_, passed, _),) = rig.link.asked
    assert len(passed.body) == message.record_bytes
    assert passed.body[:8] == message.record_bytes.to_bytes(4, "big") + bytes.fromhex("daa320a7")
    assert passed.fields == {**fields, "brokerName": "broker-a", "topicSysFlag": "0", "groupSysFlag": "0"}


@pytest.mark.parametrize(
    ("message_id", "remark"),
    [
        ("7F00000100002A9F00000000000F0000", "there is no message"),
        ("xyz", "32 or 56 hexadecimal digits"),
        ("", "the request has no msgId"),
    ],
)
def test_a_message_that_is_not_there(rig: Rig, message_id: str, remark: str) -> None:
    fields = {"consumerGroup": "g", "clientId": "c1", "msgId": message_id}
    answer = rig.run(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    assert answer.code == 1
    assert remark in answer.remark
    assert rig.link.asked == []


def status(rig: Rig, **changes: str) -> Command:
    fields = {"topic": "orders", "group": "g", "clientAddr": "", **changes}
    answer: Command = rig.run(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields)
    return answer


def test_where_the_members_are(rig: Rig) -> None:
    body = GetConsumerStatusBody(queues={QUEUE: 5}).to_json()
    rig.link.answers[1] = lambda request: request.response(0, body=body)
    found = GetConsumerStatusBody.from_json(status(rig).body).clients
    assert found == {"c1": {QUEUE: 5}}, "one that cannot be asked is left out"
    assert {(conn, timeout) for conn, _, timeout in rig.link.asked} == {(1, 5_000), (2, 5_000)}
    rig.link.answers[2] = lambda request: request.response(0, body=b"nonsense")
    rig.link.asked.clear()
    assert GetConsumerStatusBody.from_json(status(rig, clientAddr="c2").body).clients == {}
    assert [conn for conn, _, _ in rig.link.asked] == [2]
    answer = status(rig, group="h")
    assert (answer.code, answer.remark) == (1, "No Any Consumer online in the consumer group: [h]")
    members(rig)[0].version = 27
    assert "does not support" in (status(rig).remark or "")


@pytest.mark.parametrize("limit", ["FORWARDED_OF_CALLER_MAX", "FORWARDED_TO_CLIENT_MAX", "FORWARDED_MAX"])
def test_forwarded_requests_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """Ten thousand to a member that never answered filled what all clients share."""
    monkeypatch.setattr(f"cometmq.broker.client_forwarding.{limit}", 0)
    rig.link.answers[1] = lambda request: request.response(0)
    fields = {"consumerGroup": "g", "clientId": "c1"}
    assert rig.run(RequestCode.GET_CONSUMER_RUNNING_INFO, fields).code == ResponseCode.SYSTEM_BUSY
    monkeypatch.setattr(f"cometmq.broker.client_forwarding.{limit}", 1)
    assert rig.run(RequestCode.GET_CONSUMER_RUNNING_INFO, fields).code == ResponseCode.SUCCESS
    assert rig.run(RequestCode.GET_CONSUMER_RUNNING_INFO, fields).code == ResponseCode.SUCCESS, (
        "requests that ended count no more"
    )
