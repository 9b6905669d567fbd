"""Checks: a queue has one owner, for sixty seconds at a time; only it releases it; when a group counts as locked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.broker.locks import QueueLocks
from cometmq.remoting.bodies.locks import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.store_config.topic_config import TopicConfig
from support.broker_twins import Clock, Rig, run

QUEUES = [MessageQueue(topic="t", broker_name="broker-a", queue_id=queue_id) for queue_id in range(3)]


def test_a_queue_has_one_owner() -> None:
    locks = QueueLocks(now_ms=Clock())
    assert locks.lock("g", "a", QUEUES[:2]) == QUEUES[:2]
    assert locks.lock("g", "b", QUEUES) == QUEUES[2:]
    assert locks.lock("h", "b", QUEUES) == QUEUES, "another group has locks of its own"
    locks.unlock("g", "b", QUEUES)
    assert locks.lock("g", "b", QUEUES) == QUEUES[2:], "only the owner gives back"
    locks.unlock("g", "a", QUEUES[:1])
    assert locks.lock("g", "b", QUEUES) == [QUEUES[0], QUEUES[2]]


def test_a_lock_lives_sixty_seconds_from_its_last_renewal() -> None:
    clock = Clock()
    locks = QueueLocks(now_ms=clock)
    locks.lock("g", "a", QUEUES[:1])
    clock.move(50_000)
    assert locks.lock("g", "a", QUEUES[:1]) == QUEUES[:1]
    clock.move(60_000)
    assert locks.lock("g", "b", QUEUES[:1]) == []
    assert locks.is_group_locked("g")
    clock.move(1)
    assert not locks.is_group_locked("g")
    assert locks.lock("g", "b", QUEUES[:1]) == QUEUES[:1]
    assert not locks.is_group_locked("other")


def test_expired_locks_use_no_memory() -> None:
    clock = Clock()
    locks = QueueLocks(now_ms=clock)
    locks.lock("g", "a", QUEUES)
    clock.move(30_000)
    locks.lock("h", "a", QUEUES)
    clock.move(30_001)
    locks.drop_expired()
    assert set(locks._groups) == {"h"}
    assert locks.is_group_locked("h")


def make(path: Path) -> Rig:
    """A broker with the topic and the group."""
    rig = Rig(path)
    run(rig.make_topics(TopicConfig(topic_name="t", read_queue_nums=4, write_queue_nums=4)))
    run(rig.control.groups.find_or_make("g"))
    return rig


def test_requests(tmp_path: Path) -> None:
    with make(tmp_path) as rig:
        body = LockBatchRequestBody(consumer_group="g", client_id="a", queues=tuple(QUEUES))
        answer = rig.run(RequestCode.LOCK_BATCH_MQ, body=body.to_json())
        assert answer.code == ResponseCode.SUCCESS
        assert LockBatchResponseBody.from_json(answer.body).locked_queues == tuple(QUEUES)
        other = LockBatchRequestBody(consumer_group="g", client_id="b", queues=tuple(QUEUES))
        assert rig.run(RequestCode.LOCK_BATCH_MQ, body=other.to_json()).body == b'{"lockOKMQSet":[]}'
        back = UnlockBatchRequestBody(consumer_group="g", client_id="a", queues=tuple(QUEUES))
        answer = rig.run(RequestCode.UNLOCK_BATCH_MQ, body=back.to_json())
        assert (answer.code, answer.body) == (ResponseCode.SUCCESS, b"")
        assert not rig.control.locks.is_group_locked("g")
        for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
            answer = rig.run(code, body=b"nonsense")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "BatchRequestBody" in answer.remark


def locking(rig: Rig, client_id: str, code: RequestCode = RequestCode.LOCK_BATCH_MQ) -> tuple[MessageQueue, ...]:
    """Ask for the queues as a client does, and return those that it has then."""
    queues = tuple(QUEUES)
    if code == RequestCode.UNLOCK_BATCH_MQ:
        rig.run(code, body=UnlockBatchRequestBody(consumer_group="g", client_id=client_id, queues=queues).to_json())
        return ()
    body = LockBatchRequestBody(consumer_group="g", client_id=client_id, queues=queues)
    return LockBatchResponseBody.from_json(rig.run(code, body=body.to_json()).body).locked_queues


def test_locks_outlive_a_restart_for_a_lease(tmp_path: Path) -> None:
    """A listener that is at work while the broker restarts is not joined by another."""
    with make(tmp_path) as rig:
        assert locking(rig, "a") == tuple(QUEUES)
    with Rig(tmp_path) as rig:
        assert locking(rig, "b") == ()
        assert locking(rig, "a") == tuple(QUEUES)
        rig.clock.move(60_001)
        assert locking(rig, "b") == tuple(QUEUES)
    with Rig(tmp_path) as rig:
        assert locking(rig, "a") == ()
        locking(rig, "b", RequestCode.UNLOCK_BATCH_MQ)
        assert locking(rig, "a") == tuple(QUEUES)


def test_unlock_is_written_before_it_is_answered(tmp_path: Path) -> None:
    """A broker that is killed then does not keep the queue for a member that has left."""
    with make(tmp_path) as rig:
        locking(rig, "a")
        path = rig.store.path / "cometmq" / "locks.json"
        assert b'"a"' in path.read_bytes()
        locking(rig, "a", RequestCode.UNLOCK_BATCH_MQ)
        assert b'"a"' not in path.read_bytes()


def test_failed_write_of_locks_is_tried_again(tmp_path: Path) -> None:
    with make(tmp_path) as rig:
        locking(rig, "a")
        path = rig.store.path / "cometmq" / "locks.json"
        blocked = path.with_suffix(".tmp")
        blocked.mkdir()
        locking(rig, "a", RequestCode.UNLOCK_BATCH_MQ)
        assert b'"a"' in path.read_bytes()
        blocked.rmdir()
        locking(rig, "a", RequestCode.UNLOCK_BATCH_MQ)
        assert b'"a"' not in path.read_bytes()


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": 2}', b'{"version": 1, "locks": [["g", 1, "b", 0, "a"]]}'])
def test_locks_that_cannot_be_read_stop_no_start(tmp_path: Path, content: bytes) -> None:
    with make(tmp_path) as rig:
        locking(rig, "a")
        path = rig.store.path / "cometmq" / "locks.json"
    path.write_bytes(content)
    with Rig(tmp_path) as rig:
        assert locking(rig, "b") == tuple(QUEUES)


def test_queues_and_groups_that_are_none_are_not_locked(tmp_path: Path) -> None:
    """Each lock was kept, and written down, whatever its names: one request filled the memory of the broker."""
    queue = QUEUES[0]
    unknown = (
        replace(queue, topic="nowhere"),
        replace(queue, queue_id=4),
        replace(queue, queue_id=-1),
        replace(queue, broker_name="other"),
    )
    with make(tmp_path) as rig:
        body = LockBatchRequestBody(consumer_group="g", client_id="a", queues=(*unknown, queue)).to_json()
        answer = LockBatchResponseBody.from_json(rig.run(RequestCode.LOCK_BATCH_MQ, body=body).body)
        assert answer.locked_queues == (queue,)
        body = LockBatchRequestBody(consumer_group="nobody", client_id="a", queues=(queue,)).to_json()
        answer = LockBatchResponseBody.from_json(rig.run(RequestCode.LOCK_BATCH_MQ, body=body).body)
        assert answer.locked_queues == ()
        body = LockBatchRequestBody(consumer_group="g", client_id="a" * 5_000, queues=(queue,)).to_json()
        assert rig.run(RequestCode.LOCK_BATCH_MQ, body=body).code == ResponseCode.SYSTEM_ERROR
        many = tuple(replace(queue, queue_id=number) for number in range(65_537))
        body = LockBatchRequestBody(consumer_group="g", client_id="a", queues=many).to_json()
        assert "65536 queues" in rig.run(RequestCode.LOCK_BATCH_MQ, body=body).remark
        assert set(rig.control.locks._groups) == {"g"}


def test_locks_of_all_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.broker.locks.LOCKS_MAX", 2)
    with make(tmp_path) as rig:
        assert locking(rig, "a") == tuple(QUEUES[:2])
        locking(rig, "a", RequestCode.UNLOCK_BATCH_MQ)
        assert locking(rig, "b") == tuple(QUEUES[:2]), "released queues are free again"
