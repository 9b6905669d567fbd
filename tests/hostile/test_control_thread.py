"""Attacks: one request that takes long. Others are served meanwhile: their heartbeats are answered before it is.

Before, each of these held the only thread that serves heartbeats, look-ups and administration: 9 s for 4 MiB of JSON
that only the lenient reader takes, 10 s for the progress of a group in topics of many queues, 19 s at a name server.
"""

from __future__ import annotations

import select
import socket
import zlib
from collections.abc import Iterator

import pytest

from cometmq.broker.config import load_broker_config
from cometmq.broker.server import Broker
from cometmq.namesrv.server import NamesrvServer
from cometmq.namesrv.settings import NamesrvSettings
from cometmq.remoting.bodies.heartbeat import HeartbeatData, ProducerData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from support.any_disk import ANY_DISK

TIMEOUT_MS = 60_000
QUEUES = 65_536
SETTINGS = {"brokerName": "broker-a", "flushDiskType": "ASYNC_FLUSH", "mappedFileSizeCommitLog": 1 << 20}

LENIENT_CHARS = 250_000
"""Just below the limit of what the lenient reader takes."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    config = load_broker_config(tmp_path_factory.mktemp("store"), listen=":0", settings=SETTINGS, environ=ANY_DISK)
    with Broker(config) as running:
        with Channel(running.address) as channel:
            fields = {
                "topic": "wide",
                "defaultTopic": "TBW102",
                "readQueueNums": str(QUEUES),
                "writeQueueNums": str(QUEUES),
                "perm": "6",
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
            }
            answer = channel.invoke(
                Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields), timeout_ms=TIMEOUT_MS
            )
            assert answer.code == ResponseCode.SUCCESS
        yield running


class Attacker:
    """A connection that sends and does not wait."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)))

    def send(self, *requests: Command) -> None:
        self._socket.sendall(b"".join(request.encode() for request in requests))

    @property
    def is_answered(self) -> bool:
        readable, _, _ = select.select([self._socket], [], [], 0)
        return bool(readable)

    def close(self) -> None:
        self._socket.close()


def heartbeat(number: int) -> Command:
    data = HeartbeatData(client_id="other", producers=(ProducerData(group_name=f"p{number}"),))
    return Command(code=RequestCode.HEART_BEAT, body=data.to_json())


def lenient(chars: int) -> bytes:
    """Text that only the lenient reader takes, and works on for long."""
    return b"{a:[" + b"[]," * ((chars - 10) // 3) + b"]}"


ATTACKS = {
    "progress in a wide topic": Command(
        code=RequestCode.GET_CONSUME_STATS, fields={"consumerGroup": "g", "topic": "wide"}
    ),
    "time spans of a wide topic": Command(
        code=RequestCode.QUERY_CONSUME_TIME_SPAN, fields={"group": "g", "topic": "wide"}
    ),
    "reset of a wide topic": Command(
        code=RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        fields={"topic": "wide", "group": "TOOLS_CONSUMER", "timestamp": "0", "isForce": "true"},
    ),
    "lenient heartbeat": Command(code=RequestCode.HEART_BEAT, body=lenient(LENIENT_CHARS)),
    "lenient locks": Command(code=RequestCode.LOCK_BATCH_MQ, body=lenient(LENIENT_CHARS)),
    "lenient topics": Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=lenient(LENIENT_CHARS)),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_others_are_answered_before_an_expensive_request(broker: Broker, attack: Command) -> None:
    attacker = Attacker(broker.address)
    try:
        with Channel(broker.address) as other:
            assert other.invoke(heartbeat(0), timeout_ms=TIMEOUT_MS).code == ResponseCode.SUCCESS
            attacker.send(attack, attack, attack)
            for number in range(3):
                assert other.invoke(heartbeat(number), timeout_ms=TIMEOUT_MS).code == ResponseCode.SUCCESS
            assert not attacker.is_answered, "the attack is cheap: it proves nothing"
    finally:
        attacker.close()


TOO_MUCH = {
    "lenient 4 MiB": (RequestCode.HEART_BEAT, lenient(4 << 20)),
    "a million values": (RequestCode.HEART_BEAT, b'{"a":[' + b"1," * 1_000_000 + b"1]}"),
    "continued lines": (RequestCode.UPDATE_BROKER_CONFIG, b"a\\\n" * 30_000),
    "references": (
        RequestCode.HEART_BEAT,
        b'{"clientID":"c","x":[' + b"1," * 1_000 + b'1],"y":[' + b'{"$ref":"$.x"},' * 400 + b"1]}",
    ),
}


@pytest.mark.parametrize("attack", TOO_MUCH.values(), ids=TOO_MUCH.keys())
def test_more_than_a_request_may_have_is_refused(broker: Broker, attack: tuple[int, bytes]) -> None:
    with Channel(broker.address) as channel:
        answer = channel.invoke(Command(code=attack[0], body=attack[1]), timeout_ms=TIMEOUT_MS)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert channel.invoke(heartbeat(0), timeout_ms=TIMEOUT_MS).code == ResponseCode.SUCCESS


def registration(pieces: bytes) -> Command:
    """A registration whose zlib stream is small, and long when it is inflated."""
    fields = {
        "brokerName": "b",
        "brokerAddr": "10.0.0.1:10911",
        "clusterName": "c",
        "haServerAddr": "10.0.0.1:10912",
        "brokerId": "0",
    }
    return Command(code=RequestCode.REGISTER_BROKER, fields=fields, body=zlib.compress(pieces), version=479)


def test_a_name_server_inflates_apart_and_within_bounds() -> None:
    def counted(text: bytes) -> bytes:
        return len(text).to_bytes(4, "big") + text

    topics = b"".join(counted(b"topic-%d 4 4 6 SINGLE_TAG {}" % number) for number in range(40_000))
    long = counted(b"{}") + (40_000).to_bytes(4, "big") + topics
    lenient_mappings = (
        counted(b"{}") + bytes(4) + counted(b"[]") + (8).to_bytes(4, "big") + counted(lenient(1 << 20)) * 8
    )
    with NamesrvServer(NamesrvSettings(listen_port=0)) as server, Channel(server.address) as other:
        attacker = Attacker(server.address)
        ask = Command(code=RequestCode.GET_BROKER_CLUSTER_INFO)
        attacker.send(registration(long))
        for _ in range(3):
            assert other.invoke(ask, timeout_ms=TIMEOUT_MS).code == ResponseCode.SUCCESS
        assert not attacker.is_answered, "the attack is cheap: it proves nothing"
        attacker.close()
        for bomb in (bytes(64 << 20), lenient_mappings):
            answer = other.invoke(registration(bomb), timeout_ms=TIMEOUT_MS)
            assert answer.code == ResponseCode.SYSTEM_ERROR
