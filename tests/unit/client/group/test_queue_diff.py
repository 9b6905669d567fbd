"""Checks: the changes of a new allocation in a table of queues."""

from __future__ import annotations

from cometmq.client.group.allocation import Averagely, as_strategy
from cometmq.client.group.process_queue import PULL_IDLE_MS, ProcessQueue
from cometmq.client.group.queue_diff import (
    additions_of,
    allocation_of,
    is_balanced,
    queues_without_topic,
    removals_of,
)
from cometmq.remoting.bodies.message_queue import MessageQueue


def _queue(number: int, *, topic: str = "t", broker: str = "b") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker, queue_id=number)


def _table(*queues: MessageQueue) -> dict[MessageQueue, ProcessQueue]:
    return {queue: ProcessQueue(queue) for queue in queues}


def test_all_members_see_the_same_order() -> None:
    """Promise 60: queues by topic, broker and number, members by their ids, whatever order they came in."""
    queues = [_queue(10), _queue(2), _queue(0, broker="a"), _queue(1)]
    shares = [
        allocation_of(Averagely(), group="g", client_id=own, queues=queues, client_ids=["c2", "c10"])
        for own in ("c10", "c2")
    ]
    assert shares == [(_queue(0, broker="a"), _queue(1)), (_queue(2), _queue(10))]


def test_a_queue_allocated_twice_counts_once() -> None:
    strategy = as_strategy(lambda group, own, queues, ids: [*queues, *queues])
    got = allocation_of(strategy, group="g", client_id="c", queues=[_queue(1), _queue(0)], client_ids=["c"])
    assert got == (_queue(0), _queue(1))


def test_queues_to_release() -> None:
    """Promises 61, 94: unwanted queues, and in push mode those that were not pulled for too long."""
    table = _table(_queue(0), _queue(1), _queue(2), _queue(0, topic="u"))
    table[_queue(1)].last_pull_ms = 1_000
    wanted = {_queue(1), _queue(2)}

    def going(now_ms: int, *, is_push: bool = True, kept: tuple[MessageQueue, ...] = ()) -> list[MessageQueue]:
        found = removals_of("t", wanted, table, now_ms=now_ms, is_push=is_push, kept=kept)
        assert all(held is table[queue] for queue, held in found)
        return [queue for queue, _ in found]

    assert going(1_000 + PULL_IDLE_MS) == [_queue(0)]
    assert going(1_001 + PULL_IDLE_MS) == [_queue(0), _queue(1)]
    assert going(1_001 + PULL_IDLE_MS, is_push=False) == [_queue(0)]
    assert going(1_000, kept=(_queue(2),)) == [_queue(0), _queue(2)]


def test_queues_to_add() -> None:
    """Promise 61."""
    table = _table(_queue(1))
    assert additions_of((_queue(0), _queue(1), _queue(2)), table) == [_queue(0), _queue(2)]


def test_queues_of_unsubscribed_topics() -> None:
    table = _table(_queue(0), _queue(0, topic="u"))
    assert [queue for queue, _ in queues_without_topic({"t": 1}, table)] == [_queue(0, topic="u")]


def test_balance() -> None:
    table = _table(_queue(0), _queue(1), _queue(0, topic="u"))
    assert is_balanced("t", (_queue(1), _queue(0)), table)
    assert not is_balanced("t", (_queue(0),), table)
    assert not is_balanced("t", (_queue(0), _queue(1), _queue(2)), table)
    table[_queue(1)].dropped = True
    assert not is_balanced("t", (_queue(0), _queue(1)), table)
    assert is_balanced("t", (_queue(0),), table)
