"""Checks: queues in turn, past brokers that failed, and by upstream's hash."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from cometmq.client.send.faults import FaultTable
from cometmq.client.send.queue_selection import QueueRing, check_choice, queue_by_hash, queue_by_random
from cometmq.errors import InvalidArgument
from cometmq.remoting.bodies.message_queue import MessageQueue


def queues_of(*broker_names: str, each: int = 2) -> list[MessageQueue]:
    return [MessageQueue(topic="t", broker_name=name, queue_id=at) for name in broker_names for at in range(each)]


def test_queues_are_taken_in_turn() -> None:
    ring = QueueRing(queues_of("a", "b"), first=0)
    assert [(one.broker_name, one.queue_id) for one in (ring.next() for _ in range(5))] == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
        ("b", 1),
        ("a", 0),
    ]


def test_the_index_wraps() -> None:
    ring = QueueRing(queues_of("a", each=3), first=0x7FFF_FFFF)
    assert [ring.next().queue_id for _ in range(3)] == [0x7FFF_FFFF % 3, 0, 1]


def test_another_broker_after_a_failure() -> None:
    ring = QueueRing(queues_of("a", "b"), first=0)
    assert [ring.select(not_broker="a").broker_name for _ in range(6)] == ["b"] * 6
    alone = QueueRing(queues_of("a"), first=0)
    assert [alone.select(not_broker="a").queue_id for _ in range(3)] == [0, 1, 0]


def test_threads_take_the_queues_evenly() -> None:
    ring = QueueRing(queues_of("a", each=4))
    taken: list[int] = []

    def take() -> None:
        taken.extend(ring.next().queue_id for _ in range(1_000))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(taken) == dict.fromkeys(range(4), 1_000)


def test_brokers_that_are_passed_over() -> None:
    ring = QueueRing(queues_of("a", "b", "c"), first=0)
    faults = FaultTable()
    faults.note("a", 600, now_ms=0)
    assert {ring.select_healthy(faults, now_ms=1).broker_name for _ in range(9)} == {"b", "c"}
    assert {ring.select_healthy(faults, now_ms=1, not_broker="b").broker_name for _ in range(9)} == {"c"}
    # None is available: a reachable one, and without one, any.
    faults.note("b", 600, now_ms=0, is_reachable=False)
    faults.note("c", 600, now_ms=0)
    assert {ring.select_healthy(faults, now_ms=1).broker_name for _ in range(40)} == {"a", "c"}
    for name in "abc":
        faults.note(name, 600, now_ms=0, is_reachable=False)
    assert {ring.select_healthy(faults, now_ms=1).broker_name for _ in range(6)} == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("arg", "value"),
    [
        ("hello", 99162322),
        ("", 0),
        ("polygenelubricants", 1 << 31),  # Java's hash is -2^31, of which abs has no int
        (-7, 7),
        (1 << 31, 1 << 31),
        (-(1 << 40), 1 << 8),
    ],
)
def test_a_queue_by_upstreams_hash(arg: object, value: int) -> None:
    queues = queues_of("a", each=7)
    expected = value % 7
    assert queue_by_hash(queues, arg).queue_id == expected


@pytest.mark.parametrize("arg", [None, 1.5, b"x", True, 1 << 63])
def test_values_without_a_java_hash(arg: object) -> None:
    with pytest.raises(InvalidArgument, match="str"):
        queue_by_hash(queues_of("a"), arg)


def test_result_of_a_selector_is_checked() -> None:
    queues = queues_of("a")
    assert check_choice(queue_by_random(queues, None), queues=queues, topic="t") in queues
    for wrong in (None, 0, MessageQueue(topic="t", broker_name="z", queue_id=0)):
        with pytest.raises(InvalidArgument, match="selector for topic t"):
            check_choice(wrong, queues=queues, topic="t")
