"""Checks: timers over real sockets: delivered, refused, recalled, kept over a restart; 60 and 370 as upstream's."""

from __future__ import annotations

import asyncio
import base64
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq import aio
from cometmq._engine import Message
from cometmq.broker.config import load_broker_config
from cometmq.broker.server import Broker
from cometmq.broker.timers import RecallHandle
from cometmq.client import OutgoingMessage, Producer
from cometmq.errors import InvalidArgument, StoreFenced
from cometmq.remoting.answers import Refusal
from cometmq.remoting.bodies.config_tables import KVTable
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from cometmq.testing import cluster
from support.any_disk import ANY_DISK
from support.broker_twins import NOW_MS, Rig

TIMEOUT_MS = 30_000
WHEEL_BYTES = 38_707_200


def make(path: Path, **settings: object) -> Broker:
    fixed = {
        "brokerName": "broker-a",
        "flushDiskType": "ASYNC_FLUSH",
        "mappedFileSizeCommitLog": 1 << 20,
        "timerPrecisionMs": 10,
        "recallMessageEnable": True,
    }
    return Broker(load_broker_config(path, listen=":0", settings={**fixed, **settings}, environ=ANY_DISK))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with make(tmp_path / "store") as broker:
        yield broker


@pytest.fixture
def channel(broker: Broker) -> Iterator[Channel]:
    with Channel(broker.address) as channel:
        yield channel


def send(channel: Channel, body: bytes, properties: str, *, code: int = RequestCode.SEND_MESSAGE_V2) -> Command:
    fields = dict.fromkeys("fhj", "0") | {
        "a": "p",
        "b": "orders",
        "c": "TBW102",
        "d": "4",
        "e": "1",
        "g": "1",
        "k": "false",
    }
    fields |= {"i": properties, "m": "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false"}
    return channel.invoke(Command(code=code, fields=fields, body=body), timeout_ms=TIMEOUT_MS)


def taken(broker: Broker, channel: Channel, count: int) -> list[Message]:
    """Return the queue's first messages; each pull is held until there is one more."""
    offset = 0
    while offset < count:
        fields = {
            "consumerGroup": "g",
            "topic": "orders",
            "queueId": "1",
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": "6",
            "commitOffset": "0",
            "suspendTimeoutMillis": "15000",
            "subscription": "*",
            "subVersion": "0",
        }
        answer = channel.invoke(Command(code=RequestCode.PULL_MESSAGE, fields=fields), timeout_ms=TIMEOUT_MS)
        assert answer.code in {ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND}
        offset = int(answer.fields["nextBeginOffset"])
    return [broker.store.get("orders", 1, number) for number in range(count)]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_timer_is_delivered_and_never_early(broker: Broker, channel: Channel) -> None:
    begun = now_ms()
    answer = send(channel, b"later", "TAGS\x01t\x02TIMER_DELAY_MS\x01300\x02UNIQ_KEY\x01U1\x02")
    assert (answer.code, answer.fields["queueId"]) == (ResponseCode.SUCCESS, "1")
    (message,) = taken(broker, channel, 1)
    ended = now_ms()
    assert ended - begun >= 300
    properties = message.properties
    due = int(properties["TIMER_OUT_MS"]) + 10
    assert begun + 300 <= due <= begun + 300 + 10 + (ended - begun)
    assert int(properties["TIMER_DEQUEUE_MS"]) >= due
    assert (properties["REAL_TOPIC"], properties["REAL_QID"], message.tags) == ("orders", "1", "t")
    handle = RecallHandle.parse(answer.fields["recallHandle"])
    assert handle == RecallHandle(topic="orders", broker_name="broker-a", due_ms=due - 10 + 1, unique_id="U1")


def test_order_of_times_and_of_sends(broker: Broker, channel: Channel) -> None:
    at = now_ms() + 2_000
    for body, due in ((b"3", at + 200), (b"1", at), (b"2", at)):
        assert send(channel, body, f"TIMER_DELIVER_MS\x01{due}\x02").code == ResponseCode.SUCCESS
    assert send(channel, b"0", "TIMER_DELIVER_MS\x015\x02").code == ResponseCode.SUCCESS
    assert [bytes(message.body) for message in taken(broker, channel, 4)] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ("TIMER_DELAY_SEC\x01259201\x02", ResponseCode.MESSAGE_ILLEGAL),
        ("TIMER_DELAY_MS\x01soon\x02", ResponseCode.MESSAGE_ILLEGAL),
        ("TIMER_DELIVER_MS\x015\x02TIMER_DEL_UNIQKEY\x01x\x02", ResponseCode.MESSAGE_ILLEGAL),
        ("A\x01" + "x" * 32_550 + "\x02TIMER_DELAY_MS\x015000\x02", ResponseCode.MESSAGE_ILLEGAL),
    ],
)
def test_illegal_timers_are_refused(channel: Channel, properties: str, code: int) -> None:
    assert send(channel, b"x", properties).code == code


def test_a_batch_is_no_timer(channel: Channel) -> None:
    answer = send(channel, b"x", "TIMER_DELAY_MS\x01500\x02", code=RequestCode.SEND_BATCH_MESSAGE)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


def test_a_level_makes_times_void(broker: Broker, channel: Channel) -> None:
    answer = send(channel, b"x", "DELAY\x011\x02TIMER_DELAY_MS\x0110\x02")
    assert "recallHandle" not in answer.fields
    (message,) = taken(broker, channel, 1)
    assert "TIMER_DELAY_MS" not in message.properties
    assert message.properties["DELAY"] == "1"


def test_off_is_said(tmp_path: Path) -> None:
    with make(tmp_path / "store", timerWheelEnable=False) as broker, Channel(broker.address) as channel:
        answer = send(channel, b"x", "TIMER_DELAY_MS\x01500\x02")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "accurate timer message is not enabled, timerWheelEnable is false"
        answer = channel.invoke(Command(code=RequestCode.GET_TIMER_CHECK_POINT), timeout_ms=TIMEOUT_MS)
        assert answer.code == ResponseCode.SYSTEM_ERROR
    assert not (tmp_path / "store" / "timerwheel").exists()
    assert not (tmp_path / "store" / "config" / "timercheck").exists()


def test_timers_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with make(path) as broker, Channel(broker.address) as channel:
        at = now_ms() + 1_500
        for number in range(50):
            assert send(channel, b"%d" % number, f"TIMER_DELIVER_MS\x01{at}\x02").code == ResponseCode.SUCCESS
    assert (path / "timerwheel").stat().st_size == WHEEL_BYTES
    assert (path / "timerwheel").stat().st_blocks * 512 < 1 << 20
    with make(path) as broker, Channel(broker.address) as channel:
        messages = taken(broker, channel, 50)
        assert [bytes(message.body) for message in messages] == [b"%d" % number for number in range(50)]
        assert now_ms() >= at


def test_damaged_timer_files_are_reported_and_timers_delivered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with make(tmp_path / "store") as broker, Channel(broker.address) as channel:
        at = now_ms() + 3_600_000
        assert send(channel, b"waits", f"UNIQ_KEY\x01U1\x02TIMER_DELIVER_MS\x01{at}\x02").code == ResponseCode.SUCCESS
        while not (tmp_path / "store" / "timerlog").exists():
            time.sleep(0.001)
    log = tmp_path / "store" / "timerlog" / f"{0:020}"
    with log.open("r+b") as file:  # the time of the timer's unit
        file.seek(24)
        delay_ms = struct.unpack(">i", file.read(4))[0]
        assert delay_ms > 0
        file.seek(24)
        file.write(struct.pack(">i", delay_ms - 3_000_000))
    with make(tmp_path / "store") as broker:
        with caplog.at_level("ERROR", "cometmq.broker"):
            broker.control.sample()
            broker.control.sample()
        errors = [record.message.partition(":")[0] for record in caplog.records if record.levelname == "ERROR"]
        assert errors == ["the files of the timers are damaged, or were written with another timerPrecisionMs"]
        assert broker.counters()["timer_remade_now"] == 1


def test_the_check_point_and_the_runtime_information(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with make(path) as broker, Channel(broker.address) as channel:
        send(channel, b"x", "TIMER_DELAY_SEC\x01600\x02")
        broker.stop()
    with make(path) as broker, Channel(broker.address) as channel:
        answer = channel.invoke(Command(code=RequestCode.GET_TIMER_CHECK_POINT), timeout_ms=TIMEOUT_MS)
        read_ms, log_end, offset, master_offset, state, stamp, counter = struct.unpack(">7q", answer.body)
        assert (log_end, offset, master_offset, state) == (52, 1, 1, 0)
        assert read_ms <= now_ms()
        assert stamp <= now_ms()
        assert counter > 0
        assert (path / "config" / "timercheck").read_bytes()[:56] == answer.body
        answer = channel.invoke(Command(code=RequestCode.GET_BROKER_RUNTIME_INFO), timeout_ms=TIMEOUT_MS)
        table = KVTable.from_json(answer.body).table
        assert (table["timerCongestNum"], table["timerReadBehind"], table["timerOffsetBehind"]) == ("1", "0", "0")


@pytest.mark.parametrize("accumulate", [False, True])
def test_the_client_holds_messages_back(*, accumulate: bool) -> None:
    with (
        cluster(settings={"timerPrecisionMs": 10, "flushDiskType": "ASYNC_FLUSH"}) as one,
        Producer("p", name_servers=one.name_server_address, accumulate=accumulate) as producer,
    ):
        producer.send(OutgoingMessage(b"0", topic="T", delay_ms=0))
        begun = now_ms()
        producer.send("T", b"3", deliver_at_ms=begun + 2_500)
        producer.send_async("T", b"1", delay_ms=100, tags="t").result()
        producer.send_oneway("T", b"2", deliver_at_ms=begun + 2_000)
        with pytest.raises(InvalidArgument):
            producer.send("T", b"x", delay_ms=5, delay_level=1)
        with pytest.raises(InvalidArgument):
            producer.send(OutgoingMessage(b"x", topic="T"), delay_ms=5)
        store = one.brokers[0].store
        with store.read("T", follow=True) as reader:
            bodies = [bytes(next(reader).body) for _ in range(4)]
    assert bodies == [b"0", b"1", b"2", b"3"]
    assert now_ms() >= begun + 2_500


def test_the_asyncio_client_holds_messages_back() -> None:
    async def run(name_server: str) -> None:
        async with aio.Producer("p", name_servers=name_server) as producer:
            await producer.send("T", b"0", delay_ms=0)
            await producer.send_async("T", b"2", delay_ms=300)
            producer.send_oneway("T", b"1", delay_ms=50)

    with cluster(settings={"timerPrecisionMs": 10, "flushDiskType": "ASYNC_FLUSH"}) as one:
        asyncio.run(run(one.name_server_address))
        with one.brokers[0].store.read("T", follow=True) as reader:
            assert sorted(bytes(next(reader).body) for _ in range(3)) == [b"0", b"1", b"2"]


# --- Recall


def recall(channel: Channel, topic: str, handle: str) -> Command:
    fields = {"topic": topic, "recallHandle": handle, "producerGroup": "p"}
    return channel.invoke(Command(code=RequestCode.RECALL_MESSAGE, fields=fields), timeout_ms=TIMEOUT_MS)


def test_a_recalled_timer_is_not_delivered(broker: Broker, channel: Channel) -> None:
    at = now_ms() + 2_500
    handles = {}
    for body in (b"kept", b"gone"):
        answer = send(channel, body, f"UNIQ_KEY\x01{body.decode()}\x02TIMER_DELIVER_MS\x01{at}\x02")
        handles[body] = answer.fields["recallHandle"]
    answer = recall(channel, "orders", handles[b"gone"])
    assert (answer.code, answer.fields["msgId"]) == (ResponseCode.SUCCESS, "gone")
    assert send(channel, b"end", f"TIMER_DELIVER_MS\x01{at + 200}\x02").code == ResponseCode.SUCCESS
    assert [bytes(message.body) for message in taken(broker, channel, 2)] == [b"kept", b"end"]
    broker.control.sample()
    assert broker.counters()["timer_recalled"] == 1


def handle_of(topic: str = "T", broker: str = "broker-a", due: object = NOW_MS + 60_000, unique_id: str = "U") -> str:
    return base64.urlsafe_b64encode(f"v1 {topic} {broker} {due} {unique_id}".encode()).decode()


RECALL = {"recallMessageEnable": True}


@pytest.mark.parametrize(
    ("settings", "topic", "handle", "code"),
    [
        ({}, "T", handle_of(), ResponseCode.NO_PERMISSION),
        (
            {**RECALL, "brokerPermission": 4, "allowRecallWhenBrokerNotWriteable": False},
            "T",
            handle_of(),
            ResponseCode.SERVICE_NOT_AVAILABLE,
        ),
        (RECALL, "unknown", handle_of(), ResponseCode.TOPIC_NOT_EXIST),
        (RECALL, "TBW102", "§", ResponseCode.ILLEGAL_OPERATION),
        (RECALL, "TBW102", base64.urlsafe_b64encode(b"v2 a b c d").decode(), ResponseCode.ILLEGAL_OPERATION),
        (RECALL, "TBW102", base64.urlsafe_b64encode(b"\xff\xfe").decode(), ResponseCode.ILLEGAL_OPERATION),
        (RECALL, "TBW102", handle_of("other"), ResponseCode.ILLEGAL_OPERATION),
        (RECALL, "TBW102", handle_of("TBW102", broker="other"), ResponseCode.ILLEGAL_OPERATION),
        (RECALL, "TBW102", handle_of("TBW102", due=NOW_MS), ResponseCode.ILLEGAL_OPERATION),
        (RECALL, "TBW102", handle_of("TBW102", due="soon"), ResponseCode.ILLEGAL_OPERATION),
        (RECALL, "TBW102", handle_of("TBW102", due=1 << 70), ResponseCode.ILLEGAL_OPERATION),
        (RECALL, "TBW102", handle_of("TBW102", due=NOW_MS + 259_200_000), ResponseCode.ILLEGAL_OPERATION),
    ],
)
def test_recalls_are_refused_with_upstream_s_codes(
    tmp_path: Path, settings: dict[str, object], topic: str, handle: str, code: int
) -> None:
    with Rig(tmp_path, settings=settings) as rig:
        answer = rig.run(RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle})
        assert answer.code == code
        assert answer.fields["MSG_REGION"] == "DefaultRegion"
        assert not rig.plane.put_messages


def test_stored_message_of_a_recall(tmp_path: Path) -> None:
    with Rig(tmp_path, settings=RECALL) as rig:
        fields = {"topic": "TBW102", "recallHandle": handle_of("TBW102").rstrip("="), "producerGroup": "p"}
        answer = rig.run(RequestCode.RECALL_MESSAGE, fields)
        assert (answer.code, answer.fields["msgId"]) == (ResponseCode.SUCCESS, "U")
        (message,) = rig.plane.put_messages
        assert (message.topic, message.queue_id, message.body) == ("TBW102", 0, b"0")
        assert dict(message.properties) == {
            "TAGS": "_RECALL_TAG_",
            "TIMER_DEL_UNIQKEY": "TBW102+U",
            "UNIQ_KEY": "U",
            "TIMER_DELIVER_MS": str(NOW_MS + 60_000),
            "BORN_TIMESTAMP": str(NOW_MS),
            "PGROUP": "p",
        }
        rig.plane.put_fails = StoreFenced("disk")
        assert rig.run(RequestCode.RECALL_MESSAGE, fields).code == ResponseCode.SYSTEM_ERROR


def test_handles_name_their_message() -> None:
    handle = RecallHandle.parse(handle_of("T", "b", 17, "U"))
    assert handle == RecallHandle(topic="T", broker_name="b", due_ms=17, unique_id="U")
    with pytest.raises(Refusal):
        RecallHandle.parse(base64.urlsafe_b64encode(b"v1 T b 17").decode())
