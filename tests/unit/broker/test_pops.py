"""Checks: pops through a broker's sockets: given, acknowledged, back when not, and written down by a stop."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cometmq.broker.config import load_broker_config
from cometmq.broker.plane_options import PlaneOptions, PopOptions
from cometmq.broker.server import Broker
from cometmq.remoting.bodies.in_flight import GroupInFlightBody
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from support.any_disk import ANY_DISK

TIMEOUT_MS = 60_000
SEND = {"a": "p", "b": "orders", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}


def make(path: Path, **settings: object) -> Broker:
    return Broker(
        load_broker_config(path, listen=":0", settings={"brokerName": "broker-a", **settings}, environ=ANY_DISK)
    )


def pop(channel: Channel, *, poll_ms: int = 0, invisible_ms: int = 1_000, most: int = 32) -> Command:
    fields = {
        "consumerGroup": "g",
        "topic": "orders",
        "queueId": "-1",
        "maxMsgNums": str(most),
        "invisibleTime": str(invisible_ms),
        "pollTime": str(poll_ms),
        "bornTime": "0",  # counted from its arrival: on a busy machine one that took 500 ms would be refused
        "initMode": "0",
    }
    return channel.invoke(Command(code=RequestCode.POP_MESSAGE, fields=fields), timeout_ms=TIMEOUT_MS)


def ack(channel: Channel, popped: Command, offset: int) -> Command:
    of = popped.fields
    start = of["startOffsetInfo"].split(" ")[2]
    handle = f"{start} {of['popTime']} {of['invisibleTime']} {of['reviveQid']} 0 broker-a 0 {offset}"
    fields = {
        "consumerGroup": "g",
        "topic": "orders",
        "queueId": "0",
        "extraInfo": handle,
        "offset": str(offset),
    }
    return channel.invoke(Command(code=RequestCode.ACK_MESSAGE, fields=fields), timeout_ms=TIMEOUT_MS)


def send(channel: Channel, count: int) -> None:
    for _ in range(count):
        answer = channel.invoke(Command(code=310, fields=SEND, body=b"x"), timeout_ms=TIMEOUT_MS)
        assert answer.code == ResponseCode.SUCCESS


def test_settings_reach_the_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Told(Exception):
        pass

    def plane(handle: object, options: PlaneOptions) -> None:
        told.append(options.pops)
        raise Told

    told: list[PopOptions | None] = []
    monkeypatch.setattr("cometmq.broker.server.BrokerPlane", plane)
    with (
        pytest.raises(Told),
        make(
            tmp_path,
            reviveQueueNum=3,
            enablePopBufferMerge=True,
            popCkStayBufferTime=20_000,
            popCkStayBufferTimeOut=4_000,
            popCkMaxBufferSize=500,
            popCkOffsetMaxQueueSize=50,
            enableRetryTopicV2=True,
            retrieveMessageFromPopRetryTopicV1=False,
            popFromRetryProbability=0,
            initPopOffsetByCheckMsgInMem=False,
            enablePopMessageThreshold=True,
            popInflightMessageThreshold=64,
            maxPopPollingSize=70,
            popPollingSize=7,
            skipWhenCKRePutReachMaxTimes=True,
        ),
    ):
        raise AssertionError("it has started")
    assert told == [
        PopOptions(
            revive_queues=3,
            revive_queues_read=3,
            merge=True,
            stay_ms=20_000,
            stay_out_ms=4_000,
            merged_max=500,
            lane_max=50,
            retry_v2=True,
            retry_v1=False,
            retry_percent=0,
            begin_early=False,
            in_flight_max=64,
            waits_max=70,
            waits_key_max=7,
            give_up=True,
        )
    ]


@pytest.mark.parametrize(("merge", "newer_names"), [(False, False), (True, False), (False, True)])
def test_revived_message_wakes_a_held_pop(tmp_path: Path, merge: bool, newer_names: bool) -> None:
    settings = {"enablePopBufferMerge": merge, "enableRetryTopicV2": newer_names}
    with make(tmp_path, **settings) as broker, Channel(broker.address) as channel:
        send(channel, 3)
        first = pop(channel)
        assert first.code == ResponseCode.SUCCESS
        assert first.fields["msgOffsetInfo"] == "0 0 0,1,2"
        assert [ack(channel, first, offset).code for offset in (0, 2)] == [0, 0]
        again = pop(channel, poll_ms=30_000)
        assert again.code == ResponseCode.SUCCESS
        assert again.fields["msgOffsetInfo"] == ("2 0 0" if newer_names else "1 0 0")
        assert b"POP_CK" in again.body
        assert broker.control.topics.get("%RETRY%g+orders" if newer_names else "%RETRY%g_orders") is not None


@pytest.mark.parametrize(("first", "invisible_ms"), [(4, 3_000), (1, 1_000)])
def test_fewer_revive_queues_leave_nothing_behind(tmp_path: Path, first: int, invisible_ms: int) -> None:
    with make(tmp_path, reviveQueueNum=first):
        pass  # the revive topic is made
    with make(tmp_path, reviveQueueNum=4) as broker, Channel(broker.address) as channel:
        send(channel, 4)
        popped = [pop(channel, invisible_ms=invisible_ms, most=1) for _ in range(4)]
        assert [one.fields["reviveQid"] for one in popped] == ["0", "1", "2", "3"]
    # With 3 s the timer has yet to deliver it; with 1 s it is in queues that the topic's entry does not have.
    with make(tmp_path, reviveQueueNum=2) as broker, Channel(broker.address) as channel:
        assert ack(channel, popped[3], 3).code == ResponseCode.SUCCESS
        bodies = b""
        while bodies.count(b"1ST_POP_TIME") < 3:
            again = pop(channel, poll_ms=30_000, invisible_ms=60_000)
            assert again.code == ResponseCode.SUCCESS
            assert int(again.fields["reviveQid"]) < 2
            bodies += again.body


def held(channel: Channel) -> int:
    fields = {"consumerGroup": "g", "topic": "orders", "queueId": "-1"}
    answer = channel.invoke(Command(code=RequestCode.POLLING_INFO, fields=fields), timeout_ms=TIMEOUT_MS)
    return int(answer.fields["pollingNum"])


def test_a_reset_wakes_a_held_pop(tmp_path: Path) -> None:
    with (
        make(tmp_path, useServerSideResetOffset=True) as broker,
        Channel(broker.address) as channel,
        Channel(broker.address) as waiting,
        ThreadPoolExecutor(1) as member,
    ):
        send(channel, 3)
        first = pop(channel)
        assert [ack(channel, first, offset).code for offset in range(3)] == [0, 0, 0]
        again = member.submit(pop, waiting, poll_ms=50_000)
        deadline = time.monotonic() + 30
        while held(channel) == 0:
            assert time.monotonic() < deadline
        fields = {"topic": "orders", "group": "g", "timestamp": "0", "isForce": "true", "queueId": "0", "offset": "1"}
        reset = Command(code=RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields=fields)
        assert channel.invoke(reset, timeout_ms=TIMEOUT_MS).code == ResponseCode.SUCCESS
        assert again.result(timeout=40).fields["msgOffsetInfo"] == "0 0 1,2"


@pytest.mark.parametrize("merge", [False, True])
def test_in_flight_messages_are_reported(tmp_path: Path, merge: bool) -> None:
    with make(tmp_path, enablePopBufferMerge=merge) as broker, Channel(broker.address) as channel:
        send(channel, 3)
        first = pop(channel, invisible_ms=60_000)
        for _ in range(2 if merge else 1):  # where acks are stored as they come, nobody knows that one comes twice
            ack(channel, first, 1)
        send(channel, 1)
        command = Command(code=RequestCode.GET_GROUP_IN_FLIGHT, fields={"consumerGroup": "g"})
        answer = channel.invoke(command, timeout_ms=TIMEOUT_MS)
        assert answer.code == ResponseCode.SUCCESS
        told = GroupInFlightBody.from_json(answer.body)
        queue = next(one for one in told.queues if (one.topic, one.queue_id) == ("orders", 0))
        assert (queue.broker_offset, queue.next_offset, queue.in_flight, queue.overdue_ms) == (4, 3, 2, 0)
        assert 0 <= queue.oldest_ms < TIMEOUT_MS
        for offset in (0, 2):
            ack(channel, first, offset)
        told = GroupInFlightBody.from_json(channel.invoke(command, timeout_ms=TIMEOUT_MS).body)
        assert {(one.in_flight, one.oldest_ms) for one in told.queues} == {(0, -1)}


def test_a_stop_stores_checkpoints_in_memory(tmp_path: Path) -> None:
    with make(tmp_path, enablePopBufferMerge=True) as broker, Channel(broker.address) as channel:
        send(channel, 2)
        first = pop(channel, invisible_ms=60_000)
        assert ack(channel, first, 0).code == ResponseCode.SUCCESS
    with make(tmp_path, enablePopBufferMerge=True) as broker, Channel(broker.address) as channel:
        assert pop(channel).code == ResponseCode.POLLING_TIMEOUT


@pytest.mark.parametrize("merge", [False, True])
def test_members_on_several_loops_get_each_message_once(tmp_path: Path, merge: bool) -> None:
    """One queue, four members, three loops, and a disk that is waited for: no message is delivered twice."""
    count, all_given = 120, threading.Event()
    given: list[int] = []

    def consume(address: str) -> None:
        with Channel(address) as channel:
            while not all_given.is_set():
                popped = pop(channel, poll_ms=500, invisible_ms=60_000)
                if popped.code != ResponseCode.SUCCESS:
                    continue
                offsets = [int(offset) for offset in popped.fields["msgOffsetInfo"].split(" ")[2].split(",")]
                assert {ack(channel, popped, offset).code for offset in offsets} == {ResponseCode.SUCCESS}
                given.extend(offsets)
                if len(given) >= count:
                    all_given.set()

    settings: dict[str, object] = {
        "serverSelectorThreads": 3,
        "flushDiskType": "SYNC_FLUSH",
        "enablePopBufferMerge": merge,
    }
    with make(tmp_path, **settings) as broker, ThreadPoolExecutor(4) as members:
        with Channel(broker.address) as producer:
            send(producer, 1)
            consumers = [members.submit(consume, broker.address) for _ in range(4)]
            send(producer, count - 1)
        for consumer in consumers:
            consumer.result(timeout=60)
        assert sorted(given) == list(range(count))
        with Channel(broker.address) as channel:
            assert pop(channel).code == ResponseCode.POLLING_TIMEOUT
            command = Command(code=RequestCode.GET_GROUP_IN_FLIGHT, fields={"consumerGroup": "g"})
            told = GroupInFlightBody.from_json(channel.invoke(command, timeout_ms=TIMEOUT_MS).body)
            assert {one.in_flight for one in told.queues} == {0}
