"""Checks: a reply reaches the client that waits for it, is stored, and its replier hears what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq._engine import decode_properties
from cometmq.broker import replies
from cometmq.errors import ConnectionLost, DiskFull, RequestTimeout
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from support.broker_twins import NOW_MS, Caller, Rig, run, send_fields

TOPIC = "DefaultCluster_REPLY_TOPIC"
SENT = {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "asker", "TTL": "3000", "MSG_TYPE": "reply", "UNIQ_KEY": "u1"}
REGION = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
REPLIER = Caller(9, peer="127.0.0.1:50001")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as rig:
        yield rig


def members(code: int, properties: dict[str, str] | None = None, **changes: str) -> dict[str, str]:
    text = "".join(f"{name}\x01{value}\x02" for name, value in (SENT if properties is None else properties).items())
    return send_fields(code, **{"producerGroup": "repliers", "topic": TOPIC, "properties": text, **changes})


def connect(rig: Rig, conn: int = 1, *, groups: tuple[str, ...] = ("askers",), client_id: str = "asker") -> None:
    """Let the requester's heartbeat come over a connection, on which it acknowledges replies from now on."""
    run(rig.heartbeat(Caller(conn), producers=groups, client_id=client_id))
    rig.link.answers[conn] = lambda request: request.response(0)


def reply(
    rig: Rig,
    code: int = RequestCode.SEND_REPLY_MESSAGE_V2,
    body: bytes = b"pong",
    *,
    sent: dict[str, str] | None = None,
    **changes: str,
) -> Command:
    answer = rig.run(code, members(code, sent, **changes), body, caller=REPLIER)
    assert isinstance(answer, Command)
    assert {name: answer.fields.get(name) for name in REGION} == REGION
    return answer


def failing(error: Exception) -> object:
    def answer(request: Command) -> Command:
        raise error

    return answer


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
def test_reply_is_pushed_to_its_requester_and_stored(rig: Rig, code: RequestCode) -> None:
    connect(rig)
    answer = reply(rig, code)
    ((conn, pushed, timeout_ms),) = rig.link.asked
    assert (conn, pushed.code, pushed.body, timeout_ms) == (1, 326, b"pong", 10_000)
    properties = decode_properties(pushed.fields["properties"].encode())
    assert properties == {**SENT, **REGION, "PUSH_REPLY_TIME": str(NOW_MS)}
    assert {name: value for name, value in pushed.fields.items() if name != "properties"} == {
        "producerGroup": "repliers",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "3",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "bornHost": "127.0.0.1:50001",
        "storeHost": "127.0.0.1:10911",
        "storeTimestamp": str(NOW_MS),
    }
    (stored,) = rig.plane.put_messages
    assert (stored.topic, stored.queue_id, stored.body, stored.flag) == (TOPIC, 0, b"pong", 3)
    assert stored.properties == {**SENT, **REGION}
    assert stored.born_host == ("127.0.0.1", 50001)
    message = rig.store.get(TOPIC, 0, 0)
    assert answer.code == 0
    assert answer.fields == {**REGION, "msgId": message.message_id, "queueId": "0", "queueOffset": "0"}


def test_compressed_reply_keeps_its_flags_and_no_others(rig: Rig) -> None:
    connect(rig)
    reply(rig, sysFlag=str(0x301 | 0xC))
    ((_, pushed, _),) = rig.link.asked
    assert pushed.fields["sysFlag"] == str(0x301 | 0xC)
    assert rig.plane.put_messages[0].sys_flag == 0x301


@pytest.mark.parametrize(
    ("error", "remark"),
    [
        (None, "push reply message fail, channel of <asker> not found."),
        (RequestTimeout("late"), "push reply message to askerfail."),
        (ConnectionLost("gone"), "push reply message to askerfail."),
    ],
)
def test_reply_that_reaches_nobody_is_stored_and_reported(rig: Rig, error: Exception | None, remark: str) -> None:
    if error is not None:
        connect(rig)
        rig.link.answers[1] = failing(error)  # type: ignore[assignment]
    answer = reply(rig)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert answer.fields["msgId"] == rig.store.get(TOPIC, 0, 0).message_id


def test_requester_that_refuses_a_reply_is_reported(rig: Rig) -> None:
    connect(rig)
    rig.link.answers[1] = lambda request: request.response(1, remark="process reply message fail")
    assert reply(rig).code == ResponseCode.SYSTEM_ERROR


def test_reply_without_requester_is_refused(rig: Rig) -> None:
    answer = reply(rig, sent={"CORRELATION_ID": "c"})
    assert (answer.code, answer.remark) == (1, "reply message properties[REPLY_TO_CLIENT] is null")


def test_replies_are_not_stored_where_a_setting_says_so(tmp_path: Path) -> None:
    with Rig(tmp_path, settings={"storeReplyMessageEnable": False}) as rig:
        connect(rig)
        answer = reply(rig)
        assert (answer.code, answer.fields) == (0, {**REGION, "msgId": "0", "queueId": "0", "queueOffset": "0"})
        assert len(rig.link.asked) == 1
        assert rig.plane.put_messages == []


def test_reply_that_the_store_does_not_take_is_pushed_all_the_same(rig: Rig) -> None:
    connect(rig)
    rig.plane.put_fails = DiskFull("no room")
    answer = reply(rig)
    assert (answer.code, answer.fields["msgId"]) == (0, "0")
    assert len(rig.link.asked) == 1


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"queueId": "2"}, ResponseCode.INVALID_PARAMETER, "request queueId[2] is illegal"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "Sending message to topic[SCHEDULE_TOPIC_XXXX]"),
        ({"topic": "a b"}, ResponseCode.INVALID_PARAMETER, "characters other than"),
        ({"topic": "none_REPLY_TOPIC", "defaultTopic": "none"}, ResponseCode.TOPIC_NOT_EXIST, "not exist"),
    ],
)
def test_reply_is_checked_as_a_send(rig: Rig, changes: dict[str, str], code: ResponseCode, remark: str) -> None:
    connect(rig)
    answer = reply(rig, **changes)
    assert answer.code == code
    assert remark in (answer.remark or "")
    assert rig.link.asked == []


def test_reply_that_no_record_can_hold_is_refused(tmp_path: Path) -> None:
    with Rig(tmp_path, settings={"maxMessageSize": 1_000}) as rig:
        connect(rig)
        assert reply(rig, body=bytes(1_001)).code == ResponseCode.MESSAGE_ILLEGAL
        assert reply(rig, sent={**SENT, "p": "x" * 32_700}).code == ResponseCode.MESSAGE_ILLEGAL
        assert rig.link.asked == []
        assert reply(rig, body=bytes(1_000)).code == ResponseCode.SUCCESS


def test_reply_without_a_queue_goes_to_any(rig: Rig) -> None:
    connect(rig)
    assert reply(rig, queueId="-1").fields["queueId"] == "0"


def test_broker_without_write_permission_refuses_replies(tmp_path: Path) -> None:
    with Rig(tmp_path, settings={"brokerPermission": 4}) as rig:
        connect(rig)
        assert reply(rig).code == ResponseCode.NO_PERMISSION


# --- The requester's connection


def goodbye(rig: Rig, conn: int, group: str) -> None:
    fields = {"clientID": "asker", "producerGroup": group}
    assert rig.run(RequestCode.UNREGISTER_CLIENT, fields, caller=Caller(conn)).code == 0


def asked_conns(rig: Rig) -> list[int]:
    rig.link.asked.clear()
    reply(rig)
    return [conn for conn, _, _ in rig.link.asked]


def test_requester_is_found_until_its_last_group_leaves(rig: Rig) -> None:
    connect(rig, groups=("askers", "others"))
    goodbye(rig, 1, "others")
    assert asked_conns(rig) == [1]
    goodbye(rig, 1, "askers")
    assert asked_conns(rig) == []
    goodbye(rig, 1, "askers")
    connect(rig)
    assert asked_conns(rig) == [1]


def test_reply_goes_to_the_newest_connection(rig: Rig) -> None:
    connect(rig, 1)
    connect(rig, 2)
    connect(rig, 1)
    assert asked_conns(rig) == [2]
    rig.control.connection_closed(2)
    assert asked_conns(rig) == [1]
    rig.clock.move(120_001)
    rig.control.clients.expire()
    assert asked_conns(rig) == []


def test_connection_that_changes_its_client_id_is_found_by_the_new_one(rig: Rig) -> None:
    connect(rig, client_id="before")
    connect(rig, client_id="asker")
    assert asked_conns(rig) == [1]
    assert rig.control.clients.producers.conn_of("before") is None


# --- Limits


@pytest.mark.parametrize("limit", ["PUSHED_TO_CLIENT_MAX", "PUSHED_MAX"])
def test_waiting_replies_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    connect(rig)
    monkeypatch.setattr(replies, limit, 0)
    answer = reply(rig)
    assert (answer.code, rig.plane.put_messages) == (ResponseCode.SYSTEM_BUSY, [])
    monkeypatch.setattr(replies, limit, 1)
    assert reply(rig).code == ResponseCode.SUCCESS
    assert reply(rig).code == ResponseCode.SUCCESS, "replies that were acknowledged count no more"


def test_one_requester_that_is_silent_does_not_keep_others_waiting(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "PUSHED_TO_CLIENT_MAX", 2)
    code = RequestCode.SEND_REPLY_MESSAGE_V2

    async def story() -> list[int]:
        await rig.heartbeat(Caller(1), producers=("askers",), client_id="asker")
        await rig.heartbeat(Caller(2), producers=("askers",), client_id="other")
        released = asyncio.Event()
        link = rig.link
        invoke = link.invoke

        async def slow(conn: int, request: Command, *, timeout_ms: int) -> Command:
            if conn == 1:
                await released.wait()
            return await invoke(conn, request, timeout_ms=timeout_ms)

        monkeypatch.setattr(link, "invoke", slow)
        for conn in (1, 2):
            link.answers[conn] = lambda request: request.response(0)
        waiting = [asyncio.ensure_future(rig.ask(code, members(code), b"x", caller=REPLIER)) for _ in range(2)]
        await asyncio.sleep(0)
        to_other = members(code, {**SENT, "REPLY_TO_CLIENT": "other"})
        codes = [
            (await rig.ask(code, members(code), b"x", caller=REPLIER)).code,
            (await rig.ask(code, to_other, b"x", caller=REPLIER)).code,
        ]
        released.set()
        return codes + [(await one).code for one in waiting]

    assert run(story()) == [ResponseCode.SYSTEM_BUSY, 0, 0, 0]


def test_long_peer_addresses_are_taken(rig: Rig) -> None:
    connect(rig)
    code = RequestCode.SEND_REPLY_MESSAGE
    caller = replace(REPLIER, peer="[::1]:50001")
    assert rig.run(code, members(code), b"x", caller=caller).code == 0
    assert rig.plane.put_messages[0].born_host == ("::1", 50001)
