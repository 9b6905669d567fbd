"""Checks: answers find their waiters, however the bytes are cut; an invalid frame ends the connection."""

from __future__ import annotations

import os
import random
import struct

import pytest

from cometmq.errors import LimitReached, MalformedCommand
from cometmq.remoting.command import FLAG_ONEWAY, Command, HeaderFormat
from cometmq.remoting.exchange import Answered, Asked, Exchange

SEED = int(os.environ.get("CMQ_SEED", "20250919"), 0)


def answered(frame: bytes, body: bytes = b"") -> bytes:
    """The frame of the answer to a frame."""
    return Command.decode(frame).response(0, body=body).encode()


def test_answers_find_their_waiters_in_any_order() -> None:
    exchange: Exchange[str] = Exchange()
    (first, first_frame), (second, second_frame) = (exchange.begin(Command(code=105), name) for name in ("a", "b"))
    assert first != second
    assert exchange.waiting_count == 2
    events = exchange.receive(answered(second_frame) + answered(first_frame))
    assert [event.waiting for event in events if isinstance(event, Answered)] == ["b", "a"]
    assert exchange.waiting_count == 0


def test_bytes_may_come_one_by_one() -> None:
    exchange: Exchange[int] = Exchange()
    _, frame = exchange.begin(Command(code=105), 1)
    data = answered(frame, b"body")
    events = [event for byte in data for event in exchange.receive(bytes([byte]))]
    assert len(events) == 1
    assert isinstance(events[0], Answered)
    assert events[0].answer.body == b"body"
    assert exchange.received_bytes == len(data)


def test_a_late_answer_is_dropped() -> None:
    exchange: Exchange[int] = Exchange()
    opaque, frame = exchange.begin(Command(code=105), 1)
    exchange.cancel(opaque)
    exchange.cancel(opaque)
    assert exchange.receive(answered(frame) + answered(frame)) == []
    assert exchange.dropped_answers == 2


def test_requests_of_the_server_are_handed_out() -> None:
    exchange: Exchange[int] = Exchange()
    _, frame = exchange.begin(Command(code=105), 1)
    theirs = Command(code=40, fields={"consumerGroup": "g"}, opaque=Command.decode(frame).opaque).as_oneway()
    assert exchange.receive(theirs.encode()) == [Asked(theirs)], "the two directions count apart"
    assert exchange.waiting_count == 1


def test_oneway_requests_wait_for_nothing() -> None:
    exchange: Exchange[int] = Exchange()
    command = Command.decode(exchange.oneway(Command(code=15, format=HeaderFormat.ROCKETMQ)))
    assert command.flag == FLAG_ONEWAY
    assert exchange.waiting_count == 0


def test_numbers_come_again_but_not_those_that_wait() -> None:
    exchange: Exchange[int] = Exchange()
    exchange.begin(Command(code=1), 0)
    exchange._next_opaque = 2**31 - 1
    opaques = [exchange.begin(Command(code=1), n)[0] for n in range(2)]
    assert opaques == [2**31 - 1, 1]


def test_the_end_names_the_waiters() -> None:
    exchange: Exchange[str] = Exchange()
    _, frame = exchange.begin(Command(code=105), "a")
    exchange.receive(answered(frame)[:10])
    assert exchange.end() == ["a"]
    assert exchange.end() == []


def test_too_many_waiting_are_refused() -> None:
    exchange: Exchange[int] = Exchange(waiting_max=2)
    for n in range(2):
        exchange.begin(Command(code=105), n)
    with pytest.raises(LimitReached, match="2 requests"):
        exchange.begin(Command(code=105), 3)


@pytest.mark.parametrize("length", [0, 3, 1025, 2**31, 2**32 - 1])
def test_a_length_outside_its_range_is_refused_before_anything_is_kept(length: int) -> None:
    exchange: Exchange[int] = Exchange(frame_bytes_max=1024)
    with pytest.raises(MalformedCommand, match="bytes"):
        exchange.receive(struct.pack(">I", length))


def test_whatever_way_the_bytes_are_cut() -> None:
    print(f"CMQ_SEED={SEED}")
    rng = random.Random(SEED)
    exchange: Exchange[int] = Exchange()
    frames = [exchange.begin(Command(code=105), n)[1] for n in range(200)]
    order = rng.sample(range(200), 200)
    data = b"".join(answered(frames[n], rng.randbytes(rng.randrange(400))) for n in order)
    found: list[int] = []
    while data:
        cut = rng.choice([1, 3, 7, 50, 1000, 5000])
        found += [event.waiting for event in exchange.receive(data[:cut]) if isinstance(event, Answered)]
        data = data[cut:]
    assert found == order


def test_server_that_lost_count_of_a_frame_is_dead() -> None:
    """A length that is too large makes every later answer a part of that frame."""
    now = [100.0]
    exchange: Exchange[int] = Exchange(clock=lambda: now[0])
    assert exchange.is_dead(0)
    _, frame = exchange.begin(Command(code=105), 1)
    before = exchange.received_bytes
    exchange.receive(answered(frame) + b"\0\x10\0\0\0\0\0\x40")
    now[0] += 29.9
    assert exchange.receive(answered(frame)) == []
    assert not exchange.is_dead(before)
    now[0] += 0.1
    assert exchange.is_dead(before)


def test_frames_that_end_are_not_stuck() -> None:
    now = [100.0]
    exchange: Exchange[int] = Exchange(clock=lambda: now[0])
    _, frame = exchange.begin(Command(code=105), 1)
    data = answered(frame)
    for _ in range(3):
        exchange.receive(data[:9])
        now[0] += 29
        exchange.receive(data[9:] + data[:5])
        now[0] += 29
        assert not exchange.is_dead(0)
        exchange.receive(data[5:])
