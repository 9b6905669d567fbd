"""Checks: which messages are bunched, and when a bunch goes."""

from __future__ import annotations

from cometmq.client.accumulating import Accumulator, Added, BunchKey
from cometmq.client.outgoing import BATCH_OVERHEAD_BYTES, OutgoingMessage
from cometmq.client.sending import SendFuture, SendResult
from cometmq.errors import ConnectionLost
from cometmq.remoting.bodies.message_queue import MessageQueue
from support.sends import send_answer

KEY = BunchKey("t", None, None, True)


def put(accumulator: Accumulator, body_bytes: int, key: BunchKey = KEY, *, name: str = "AB") -> Added | None:
    body = b"x" * (body_bytes - BATCH_OVERHEAD_BYTES)
    record = (body, b"", 0)
    return accumulator.add(key, OutgoingMessage(body), record, name, SendFuture(), is_awaited=False)


def made(total: int = 10_000) -> Accumulator:
    return Accumulator(batch_max_bytes=1_000, total_max_bytes=total, message_max_bytes=1_500)


def test_a_bunch_goes_when_it_has_grown_beyond_its_size() -> None:
    accumulator = made()
    first = put(accumulator, 600)
    assert first is not None
    assert first.fresh is not None
    assert first.ready == ()
    assert put(accumulator, 400) == (None, ())
    last = put(accumulator, 100)
    assert last == (None, (first.fresh,))
    assert first.fresh.size_bytes == 1_100
    assert not accumulator.take(first.fresh)
    assert repr(accumulator) == "Accumulator(0 bunches, 0 bytes)"


def test_a_bunch_that_would_be_longer_than_brokers_take_goes_before() -> None:
    accumulator = made()
    first = put(accumulator, 900)
    second = put(accumulator, 900)
    assert first is not None
    assert second is not None
    assert second.ready == (first.fresh,)
    assert second.fresh is not None
    assert second.fresh is not first.fresh
    assert accumulator.take(second.fresh)


def test_what_is_too_long_or_too_much_goes_alone() -> None:
    accumulator = made(total=1_200)
    assert put(accumulator, 1_001) is None
    assert put(accumulator, 900) is not None
    assert put(accumulator, 301, KEY._replace(tags="a")) is None
    assert put(accumulator, 300, KEY._replace(tags="a")) is not None


def test_messages_are_bunched_by_what_they_have_in_common() -> None:
    accumulator = made()
    queue = MessageQueue(topic="t", broker_name="a", queue_id=0)
    keys = [
        KEY,
        KEY._replace(topic="u"),
        KEY._replace(queue=queue),
        KEY._replace(tags="x"),
        KEY._replace(wait_stored=False),
    ]
    for key in keys * 2:
        put(accumulator, 100, key)
    taken = accumulator.take_all()
    assert [bunch.key for bunch in taken] == keys
    assert all(len(bunch.records) == 2 for bunch in taken)
    assert accumulator.take_all() == []


def test_each_sender_gets_its_part() -> None:
    accumulator = made()
    for name in ("AB", "CD"):
        put(accumulator, 100, name=name)
    (bunch,) = accumulator.take_all()
    batch = SendFuture()
    answer = send_answer(queue_id=2, queue_offset=40, message_id="M0,M1")
    batch.set_result(SendResult(answer, MessageQueue(topic="t", broker_name="a", queue_id=2), "AB,CD"))
    bunch.settle(batch)
    results = [future.result() for future in bunch.futures]
    assert [(one.unique_id, one.message_id, one.queue_offset, one.offset_message_id) for one in results] == [
        ("AB", "AB", 40, "M0"),
        ("CD", "CD", 41, "M1"),
    ]


def test_each_sender_is_told_of_a_failure() -> None:
    accumulator = made()
    put(accumulator, 100)
    (bunch,) = accumulator.take_all()
    batch = SendFuture()
    batch.set_error(ConnectionLost("gone"))
    bunch.settle(batch)
    assert isinstance(bunch.futures[0].exception(), ConnectionLost)
