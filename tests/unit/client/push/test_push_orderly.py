"""Checks: orderly push consumers on virtual time."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from cometmq.client.push.listeners import Outcome
from cometmq.remoting.codes import RequestCode
from support.fake_cluster import LOCK_LIVES_MS, FakeCluster
from support.push_engines import Seen, committed, consumer, fill, on_cluster, queue_of, until


@on_cluster
async def test_orderly_listener_sees_each_queue_in_order_and_waits_for_failures(cluster: FakeCluster) -> None:
    """Promise 92: a failure stops its queue alone; tries are counted; nothing overtakes."""
    fill(cluster, 100)
    at_work: set[int] = set()
    order: dict[int, list[int]] = {0: [], 1: []}
    tries: list[int] = []

    async def listener(message: Any) -> Outcome | None:
        number = int(message.body_bytes)
        assert message.queue_id not in at_work
        at_work.add(message.queue_id)
        await asyncio.sleep(0.001)
        at_work.discard(message.queue_id)
        if number == 40 and len(tries) < 3:
            tries.append(message.reconsume_times)
            return Outcome.suspend(suspend_ms=100)
        order[message.queue_id].append(number)
        return None

    engine = consumer(cluster, listener, orderly=True)
    await engine.start()
    await until(lambda: sum(map(len, order.values())) == 100)
    await engine.close()
    assert order == {0: list(range(0, 100, 2)), 1: list(range(1, 100, 2))}
    assert tries == [0, 1, 2]
    assert committed(cluster) == {0: 50, 1: 50}
    assert cluster.brokers[0].locks == {}


@on_cluster
async def test_messages_that_were_taken_when_the_lock_was_lost_come_in_order(cluster: FakeCluster) -> None:
    fill(cluster, 300, queues=1)
    order: list[int] = []

    async def listener(message: Any) -> None:
        order.append(int(message.body_bytes))
        if len(order) == 200:
            engine._rebalance.queues[queue_of(0)].locked = False

    engine = consumer(cluster, listener, orderly=True)
    await engine.start()
    await until(lambda: len(order) >= 300)
    await engine.close()
    assert order == list(range(300))
    assert committed(cluster)[0] == 300


@on_cluster
async def test_queue_is_not_consumed_before_its_lock_is_granted(cluster: FakeCluster) -> None:
    """Another client has the lock of one queue of two, until it expires."""
    fill(cluster, 10)
    clock = asyncio.get_running_loop().time
    cluster.brokers[0].locks["g", queue_of(0)] = ("other", cluster.loop.now_ms())
    began_s = clock()
    first_s: dict[int, float] = {}

    async def listener(message: Any) -> None:
        first_s.setdefault(message.queue_id, clock() - began_s)

    engine = consumer(cluster, listener, orderly=True)
    await engine.start()
    await until(lambda: len(first_s) == 2)
    await engine.close()
    assert first_s[1] < 10
    assert first_s[0] >= LOCK_LIVES_MS / 1000


@on_cluster
async def test_orderly_queues_change_hands_without_overlap(cluster: FakeCluster) -> None:
    """Promises 30, 92: the next owner begins when the listener of the last one has ended and its lock is given back."""
    at_work: dict[int, str] = {}
    seen: list[int] = []

    async def work(who: str, message: Any) -> None:
        assert message.queue_id not in at_work, f"{who} overlaps {at_work}"
        at_work[message.queue_id] = who
        await asyncio.sleep(0.2)
        del at_work[message.queue_id]
        seen.append(int(message.body_bytes))

    one = consumer(cluster, functools.partial(work, "one"), orderly=True)
    two = consumer(cluster, functools.partial(work, "two"), orderly=True)
    await one.start()
    fill(cluster, 400)
    await until(lambda: len(seen) > 40)
    await two.start()
    await until(lambda: len([queue for queue in two.queues if queue.topic == "T"]) == 1)
    await until(lambda: len(seen) > 120)
    await one.close()
    await until(lambda: len(set(seen)) == 400)
    await two.close()
    # Messages that a listener had when its queue went may come twice: at least once.
    assert len(seen) <= 402


@pytest.mark.parametrize("how", ["rebalance", "close"])
def test_nobody_begins_beside_a_listener_that_takes_long(how: str) -> None:
    """The queue changes hands while a call works for 40 s: the lock is kept for it, or runs out after a close."""

    @on_cluster
    async def run(cluster: FakeCluster) -> None:
        at_work: dict[int, str] = {}
        overlaps: list[str] = []
        done: list[int] = []

        async def work(who: str, message: Any) -> None:
            queue_id = message.queue_id
            if queue_id in at_work:
                overlaps.append(f"{who} overlaps {at_work[queue_id]} on queue {queue_id}")
            at_work[queue_id] = who
            try:
                await asyncio.sleep(40 if who == "one" else 0.1)
            finally:
                at_work.pop(queue_id, None)
            done.append(int(message.body_bytes))

        one = consumer(cluster, functools.partial(work, "one"), orderly=True)
        two = consumer(cluster, functools.partial(work, "two"), orderly=True)
        fill(cluster, 10)
        await one.start()
        await until(lambda: len(at_work) == 2)
        await two.start()
        if how == "close":
            await asyncio.sleep(5)
            await one.close(timeout_ms=1_000)
        await until(lambda: len(set(done)) == 10)
        assert not overlaps
        await one.close()
        await two.close()

    run()


@on_cluster
async def test_lock_of_a_hanging_call_is_kept_until_the_consume_timeout(cluster: FakeCluster) -> None:
    now_s = asyncio.get_running_loop().time
    began_s: list[float] = []
    next_s: list[float] = []

    async def hang(_: Any) -> None:
        began_s.append(now_s())
        await asyncio.sleep(3_600)

    async def work(_: Any) -> None:
        next_s.append(now_s())

    one = consumer(cluster, hang, orderly=True, consume_timeout_minutes=3)
    two = consumer(cluster, work, orderly=True)
    fill(cluster, 10)
    await one.start()
    await until(lambda: len(began_s) == 2)
    await two.start()
    await until(lambda: len(next_s) > 0)
    assert 180 <= next_s[0] - began_s[0] <= 300
    await two.close()
    await one.close(timeout_ms=1_000)


@on_cluster
async def test_close_unlocks_the_queues_that_no_listener_has_begun(cluster: FakeCluster) -> None:
    """With one worker and two queues, one task waits: a close left its queue locked for a minute."""
    at_work: list[int] = []

    async def listener(message: Any) -> None:
        at_work.append(message.queue_id)
        await asyncio.sleep(40)

    one = consumer(cluster, listener, orderly=True, consume_thread_min=1, consume_thread_max=1)
    fill(cluster, 10)
    await one.start()
    await until(lambda: len(at_work) == 1 and one._pipeline.workers.waiting > 0)
    await one.close(timeout_ms=1_000)
    assert cluster.brokers[0].locks == {}, "the close cancelled the listener that had begun, and none is at the other"


@pytest.mark.parametrize("orderly", [False, True])
def test_unsubscribing_commits_and_unlocks(orderly: bool) -> None:
    """The queues were forgotten as they were: other members began at an old offset, of locked queues after a minute."""

    @on_cluster
    async def run(cluster: FakeCluster) -> None:
        cluster.brokers[0].create("U", 1)
        fill(cluster, 10)
        seen = Seen()
        engine = consumer(cluster, seen, orderly=orderly, topics={"T": (None, "TAG"), "U": (None, "TAG")})
        await engine.start()
        await until(lambda: len(seen.bodies) == 10)
        engine.unsubscribe("T")
        await asyncio.sleep(2)
        assert committed(cluster) == {0: 5, 1: 5}
        assert "T" not in {queue.topic for _, queue in cluster.brokers[0].locks}
        await engine.close()

    run()


@on_cluster
async def test_unlock_has_arrived_before_the_queue_is_locked_again(cluster: FakeCluster) -> None:
    """One that was served behind the next lock gave that away: two members had the queue."""
    engine = consumer(cluster, Seen(), orderly=True)
    await engine.start()
    await until(lambda: len([queue for queue in engine.queues if queue.topic == "T"]) == 2)
    held = engine._rebalance.queues[queue_of(0)]
    held.dropped = True
    cluster.latency_ms = 20
    assert await engine.release(queue_of(0), held)
    assert ("g", queue_of(0)) not in cluster.brokers[0].locks
    cluster.latency_ms = 1
    await engine.close()


@on_cluster
async def test_orderly_commits_by_hand(cluster: FakeCluster) -> None:
    fill(cluster, 6, queues=1)
    seen: list[int] = []

    async def listener(message: Any) -> Outcome | None:
        number = int(message.body_bytes)
        seen.append(number)
        if number == 2:
            return Outcome.COMMIT
        if number == 4 and seen.count(4) == 1:
            return Outcome.ROLLBACK
        return Outcome.COMMIT if number == 5 else None

    engine = consumer(cluster, listener, orderly=True, auto_commit=False, suspend_current_queue_time_ms=10)
    await engine.start()
    await until(lambda: 5 in seen)
    await engine.close()
    assert seen == [0, 1, 2, 3, 4, 3, 4, 5]
    assert committed(cluster)[0] == 6


@on_cluster
async def test_an_orderly_message_that_was_tried_often_enough_is_sent_away(cluster: FakeCluster) -> None:
    fill(cluster, 2, queues=1)
    cluster.brokers[0].create("%RETRY%g", 1)
    seen = Seen(lambda message: Outcome.RETRY if message.body_bytes == b"0" and message.topic == "T" else None)
    engine = consumer(cluster, seen, orderly=True, max_reconsume_times=2, suspend_current_queue_time_ms=10)
    await engine.start()
    await until(lambda: b"1" in seen.bodies)
    assert seen.bodies[:4] == [b"0", b"0", b"0", b"1"]
    sent = cluster.asked(RequestCode.SEND_MESSAGE_V2)
    assert [one.fields["topic"] for one in sent] == ["%RETRY%g"]
    await engine.close()


@on_cluster
async def test_lock_runs_out_although_the_wall_clock_is_set_back(cluster: FakeCluster) -> None:
    """Its broker may have given the lock to another member by then."""
    shift_ms = [0]
    calls: list[float] = []

    async def listener(message: Any) -> None:
        calls.append(cluster.loop.time())
        await asyncio.sleep(1)

    fill(cluster, 200, queues=1)
    engine = consumer(cluster, listener, orderly=True, more={"now_ms": lambda: cluster.loop.now_ms() + shift_ms[0]})
    await engine.start()
    await until(lambda: len(calls) == 5)
    cluster.brokers[0].is_silent = True
    shift_ms[0] = -3_600_000
    begun_s = cluster.loop.time()
    await asyncio.sleep(100)
    assert calls[-1] - begun_s < 35
    cluster.brokers[0].is_silent = False
    await until(lambda: len(calls) == 200)
    await engine.close()
