"""Checks: the life of one queue's pull, from the rebalance that begins it to the one that ends it, on virtual time.

Each test records the requests that leave the client with the time of each, and when each was answered.
Source: consumption specification 1.8, 1.9, 1.11.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest

from cometmq._engine import PullRequest
from cometmq.client.push import push_pulls
from cometmq.remoting.codes import RequestCode
from support.fake_cluster import FakeCluster, FakeNetwork
from support.push_engines import Seen, committed, consumer, fill, on_cluster, queue_of, until


@dataclass
class Sent:
    """One pull of topic T, and its answer."""

    at_s: float
    request: PullRequest
    timeout_ms: int
    answered_s: float | None = None
    code: int | None = None
    bytes_in: int = 0

    @property
    def age_s(self) -> float:
        """How long it took to be answered."""
        assert self.answered_s is not None
        return self.answered_s - self.at_s

    @property
    def place(self) -> tuple[int, int]:
        """The queue and the offset that it asks for."""
        return self.request.queue_id, self.request.queue_offset


@contextmanager
def recorded(cluster: FakeCluster) -> Iterator[list[Sent]]:
    """Record the pulls of topic T while the block runs."""
    pulls: list[Sent] = []
    pull = FakeNetwork.pull

    def note(
        network: FakeNetwork, address: str, request: PullRequest, on_answer: Callable[[Any], object], *, timeout_ms: int
    ) -> None:
        if request.topic != "T":
            pull(network, address, request, on_answer, timeout_ms=timeout_ms)
            return
        sent = Sent(at_s=cluster.loop.time(), request=request, timeout_ms=timeout_ms)
        pulls.append(sent)

        def answered(answer: Any) -> None:
            sent.answered_s = cluster.loop.time()
            sent.code, sent.bytes_in = getattr(answer, "code", None), len(getattr(answer, "body", b""))
            on_answer(answer)

        pull(network, address, request, answered, timeout_ms=timeout_ms)

    with patch.object(FakeNetwork, "pull", note):
        yield pulls


def in_flight(pulls: list[Sent], queue_id: int) -> int:
    """Return how many pulls of a queue wait for their answer."""
    return sum(one.answered_s is None for one in pulls if one.request.queue_id == queue_id)


def pauses(pulls: list[Sent]) -> list[float]:
    """Return the time from each answer to the pull that follows it."""
    return [after.at_s - (before.at_s + before.age_s) for before, after in pairwise(pulls)]


def most_at_once(pulls: list[Sent]) -> int:
    """Return the largest number of pulls of one list that waited for answers at the same time."""
    ends = [(one.answered_s if one.answered_s is not None else float("inf"), -1) for one in pulls]
    now = most = 0
    for _, step in sorted([(one.at_s, 1) for one in pulls] + ends):  # an answer comes before a pull of its instant
        now += step
        most = max(most, now)
    return most


# --- Begin and end ----------------------------------------------------------------------------------------------------


@on_cluster
async def test_dropped_queue_pulls_no_more(cluster: FakeCluster) -> None:
    """Promise 23: the pull that the broker holds is the last; its answer reaches no listener and begins no pull."""
    fill(cluster, 4)
    seen = Seen()
    engine = consumer(cluster, seen, topics={"T": (None, "TAG"), "U": (None, "TAG")})
    cluster.brokers[0].create("U", 1)
    with recorded(cluster) as pulls:
        await engine.start()
        await until(lambda: len(seen.bodies) == 4 and in_flight(pulls, 0) == in_flight(pulls, 1) == 1)
        engine.unsubscribe("T")
        await until(lambda: not any(queue.topic == "T" for queue in engine.queues))
        sent = len(pulls)
        fill(cluster, 4)  # ends the holds
        await asyncio.sleep(60)
        assert all(one.answered_s is not None for one in pulls)
        assert len(pulls) == sent
        assert len(seen.bodies) == 4
        # A queue that comes back gets a pull of its own.
        await engine.subscribe("T", "*")
        await until(lambda: len(seen.bodies) == 8)
        await asyncio.sleep(60)
        assert in_flight(pulls, 0) == in_flight(pulls, 1) == 1
        await engine.close()


@on_cluster
async def test_dropped_queue_ends_a_pull_that_waits_for_its_timer(cluster: FakeCluster) -> None:
    """Promise 23: the gate ends it, not the broker."""
    fill(cluster, 1, queues=1)
    engine = consumer(cluster, Seen(), pull_interval_ms=5_000)
    with recorded(cluster) as pulls:
        await engine.start()
        await until(lambda: committed(cluster).get(0) == 1 or engine.offsets("T").get(queue_of(0)) == 1)
        held = next(held for queue, held in engine._rebalance.queues.items() if queue == queue_of(0))
        held.dropped = True
        sent = [one for one in pulls if one.request.queue_id == 0]
        last_pull_ms = held.last_pull_ms
        await asyncio.sleep(10)
        assert [one for one in pulls if one.request.queue_id == 0] == sent
        assert held.last_pull_ms == last_pull_ms, "a dropped queue does not count as pulled"
        assert held not in engine._pipeline.pulls._pulls
        await engine.close()


@on_cluster
async def test_each_queue_has_one_pull_at_a_time_without_a_thread(cluster: FakeCluster) -> None:
    """Promises 35, 55: one service pulls for all queues; pulls of other queues go on while a broker holds one."""
    queues = 40
    cluster.brokers[0].create("T", queues)
    before = threading.active_count()
    seen = Seen()
    engine = consumer(cluster, seen)
    with recorded(cluster) as pulls:
        await engine.start()
        await until(lambda: len({one.request.queue_id for one in pulls}) == queues)
        # All at once: none waits for another's answer.
        assert sum(in_flight(pulls, queue_id) for queue_id in range(queues)) == queues
        assert max(one.at_s for one in pulls) - min(one.at_s for one in pulls) < 0.1
        begun_s = cluster.loop.time()
        fill(cluster, 400, queues=queues - 1)
        await until(lambda: len(seen.bodies) == 400)
        assert cluster.loop.time() - begun_s < 1, "the last queue's pull is held for 15 s"
        assert in_flight(pulls, queues - 1) == 1
        await asyncio.sleep(100)
        by_queue = [[one for one in pulls if one.request.queue_id == queue_id] for queue_id in range(queues)]
        assert [most_at_once(mine) for mine in by_queue] == [1] * queues
        assert [in_flight(pulls, queue_id) for queue_id in range(queues)] == [1] * queues
        assert threading.active_count() == before
        await engine.close()
        sent = len(pulls)
        await asyncio.sleep(60)
        assert len(pulls) == sent


# --- What a pull asks for ---------------------------------------------------------------------------------------------


@on_cluster
async def test_pull_carries_group_queue_and_next_offset(cluster: FakeCluster) -> None:
    """Promise 66: the offset follows from the answer before; the group and the queue stay."""
    fill(cluster, 80, queues=1)
    seen = Seen()
    engine = consumer(cluster, seen)
    with recorded(cluster) as pulls:
        await engine.start()
        await until(lambda: len(seen.bodies) == 80)
        await until(lambda: in_flight(pulls, 0) == 1)
        mine = [one.request for one in pulls if one.request.queue_id == 0]
        assert [request.queue_offset for request in mine] == [0, 32, 64, 80]
        assert {(request.group, request.topic, request.broker_name) for request in mine} == {("g", "T", "b0")}
        assert {request.max_messages for request in mine} == {32}
        await engine.close()


@pytest.mark.parametrize("post", [False, True])
def test_subscription_is_sent_only_on_request(post: bool) -> None:
    """Promise 34: `post_subscription_when_pull` adds the text and its bit; without it neither is in any pull."""

    @on_cluster
    async def body(cluster: FakeCluster) -> None:
        fill(cluster, 40, TAGS="a")
        seen = Seen()
        options = {"post_subscription_when_pull": True} if post else {}
        engine = consumer(cluster, seen, topics={"T": ("a || b", "TAG")}, **options)
        with recorded(cluster) as pulls:
            await engine.start()
            await until(lambda: len(seen.bodies) == 40 and in_flight(pulls, 0) == in_flight(pulls, 1) == 1)
            await engine.close()
        assert {one.request.subscription for one in pulls} == {"a || b" if post else None}
        assert {bool(one.request.sys_flag & 4) for one in pulls} == {post}
        assert not any(one.request.sys_flag & 8 for one in pulls), "no class filter"
        assert {one.request.expression_type for one in pulls} == {"TAG"}

    body()


@on_cluster
async def test_pull_is_held_15_s_and_given_up_after_30_s(cluster: FakeCluster) -> None:
    """Promise 36: by default, for a queue with nothing new and for a broker that does not answer."""
    engine = consumer(cluster, Seen())
    with recorded(cluster) as pulls:
        await engine.start()
        await until(lambda: in_flight(pulls, 0) == 1)
        await asyncio.sleep(50)
        mine = [one for one in pulls if one.request.queue_id == 0]
        assert {(one.request.suspend_timeout_ms, one.timeout_ms) for one in mine} == {(15_000, 30_000)}
        assert all(one.request.sys_flag & 2 for one in mine), "the broker may hold each of them"
        held = [one for one in mine if one.answered_s is not None]
        assert len(held) == 3
        assert [one.age_s for one in held] == pytest.approx([15] * 3, abs=0.01)
        cluster.brokers[0].is_silent = True
        await until(lambda: mine[-1].answered_s is not None)
        late = await _next(pulls, len(pulls))
        await until(lambda: late.answered_s is not None)
        assert late.age_s == pytest.approx(30, abs=0.01)
        assert late.code is None
        cluster.brokers[0].is_silent = False
        await engine.close()


async def _next(pulls: list[Sent], count: int) -> Sent:
    await until(lambda: len(pulls) > count)
    return pulls[count]


# --- What an answer begins --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval_ms", [0, 700])
def test_messages_are_cached_and_submitted_before_the_next_pull(interval_ms: int) -> None:
    """Promise 37: the next pull goes out at once, or after `pull_interval_ms`, while the listener works."""

    @on_cluster
    async def body(cluster: FakeCluster) -> None:
        fill(cluster, 96, queues=1)
        go_on = asyncio.Event()
        begun: list[float] = []
        cached: list[int] = []
        send = push_pulls.PushPulls._send

        async def listener(_: Any) -> None:
            begun.append(cluster.loop.time())
            await go_on.wait()

        def note(mine: push_pulls.PushPulls, pull: Any) -> None:
            if pull.held.queue == queue_of(0):
                cached.append(pull.held.count)
            send(mine, pull)

        engine = consumer(cluster, listener, pull_interval_ms=interval_ms)
        with recorded(cluster) as pulls, patch.object(push_pulls.PushPulls, "_send", note):
            await engine.start()
            await until(lambda: len([one for one in pulls if one.request.queue_id == 0]) == 4)
            mine = [one for one in pulls if one.request.queue_id == 0]
            assert [one.request.queue_offset for one in mine] == [0, 32, 64, 96]
            assert cached == [0, 32, 64, 96], "found messages are cached before the next pull"
            assert pauses(mine[:3]) == pytest.approx([interval_ms / 1000] * 2)
            assert len(begun) == 20, "the listener has as many messages as it has workers"
            assert begun[0] == pytest.approx(mine[0].at_s + mine[0].age_s)
            go_on.set()
            await until(lambda: engine.offsets("T").get(queue_of(0)) == 96)
            await engine.close()

    body()


@on_cluster
async def test_found_but_nothing_left_is_pulled_again_at_once(cluster: FakeCluster) -> None:
    """Promise 38: the broker lets 64 messages through whose tag has the hash of a wanted one; none is left here.

    The next pull does not wait for `pull_interval_ms`, which is for pulls that brought messages.
    """
    for number in range(65):
        tag = "BB" if number < 64 else "Aa"  # one hash code
        cluster.brokers[0].append("T", 0, b"%d" % number, {"TAGS": tag})
    seen = Seen()
    engine = consumer(cluster, seen, topics={"T": ("Aa", "TAG")}, pull_interval_ms=10_000)
    with recorded(cluster) as pulls:
        await engine.start()
        await until(lambda: bool(seen.bodies))
        mine = [one for one in pulls if one.request.queue_id == 0]
        assert [(one.request.queue_offset, one.code) for one in mine] == [(0, 0), (32, 0), (64, 0)]
        assert all(one.bytes_in for one in mine), "each answer had messages"
        assert pauses(mine) == pytest.approx([0, 0])
        assert seen.bodies == [b"64"]
        assert engine.running_info().queues[queue_of(0)].cached_msg_count == 0
        await engine.close()


# --- Locks ------------------------------------------------------------------------------------------------------------


@on_cluster
async def test_first_lock_asks_for_the_offset_again_and_later_ones_do_not(cluster: FakeCluster) -> None:
    """Promise 66: `previously_locked` belongs to the pull and is set once.

    The lock is lost before the first pull; until it is back, its holder has gone on to offset 3.
    """
    fill(cluster, 8, queues=1)
    broker = cluster.brokers[0]
    seen = Seen()
    engine = consumer(cluster, seen, orderly=True)
    with recorded(cluster) as pulls:
        await engine.start()
        await until(lambda: queue_of(0) in engine.queues)
        (held,) = [held for queue, held in engine._rebalance.queues.items() if queue == queue_of(0)]
        pull = engine._pipeline.pulls._pulls[held]
        assert (pull.held, pull.next_offset, pull.previously_locked) == (held, 0, False)
        held.locked = False
        await asyncio.sleep(2)
        assert not [one for one in pulls if one.request.queue_id == 0], "no lock, no pull"
        broker.offsets["g", "T", 0] = 3
        held.locked = True
        held.last_lock_ms = engine._instance.steady_ms()
        await until(lambda: len(seen.bodies) == 5)
        assert seen.numbers() == [3, 4, 5, 6, 7]
        assert pull.previously_locked
        asked = len(_offset_queries(cluster))
        held.locked = False
        await asyncio.sleep(30)  # the next renewal takes the lock again
        assert held.locked
        fill(cluster, 1, queues=1)
        await until(lambda: len(seen.bodies) == 6)
        assert len(_offset_queries(cluster)) == asked
        await engine.close()


def _offset_queries(cluster: FakeCluster) -> list[Any]:
    asked = cluster.asked(RequestCode.QUERY_CONSUMER_OFFSET)
    return [one for one in asked if (one.fields["topic"], one.fields["queueId"]) == ("T", "0")]


# --- Progress ---------------------------------------------------------------------------------------------------------


@on_cluster
async def test_success_moves_progress_and_the_timer_reports_it(cluster: FakeCluster) -> None:
    """Promise 71: memory moves with the listener's success, the broker's with the round of every 5 s.

    The pull that is held through all of it left before the success, so that it reports nothing.
    """
    fill(cluster, 1, queues=1)
    go_on = asyncio.Event()

    async def listener(_: Any) -> None:
        await go_on.wait()

    engine = consumer(cluster, listener)
    with recorded(cluster) as pulls:
        await engine.start()
        await until(lambda: any(one.place == (0, 1) for one in pulls))
        (held,) = [one for one in pulls if one.place == (0, 1)]
        await until(lambda: cluster.loop.time() % 5 > 3 and cluster.loop.time() > 10)
        assert engine.offsets("T").get(queue_of(0), 0) == 0
        go_on.set()
        await until(lambda: engine.offsets("T").get(queue_of(0)) == 1)
        assert committed(cluster).get(0, 0) == 0
        success_s = cluster.loop.time()
        tick_s = 5 * (success_s // 5 + 1)
        await until(lambda: committed(cluster).get(0) == 1)
        assert cluster.loop.time() == pytest.approx(tick_s, abs=0.02)
        assert held.answered_s is None, "no later pull has reported it"
        reports = [one for one in cluster.asked(RequestCode.UPDATE_CONSUMER_OFFSET) if one.fields["topic"] == "T"]
        assert {"consumerGroup": "g", "queueId": "0", "commitOffset": "1"}.items() <= reports[-1].fields.items()
        await engine.close()
