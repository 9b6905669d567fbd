"""Checks: when a push consumer pulls, how much it holds, and what it makes of offsets; on virtual time."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from unittest.mock import patch

import pytest

from cometmq.client.instance.hooks import Interceptor
from cometmq.client.push import push_pulls
from cometmq.remoting.codes import RequestCode
from support.fake_cluster import FakeCluster
from support.push_engines import Seen, committed, consumer, fill, on_cluster, queue_of, until


@on_cluster
async def test_suspended_consumers_pull_nothing(cluster: FakeCluster) -> None:
    """Promise 26: a pull looks again after a second."""
    seen = Seen()
    engine = consumer(cluster, seen)
    await engine.start()
    await until(lambda: len(engine.queues) >= 2)
    engine.suspend()
    await asyncio.sleep(20)
    fill(cluster, 10)
    await asyncio.sleep(20)
    held = len(seen.bodies)
    await engine.resume()
    await until(lambda: len(seen.bodies) == 10)
    assert held == 0
    assert not engine.is_suspended
    await engine.close()


@on_cluster
async def test_the_pull_offset_runs_ahead_of_the_committed_one(cluster: FakeCluster) -> None:
    """Promise 83: a queue is (topic, broker, number); pulls go on while the group's progress waits for its listener."""
    fill(cluster, 64, queues=1)
    go_on = asyncio.Event()

    async def listener(message: Any) -> None:
        if message.queue_offset == 3:
            await go_on.wait()

    engine = consumer(cluster, listener)
    await engine.start()
    await until(lambda: engine.offsets("T").get(queue_of(0)) == 3)
    info = engine.running_info().queues[queue_of(0)]
    assert (info.commit_offset, info.cached_msg_min_offset) == (3, 3)
    pulls = (asked.fields for asked in cluster.asked(RequestCode.PULL_MESSAGE))
    assert max(int(fields["queueOffset"]) for fields in pulls if fields["topic"] == "T") == 64
    go_on.set()
    await until(lambda: engine.offsets("T").get(queue_of(0)) == 64)
    await engine.close()


@on_cluster
async def test_progress_passes_unwanted_messages_while_there_are_more(cluster: FakeCluster) -> None:
    fill(cluster, 100, queues=1)
    progress: list[int] = []

    def nothing(message: Any) -> bool:
        progress.append(engine.offsets("T").get(queue_of(0), 0))
        if message.queue_offset < 400:
            fill(cluster, 1, queues=1)
        return False

    engine = consumer(cluster, Seen(), more={"interceptors": [Interceptor(keep_message=nothing)]})
    await engine.start()
    await until(lambda: len(progress) == 500)
    await engine.close()
    assert progress[-1] > 400
    assert len(set(progress)) > 10


@on_cluster
async def test_a_next_offset_that_goes_back_is_warned_of(cluster: FakeCluster) -> None:
    """Promise 39: the broker is followed, and the log says that something is odd."""
    fill(cluster, 8, queues=1)
    seen = Seen()
    found = push_pulls.PushPulls._found
    odd = iter([5])

    def goes_back(pulls: push_pulls.PushPulls, pull: Any, next_offset: int, messages: Any, *, is_all: bool) -> None:
        found(pulls, pull, next(odd, 9) if next_offset == 9 else next_offset, messages, is_all=is_all)

    engine = consumer(cluster, seen)
    with patch.object(push_pulls.PushPulls, "_found", goes_back), patch.object(push_pulls._log, "warning") as warning:
        await engine.start()
        await until(lambda: len(seen.bodies) == 8)
        fill(cluster, 1, queues=1)
        await until(lambda: committed(cluster).get(0) == 9)
        await engine.close()
    assert set(seen.numbers()) == set(range(8))
    text, *values = warning.call_args.args
    assert "asked from offset 8 and answered from 8 to 5" in text % tuple(values)


@on_cluster
async def test_a_retry_topic_that_is_refused_again_and_again_is_warned_of_once(cluster: FakeCluster) -> None:
    """Another member subscribes to something else, and the broker takes its word for the whole group's."""
    fill(cluster, 1, queues=1)
    seen = Seen()
    engine = consumer(cluster, seen)
    await engine.start()
    await until(lambda: len(seen.bodies) == 1)
    subscribed = cluster.brokers[0].subscribed
    with patch.object(push_pulls._log, "warning") as warning:
        for times in (1, 2):
            for _ in range(120):
                subscribed["g"].pop("%RETRY%g", None)
                await asyncio.sleep(0.5)
            assert warning.call_count == times
            text, *values = warning.call_args.args
            assert "refused 3 pulls of" in text % tuple(values)
            assert "%RETRY%g" in text % tuple(values)
            await asyncio.sleep(60)
    await engine.close()


@pytest.mark.parametrize(("listener_s", "pulled_after_s"), [(0.0005, 0.0005), (0.3, 0.001)])
def test_messages_are_dispatched_before_the_next_pull(listener_s: float, pulled_after_s: float) -> None:
    """Where nothing else waits at the broker the next pull goes out when the listener is done, or 1 ms later."""

    @on_cluster
    async def body(cluster: FakeCluster) -> None:
        begun, sent = [], []
        send = push_pulls.PushPulls._send

        async def listener(_: Any) -> None:
            begun.append(cluster.loop.time())
            await asyncio.sleep(listener_s)

        def note(pulls: push_pulls.PushPulls, pull: Any) -> None:
            if pull.held.queue == queue_of(0):
                sent.append((cluster.loop.time(), pull.next_offset))
            send(pulls, pull)

        engine = consumer(cluster, listener)
        with patch.object(push_pulls.PushPulls, "_send", note):
            await engine.start()
            await until(lambda: bool(sent))
            fill(cluster, 1, queues=1)
            await until(lambda: len(sent) == 2)
            await until(lambda: committed(cluster).get(0) == 1)
            await engine.close()
        assert len(begun) == 1
        when, offset = sent[1]
        assert offset == 1
        assert when - begun[0] == pytest.approx(pulled_after_s)

    body()


@on_cluster
async def test_a_slow_listener_stops_the_pulls_and_the_counters_show_it(cluster: FakeCluster) -> None:
    """Promises 27 and 29: thresholds hold, and a person can see how often."""
    fill(cluster, 400, queues=1)
    go_on = asyncio.Event()

    async def listener(message: Any) -> None:
        if int(message.body_bytes) == 7 or int(message.body_bytes) > 40:
            await go_on.wait()

    engine = consumer(cluster, listener, consume_concurrently_max_span=50, pull_threshold_for_queue=100)
    await engine.start()
    await until(lambda: engine.flow_counters.by_span > 3)
    info = engine.running_info().queues[queue_of(0)]
    assert info.cached_msg_min_offset == 7
    assert 50 < info.cached_msg_max_offset - 7 <= 50 + 32
    go_on.set()
    await until(lambda: engine.offsets("T").get(queue_of(0)) == 400)
    await engine.close()


@on_cluster
async def test_the_limits_of_a_topic_are_shared_among_queues(cluster: FakeCluster) -> None:
    """Promise 49: ``pull_threshold_for_topic`` becomes each queue's."""
    fill(cluster, 300)
    go_on = asyncio.Event()

    async def listener(_: Any) -> None:
        await go_on.wait()

    engine = consumer(cluster, listener, pull_threshold_for_topic=60, pull_batch_size=1)
    await engine.start()
    await until(lambda: engine.flow_counters.by_count > 3)
    info = engine.running_info()
    assert {held.cached_msg_count for queue, held in info.queues.items() if queue.topic == "T"} <= {21, 31}
    go_on.set()
    await engine.close(timeout_ms=0)


@on_cluster
async def test_an_illegal_offset_is_left_for_the_one_the_broker_names(cluster: FakeCluster) -> None:
    """Promise 41: the queue rests 10 s, its offset is stored, and the next rebalance adds it as new."""
    fill(cluster, 10, queues=1)
    cluster.brokers[0].offsets["g", "T", 0] = 99
    seen = Seen()
    engine = consumer(cluster, seen)
    await engine.start()
    await until(lambda: committed(cluster).get(0) == 10)
    begun_s = cluster.loop.time()
    assert begun_s <= 3  # at once: the queue may change hands
    assert queue_of(0) not in engine.queues
    await until(lambda: queue_of(0) in engine.queues)
    assert 9.9 <= cluster.loop.time() - begun_s <= 13
    cluster.brokers[0].append("T", 0, b"77")
    await until(lambda: seen.bodies == [b"77"])
    await engine.close()


@on_cluster
async def test_offsets_are_reset_when_the_broker_says_so(cluster: FakeCluster) -> None:
    fill(cluster, 10, queues=1)
    seen = Seen()
    engine = consumer(cluster, seen)
    await engine.start()
    await until(lambda: len(seen.bodies) == 10)
    await engine.reset_offsets("T", {queue_of(0): 5})
    await until(lambda: len(seen.bodies) == 15)
    await engine.close()
    assert seen.numbers()[10:] == [5, 6, 7, 8, 9]


@on_cluster
async def test_a_broker_that_is_gone_and_back_is_pulled_again(cluster: FakeCluster) -> None:
    """Promise 42: a failed pull waits and is retried."""
    fill(cluster, 4)
    seen = Seen()
    engine = consumer(cluster, seen)
    await engine.start()
    await until(lambda: len(seen.bodies) == 4)
    address = cluster.brokers[0].address
    broker = cluster.stop(address)
    with patch.object(push_pulls._log, "log") as log, patch.object(push_pulls._log, "info") as info:
        await asyncio.sleep(60)
        cluster.servers[address] = broker
        fill(cluster, 4)
        await until(lambda: len(seen.bodies) == 8)
    levels = [call.args[0] for call in log.call_args_list]
    assert levels.count(logging.WARNING) == 1, "it is logged once"
    assert levels.count(logging.DEBUG) > 50
    (call,) = info.call_args_list
    assert "can be read again" in call.args[0]
    await engine.close()


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
@pytest.mark.parametrize("orderly", [False, True])
def test_a_clock_that_jumps(jump_ms: int, orderly: bool) -> None:
    """The wall clock is set by an hour, there and back: nothing is lost, pulls go on, queues stay where they are."""

    @on_cluster
    async def run(cluster: FakeCluster) -> None:
        shift = [0]
        seen = Seen()
        engine = consumer(cluster, seen, orderly=orderly, more={"now_ms": lambda: cluster.loop.now_ms() + shift[0]})
        await engine.start()
        for number, shift[0] in enumerate((0, jump_ms, 0), start=1):
            fill(cluster, 20)
            await until(lambda count=20 * number: len(seen.bodies) >= count)  # type: ignore[misc]
            await asyncio.sleep(150)  # two rounds of locks and of whatever looks for what hangs
            assert len(engine.queues) >= 2
        await engine.close()
        assert sorted(seen.numbers()) == sorted([*range(20)] * 3)
        assert committed(cluster) == {0: 30, 1: 30}

    run()
