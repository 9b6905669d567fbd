"""Checks: a process queue counts what it holds and never lets an offset pass a message that is not finished."""

from __future__ import annotations

import os
import random
import sys
from dataclasses import dataclass

import pytest

from cometmq.client.group.process_queue import (
    LOCK_LIVES_MS,
    NOTHING,
    PULL_IDLE_MS,
    HeldMessage,
    ProcessQueue,
)
from cometmq.remoting.bodies.message_queue import MessageQueue

SEED = int(os.environ.get("CMQ_SEED", "20250919"), 0)


@dataclass(frozen=True, slots=True)
class Held:
    queue_offset: int
    body_size: int = 10
    max_offset: int = 0


def held(*offsets: int) -> list[HeldMessage]:
    return [Held(offset) for offset in offsets]


def offsets(messages: list[HeldMessage]) -> list[int]:
    return [message.queue_offset for message in messages]


@pytest.fixture
def queue() -> ProcessQueue:
    return ProcessQueue(MessageQueue(topic="t", broker_name="b", queue_id=1))


def test_an_empty_queue(queue: ProcessQueue) -> None:
    assert (queue.count, queue.size_bytes, queue.max_span) == (0, 0, 0)
    assert queue.first() is None
    assert queue.remove(held(1), now_ms=5) == NOTHING
    assert queue.last_consume_ms == 5
    assert queue.commit() == NOTHING
    assert "count=0" in repr(queue)


def test_put_counts_new_messages_only(queue: ProcessQueue) -> None:
    """Promise 87: an ordered table of messages, the greatest offset and a count."""
    assert queue.put(held(3, 4, 5))
    assert not queue.put(held(4, 5, 6))
    assert (queue.count, queue.size_bytes, queue.max_span) == (4, 40, 3)
    queue.put(held())
    assert queue.count == 4


def test_put_keeps_order_of_any_messages(queue: ProcessQueue) -> None:
    queue.put(held(8, 7))
    queue.put(held(2))
    assert offsets(queue.take(10, now_ms=0)) == [2, 7, 8]


def test_a_chain_begins_once(queue: ProcessQueue) -> None:
    assert not queue.put(held())
    assert queue.put(held(1))
    assert not queue.put(held(2))
    assert offsets(queue.take(5, now_ms=0)) == [1, 2]
    queue.commit()
    assert queue.take(5, now_ms=0) == []
    assert not queue.consuming_now
    assert queue.put(held(3))


def test_how_far_the_broker_is_ahead(queue: ProcessQueue) -> None:
    queue.put([Held(4, max_offset=5), Held(5, max_offset=105)])
    assert queue.behind == 100
    queue.put([Held(6, max_offset=6)])
    assert queue.behind == 100


@pytest.mark.parametrize(
    ("finish", "answers"),
    [
        ([1, 2, 3], [2, 3, 4]),
        ([3, 2, 1], [1, 1, 4]),
        ([2, 1, 3], [1, 3, 4]),
        ([2, 3, 1], [1, 1, 4]),
        ([9, 1, 1], [1, 2, 2]),
    ],
)
def test_remove_answers_the_smallest_unfinished_offset(
    queue: ProcessQueue, finish: list[int], answers: list[int]
) -> None:
    """Promise 71: finished messages move the offset, never past unfinished ones."""
    queue.put(held(1, 2, 3))
    assert [queue.remove(held(offset), now_ms=1) for offset in finish] == answers


def test_remove_counts_down(queue: ProcessQueue) -> None:
    queue.put(held(1, 2, 3))
    queue.remove(held(2), now_ms=0)
    assert (queue.count, queue.size_bytes) == (2, 20)
    assert not queue.contains(Held(2))
    assert queue.contains(Held(3))
    queue.remove(held(1, 3), now_ms=0)
    assert (queue.count, queue.size_bytes) == (0, 0)
    assert queue.remove(held(1), now_ms=0) == NOTHING


def test_an_offset_comes_again_after_it_was_removed(queue: ProcessQueue) -> None:
    queue.put(held(1, 2, 3))
    queue.remove(held(3), now_ms=0)
    queue.put(held(3, 4))
    assert queue.max_span == 3
    queue.remove(held(1, 2), now_ms=0)
    assert queue.first() == Held(3)
    assert queue.remove(held(3, 4), now_ms=0) == 5


def test_commit_of_all_and_of_some(queue: ProcessQueue) -> None:
    queue.put(held(1, 2, 3, 4))
    taken = queue.take(3, now_ms=7)
    assert (queue.count, queue.size_bytes, queue.last_consume_ms) == (4, 40, 7)
    assert queue.commit(taken[:1]) == 2
    assert queue.commit(held(4)) == NOTHING
    assert queue.commit() == 4
    assert (queue.count, queue.size_bytes) == (1, 10)


def test_rollback_and_put_back(queue: ProcessQueue) -> None:
    queue.put(held(1, 2, 3, 4))
    queue.take(2, now_ms=0)
    queue.rollback()
    assert offsets(queue.take(3, now_ms=0)) == [1, 2, 3]
    queue.put_back(held(2, 3))
    assert queue.commit() == 2
    assert offsets(queue.take(9, now_ms=0)) == [2, 3, 4]
    assert queue.count == 3


def test_clear(queue: ProcessQueue) -> None:
    queue.put(held(1, 2))
    queue.take(1, now_ms=0)
    queue.clear()
    assert (queue.count, queue.size_bytes, queue.max_span) == (0, 0, 0)
    assert queue.commit() == NOTHING


def test_expiry(queue: ProcessQueue) -> None:
    """Promise 94: a queue whose pulls have stopped is found."""
    assert not queue.pull_expired(PULL_IDLE_MS * 10)
    queue.last_pull_ms = 1_000
    assert not queue.pull_expired(1_000 + PULL_IDLE_MS)
    assert queue.pull_expired(1_001 + PULL_IDLE_MS)
    queue.last_lock_ms = 1_000
    assert not queue.lock_expired(1_000 + LOCK_LIVES_MS)
    assert queue.lock_expired(1_001 + LOCK_LIVES_MS)


def test_figures(queue: ProcessQueue) -> None:
    queue.put([Held(1, body_size=3 << 20), Held(2), Held(3)])
    queue.take(1, now_ms=4)
    queue.locked = True
    info = queue.info(commit_offset=9)
    assert (info.commit_offset, info.cached_msg_min_offset, info.cached_msg_max_offset) == (9, 2, 3)
    assert (info.cached_msg_count, info.cached_msg_size_mib) == (2, 3)
    assert (info.transaction_msg_min_offset, info.transaction_msg_max_offset, info.transaction_msg_count) == (1, 1, 1)
    assert info.locked
    assert info.last_consume_timestamp_ms == 4


def test_a_random_run_equals_a_simple_model() -> None:
    """Concurrent use: every answer of remove is the smallest offset that is not finished."""
    print(f"CMQ_SEED={SEED}")
    rng = random.Random(SEED)
    queue = ProcessQueue(MessageQueue(topic="t", broker_name="b", queue_id=0))
    model: dict[int, Held] = {}
    following = 0
    greatest = 0
    for _ in range(3_000):
        if rng.random() < 0.4:
            start = following if rng.random() < 0.9 else max(0, following - rng.randrange(8))
            batch = [Held(start + i, body_size=rng.randrange(1, 99)) for i in range(rng.randrange(1, 12))]
            batch = [model.get(message.queue_offset, message) for message in batch]
            for message in batch:
                if message.queue_offset not in model:
                    greatest = message.queue_offset
                model[message.queue_offset] = message
            queue.put(batch)
            following = max(following, start + len(batch))
        elif model:
            chosen = rng.sample(sorted(model), min(len(model), rng.randrange(1, 9)))
            answer = queue.remove([model.pop(offset) for offset in chosen], now_ms=0)
            assert answer == (min(model) if model else greatest + 1)
        assert queue.count == len(model)
        assert queue.size_bytes == sum(message.body_size for message in model.values())
        assert queue.max_span == (max(model) - min(model) if model else 0)


def test_random_orderly_use_equals_a_simple_model() -> None:
    """Messages come in any order and again, are taken, committed and put back, in parts or as a whole."""
    print(f"CMQ_SEED={SEED}")
    rng = random.Random(SEED)
    queue = ProcessQueue(MessageQueue(topic="t", broker_name="b", queue_id=0))
    waiting: dict[int, HeldMessage] = {}
    taken: dict[int, HeldMessage] = {}

    def some_of(messages: dict[int, HeldMessage]) -> list[HeldMessage]:
        return [messages[offset] for offset in rng.sample(sorted(messages), rng.randrange(len(messages) + 1))]

    for step in range(2_000):
        action = rng.randrange(7)
        if action <= 1:
            batch = held(*(rng.randrange(step // 8, step // 8 + 60) for _ in range(rng.randrange(9))))
            queue.put(batch)
            for message in batch:
                (taken if message.queue_offset in taken else waiting)[message.queue_offset] = message
        elif action == 2:
            first = sorted(waiting)[: rng.randrange(1, 6)]
            assert offsets(queue.take(5 if len(first) == len(waiting) else len(first), now_ms=step)) == first
            taken.update((offset, waiting.pop(offset)) for offset in first)
        elif action == 3:
            done = some_of(taken)
            assert queue.commit(done) == max((offset + 1 for offset in offsets(done)), default=NOTHING)
            for message in done:
                del taken[message.queue_offset]
        elif action == 4:
            back = some_of(taken)
            queue.put_back(back)
            waiting.update((message.queue_offset, taken.pop(message.queue_offset)) for message in back)
        elif action == 5 and rng.random() < 0.1:
            queue.rollback()
            waiting.update(taken)
            taken.clear()
        elif waiting:
            gone = some_of(waiting)
            answer = queue.remove(gone, now_ms=step)
            for message in gone:
                del waiting[message.queue_offset]
            assert not waiting or answer == min(waiting)
        assert queue.count == len(waiting) + len(taken)
        assert queue.waiting == len(waiting)
        assert queue.size_bytes == 10 * queue.count
        assert queue.max_span == (max(waiting) - min(waiting) if waiting else 0)
        assert queue.waiting_bounds == ((min(waiting), max(waiting)) if waiting else None)
        assert queue.taken_bounds == ((min(taken), max(taken)) if taken else None)
        assert queue.first() == (waiting[min(waiting)] if waiting else None)
        probe = rng.randrange(step // 8 + 60)
        assert queue.contains(Held(probe)) is (probe in waiting)


def test_messages_are_let_go_once() -> None:
    """The table's references are neither kept nor freed too early."""
    queue = ProcessQueue(MessageQueue(topic="t", broker_name="b", queue_id=0))
    messages = held(*range(200))
    before = [sys.getrefcount(message) for message in messages]
    queue.put(messages)
    queue.put(messages[50:60])
    queue.take(20, now_ms=0)
    queue.commit(messages[3:9])
    queue.put_back(messages[9:12])
    queue.remove(messages[30:70], now_ms=0)
    assert [sys.getrefcount(message) for message in messages][30:70] == before[30:70]
    queue.clear()
    assert [sys.getrefcount(message) for message in messages] == before
    queue.put(messages)
    del queue
    assert [sys.getrefcount(message) for message in messages] == before
