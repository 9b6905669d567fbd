"""Checks: the places where queues begin hold also when queues change hands, on virtual time.

A new group's place, a reset and an offset that the broker corrects are stored at once. The next
member would not know an offset that this one forgets or stores late.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cometmq.client.pop.simple_engine import SimpleEngine
from cometmq.client.pop.simple_settings import SimpleSettings
from cometmq.client.pull.pull_engine import PullEngine
from cometmq.client.settings import PullSettings
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere
from support.fake_cluster import FakeCluster
from support.push_engines import Seen, committed, consumer, fill, on_cluster, queue_of, until

LATER_S = {ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET: 3, ConsumeFromWhere.CONSUME_FROM_TIMESTAMP: 2_400}


async def for_ever(message: Any) -> None:
    await asyncio.sleep(100_000)


@pytest.mark.parametrize("where", LATER_S)
def test_second_member_of_a_new_group_loses_nothing(where: ConsumeFromWhere) -> None:
    @on_cluster
    async def run(cluster: FakeCluster) -> None:
        fill(cluster, 10)
        await asyncio.sleep(3_600)  # a new group by time begins half an hour before
        one = consumer(cluster, for_ever, consume_from_where=where, consume_timeout_minutes=180)
        await one.start()
        await until(lambda: len(one.queues) >= 2)
        for number in range(100, 140):
            cluster.brokers[0].append("T", number % 2, b"%d" % number)
        await asyncio.sleep(LATER_S[where])
        seen = Seen()
        two = consumer(cluster, seen, consume_from_where=where)
        await two.start()
        await until(lambda: len(two.queues) >= 1)
        await one.close(timeout_ms=0)
        await until(lambda: len(seen.bodies) >= 40)
        assert sorted(seen.numbers()) == list(range(100, 140))
        await two.close()

    run()


@on_cluster
async def test_new_group_begins_only_where_its_place_is_stored(cluster: FakeCluster) -> None:
    fill(cluster, 10)
    seen = Seen()
    cluster.brokers[0].read_only = True
    engine = consumer(cluster, seen, consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    await engine.start()
    await asyncio.sleep(30)
    assert not [queue for queue in engine.queues if queue.topic == "T"]
    cluster.brokers[0].read_only = False
    await until(lambda: committed(cluster) == {0: 5, 1: 5})
    fill(cluster, 4)
    await until(lambda: len(seen.bodies) == 4)
    await engine.close()


@pytest.mark.parametrize("then", ["rest", "close", "crash"])
def test_reset_holds_through_commits_during_its_rest(then: str) -> None:
    @on_cluster
    async def run(cluster: FakeCluster) -> None:
        fill(cluster, 400)
        seen = Seen()
        one = consumer(cluster, seen, persist_consumer_offset_interval_ms=1_000)
        await one.start()
        await until(lambda: committed(cluster) == {0: 200, 1: 200})
        resetting = asyncio.ensure_future(one.reset_offsets("T", {queue_of(0): 0, queue_of(1): 0}))
        await asyncio.sleep(3)  # progress is stored meanwhile
        assert committed(cluster) == {0: 0, 1: 0}
        two = consumer(cluster, seen)
        if then == "close":
            await one.close()
        elif then == "crash":
            network: Any = one._instance.network
            network.crash()
        if then != "rest":
            await two.start()
            resetting.cancel()
        await until(lambda: len(seen.bodies) >= 800)
        await until(lambda: committed(cluster) == {0: 200, 1: 200}, limit_s=30)
        await one.close()
        if then != "rest":
            await two.close()

    run()


@on_cluster
async def test_reset_that_meets_a_rebalance_holds(cluster: FakeCluster) -> None:
    """Both members get the reset, at every point of a queue's way from one to the other."""
    for delay_ms in range(0, 60, 2):
        offsets = cluster.brokers[0].offsets
        offsets.clear()
        fill(cluster, 2)
        end = len(cluster.brokers[0].topics["T"][0])
        seen = Seen()
        one = consumer(cluster, seen)
        await one.start()
        await until(lambda: committed(cluster) == {0: end, 1: end})  # noqa: B023
        two = consumer(cluster, seen)
        await two.start()
        await asyncio.sleep(delay_ms / 1000)
        before = len(seen.bodies)
        places = {queue_of(0): 0, queue_of(1): 0}
        await asyncio.gather(one.reset_offsets("T", places), two.reset_offsets("T", places))
        await until(lambda: len(seen.bodies) - before >= 2 * end, limit_s=120)  # noqa: B023
        await one.close()
        await two.close()


@on_cluster
async def test_reset_leaves_a_consumer_suspended_that_its_user_suspended(cluster: FakeCluster) -> None:
    fill(cluster, 4)
    seen = Seen()
    engine = consumer(cluster, seen)
    await engine.start()
    await until(lambda: len(seen.bodies) == 4)
    engine.suspend()
    await engine.reset_offsets("T", {queue_of(0): 0})
    await asyncio.sleep(30)
    assert len(seen.bodies) == 4
    await engine.resume()
    await until(lambda: len(seen.bodies) == 6)
    await engine.close()


@pytest.mark.parametrize("what", ["reset", "illegal"])
def test_orderly_queue_goes_on_when_its_listener_outlasts_the_rest(what: str) -> None:
    @on_cluster
    async def run(cluster: FakeCluster) -> None:
        fill(cluster, 10, queues=1)
        seen: list[int] = []

        async def listener(message: Any) -> None:
            if not seen:
                seen.append(-1)
                await asyncio.sleep(18)
            seen.append(message.queue_offset)

        engine = consumer(cluster, listener, orderly=True, pull_batch_size=2)
        await engine.start()
        await until(lambda: seen == [-1])
        begun_s = cluster.loop.time()
        if what == "reset":
            await engine.reset_offsets("T", {queue_of(0): 4})
        else:
            cluster.brokers[0].moved["g", "T", 0] = 4
        await until(lambda: seen[-1] == 9)
        assert seen[1] == 0  # the call that outlasted it
        assert 4 in seen
        assert cluster.loop.time() - begun_s < 40
        await engine.close()
        assert committed(cluster)[0] == 10

    run()


@on_cluster
async def test_close_does_not_wait_for_a_queue_that_rests(cluster: FakeCluster) -> None:
    fill(cluster, 10, queues=1)
    seen = Seen()
    engine = consumer(cluster, seen)
    await engine.start()
    await until(lambda: committed(cluster).get(0) == 10)
    cluster.brokers[0].reset("g", "T", 0, 4)
    await until(lambda: committed(cluster).get(0) == 4)
    await asyncio.sleep(1)
    begun_s = cluster.loop.time()
    await engine.close()
    assert cluster.loop.time() - begun_s < 1
    assert committed(cluster)[0] == 4


@on_cluster
async def test_former_owner_does_not_undo_a_reset_that_its_last_pull_gets(cluster: FakeCluster) -> None:
    """As with brokers that report a reset once: in the pull of a member that is losing the queue."""
    fill(cluster, 10, queues=1)
    engine = consumer(cluster, Seen(), orderly=True)
    await engine.start()
    await until(lambda: committed(cluster).get(0) == 10)
    await asyncio.sleep(1)
    held = engine._rebalance.queues[queue_of(0)]
    held.dropped = True
    cluster.brokers[0].offsets["g", "T", 0] = cluster.brokers[0].moved["g", "T", 0] = 4
    for arrived in cluster.brokers[0]._held.pop(("T", 0)):
        arrived.set()
    await asyncio.sleep(0.1)
    assert await engine.release(queue_of(0), held)
    assert committed(cluster)[0] == 4
    await engine.close()


@on_cluster
async def test_reset_counts_for_a_minute_beside_commits_of_the_last_owner(cluster: FakeCluster) -> None:
    fill(cluster, 10, queues=1)
    engine = consumer(cluster, Seen())
    await engine.start()
    await until(lambda: committed(cluster).get(0) == 10)
    await engine.reset_offsets("T", {queue_of(0): 4})
    cluster.brokers[0].offsets["g", "T", 0] = 10
    assert await engine.start_offset(queue_of(0)) == 4
    assert committed(cluster)[0] == 4
    await asyncio.sleep(61)
    cluster.brokers[0].offsets["g", "T", 0] = 10
    assert await engine.start_offset(queue_of(0)) == 10
    await engine.close()


@pytest.mark.parametrize("kind", ["push", "pull", "simple"])
def test_changed_subscription_is_newer_although_the_clock_is_set_back(kind: str) -> None:
    """Brokers take the newest: of a changed expression they would hear nothing for an hour."""

    @on_cluster
    async def run(cluster: FakeCluster) -> None:
        shift_ms = [0]

        def now_ms() -> int:
            return cluster.loop.now_ms() + shift_ms[0]

        given: Any = {"group": "g", "name_servers": ("ns:9876",), "client_ip": "10.0.0.9"}
        reach: Any = {"now_ms": now_ms, "network_factory": cluster.factory}
        engine: Any
        if kind == "push":
            engine = consumer(cluster, Seen(), more={"now_ms": now_ms})
        elif kind == "pull":
            engine = PullEngine(PullSettings(**given), **reach)
        else:
            engine = SimpleEngine(SimpleSettings(**given), **reach)
        await engine.subscribe("T", "a")
        await engine.start()
        before = engine.subscriptions["T"].sub_version
        shift_ms[0] = -3_600_000
        await engine.subscribe("T", "b")
        assert engine.subscriptions["T"].sub_version > before
        assert cluster.brokers[0].subscribed["g"]["T"].tags == ("b",)
        await engine.close()

    run()
