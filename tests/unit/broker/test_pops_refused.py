"""Checks: requests of pops that are wrong, with the control plane behind them; a revive topic that is deleted."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.broker.config import load_broker_config
from cometmq.broker.server import Broker
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from support.any_disk import ANY_DISK

TIMEOUT_MS = 60_000
SEND = {"a": "p", "b": "orders", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
POP = {
    "consumerGroup": "g",
    "topic": "orders",
    "queueId": "-1",
    "maxMsgNums": "32",
    "invisibleTime": "1000",
    "pollTime": "0",
    "bornTime": "0",
    "initMode": "0",
}
ACK = {
    "consumerGroup": "g",
    "topic": "orders",
    "queueId": "0",
    "extraInfo": "0 1700000000000 1000 0 0 broker-a 0 0",
    "offset": "0",
    "invisibleTime": "1000",
}

WRONG = [
    (RequestCode.POP_MESSAGE, {"consumerGroup": "x" * 300}, 26, "does not exist"),
    (RequestCode.POP_MESSAGE, {"consumerGroup": "a b"}, 26, "does not exist"),
    (RequestCode.POP_MESSAGE, {"consumerGroup": ""}, 1, "no consumerGroup"),
    (RequestCode.POP_MESSAGE, {"topic": "unknown"}, 17, "not exist"),
    (RequestCode.POP_MESSAGE, {"maxMsgNums": "33"}, 29, "at most 32"),
    (RequestCode.POP_MESSAGE, {"queueId": "1"}, 29, "queueId[1] is illegal"),
    (RequestCode.POP_MESSAGE, {"invisibleTime": "259200001"}, 29, "0 to 259200000"),
    (RequestCode.POP_MESSAGE, {"exp": "||"}, 23, ""),
    (RequestCode.POP_MESSAGE, {"exp": "a > 1", "expType": "SQL92"}, 1, "SQL92"),
    (RequestCode.POP_MESSAGE, {"attemptId": "x" * 100_000}, 29, "attemptId has 100000 bytes"),
    (RequestCode.NOTIFICATION, {"consumerGroup": "x" * 300}, 26, "does not exist"),
    (RequestCode.ACK_MESSAGE, {"topic": "unknown"}, 17, "not exist"),
    (RequestCode.ACK_MESSAGE, {"queueId": "1"}, 13, "queueId[1] is illegal"),
    (RequestCode.ACK_MESSAGE, {"offset": "99"}, 208, "offset is illegal"),
    (RequestCode.ACK_MESSAGE, {"extraInfo": "0 1"}, 13, "not a handle"),
    (RequestCode.ACK_MESSAGE, {"extraInfo": "0 1 1 8 0 broker-a 0 0"}, 13, "revive queue 8"),
    (RequestCode.ACK_MESSAGE, {"consumerGroup": "x" * 300}, 13, "consumerGroup has 300 bytes"),
    (RequestCode.CHANGE_MESSAGE_INVISIBLETIME, {"invisibleTime": "-1"}, 1, "0 to 259200000"),
    (RequestCode.CHANGE_MESSAGE_INVISIBLETIME, {"offset": "99"}, 208, "offset is illegal"),
    (RequestCode.CHANGE_MESSAGE_INVISIBLETIME, {"extraInfo": "0 1 1 0 0 broker-b 0 0"}, 13, "broker-b"),
]


def make(path: Path, **settings: object) -> Broker:
    return Broker(
        load_broker_config(path, listen=":0", settings={"brokerName": "broker-a", **settings}, environ=ANY_DISK)
    )


def ask(channel: Channel, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
    return channel.invoke(Command(code=code, fields=fields, body=body), timeout_ms=TIMEOUT_MS)


def wait_for_messages(channel: Channel, count: int) -> None:
    """Pop until so many have come, whatever they come from; fails when they do not within a minute."""
    deadline = time.monotonic() + 60
    while count > 0:
        assert time.monotonic() < deadline
        popped = ask(channel, RequestCode.POP_MESSAGE, {**POP, "pollTime": "5000", "invisibleTime": "60000"})
        assert popped.code in (ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT)
        info = popped.fields["msgOffsetInfo"]
        count -= sum(len(entry.split()[2].split(",")) for entry in info.split(";") if entry)
    assert count == 0


def wait_for_a_checkpoint(broker: Broker, channel: Channel) -> None:
    """Wait until the revive service has read the only one; it may have revived its messages already."""
    deadline = time.monotonic() + 60
    while not ((counted := broker._plane.counters())["pop_unfinished_now"] or counted["pop_revived"]):
        assert time.monotonic() < deadline
        ask(channel, RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"})


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Channel]:
    with make(tmp_path_factory.mktemp("broker")) as broker, Channel(broker.address) as channel:
        ask(channel, 310, SEND, b"x")
        yield channel


@pytest.mark.parametrize(("code", "change", "answer", "says"), WRONG)
def test_invalid_pop_is_refused_with_a_reason(
    channel: Channel, code: int, change: dict[str, str], answer: int, says: str
) -> None:
    fields = POP if code in (RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION) else ACK
    told = ask(channel, code, {**fields, **change})
    assert (told.code, says in (told.remark or "")) == (answer, True), told.remark


@pytest.mark.parametrize("merge", [False, True])
def test_refused_request_changes_nothing(tmp_path: Path, merge: bool) -> None:
    with make(tmp_path, enablePopBufferMerge=merge) as broker, Channel(broker.address) as channel:
        for _ in range(3):
            ask(channel, 310, SEND, b"x")
        assert ask(channel, RequestCode.POP_MESSAGE, POP).fields["msgOffsetInfo"] == "0 0 0,1,2"
        for code, change, answer, _ in WRONG:
            fields = POP if code in (RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION) else ACK
            assert ask(channel, code, {**fields, **change}).code == answer
        bodies = (b"", b"no json", b'{"acks":[{}]}', b'{"acks":[{"b":"!"}]}')
        codes = [ask(channel, RequestCode.BATCH_ACK_MESSAGE, {}, body).code for body in bodies]
        assert codes == [208, 1, 0, 0]
        wait_for_messages(channel, 3)


def test_deleted_revive_topic_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No request deletes it, whatever the settings say; a broker of another make may have, or a person."""
    delete = {"topic": REVIVE}
    settings = {"validateSystemTopicWhenUpdateTopic": False, "reviveQueueNum": 1}
    for given in ({}, settings):
        with make(tmp_path, **given) as broker, Channel(broker.address) as channel:
            refused = ask(channel, RequestCode.DELETE_TOPIC_IN_BROKER, delete)
            assert (refused.code, "system topic" in (refused.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)
    monkeypatch.setattr("cometmq.broker.topics.may_send_to", lambda name: True)
    with make(tmp_path, **settings) as broker, Channel(broker.address) as channel:
        # Of the first the checkpoint is in the topic, and read; of the second it comes there.
        for invisible_ms, is_read in (("1000", True), ("3000", False)):
            ask(channel, 310, SEND, b"x")
            popped = ask(channel, RequestCode.POP_MESSAGE, {**POP, "queueId": "0", "invisibleTime": invisible_ms})
            assert popped.code == ResponseCode.SUCCESS
            if is_read:
                wait_for_a_checkpoint(broker, channel)
            assert ask(channel, RequestCode.DELETE_TOPIC_IN_BROKER, delete).code == ResponseCode.SUCCESS
            wait_for_messages(channel, 1)


def test_queues_of_the_revive_topic_that_are_lost_are_built_from_the_log(tmp_path: Path) -> None:
    with make(tmp_path) as broker, Channel(broker.address) as channel:
        for _ in range(3):
            ask(channel, 310, SEND, b"x")
        assert ask(channel, RequestCode.POP_MESSAGE, POP).code == ResponseCode.SUCCESS
    shutil.rmtree(tmp_path / "consumequeue" / REVIVE, ignore_errors=True)
    with make(tmp_path) as broker, Channel(broker.address) as channel:
        wait_for_messages(channel, 3)
