"""Checks: pops of a topic that is deleted and made again: old checkpoints and handles leave the new one alone."""

from __future__ import annotations

import time
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
POP = {
    "consumerGroup": "g",
    "topic": "orders",
    "queueId": "-1",
    "maxMsgNums": "32",
    "pollTime": "5000",
    "bornTime": "0",
    "initMode": "0",
}


def make(path: Path, **settings: object) -> Broker:
    return Broker(
        load_broker_config(path, listen=":0", settings={"brokerName": "broker-a", **settings}, environ=ANY_DISK)
    )


def ask(channel: Channel, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
    return channel.invoke(Command(code=code, fields=fields, body=body), timeout_ms=TIMEOUT_MS)


def send(channel: Channel, count: int, body: bytes = b"x") -> None:
    for _ in range(count):
        assert ask(channel, 310, SEND, body).code == ResponseCode.SUCCESS


def pop(channel: Channel, invisible_ms: int) -> tuple[list[str], bytes]:
    """Pop once; return each message's kind of topic and offset, and all records."""
    popped = ask(channel, RequestCode.POP_MESSAGE, {**POP, "invisibleTime": str(invisible_ms)})
    assert popped.code in (ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT)
    found = []
    for entry in (popped.fields.get("msgOffsetInfo") or "").split(";"):
        if entry:
            kind, _, offsets = entry.split()
            found += [f"{kind} {offset}" for offset in offsets.split(",")]
    return found, popped.body


def test_topic_that_is_made_again_is_popped_from_its_first_message_and_nothing_of_it_is_revived(tmp_path: Path) -> None:
    """Handles of its former life neither revive messages of the new one nor hide them longer."""
    with make(tmp_path, reviveQueueNum=1) as broker, Channel(broker.address) as channel:
        send(channel, 3)
        popped = ask(channel, RequestCode.POP_MESSAGE, {**POP, "invisibleTime": "1000"})
        assert popped.fields["msgOffsetInfo"] == "0 0 0,1,2"
        assert ask(channel, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}).code == ResponseCode.SUCCESS
        send(channel, 5)
        handle = f"0 {popped.fields['popTime']} 1000 {popped.fields['reviveQid']} 0 broker-a 0 1"
        fields = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "extraInfo": handle, "offset": "1"}
        answer = ask(channel, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, {**fields, "invisibleTime": "1000"})
        assert (answer.code, "created again" in (answer.remark or "")) == (ResponseCode.NO_MESSAGE, True)
        assert pop(channel, 60_000)[0] == [f"0 {offset}" for offset in range(5)]
        # The checkpoint of the last message comes behind all of those in the revive queue.
        send(channel, 1, b"the last")
        assert pop(channel, 1_500)[0] == ["0 5"]
        deadline = time.monotonic() + 60
        while not (popped_again := pop(channel, 60_000))[0]:
            assert time.monotonic() < deadline
        found, records = popped_again
        assert found == ["1 0"]
        assert b"the last" in records


@pytest.mark.parametrize("acks_first", [False, True])
def test_ordered_batch_of_a_deleted_topic_neither_blocks_nor_moves_its_successor(
    tmp_path: Path, acks_first: bool
) -> None:
    with make(tmp_path) as broker, Channel(broker.address) as channel:

        def ack(popped: Command, offset: int) -> None:
            handle = f"0 {popped.fields['popTime']} 60000 {popped.fields['reviveQid']} 0 broker-a 0 {offset}"
            fields = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "extraInfo": handle}
            ask(channel, RequestCode.ACK_MESSAGE, {**fields, "offset": str(offset)})

        in_order = {**POP, "order": "true", "invisibleTime": "60000", "maxMsgNums": "3"}
        send(channel, 3)
        old = ask(channel, RequestCode.POP_MESSAGE, in_order)
        assert old.fields["msgOffsetInfo"] == "0 0 0,1,2"
        assert ask(channel, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}).code == ResponseCode.SUCCESS
        send(channel, 5)
        if acks_first:
            for offset in range(3):
                ack(old, offset)
        new = ask(channel, RequestCode.POP_MESSAGE, in_order)
        assert new.fields["msgOffsetInfo"] == "0 0 0,1,2"
        for offset in range(3):
            ack(old, offset)
        assert ask(channel, RequestCode.POP_MESSAGE, {**in_order, "pollTime": "0"}).code == ResponseCode.POLLING_TIMEOUT
        for offset in range(3):
            ack(new, offset)
        assert ask(channel, RequestCode.POP_MESSAGE, in_order).fields["msgOffsetInfo"] == "0 0 3,4"


@pytest.mark.parametrize("restarted", [False, True])
def test_ordered_handle_of_a_deleted_topic_acknowledges_nothing_of_its_successor(
    tmp_path: Path, restarted: bool
) -> None:
    """Also where no batch of the successor is known: after a kill, whose batches were not written down."""
    in_order = {**POP, "order": "true", "invisibleTime": "60000", "maxMsgNums": "1"}

    def ack(channel: Channel, popped: Command, offset: int) -> None:
        handle = f"{offset} {popped.fields['popTime']} 60000 {popped.fields['reviveQid']} 0 broker-a 0 {offset}"
        fields = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "extraInfo": handle}
        answer = ask(channel, RequestCode.ACK_MESSAGE, {**fields, "offset": str(offset)})
        assert answer.code == ResponseCode.SUCCESS

    def popped_next(channel: Channel) -> Command:
        return ask(channel, RequestCode.POP_MESSAGE, {**in_order, "pollTime": "0"})

    with make(tmp_path) as broker, Channel(broker.address) as channel:
        send(channel, 1)
        former = popped_next(channel)
        assert former.fields["msgOffsetInfo"] == "0 0 0"
        while time.time_ns() // 1_000_000 <= int(former.fields["popTime"]):
            pass  # the successor's messages are younger
        assert ask(channel, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}).code == ResponseCode.SUCCESS
        send(channel, 3)
        begin = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "commitOffset": "0"}
        assert ask(channel, RequestCode.UPDATE_CONSUMER_OFFSET, begin).code == ResponseCode.SUCCESS
        if not restarted:
            ack(channel, former, 0)
    for file in (tmp_path / "config").glob("consumerOrderInfo.json*"):
        file.unlink()
    with make(tmp_path) as broker, Channel(broker.address) as channel:
        if restarted:
            ack(channel, former, 0)
        first = popped_next(channel)
        assert first.fields["msgOffsetInfo"] == "0 0 0"
    for file in (tmp_path / "config").glob("consumerOrderInfo.json*"):
        file.unlink()
    with make(tmp_path) as broker, Channel(broker.address) as channel:
        ack(channel, first, 0)  # of this topic: the group goes on behind it
        assert popped_next(channel).fields["msgOffsetInfo"] == "0 0 1"
