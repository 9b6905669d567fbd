"""Checks: the table of limits in docs/operating.md is true: each row has its value in the code, and is tried.

Rows without a test in ``support/limit_table.py`` are tried here, by a client that asks for one more.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cometmq.broker import client_forwarding, groups, replies, topics
from cometmq.broker.config import load_broker_config
from cometmq.broker.server import Broker
from cometmq.remoting import lanes
from cometmq.remoting.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from cometmq.remoting.bodies.locks import LockBatchRequestBody
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.properties import PROPERTIES_BYTES_MAX
from cometmq.remoting.sync_channel import Channel
from cometmq.store_config.broker_settings import BrokerSettings
from cometmq.store_config.java_properties import CONFIG_BYTES_MAX
from cometmq.store_config.setting_names import OPTIONS
from support.any_disk import ANY_DISK
from support.broker_twins import send_fields
from support.limit_table import LIMITS

ROOT = Path(__file__).parents[2]
TIMEOUT_MS = 60_000
SMALL = {"brokerName": "broker-a", "flushDiskType": "ASYNC_FLUSH", "mappedFileSizeCommitLog": 1 << 20}
BUSY, ERROR, ILLEGAL = ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL
DEFAULTS = BrokerSettings()


def rows() -> dict[str, tuple[str, str]]:
    """The table: limit to its default and its setting."""
    text = (ROOT / "docs" / "operating.md").read_text()
    section = text[text.index("## Limits") :].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [len(row) for row in cells] == [4] * len(cells)
    assert cells[0] == ["limit", "default", "setting", "then"]
    return {limit: (default, setting.strip("`")) for limit, default, setting, _ in cells[1:]}


# --- Trying -----------------------------------------------------------------------------------------------------------


@contextmanager
def served(path: Path, **settings: object) -> Iterator[Broker]:
    with Broker(load_broker_config(path, listen=":0", settings={**SMALL, **settings}, environ=ANY_DISK)) as broker:
        yield broker


def ask(broker: Broker, code: int, body: bytes = b"", **fields: str) -> Command:
    with Channel(broker.address) as channel:
        return channel.invoke(Command(code=code, fields=fields, body=body), timeout_ms=TIMEOUT_MS)


def connect(broker: Broker) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port), timeout=TIMEOUT_MS / 1000)


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def first_answer(connection: socket.socket) -> Command:
    with connection.makefile("rb") as stream:
        prefix = stream.read(4)
        return Command.decode(prefix + stream.read(int.from_bytes(prefix, "big")))


def make_topic(broker: Broker, name: str, queues: int) -> None:
    fields = {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    assert ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, **fields).code == ResponseCode.SUCCESS


def frame_bytes(path: Path) -> None:
    with served(path) as broker, connect(broker) as connection:
        connection.sendall(((16 << 20) + 1).to_bytes(4, "big") + bytes(8))
        assert is_closed(connection)


def header_fields(path: Path) -> None:
    with served(path) as broker:
        assert ask(broker, RequestCode.GET_BROKER_CONFIG, **{f"f{number}": "" for number in range(65)}).code == ERROR


def body_bytes(path: Path) -> None:
    with served(path, maxMessageSize=1_000) as broker:
        fields = {
            "a": "p",
            "b": "orders",
            "c": "TBW102",
            "d": "4",
            "e": "0",
            "f": "0",
            "g": "1",
            "h": "0",
            "i": "",
            "j": "0",
            "k": "false",
        }
        assert ask(broker, RequestCode.SEND_MESSAGE_V2, bytes(1_001), **fields).code == ILLEGAL
        assert ask(broker, RequestCode.SEND_MESSAGE_V2, bytes(1_000), **fields).code == ResponseCode.SUCCESS


def properties_bytes(path: Path) -> None:
    with served(path) as broker:
        make_topic(broker, "orders", 1)
        code = RequestCode.SEND_MESSAGE_V2
        for more, wanted in ((0, ResponseCode.SUCCESS), (PROPERTIES_BYTES_MAX, ILLEGAL)):
            fields = send_fields(code, topic="orders", properties="a\x01" + "x" * more + "\x02")
            assert ask(broker, code, b"x", **fields).code == wanted


def messages_of_a_pull(path: Path) -> None:
    most = 1_024
    with served(path, maxTransferCountOnMessageInMemory=5_000) as broker, Channel(broker.address) as channel:
        make_topic(broker, "orders", 1)
        code = RequestCode.SEND_MESSAGE_V2
        sent = Command(code=code, fields=send_fields(code, topic="orders", queueId="0"), body=b"x")
        for _ in range(most + 1):
            assert channel.invoke(sent, timeout_ms=TIMEOUT_MS).code == ResponseCode.SUCCESS
        fields = {
            "consumerGroup": "g",
            "topic": "orders",
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "5000",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
        }
        pulled = channel.invoke(Command(code=RequestCode.PULL_MESSAGE, fields=fields), timeout_ms=TIMEOUT_MS)
        assert (pulled.code, pulled.fields["nextBeginOffset"]) == (ResponseCode.SUCCESS, str(most))


def connections(path: Path) -> None:
    with served(path, connectionsMax=2) as broker, connect(broker), connect(broker), connect(broker) as third:
        assert is_closed(third)


def connections_of_one_address(path: Path) -> None:
    limited = served(path, connectionsMax=100, connectionsPerAddressMax=2)
    with limited as broker, connect(broker), connect(broker), connect(broker) as third:
        assert is_closed(third)


def long_requests(path: Path) -> None:
    with served(path) as broker, connect(broker) as connection:
        make_topic(broker, "wide", 65_536)
        fields = {"consumerGroup": "g", "topic": "wide"}
        requests = [
            Command(code=RequestCode.GET_CONSUME_STATS, fields=fields, opaque=number).encode()
            for number in range(lanes.LANE_WAITING_MAX + 1)
        ]
        connection.sendall(b"".join(requests))
        answer = first_answer(connection)
        assert (answer.code, answer.opaque) == (BUSY, lanes.LANE_WAITING_MAX)


def lenient_chars(path: Path) -> None:
    with served(path) as broker:
        answer = ask(broker, RequestCode.HEART_BEAT, b"{a:" + b" " * 262_144 + b"1}")
        assert "not strict JSON" in str(answer.remark)


def values(path: Path) -> None:
    with served(path) as broker:
        answer = ask(broker, RequestCode.HEART_BEAT, b'{"a":[' + b"1," * 300_000 + b"1]}")
        assert "300000 values" in str(answer.remark)


def settings_bytes(path: Path) -> None:
    with served(path) as broker:
        answer = ask(broker, RequestCode.UPDATE_BROKER_CONFIG, b"#" * (CONFIG_BYTES_MAX + 1))
        assert answer.code == ERROR


def topics_of_a_request(path: Path) -> None:
    topic = b'{"topicName":"t%d"}'
    listed = b",".join(topic % number for number in range(topics.TOPICS_OF_REQUEST_MAX + 1))
    with served(path) as broker:
        answer = ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, b'{"topicConfigList":[' + listed + b"]}")
        assert (answer.code, "10001 topics" in str(answer.remark)) == (ERROR, True)


def groups_of_a_request(path: Path) -> None:
    group = b'{"groupName":"g%d"}'
    listed = b",".join(group % number for number in range(groups.GROUPS_OF_REQUEST_MAX + 1))
    with served(path) as broker:
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        answer = ask(broker, code, b'{"groupConfigList":[' + listed + b"]}")
        assert (answer.code, "10001 groups" in str(answer.remark)) == (ERROR, True)


def queues_of_an_answer(path: Path) -> None:
    with served(path) as broker:
        make_topic(broker, "wide", 65_536)
        make_topic(broker, "wider", 65_536)
        answer = ask(broker, RequestCode.GET_CONSUME_STATS, consumerGroup="g", topicList="wide;wider")
        assert (answer.code, "100000 queues" in str(answer.remark)) == (ERROR, True)


def beat(path: Path, text: str, **members: object) -> None:
    with served(path) as broker:
        data = HeartbeatData(client_id="c", **members)  # type: ignore[arg-type]
        answer = ask(broker, RequestCode.HEART_BEAT, data.to_json())
        assert (answer.code, text in str(answer.remark)) == (ERROR, True)
        assert list(broker.control.clients.consumers.groups()) == []


def groups_of_a_connection(path: Path) -> None:
    producers = tuple(ProducerData(group_name=f"p{number}") for number in range(1_001))
    beat(path, "1000 groups", producers=producers)


def subscriptions(path: Path) -> None:
    many = tuple(SubscriptionData(topic=f"t{number}", sub_string="*") for number in range(2_001))
    beat(path, "2000 topics", consumers=(ConsumerData(group_name="g", subscriptions=many),))


def expressions(path: Path) -> None:
    long = (SubscriptionData(topic="t", sub_string="x" * 262_145),)
    beat(path, "262144 characters", consumers=(ConsumerData(group_name="g", subscriptions=long),))


def locks_of_a_request(path: Path) -> None:
    queues = tuple(MessageQueue(topic="t", broker_name="b", queue_id=number) for number in range(65_537))
    with served(path) as broker:
        body = LockBatchRequestBody(consumer_group="g", client_id="c", queues=queues).to_json()
        assert "65536 queues" in str(ask(broker, RequestCode.LOCK_BATCH_MQ, body).remark)


def forwarded_requests(path: Path) -> None:
    """A member that never answers, and one more request than may wait for it."""
    with served(path) as broker, Channel(broker.address) as member, connect(broker) as asker:
        data = HeartbeatData(client_id="silent", consumers=(ConsumerData(group_name="g"),))
        beaten = member.invoke(Command(code=RequestCode.HEART_BEAT, body=data.to_json()), timeout_ms=TIMEOUT_MS)
        assert beaten.code == ResponseCode.SUCCESS
        most = client_forwarding.FORWARDED_OF_CALLER_MAX
        fields = {"consumerGroup": "g", "clientId": "silent"}
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        asker.sendall(b"".join(Command(code=code, fields=fields, opaque=n).encode() for n in range(most + 1)))
        answer = first_answer(asker)
        assert (answer.code, answer.opaque) == (BUSY, most)


def waiting_replies(path: Path) -> None:
    """A requester that never acknowledges, and one more reply than may wait for it."""
    with served(path) as broker, Channel(broker.address) as requester, connect(broker) as replier:
        data = HeartbeatData(client_id="silent", producers=(ProducerData(group_name="p"),))
        beaten = requester.invoke(Command(code=RequestCode.HEART_BEAT, body=data.to_json()), timeout_ms=TIMEOUT_MS)
        assert beaten.code == ResponseCode.SUCCESS
        most = replies.PUSHED_TO_CLIENT_MAX
        code = RequestCode.SEND_REPLY_MESSAGE_V2
        names = {"topic": "DefaultCluster_REPLY_TOPIC", "properties": "REPLY_TO_CLIENT\x01silent\x02"}
        reply = Command(code=code, fields=send_fields(code, **names), body=b"x")
        replier.sendall(b"".join(reply.with_opaque(number).encode() for number in range(most + 1)))
        answer = first_answer(replier)
        assert (answer.code, answer.opaque) == (BUSY, most)


TRIED: dict[str, Callable[[Path], None]] = {
    "bytes of a frame": frame_bytes,
    "fields of a header": header_fields,
    "bytes of a message's body": body_bytes,
    "bytes of a message's properties": properties_bytes,
    "messages of a pull": messages_of_a_pull,
    "connections": connections,
    "connections of one address": connections_of_one_address,
    "requests of one connection that take long": long_requests,
    "characters of a body that is not strict JSON": lenient_chars,
    "values of a body": values,
    "bytes of settings in a request": settings_bytes,
    "topics of a request": topics_of_a_request,
    "groups of a request": groups_of_a_request,
    "queues that an answer is about": queues_of_an_answer,
    "groups of a connection, of each kind": groups_of_a_connection,
    "topics that a group subscribes to": subscriptions,
    "characters of a group's expressions": expressions,
    "queues locked by a request": locks_of_a_request,
    "requests forwarded for one connection": forwarded_requests,
    "replies that wait for one requester": waiting_replies,
}


def test_each_row_is_tried() -> None:
    assert list(rows()) == list(LIMITS)
    assert set(TRIED) == {limit for limit, row in LIMITS.items() if row.test is None}


@pytest.mark.parametrize("limit", [limit for limit, row in LIMITS.items() if row.test is not None])
def test_tests_that_rows_name_are_there(limit: str) -> None:
    file, name = LIMITS[limit].test or ("", "")
    assert name in (ROOT / file).read_text()


def constant(file: str, name: str) -> int:
    """Return the value of a ``#define`` of numbers, sums left out."""
    found = re.search(rf"^#define {name} (.+?)(?:  .*)?$", (ROOT / "csrc" / file).read_text(), re.MULTILINE)
    assert found, (file, name)
    parts = re.fullmatch(r"\(?(\d+)u?(?: << (\d+)\))?", found[1].strip())
    assert parts, found[1]
    return int(parts[1]) << int(parts[2] or 0)


def shown(value: int) -> set[str]:
    """The ways to write a number of the table."""
    return {f"{value:,}"} | ({f"{value >> 20} MiB"} if value % (1 << 20) == 0 else set())


def test_defaults_are_those_of_the_code() -> None:
    for limit, (default, setting) in rows().items():
        row = LIMITS[limit]
        if row.value is not None:
            assert default in shown(row.value), limit
        if row.define is not None:
            assert default in shown(constant(*row.define)), limit
        if setting:
            (field,) = [name for name, option in OPTIONS.items() if option.upstream_name == setting]
            value = getattr(DEFAULTS, field)
            assert default in (shown(value) if value else {"half of all"}), limit


@pytest.mark.parametrize("limit", TRIED)
def test_request_beyond_a_limit_gets_the_answer_of_the_table(tmp_path: Path, limit: str) -> None:
    TRIED[limit](tmp_path)
