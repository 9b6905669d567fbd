"""Checks: pulls that are held end with a message, whoever appended it; and the requests of the old pull consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from cometmq._engine import decode_messages
from cometmq.broker.config import load_broker_config
from cometmq.broker.server import Broker
from cometmq.remoting.bodies.heartbeat import ConsumerData, ConsumeType, HeartbeatData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command
from cometmq.remoting.sync_channel import Channel
from support.any_disk import ANY_DISK

LIMIT_S = 30
SUSPEND, SUBSCRIPTION = 2, 4


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    settings = {"brokerName": "broker-a", "flushDiskType": "ASYNC_FLUSH", "mappedFileSizeCommitLog": 1 << 20}
    with Broker(load_broker_config(tmp_path / "store", listen=":0", settings=settings, environ=ANY_DISK)) as broker:
        yield broker


@pytest.fixture
def channel(broker: Broker) -> Iterator[Channel]:
    with Channel(broker.address) as channel:
        yield channel


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(1)
    yield pool
    pool.shutdown(wait=False, cancel_futures=True)  # a hold that nobody ended must not keep the test


def send(channel: Channel, body: bytes, *, tag: str = "a") -> Command:
    fields = {
        "a": "p",
        "b": "orders",
        "c": "TBW102",
        "d": "1",
        "e": "0",
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": f"TAGS\x01{tag}\x02",
        "j": "0",
        "k": "false",
        "m": "false",
    }
    return ask(channel, RequestCode.SEND_MESSAGE_V2, body=body, **fields)


def ask(channel: Channel, code: int, *, body: bytes = b"", **fields: str) -> Command:
    return channel.invoke(Command(code=code, fields=fields, body=body), timeout_ms=LIMIT_S * 1000)


def pull(
    channel: Channel, offset: int, flags: int, *, wait_ms: int = 0, expression: str = "*", most: int = 32
) -> Command:
    """Pull as upstream's pull consumer does: the subscription goes along, with version 0; nothing is committed."""
    return ask(
        channel,
        RequestCode.PULL_MESSAGE,
        consumerGroup="g",
        topic="orders",
        queueId="0",
        queueOffset=str(offset),
        maxMsgNums=str(most),
        sysFlag=str(flags),
        commitOffset="0",
        suspendTimeoutMillis=str(wait_ms),
        subscription=expression,
        subVersion="0",
        expressionType="TAG",
    )


def bodies(answer: Command) -> list[bytes]:
    return [bytes(message.body) for message in decode_messages(answer.body)]


def holds(broker: Broker) -> int:
    """Return how many pulls the broker holds now."""
    return broker._plane.counters()["holds_now"]


def held(pool: ThreadPoolExecutor, broker: Broker, channel: Channel, offset: int) -> Future[Command]:
    """Return a pull that the broker holds by now; it would hold it for longer than this test may take."""
    waiting = pool.submit(pull, channel, offset, SUSPEND | SUBSCRIPTION, wait_ms=600_000)
    while holds(broker) == 0:
        assert not waiting.done(), waiting.result()
    return waiting


def embedded(broker: Broker) -> None:
    broker.store.append("orders", b"new", queue=0)


def embedded_batch(broker: Broker) -> None:
    broker.store.append_many("orders", [b"new"], queue=0)


def producer(broker: Broker) -> None:
    with Channel(broker.address) as channel:
        assert send(channel, b"new").code == ResponseCode.SUCCESS


@pytest.mark.parametrize("append", [embedded, embedded_batch, producer])
def test_append_ends_a_hold(
    broker: Broker, channel: Channel, pool: ThreadPoolExecutor, append: Callable[[Broker], None]
) -> None:
    """Promise 80: the pull is held first, and then the message comes."""
    send(channel, b"old")
    waiting = held(pool, broker, channel, 1)
    append(broker)
    answer = waiting.result(LIMIT_S)
    assert (answer.code, answer.fields["nextBeginOffset"], bodies(answer)) == (ResponseCode.SUCCESS, "2", [b"new"])
    assert holds(broker) == 0


# --- The old pull consumer --------------------------------------------------------------------------------------------


def test_old_pull_consumer_pulls(broker: Broker, channel: Channel, pool: ThreadPoolExecutor) -> None:
    """Promise 74: pulls that ask once, and pulls that wait; each answer has its code."""
    for number in range(5):
        send(channel, b"%d" % number, tag="ab"[number % 2])
    found = pull(channel, 0, SUBSCRIPTION, most=3)
    assert (found.code, bodies(found)) == (ResponseCode.SUCCESS, [b"0", b"1", b"2"])
    assert [found.fields[name] for name in ("nextBeginOffset", "minOffset", "maxOffset")] == ["3", "0", "5"]
    assert bodies(pull(channel, 0, SUBSCRIPTION, expression="b")) == [b"1", b"3"]
    answers = {
        "nothing new": pull(channel, 5, SUBSCRIPTION),
        "nothing matches": pull(channel, 4, SUBSCRIPTION, expression="b"),
        "behind the end": pull(channel, 9, SUBSCRIPTION),
    }
    assert {name: (answer.code, answer.fields["nextBeginOffset"]) for name, answer in answers.items()} == {
        "nothing new": (ResponseCode.PULL_NOT_FOUND, "5"),
        "nothing matches": (ResponseCode.PULL_RETRY_IMMEDIATELY, "5"),
        "behind the end": (ResponseCode.PULL_OFFSET_MOVED, "5"),
    }
    waiting = held(pool, broker, channel, 5)
    with Channel(broker.address) as other:
        send(other, b"5")
    assert bodies(waiting.result(LIMIT_S)) == [b"5"]


def test_old_pull_consumer_is_a_member_and_keeps_its_progress_itself(broker: Broker, channel: Channel) -> None:
    """Promise 74: its pulls commit nothing; it asks for the ends of a queue and stores its progress by request."""
    send(channel, b"0")
    member = ConsumerData(group_name="g", consume_type=ConsumeType.CONSUME_ACTIVELY)
    beat = HeartbeatData(client_id="c", consumers=(member,)).to_json()
    assert ask(channel, RequestCode.HEART_BEAT, body=beat).code == ResponseCode.SUCCESS
    assert bodies(pull(channel, 0, SUBSCRIPTION)) == [b"0"]
    place = {"topic": "orders", "queueId": "0"}
    assert ask(channel, RequestCode.GET_MIN_OFFSET, **place).fields["offset"] == "0"
    assert ask(channel, RequestCode.GET_MAX_OFFSET, **place).fields["offset"] == "1"
    progress = {"consumerGroup": "g", **place}
    assert ask(channel, RequestCode.QUERY_CONSUMER_OFFSET, **progress).fields["offset"] == "0"
    ask(channel, RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset="1", **progress)
    assert ask(channel, RequestCode.QUERY_CONSUMER_OFFSET, **progress).fields["offset"] == "1"
