"""Attacks by transactions: forged ends commit nothing, and half messages that nobody ends hold up nobody."""

from __future__ import annotations

import contextlib
import functools
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.broker.config import load_broker_config
from cometmq.broker.server import Broker
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command, HeaderFormat
from cometmq.remoting.server import ServerLimits
from cometmq.remoting.sync_channel import Channel
from support.any_disk import ANY_DISK
from support.transactions import COMMIT, TIMEOUT_MS, AskedProducer, end, end_fields, send_half
from support.waiting import wait_until

HALVES = 200
FORGED = 2_000


@contextlib.contextmanager
def started(tmp_path: Path) -> Iterator[Broker]:
    settings = {
        "brokerName": "broker-a",
        "flushDiskType": "ASYNC_FLUSH",
        "mappedFileSizeCommitLog": 16 << 20,
        "transactionTimeOut": 1,
        "transactionCheckInterval": 1,
        "transactionCheckMax": 1_000_000,
    }
    with Broker(load_broker_config(tmp_path / "store", listen=":0", settings=settings, environ=ANY_DISK)) as broker:
        yield broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with started(tmp_path) as broker:
        yield broker


def committed(broker: Broker) -> list[bytes]:
    with broker.store.read("orders") as reader:
        return [bytes(message.body) for message in reader]


def test_forged_ends_commit_nothing(broker: Broker) -> None:
    dice = random.Random(20_250_919)
    wild = [-(1 << 63), -1, 0, 1, (1 << 31) - 1, 1 << 40, (1 << 63) - 1]
    with Channel(broker.address) as channel:
        half = send_half(channel, b"mine", group="mine")
        true = end_fields(half, COMMIT, group="mine")
        for number in range(FORGED):
            fields = dict(true)
            for name in dice.sample(["commitLogOffset", "tranStateTableOffset", "producerGroup"], dice.randint(1, 3)):
                if name == "producerGroup":
                    fields[name] = dice.choice(["", "other", "mine\x00", "m" * 5_000])
                else:
                    fields[name] = str(dice.choice([*wild, int(fields[name]) + dice.randint(1, 500)]))
            if fields == true:
                continue
            request = Command(
                code=RequestCode.END_TRANSACTION,
                fields=fields,
                format=dice.choice([HeaderFormat.JSON, HeaderFormat.ROCKETMQ]),
            )
            answer = channel.invoke(request, timeout_ms=TIMEOUT_MS)
            assert answer.code == ResponseCode.SYSTEM_ERROR, (number, fields)
        for name in true:
            lacking = {other: text for other, text in true.items() if other != name}
            answer = channel.invoke(Command(code=RequestCode.END_TRANSACTION, fields=lacking), timeout_ms=TIMEOUT_MS)
            assert answer.code == ResponseCode.SYSTEM_ERROR
        assert end(channel, half, COMMIT, group="mine") == ResponseCode.SUCCESS
    assert committed(broker) == [b"mine"]


def test_half_messages_that_nobody_ends_hold_up_nobody(broker: Broker) -> None:
    """Their group is not there: they are copied, round by round. Another group's is asked about behind them."""
    with Channel(broker.address) as channel:
        for number in range(HALVES):
            assert send_half(channel, b"x" * 1_000, group="gone", unique=f"G{number}").code == ResponseCode.SUCCESS
        assert send_half(channel, b"good", group="p", unique="P1").code == ResponseCode.SUCCESS
        producer = AskedProducer(broker.address, "p")
        question = producer.question()
        assert question.fields["transactionId"] == "P1"
        assert end(channel, question, COMMIT, from_check=True) == ResponseCode.SUCCESS
        producer.close()
    assert committed(broker) == [b"good"]


def test_producer_that_reads_slowly_stays_connected_and_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Questions have the messages in them: those that it has not taken must not fill its connection."""
    limits = functools.partial(ServerLimits, unsent_bytes_max=2 << 20)
    monkeypatch.setattr("cometmq.broker.server.ServerLimits", limits)
    bodies = [b"%d" % number + b"x" * (1 << 19) for number in range(12)]
    with started(tmp_path) as broker:
        producer = AskedProducer(broker.address, "p")
        with Channel(broker.address) as channel:
            for number, body in enumerate(bodies):
                assert send_half(channel, body, unique=f"U{number}").code == ResponseCode.SUCCESS

            asked = Command(code=RequestCode.GET_BROKER_RUNTIME_INFO)

            def is_full() -> bool:
                counters = broker.server.counters()
                assert channel.invoke(asked, timeout_ms=TIMEOUT_MS).code == ResponseCode.SUCCESS
                return counters["offers_dropped"] + counters["closed_slow_reader"] > 0

            wait_until(is_full)
            ended: set[str] = set()
            while len(ended) < len(bodies):
                question = producer.question()
                assert end(channel, question, COMMIT, from_check=True) == ResponseCode.SUCCESS
                ended.add(question.fields["transactionId"])
        producer.close()
        assert sorted(committed(broker)) == sorted(bodies)


def test_names_that_are_not_utf8_keep_nobody_from_being_asked(broker: Broker) -> None:
    """Another broker may have stored any bytes; ours takes them from a compact header."""
    properties = "TRAN_MSG\x01true\x02PGROUP\x01%s\x02UNIQ_KEY\x01%s\x02"
    now_ms = str(time.time_ns() // 1_000_000)
    fields = dict.fromkeys("fhj", "0") | {"b": "orders", "c": "TBW102", "d": "4", "e": "1", "g": now_ms}
    sender = AskedProducer(broker.address, "senders")
    with Channel(broker.address) as channel:
        for group, unique in (("??", "U1"), ("p", "??")):
            request = Command(
                code=RequestCode.SEND_MESSAGE_V2,
                fields=fields | {"a": group, "i": properties % (group, unique)},
                body=unique.encode(),
                format=HeaderFormat.ROCKETMQ,
            )
            answer = sender.exchange(request.encode().replace(b"??", b"\xff\xfe"))
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert send_half(channel, b"good", group="p", unique="P1").code == ResponseCode.SUCCESS
        producer = AskedProducer(broker.address, "p")
        seen: dict[str, Command] = {}
        while len(seen) < 2:
            question = producer.question()
            seen[question.fields["transactionId"]] = question
        assert set(seen) == {"\ufffd\ufffd", "P1"}
        for question in seen.values():
            assert end(channel, question, COMMIT, from_check=True) == ResponseCode.SUCCESS
        producer.close()
    sender.close()
    assert sorted(committed(broker)) == [b"good", b"\xff\xfe"]
