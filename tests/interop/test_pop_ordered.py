"""Checks: the messages of a group that pops in order, step by step, and the state that the broker writes of it."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import NamedTuple

import cometmq.admin
from cometmq._engine import decode_messages
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.members import request
from cometmq.remoting.sync_channel import Channel
from cometmq.store_config.fastjson import Layout, encode
from cometmq.store_config.order_info import OrderInfo
from interop.landscapes import on_each_server
from interop.processes import COMPILED_VERSION, PEER_VERSION
from interop.sites import Site
from interop.waiting import eventually

TOPIC, GROUP = "PopInOrder", "g_order"
MINUTE_MS = 60_000
ORDERED_REVIVE_QUEUE = "999"


class Popped(NamedTuple):
    """The answer of a pop, but for its times."""

    code: int
    start: str = ""
    offsets: str = ""
    rest: int = 0
    counts: str = ""


BLOCKED = Popped(ResponseCode.POLLING_TIMEOUT)


class Member:
    """A client that pops the topic's only queue in order, without waiting."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._handle: tuple[str, ...] = ()
        self.pop_ms = 0

    def _ask(self, code: RequestCode, **fields: object) -> Command:
        command = request(code, consumerGroup=GROUP, topic=TOPIC, queueId=0, bname="broker-a", **fields)
        return self._channel.invoke(command, timeout_ms=10_000)

    def pop(self, count: int, *, attempt: str | None = None, invisible_ms: int = MINUTE_MS) -> Popped:
        answer = self._ask(
            RequestCode.POP_MESSAGE,
            maxMsgNums=count,
            invisibleTime=invisible_ms,
            pollTime=0,
            bornTime=int(time.time() * 1000),
            initMode=0,
            expType="TAG",
            exp="*",
            order=True,
            attemptId=attempt,
        )
        fields = answer.fields
        assert (fields["invisibleTime"], fields["reviveQid"]) == (str(invisible_ms), ORDERED_REVIVE_QUEUE)
        if answer.code == ResponseCode.SUCCESS:
            offsets = ",".join(str(message.queue_offset) for message in decode_messages(answer.body))
            assert fields["msgOffsetInfo"] == f"0 0 {offsets}"
            start = fields["startOffsetInfo"].removeprefix("0 0 ")
            self._handle = (
                start,
                fields["popTime"],
                fields["invisibleTime"],
                ORDERED_REVIVE_QUEUE,
                "0",
                "broker-a",
                "0",
            )
            self.pop_ms = int(fields["popTime"])
        return Popped(
            answer.code,
            fields["startOffsetInfo"],
            fields["msgOffsetInfo"],
            int(fields["restNum"]),
            fields.get("orderCountInfo", ""),
        )

    def pop_when_free(self, count: int, *, attempt: str) -> Popped:
        """Pop until the batch before is visible by the broker's own clock."""
        return eventually(lambda: self.pop(count, attempt=attempt), lambda popped: popped != BLOCKED)

    def _handle_of(self, offset: int, *, earlier_ms: int = 0) -> str:
        start, pop_ms, *rest = self._handle
        return " ".join((start, str(int(pop_ms) - earlier_ms), *rest, str(offset)))

    def ack(self, offset: int, *, earlier_ms: int = 0) -> int:
        handle = self._handle_of(offset, earlier_ms=earlier_ms)
        answer = self._ask(RequestCode.ACK_MESSAGE, extraInfo=handle, offset=offset)
        if answer.code == ResponseCode.MESSAGE_ILLEGAL:
            assert re.search(rf"\b{offset}\b", answer.remark or ""), "it names the offset"
        return answer.code

    def change(self, offset: int, invisible_ms: int) -> tuple[int, int]:
        """The pop time and the invisible time of the new handle."""
        answer = self._ask(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            extraInfo=self._handle_of(offset),
            offset=offset,
            invisibleTime=invisible_ms,
        )
        assert answer.code == ResponseCode.SUCCESS
        return int(answer.fields["popTime"]), int(answer.fields["invisibleTime"])


def pops_in_order(member: Member) -> None:
    """Eight messages are there."""
    ok = ResponseCode.SUCCESS
    begun_s = time.monotonic()
    assert member.pop(3) == Popped(0, "0 0 0", "0 0 0,1,2", 5, "0 0 0")
    assert member.pop(3) == BLOCKED
    assert member.ack(1) == ok
    assert [member.ack(offset) for offset in (5, 7)] == [ResponseCode.MESSAGE_ILLEGAL] * 2
    assert member.ack(9) == ResponseCode.NO_MESSAGE
    assert member.pop(3) == BLOCKED, "the others are invisible"
    for offset, invisible_ms in ((2, 2 * MINUTE_MS), (0, 2 * MINUTE_MS), (2, 500), (0, 300)):
        assert member.pop(3) == BLOCKED
        pop_ms, from_pop_ms = member.change(offset, invisible_ms)
        assert pop_ms == member.pop_ms
        # The new handle counts from the pop: the time since is added, and no more.
        assert 0 <= from_pop_ms - invisible_ms <= (time.monotonic() - begun_s) * 1000 + 1
    again = Popped(0, "0 0 0", "0 0 0,1,2", 5, "0 qo0%0 1;0 qo0%1 1;0 qo0%2 1;0 0 1")
    assert member.pop_when_free(3, attempt="a") == again
    assert member.pop(3) == member.pop(3, attempt="b") == BLOCKED
    assert member.pop(3, attempt="a") == again, "its answer was lost, say"
    assert member.ack(0, earlier_ms=1) == ok
    assert member.pop(3) == BLOCKED, "an ack of another pop counts for nothing"
    assert [member.ack(offset) for offset in (0, 1, 1, 2)] == [ok] * 4
    assert member.pop(3, invisible_ms=300) == Popped(0, "0 0 3", "0 0 3,4,5", 2, "0 0 0")
    assert member.change(1, 500) == (0, 0), "consumed long ago"
    counts = "0 qo0%3 1;0 qo0%4 1;0 qo0%5 1;0 0 0"
    assert member.pop_when_free(4, attempt="last") == Popped(0, "0 0 3", "0 0 3,4,5,6", 1, counts)
    assert member.ack(4) == ok
    member.change(5, 120_000)


@on_each_server(old=False)
def test_a_queue_is_popped_in_order(session_servers: Site, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with session_servers.broker(store, settings={"timerWheelEnable": "true"}) as broker:
        with cometmq.admin.connect(broker=broker.address) as admin:
            admin.topics.create(TOPIC, queues=1)
            admin.groups.create(GROUP, orderly=True)
            for number in range(8):
                admin.messages.send(TOPIC, b"%d" % number)
        with Channel(broker.address) as channel:
            member = Member(channel)
            pops_in_order(member)
        with cometmq.admin.connect(broker=broker.address) as admin:
            (queue,) = admin.offsets.progress(GROUP).queues
            assert (queue.consumer_offset, queue.broker_offset) == (3, 8)
    info = OrderInfo(store / "config")
    info.load()
    ((group, topic, queue_id, batch),) = info.all()
    assert (group, topic, queue_id) == (GROUP, TOPIC, 0)
    assert (batch.attempt, batch.pop_ms, batch.invisible_ms) == ("last", member.pop_ms, MINUTE_MS)
    assert (batch.acked, batch.offsets, batch.times) == (0b10, (3, 4, 5, 6), {3: 1, 4: 1, 5: 1})
    assert set(batch.visible_ms or ()) == {5}
    if PEER_VERSION == COMPILED_VERSION:  # newer releases break lines elsewhere
        assert encode(info.encode(), layout=Layout.PRETTY) == info.path.read_bytes()
