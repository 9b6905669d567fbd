"""Checks: requests, their replies and their ends, with brokers that answer and push as the test says."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import pytest

from cometmq._engine import ReceivedMessage, decode_properties, decode_pulled
from cometmq.client.instance.awaited_replies import ReplyFuture, reply_of_push
from cometmq.client.instance.hooks import Interceptor, SendContext
from cometmq.client.send.outgoing import OutgoingMessage
from cometmq.client.send.requesting import reply_message
from cometmq.client.send.send_engine import SendEngine
from cometmq.errors import (
    ClientStateError,
    ConnectionLost,
    InvalidArgument,
    MalformedCommand,
    ReplyTimeout,
    RouteNotFound,
    SendFailed,
)
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import request
from support.fake_cluster import Record
from support.producers import played
from support.scripted_network import ScriptedNetwork, route_of
from support.sends import send_answer
from support.virtual_loop import VirtualLoop

REPLY_TOPIC = "c_REPLY_TOPIC"
NOW_MS = 1_800_000_000_000
ASKED = {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "asker", "TTL": "3000", "CLUSTER": "c", "UNIQ_KEY": "u1"}


def message(body: bytes = b"ping", **given: Any) -> OutgoingMessage:
    return OutgoingMessage(body, **{"topic": "t", **given})


def text_of(properties: dict[str, str]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def push(properties: dict[str, str], body: bytes = b"pong", **changes: object) -> Command:
    fields: dict[str, object] = {
        "producerGroup": "repliers",
        "topic": REPLY_TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 1,
        "sysFlag": 0,
        "bornTimestamp": NOW_MS,
        "flag": 5,
        "properties": text_of(properties),
        "reconsumeTimes": 0,
        "bornHost": "10.0.0.2:4711",
        "storeHost": "10.0.0.3:10911",
        "storeTimestamp": NOW_MS + 1,
        **changes,
    }
    return request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, body=body, **fields)


def received(properties: dict[str, str]) -> ReceivedMessage:
    return reply_of_push(push(properties, topic="t"), now_ms=NOW_MS)


def asked_at(broker_name: str) -> ReceivedMessage:
    """Return a request as it was received of a broker."""
    record = Record(
        topic="t",
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        body=b"ping",
        properties=dict(ASKED),
        born_ms=NOW_MS,
        stored_ms=NOW_MS,
    )
    (message,) = decode_pulled(record.encode(), broker_name=broker_name, topic="t", queue_id=0).messages
    return message


async def asked(network: ScriptedNetwork, count: int = 1) -> dict[str, str]:
    """Wait for the send of a request; return its properties."""
    while len(network.sent) < count:
        await asyncio.sleep(0.001)
    return decode_properties(network.sent[count - 1][1].properties)


# --- The requester


def test_request_is_a_message_with_its_sender_and_gets_its_reply() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        future = engine.request(message(tags="T", properties={"a": "b"}), timeout_ms=2_000)
        properties = await asked(network)
        ((_, sent, timeout_ms),) = network.sent
        assert (sent.code, sent.topic, sent.body) == (310, "t", b"ping")
        assert timeout_ms <= 2_000
        correlation_id = properties["CORRELATION_ID"]
        assert len(correlation_id) == 36
        assert properties.items() >= {"TAGS": "T", "a": "b", "TTL": "2000"}.items()
        assert properties["REPLY_TO_CLIENT"] == engine.instance.client_id
        answer = network.on_request("a:1", push({"CORRELATION_ID": correlation_id, "KEYS": "k"}))
        assert answer.code == ResponseCode.SUCCESS
        reply = await future
        assert (reply.body_bytes, reply.topic, reply.queue_id, reply.flag) == (b"pong", REPLY_TOPIC, 1, 5)
        assert (reply.born_timestamp_ms, reply.store_timestamp_ms) == (NOW_MS, NOW_MS + 1)
        assert (reply.born_host, reply.store_host) == (("10.0.0.2", 4711), ("10.0.0.3", 10911))
        assert reply.properties == {
            "CORRELATION_ID": correlation_id,
            "KEYS": "k",
            "ARRIVE_TIME": str(loop.now_ms()),
        }
        assert future.done()
        assert future.result() is reply
        assert future.exception() is None

    played(use)


def test_reply_may_overtake_the_acknowledgement_of_its_request() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.is_held = True
        future = engine.request(message())
        properties = await asked(network)
        network.on_request("a:1", push({"CORRELATION_ID": properties["CORRELATION_ID"]}))
        assert (await future).body_bytes == b"pong"
        network.let_go()
        await engine.drain()

    played(use)


def test_brokers_know_the_requester_before_they_get_its_request() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        future = engine.request(message())
        await asked(network)
        beats = [address for address, code in network.asked if code == RequestCode.HEART_BEAT]
        assert {"a:1", "b:1", "c:1"} <= set(beats)
        network.asked.clear()
        second = engine.request(message())
        await asked(network, 2)
        assert network.asked == [], "each connection gets its heartbeat once"
        network.on_lost("b:1")
        third = engine.request(message())
        await asked(network, 3)
        assert network.asked == [("b:1", RequestCode.HEART_BEAT)]
        for one in (future, second, third):
            with pytest.raises(ReplyTimeout):
                await one

    played(use, heartbeat_broker_interval_ms=3_600_000, poll_name_server_interval_ms=3_600_000)


def test_time_without_a_reply_is_over_with_an_error_of_its_own() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        began_ms = loop.now_ms()
        future = engine.request(message(), timeout_ms=500)
        with pytest.raises(ReplyTimeout, match="topic t came within 500 ms; the request is stored") as caught:
            await future
        assert loop.now_ms() - began_ms == 500
        assert (caught.value.topic, caught.value.is_stored, caught.value.retriable) == ("t", True, True)
        assert caught.value.correlation_id == (await asked(network))["CORRELATION_ID"]
        assert isinstance(future.exception(), TimeoutError)
        late = network.on_request("a:1", push({"CORRELATION_ID": str(caught.value.correlation_id)}))
        assert late.code == ResponseCode.SUCCESS, "or its replier would send it again"
        network.is_held = True
        with pytest.raises(ReplyTimeout, match="not acknowledged") as caught:
            await engine.request(message(), timeout_ms=500)
        assert not caught.value.is_stored

    played(use)


def test_request_that_cannot_be_sent_fails_as_its_send() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        network.script.append(send_answer(code=13, remark="illegal"))
        with pytest.raises(SendFailed, match="illegal"):
            await engine.request(message())
        network.script.append(ConnectionLost("gone"))
        future = engine.request(message())
        properties = await asked(network, 3)
        assert properties == decode_properties(network.sent[1][1].properties), "attempts are of one request"
        network.on_request("a:1", push({"CORRELATION_ID": properties["CORRELATION_ID"]}))
        await future
        with pytest.raises(RouteNotFound):
            await engine.request(message(topic="nowhere"))
        for wrong in (message(topic="SCHEDULE_TOPIC_XXXX"), message(b"")):
            with pytest.raises(InvalidArgument):
                engine.request(wrong)
        for timeout_ms in (0, -1, 0.5):
            with pytest.raises(InvalidArgument, match="timeout_ms"):
                engine.request(message(), timeout_ms=timeout_ms)  # type: ignore[arg-type]

    played(use)


def test_queue_of_a_request_may_be_chosen() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        queue = MessageQueue(topic="t", broker_name="b", queue_id=1)
        futures = [
            engine.request(message(), queue=queue),
            engine.request(message(), selector=lambda all_, arg: all_[arg], arg=0),
        ]
        await asked(network, 2)
        assert [(one.broker_name, one.queue_id) for _, one, _ in network.sent] == [("b", 1), ("a", 0)]
        await asyncio.gather(*futures, return_exceptions=True)

    played(use)


def test_close_waits_for_replies() -> None:
    ended: list[ReplyFuture] = []

    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        future = engine.request(message(), timeout_ms=1_000)
        closing = asyncio.ensure_future(engine.close())
        properties = await asked(network)
        assert not closing.done()
        network.on_request("a:1", push({"CORRELATION_ID": properties["CORRELATION_ID"]}))
        await closing
        assert future.result().body_bytes == b"pong"
        with pytest.raises(ClientStateError):
            engine.request(message())
        ended.append(future)

    played(use)
    assert ended


def test_loop_cannot_wait_for_itself() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        future = engine.request(message(), timeout_ms=100)
        for wait in (future.result, future.exception):
            with pytest.raises(ClientStateError, match="event loop"):
                wait()
        assert not future.cancel()
        with pytest.raises(ReplyTimeout):
            await future

    played(use)


def test_interceptors_see_requests_and_replies() -> None:
    seen: list[SendContext] = []

    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        future = engine.request(message(), timeout_ms=100)
        await asyncio.gather(future, return_exceptions=True)
        await engine.reply(received(ASKED), b"pong", tags=None, keys=None, properties=None, timeout_ms=None)

    routes = {"t": route_of("a"), REPLY_TOPIC: route_of("a")}
    played(use, routes=routes, interceptors=(Interceptor(after_send=seen.append),))
    assert [(one.topic, one.error) for one in seen] == [("t", None), (REPLY_TOPIC, None)]


# --- The replier


def test_reply_goes_out_under_its_own_code_to_the_broker_of_its_request() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        asked_at_b = asked_at("b")
        for _ in range(4):
            await engine.reply(asked_at_b, b"pong", tags="T", keys="k", properties={"a": "b"}, timeout_ms=None)
        assert set(network.brokers) == {"b"}
        sent = network.sent[0][1]
        assert (sent.code, sent.topic, sent.body) == (RequestCode.SEND_REPLY_MESSAGE_V2, REPLY_TOPIC, b"pong")
        properties = decode_properties(sent.properties)
        own = {name: ASKED[name] for name in ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL")}
        assert properties.items() >= {**own, "MSG_TYPE": "reply", "TAGS": "T", "KEYS": "k", "a": "b"}.items()
        network.sent.clear()
        network.script.append(send_answer(code=1, remark="push reply message fail, channel of <asker> not found."))
        result = await engine.reply(asked_at_b, b"pong", tags=None, keys=None, properties=None, timeout_ms=None)
        assert network.brokers[0] == "b"
        assert network.brokers[1] != "b", "another broker may know the requester"
        assert result.attempts == 2
        network.sent.clear()
        elsewhere = asked_at("gone")
        await engine.reply(elsewhere, b"pong", tags=None, keys=None, properties=None, timeout_ms=None)
        assert len(network.sent) == 1

    played(use, routes={"t": route_of("a"), REPLY_TOPIC: route_of("a", "b", "c", queues=1)})


def test_message_marked_as_a_reply_takes_the_code_of_replies_however_it_is_sent() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        await engine.send(message(properties={"MSG_TYPE": "reply"}), is_awaited=True)
        assert network.sent[0][1].code == RequestCode.SEND_REPLY_MESSAGE_V2
        await engine.send(message(properties={"MSG_TYPE": "other"}), is_awaited=True)
        assert network.sent[1][1].code == RequestCode.SEND_MESSAGE_V2

    played(use, knows_the_way=True)
    played(use, accumulate=True)


@pytest.mark.parametrize("missing", ["CORRELATION_ID", "REPLY_TO_CLIENT", "CLUSTER"])
def test_message_that_is_no_request_cannot_be_answered(missing: str) -> None:
    rest = {name: value for name, value in ASKED.items() if name != missing}
    with pytest.raises(InvalidArgument, match=missing):
        reply_message(received(rest), b"pong")


def test_reply_keeps_the_names_of_its_request() -> None:
    made = reply_message(received(ASKED), b"pong", properties={"CORRELATION_ID": "other", "MSG_TYPE": "x", "a": "b"})
    assert made.topic == REPLY_TOPIC
    assert made.properties == {
        "a": "b",
        "CORRELATION_ID": "c-1",
        "REPLY_TO_CLIENT": "asker",
        "TTL": "3000",
        "MSG_TYPE": "reply",
    }


# --- Pushes


def test_pushed_reply_is_read_also_compressed_and_from_ipv6() -> None:
    body = b"pong" * 1_000
    command = push(
        {"a": "b"},
        zlib.compress(body),
        sysFlag=0x301 | 0xC,
        bornHost="[2001:db8::1]:4711",
        storeHost="10.0.0.3:10911",
    )
    reply = reply_of_push(command, now_ms=7)
    assert reply.body_bytes == body
    assert (reply.born_host, reply.store_host) == (("2001:db8::1", 4711), ("10.0.0.3", 10911))
    assert reply.properties == {"a": "b", "ARRIVE_TIME": "7"}


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("/127.0.0.1:4711", ("127.0.0.1", 4711)),
        ("broker.example/10.0.0.3:4711", ("10.0.0.3", 4711)),
        ("/[2001:db8:0:0:0:0:0:1]:4711", ("2001:db8::1", 4711)),
        ("broker.example/<unresolved>:4711", ("0.0.0.0", 0)),
        ("", ("0.0.0.0", 0)),
        (None, ("0.0.0.0", 0)),
    ],
)
def test_hosts_of_java_brokers_are_read(text: str | None, host: tuple[str, int]) -> None:
    reply = reply_of_push(push({}, bornHost=text, storeHost=text), now_ms=7)
    assert (reply.born_host, reply.store_host) == (host, host)


def test_reply_with_too_many_properties_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="too long"):
        reply_of_push(push({"a": "b" * 32_760}), now_ms=7)


def test_topic_of_a_reply_is_the_users() -> None:
    assert reply_of_push(push({}, topic="NS%orders"), now_ms=7, namespace="NS").topic == "orders"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"topic": None}, MalformedCommand),
        ({"bornTimestamp": "x"}, MalformedCommand),
        ({"topic": "t" * 200}, InvalidArgument),
        ({"queueId": None}, MalformedCommand),
    ],
)
def test_push_that_cannot_be_read_is_refused(changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        reply_of_push(push({}, **changes), now_ms=7)

    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        answer = network.on_request("a:1", push({}, **changes))
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "process reply message fail")

    played(use)


def test_reply_that_nobody_waits_for_is_acknowledged() -> None:
    async def use(engine: SendEngine, network: ScriptedNetwork, loop: VirtualLoop) -> None:
        for properties in ({"CORRELATION_ID": "unknown"}, {}):
            assert network.on_request("a:1", push(properties)).code == ResponseCode.SUCCESS

    played(use)
