"""Checks: a record that falsely claims to be an inner batch enters no broker and stops no consumer."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from cometmq._engine import crc31, decode_messages, decode_pulled
from cometmq.client.pull.pull_kernel import log_unreadable
from cometmq.errors import CorruptRecord
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from hostile.test_system_topics import make, send

TIMEOUT_MS = 10_000
INNER_BATCH = 0x80
COMPRESSED = 0x1
TOPIC = "batches"


def element(body: bytes, properties: bytes = b"") -> bytes:
    size = 22 + len(body) + len(properties)
    return struct.pack(">iIIiI", size, 0, 0, 0, len(body)) + body + struct.pack(">h", len(properties)) + properties


BATCH = element(b"one") + element(b"two", b"TAGS\x01t\x02")

BAD = {
    "garbage": (b"garbage", INNER_BATCH, "INNER_NUM\x011\x02"),
    "empty": (b"", INNER_BATCH, "INNER_NUM\x011\x02"),
    "cut off": (BATCH[:-1], INNER_BATCH, "INNER_NUM\x012\x02"),
    "too few": (BATCH, INNER_BATCH, "INNER_NUM\x013\x02"),
    "too many": (BATCH, INNER_BATCH, "INNER_NUM\x011\x02"),
    "no number": (BATCH, INNER_BATCH, ""),
    "compressed": (BATCH, INNER_BATCH | COMPRESSED, "INNER_NUM\x012\x02"),
    "no flag": (BATCH, 0, "INNER_NUM\x012\x02"),
}


def make_topic(channel: Channel) -> None:
    fields = {
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": "+queue.type=BatchCQ",
    }
    made = channel.invoke(Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields), timeout_ms=TIMEOUT_MS)
    assert made.code == ResponseCode.SUCCESS, made


def test_no_way_in(tmp_path: Path) -> None:
    with make(tmp_path) as broker, Channel(broker.address) as channel:
        make_topic(channel)
        for name, (body, flag, properties) in BAD.items():
            for delay in ("", "DELAY\x011\x02"):
                answer = send(channel, TOPIC, body, sys_flag=flag, properties=properties + delay)
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL, (name, answer)
        batch = RequestCode.SEND_BATCH_MESSAGE
        for body, flag in ((b"garbage", 0), (b"garbage", INNER_BATCH), (BATCH, COMPRESSED), (b"", 0)):
            answer = send(channel, TOPIC, body, code=batch, sys_flag=flag)
            assert answer.code in (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SYSTEM_ERROR), (body, flag, answer)
        assert send(channel, TOPIC, BATCH, code=batch).code == ResponseCode.SUCCESS
        good = send(channel, TOPIC, BATCH, sys_flag=INNER_BATCH, properties="INNER_NUM\x012\x02")
        assert good.code == ResponseCode.SUCCESS, good


def record(queue_offset: int, body: bytes, sys_flag: int = INNER_BATCH) -> bytes:
    properties = b"INNER_NUM\x012\x02"
    topic = TOPIC.encode()
    places = 0xDAA320A7, crc31(body), 0, 0, queue_offset, 1000 + queue_offset
    rest = struct.pack(">IIiiqqiqIIqIIiq", *places, sys_flag, 1, 0, 0, 1, 0, 0, 0, 0)
    rest += struct.pack(">I", len(body)) + body + struct.pack(">B", len(topic)) + topic
    rest += struct.pack(">H", len(properties)) + properties
    return struct.pack(">I", len(rest) + 4) + rest


@pytest.mark.parametrize(
    "bad", [b"garbage", b"", BATCH[:-1], BATCH + b"\0"], ids=["garbage", "empty", "cut off", "behind"]
)
def test_client_skips_unreadable_inner_batches(bad: bytes) -> None:
    answer = record(0, BATCH) + record(2, bad) + record(4, BATCH)
    pulled = decode_pulled(answer, broker_name="b", topic=TOPIC, queue_id=0)
    assert [(one.queue_offset, one.body_bytes) for one in pulled.messages] == [
        (0, b"one"),
        (1, b"two"),
        (4, b"one"),
        (5, b"two"),
    ]
    if bad:
        assert [offset for offset, _ in pulled.unreadable] == [2]


def test_a_damaged_record_that_says_where_it_ends_is_passed_over() -> None:
    damaged = bytearray(record(2, b"x" * 50))
    damaged[84:88] = b"\xff\xff\xff\x7f"  # the length of its body
    answer = record(0, BATCH) + bytes(damaged) + record(4, BATCH)
    pulled = decode_pulled(answer, broker_name="b", topic=TOPIC, queue_id=0)
    assert [one.queue_offset for one in pulled.messages] == [0, 1, 4, 5]
    assert [offset for offset, _ in pulled.unreadable] == [2]


# --- Compressed batches, which no broker of ours takes: from another broker, or a store that somebody gave away


@pytest.mark.parametrize("bad", [b"garbage", b"", zlib.compress(BATCH)[:-4], zlib.compress(BATCH[:-1])])
def test_client_skips_inner_batches_that_do_not_inflate(bad: bytes) -> None:
    answer = (
        record(0, BATCH)
        + record(2, bad, INNER_BATCH | COMPRESSED)
        + record(4, zlib.compress(BATCH), INNER_BATCH | COMPRESSED)
    )
    pulled = decode_pulled(answer, broker_name="b", topic=TOPIC, queue_id=0)
    assert [(one.queue_offset, one.body_bytes) for one in pulled.messages] == [
        (0, b"one"),
        (1, b"two"),
        (4, b"one"),
        (5, b"two"),
    ]
    assert [offset for offset, _ in pulled.unreadable] == [2]


@pytest.mark.parametrize("elements", [32_767, 1_000_000])
def test_compressed_batches_of_an_answer_have_one_budget(elements: int) -> None:
    """43 KB became 800,000 objects; the honest batches beside them are read."""
    bomb = zlib.compress(element(b"") * elements, 9)
    answer = b"".join(record(40_000 * number, bomb, INNER_BATCH | COMPRESSED) for number in range(20)) + record(
        10**6, BATCH
    )
    pulled = decode_pulled(answer, broker_name="b", topic=TOPIC, queue_id=0)
    assert len(pulled.messages) == (2 if elements > 65_536 else 2 * elements + 2)
    assert [one.body_bytes for one in pulled.messages[-2:]] == [b"one", b"two"]
    assert len(pulled.unreadable) == (20 if elements > 65_536 else 18)


def test_inflated_bytes_of_an_answer_have_one_budget() -> None:
    bomb = zlib.compress(element(b"\0" * (9 << 20)), 9)
    answer = b"".join(record(number, bomb, INNER_BATCH | COMPRESSED) for number in range(20))
    pulled = decode_pulled(answer, broker_name="b", topic=TOPIC, queue_id=0)
    assert [one.body_size for one in pulled.messages] == [9 << 20]
    assert [offset for offset, _ in pulled.unreadable] == list(range(1, 20))


def test_passed_over_records_are_named_up_to_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    damaged = bytearray(record(0, b"x" * 50))
    damaged[84:88] = b"\xff\xff\xff\x7f"
    answer = b""
    for offset in range(20):
        damaged[20:28] = struct.pack(">q", offset)
        damaged[12:16] = struct.pack(">i", 3)
        answer += damaged
    pulled = decode_pulled(answer, broker_name="b", topic=TOPIC, queue_id=-1)
    assert [offset for offset, _ in pulled.unreadable] == list(range(16))
    assert pulled.unnamed == 4
    log_unreadable(MessageQueue(topic=TOPIC, broker_name="b", queue_id=-1), pulled)
    (line,) = [one.getMessage() for one in caplog.records]
    assert line.startswith(f"passed over 20 unreadable record(s) of {TOPIC} at b: offset 0 (the record of queue 3 is")
    assert line.endswith("offset 15 (the record of queue 3 is damaged), and 4 more")


def test_a_negative_body_length_is_damage() -> None:
    empty = bytearray(record(7, b""))
    empty[84:88] = struct.pack(">i", -(1 << 31))
    with pytest.raises(CorruptRecord, match="the body of message 7 of queue 0"):
        decode_messages(bytes(empty))
