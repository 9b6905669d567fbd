"""Checks: the sender's requests and their order, and the fate of messages when answers fail."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import pytest

from cometmq.admin.results import BrokerRef, QueueRange
from cometmq.admin.sending import OutboundBatch, SendLimits, SendState, Target, targets_of
from cometmq.admin.servers import Route, TopicQueues
from cometmq.client.send.outgoing import OutgoingMessage, SendStatus
from cometmq.errors import (
    BrokerError,
    ConnectionLost,
    InvalidArgument,
    MalformedCommand,
    MessageTooLarge,
    RequestTimeout,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Command

A = BrokerRef(cluster="c", broker_name="a", broker_id=0, address="10.0.0.1:10911")
B = BrokerRef(cluster="c", broker_name="b", broker_id=0, address="10.0.0.2:10911")
FOUR = tuple(Target(broker, queue) for queue in range(2) for broker in (A, B))


def sending(targets: tuple[Target, ...] = FOUR, **limits: int) -> SendState:
    return SendState("orders", targets, limits=SendLimits(**limits), first_target=0, now_ms=lambda: 1_795_263_390_948)


def message(text: str, **more: object) -> OutgoingMessage:
    return OutgoingMessage(text.encode(), **more)  # type: ignore[arg-type]


def stored(batch: OutboundBatch, offset: int = 0, code: int = 0) -> Command:
    count = len(batch.messages)
    fields = {"queueId": str(batch.target.queue_id), "queueOffset": str(offset), "msgId": ",".join(["F" * 32] * count)}
    return Command(code=code, fields=fields)


def refused(code: int, remark: str = "no") -> Command:
    return Command(code=code, remark=remark)


def bodies(batch: OutboundBatch) -> list[bytes]:
    return [one.body for one in batch.messages]


def drain(state: SendState) -> list[OutboundBatch]:
    """Answer everything with success, one request after the other."""
    done = []
    while batches := state.next_batches():
        for batch in batches:
            assert state.settle(batch, stored(batch)) is None
            done.append(batch)
    return done


def test_pending_sends_share_a_batch() -> None:
    state = sending(in_flight=1)
    state.add([message("1")])
    (first,) = state.next_batches()
    state.add([message("2"), message("3")])
    assert state.next_batches() == []  # one request at a time
    assert (bodies(first), first.call.request.code) == ([b"1"], RequestCode.SEND_MESSAGE_V2)
    state.settle(first, stored(first))
    (second,) = state.next_batches()
    assert (bodies(second), second.call.request.code) == ([b"2", b"3"], RequestCode.SEND_BATCH_MESSAGE)
    assert not state.is_idle
    state.settle(second, stored(second))
    assert state.is_idle


def test_queues_in_turn() -> None:
    state = sending(batch_messages=1)
    state.add(message(str(number)) for number in range(6))
    batches = state.next_batches()
    assert [batch.target for batch in batches] == list(FOUR)  # as many at a time as there are queues
    state.settle(batches[2], stored(batches[2]))
    (more,) = state.next_batches()
    assert (more.target, more.call.address) == (FOUR[0], A.address)


def test_chance_picks_the_first_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.admin.sending.random.randrange", lambda stop: stop - 2)
    state = SendState("orders", FOUR, limits=SendLimits(batch_messages=1))
    state.add(message(text) for text in "123")
    assert [batch.target for batch in state.next_batches()] == [FOUR[2], FOUR[3], FOUR[0]]


@pytest.mark.parametrize("seed", range(20261122, 20261126))
def test_messages_of_one_sharding_key_stay_in_order(seed: int) -> None:
    """Also with failures and retries, and with answers in any order."""
    chooser = random.Random(seed)
    state = sending(batch_messages=3, in_flight=3, retries=100, busy_retries=1000)
    waiting = [(chooser.choice("abcdefgh"), number) for number in range(400)]
    arrived: dict[str, list[int]] = {}
    under_way: list[OutboundBatch] = []
    queues: dict[str, Target] = {}
    while waiting or not state.is_idle:
        for key, number in waiting[:5]:
            state.add([message(f"{key}{number}", sharding_key=key)])
        del waiting[:5]
        under_way += state.next_batches()
        batch = under_way.pop(chooser.randrange(len(under_way)))
        if chooser.random() < 0.3:
            answer = chooser.choice([refused(ResponseCode.SYSTEM_BUSY), refused(ResponseCode.SERVICE_NOT_AVAILABLE)])
            again = state.settle(batch, answer)
            assert again is not None, f"seed {seed}"
            under_way.append(again)
            continue
        for one in batch.messages:
            key = one.body[:1].decode()
            arrived.setdefault(key, []).append(int(one.body[1:]))
            assert queues.setdefault(key, batch.target) == batch.target, f"seed {seed}"
        state.settle(batch, stored(batch))
    assert all(numbers == sorted(numbers) for numbers in arrived.values()), f"seed {seed}"
    assert sum(map(len, arrived.values())) == 400 == state.report().messages


def test_a_batch_has_limits() -> None:
    state = sending((FOUR[0],), batch_messages=3, batch_bytes=200)
    state.add(message(text) for text in ("1", "2", "3", "4", "x" * 150, "y" * 150, "z" * 300))
    assert [bodies(batch) for batch in drain(state)] == [
        [b"1", b"2", b"3"],
        [b"4", b"x" * 150],
        [b"y" * 150],
        [b"z" * 300],
    ]


def test_delayed_messages_and_retry_topics_go_alone() -> None:
    state = sending((FOUR[0],))
    state.add([message("1"), message("2"), message("later", delay_level=3), message("3"), message("4")])
    batches = drain(state)
    assert [bodies(batch) for batch in batches] == [[b"1", b"2"], [b"later"], [b"3", b"4"]]
    assert "DELAY\x013\x02" in batches[1].call.request.fields["i"]
    report = state.report()  # the delayed one is in no queue yet
    assert (report.messages, report.delayed, [one.messages for one in report.queues]) == (5, 1, [4])
    retry = SendState("%RETRY%g", (FOUR[0],))
    retry.add([message("1"), message("2")])
    assert [bodies(batch) for batch in drain(retry)] == [[b"1"], [b"2"]]


def test_messages_without_a_queue_are_retried_at_another_broker() -> None:
    state = sending()
    state.add([message("1"), message("2")])
    (batch,) = state.next_batches()
    unique_id = batch.unique_id
    again = state.settle(batch, refused(ResponseCode.SERVICE_NOT_AVAILABLE))
    assert again is not None
    assert (again.call.address, again.pause_ms, again.unique_id) == (B.address, 50, unique_id)
    assert unique_id in again.call.request.fields["i"]
    again = state.settle(again, ConnectionLost("gone"))
    assert again is not None
    assert again.call.address == A.address
    assert state.settle(again, stored(again, 7)) is None
    report = state.report()
    assert (report.messages, report.requests, report.retries, report.maybe_twice) == (2, 3, 2, 2)


def test_messages_with_a_queue_are_retried_there() -> None:
    state = sending()
    state.add([message("1", sharding_key="k")])
    (batch,) = state.next_batches()
    target = batch.target
    again = state.settle(batch, RequestTimeout("late"))
    assert again is not None
    assert again.target == target


@pytest.mark.parametrize("code", [ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER, 4711])
def test_a_refusal_that_stays_ends_the_sender(code: int) -> None:
    state = sending(batch_messages=1)
    state.add(message(text) for text in "12345")
    batches = state.next_batches()
    assert state.settle(batches[0], refused(code, "never")) is None
    assert isinstance(state.failure, BrokerError)
    assert (state.failure.code, state.failure.address, state.failure.remark) == (code, A.address, "never")
    assert state.next_batches() == []  # "5" is not begun
    assert not state.is_idle
    for batch in batches[1:3]:
        state.settle(batch, stored(batch))
    # Once one has failed, nothing is sent again.
    assert state.settle(batches[3], refused(ResponseCode.SYSTEM_BUSY)) is None
    assert state.failure.code == code
    assert state.is_idle
    assert state.report().messages == 2


def test_retries_are_counted() -> None:
    state = sending(retries=2)
    state.add([message("1")])
    (batch,) = state.next_batches()
    attempts = 1
    while (again := state.settle(batch, ConnectionLost("gone"))) is not None:
        batch, attempts = again, attempts + 1
    assert attempts == 3
    assert isinstance(state.failure, ConnectionLost)
    assert state.is_idle


def test_a_busy_broker_is_given_time() -> None:
    state = sending(retries=0, busy_retries=8)
    state.add([message("1")])
    (batch,) = state.next_batches()
    pauses = []
    while (again := state.settle(batch, refused(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy"))) is not None:
        batch = again
        pauses.append(again.pause_ms)
    assert pauses == [50, 100, 200, 400, 800, 1600, 2000, 2000]
    assert isinstance(state.failure, BrokerError)
    assert "overloaded" in str(state.failure)


def test_stored_but_not_safe_is_reported() -> None:
    state = sending()
    state.add([message("1"), message("2")])
    (batch,) = state.next_batches()
    assert state.settle(batch, stored(batch, 5, ResponseCode.FLUSH_DISK_TIMEOUT)) is None
    assert state.failure is None
    assert (state.report().messages, state.report().not_durable) == (2, 2)
    assert state.last_result is not None
    assert (state.last_result.status, state.last_result.queue_offset) == (SendStatus.FLUSH_DISK_TIMEOUT, 5)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"queueId": "0", "queueOffset": "x", "msgId": "F"},
        {"queueId": "0", "queueOffset": "1"},
        {"queueId": "0", "queueOffset": "1", "msgId": "F,F"},
    ],
)
def test_an_answer_that_says_too_little_or_something_else(fields: dict[str, str]) -> None:
    state = sending()
    state.add(message(text) for text in "123")
    (batch,) = state.next_batches()
    assert state.settle(batch, Command(code=0, fields=fields)) is None
    assert isinstance(state.failure, MalformedCommand)
    assert state.report().messages == 0


def test_one_id_for_an_inner_batch() -> None:
    state = sending()
    state.add(message(text) for text in "123")
    (batch,) = state.next_batches()
    state.settle(batch, Command(code=0, fields={"queueId": "0", "queueOffset": "10", "msgId": "F" * 32}))
    assert state.report().queues == (QueueRange(broker_name="a", queue_id=0, first=10, last=12, messages=3),)


def test_the_report_says_where_messages_are() -> None:
    state = sending((FOUR[0], FOUR[1]), batch_messages=2)
    state.add(message(text) for text in "123456")
    first, second = state.next_batches()
    state.settle(second, stored(second, 40))
    (third,) = state.next_batches()
    state.settle(third, stored(third, 102))
    state.settle(first, stored(first, 100))
    report = state.report()
    assert report.queues == (
        QueueRange(broker_name="a", queue_id=0, first=100, last=103, messages=4),
        QueueRange(broker_name="b", queue_id=0, first=40, last=41, messages=2),
    )
    assert (report.messages, report.body_bytes, report.requests) == (6, 6, 3)


def test_room() -> None:
    state = sending((FOUR[0],), waiting_bytes=100, in_flight=1)
    state.add([message("x" * 50)])
    assert state.has_room
    (batch,) = state.next_batches()
    state.add([message("y" * 50), message("z" * 50)])
    assert not state.has_room
    state.settle(batch, stored(batch))
    state.next_batches()
    assert state.has_room


def test_a_queue_by_number() -> None:
    state = sending((Target(A, 0), Target(A, 1)))
    state.add([message("1", queue_id=1)])
    (batch,) = state.next_batches()
    assert batch.call.request.fields["e"] == "1"
    with pytest.raises(InvalidArgument, match="queue 2 of topic orders does not take messages"):
        state.add([message("2", queue_id=2)])
    with pytest.raises(InvalidArgument, match="several brokers"):
        sending().add([message("1", queue_id=1)])


def test_invalid_messages_are_rejected_before_the_send() -> None:
    state = sending()
    with pytest.raises(MessageTooLarge, match="4,194,305"):
        state.add([message("first"), message("x" * ((4 << 20) + 1))])
    (batch,) = state.next_batches()
    assert bodies(batch) == [b"first"]
    for bad in (message("1", tags="a\x02b"), message("1", keys="\x01"), message("1", delay_level=-1)):
        with pytest.raises(InvalidArgument):
            state.add([bad])


@pytest.mark.parametrize("limits", [{"batch_messages": 0}, {"in_flight": 0}, {"batch_bytes": 5 << 20}, {"retries": -1}])
def test_limits_are_checked(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(limits))):
        SendLimits(**limits)


def part(broker: BrokerRef, write: int, perm: int = 6) -> TopicQueues:
    return TopicQueues(broker=broker, read_queues=8, write_queues=write, perm=perm)


def test_targets() -> None:
    def names(found: Iterable[Target]) -> list[tuple[str, int]]:
        return [(one.broker.broker_name, one.queue_id) for one in found]

    route = Route(topic="orders", parts=(part(A, 2), part(B, 1)))
    assert names(targets_of(route)) == [("a", 0), ("b", 0), ("a", 1)]
    assert names(targets_of(route, broker_name="b")) == [("b", 0)]
    for closed in (part(A, 2, perm=4), part(A, 0)):
        with pytest.raises(InvalidArgument, match="no writable queue"):
            targets_of(Route(topic="orders", parts=(closed,)))


def test_sharding_keys_spread_as_upstream_spreads_them() -> None:
    """SelectMessageQueueByHash: Java's hash of the key modulo the queues; that of "polygenelubricants" is the least."""
    targets = tuple(Target(A, queue) for queue in range(7))
    state = SendState("orders", targets)
    state.add([message("1", sharding_key="N14228"), message("2", sharding_key="polygenelubricants")])
    assert Counter(batch.target.queue_id for batch in state.next_batches()) == Counter(
        [abs(-2_015_042_201) % 7, 2**31 % 7]
    )
