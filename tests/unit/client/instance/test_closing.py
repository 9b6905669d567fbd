"""Checks: a close is done to its end, whoever waits for it, for each kind of consumer and the producer.

A member that stays known to the brokers has queues that nobody consumes until its process ends. So a close is cancelled
here at each of its steps in turn; afterwards no broker knows the member, and its instance is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from cometmq.client.instance import instance as instances
from cometmq.client.instance.closing import CloseSteps, Closing
from cometmq.client.instance.service_state import ServiceState
from cometmq.client.pop.simple_engine import SimpleEngine
from cometmq.client.pop.simple_settings import SimpleSettings
from cometmq.client.pull.pull_engine import PullEngine
from cometmq.client.push.push_engine import PushEngine
from cometmq.client.send.producer_settings import ProducerSettings
from cometmq.client.send.send_engine import SendEngine
from cometmq.client.settings import PullSettings
from cometmq.remoting.codes import RequestCode
from support.fake_cluster import FakeCluster
from support.push_engines import Seen, committed, consumer, fill, until
from support.virtual_loop import VirtualLoop, run_virtual

STEPS = 60
"""More than any close has."""

Closable = Any


def push(cluster: FakeCluster, *, orderly: bool = False) -> PushEngine:
    return consumer(cluster, Seen(), orderly=orderly)


def orderly(cluster: FakeCluster) -> PushEngine:
    return push(cluster, orderly=True)


async def pull(cluster: FakeCluster) -> PullEngine:
    engine = PullEngine(
        PullSettings(group="g", name_servers=("ns:9876",), client_ip="10.0.0.9"),
        now_ms=cluster.loop.now_ms,
        network_factory=cluster.factory,
    )
    await engine.subscribe("T")
    return engine


async def simple(cluster: FakeCluster) -> SimpleEngine:
    engine = SimpleEngine(
        SimpleSettings(group="g", name_servers=("ns:9876",), client_ip="10.0.0.9"),
        now_ms=cluster.loop.now_ms,
        network_factory=cluster.factory,
    )
    await engine.subscribe("T", None)
    return engine


async def producer(cluster: FakeCluster) -> SendEngine:
    settings = ProducerSettings(group="p", name_servers=("ns:9876",), client_ip="10.0.0.9")
    engine = await SendEngine.open(settings, network_factory=cluster.factory, now_ms=cluster.loop.now_ms)
    await engine.instance.update_route("T")
    await engine.instance.heartbeat()
    return engine


async def made(kind: str, cluster: FakeCluster) -> Closable:
    """Return a consumer that was not started."""
    engine = {"push": push, "orderly": orderly, "pull": pull, "simple": simple}[kind](cluster)
    return await engine if asyncio.iscoroutine(engine) else engine


async def running(kind: str, cluster: FakeCluster) -> Closable:
    """Return a client that has work."""
    if kind == "producer":
        return await producer(cluster)
    fill(cluster, 4)
    engine = await made(kind, cluster)
    await engine.start()
    if isinstance(engine, PushEngine):
        await until(lambda: len(engine.queues) >= 2)
        await asyncio.sleep(0.6)  # by then it has pulled
    elif isinstance(engine, PullEngine):
        await until(lambda: len(engine.assignment()) >= 2)
    return engine


CONSUMERS = ("push", "orderly", "pull", "simple")


def on_cluster(test: Callable[[FakeCluster], Awaitable[None]]) -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = FakeCluster(loop)
        cluster.brokers[0].create("T", 2)
        await test(cluster)

    run_virtual(main)


async def turns(count: int) -> None:
    """Let the loop turn: at first for what needs no time, then for half of a request's way at a time."""
    for number in range(count):
        await asyncio.sleep(0 if number < 12 else 0.0005)


def has_left(cluster: FakeCluster) -> bool:
    told = cluster.asked(RequestCode.UNREGISTER_CLIENT)
    group = any(one.fields.get("consumerGroup") == "g" or one.fields.get("producerGroup") == "p" for one in told)
    is_member = any(cluster.brokers[0].groups.values())
    return group and not is_member and not instances._instances.get(asyncio.get_running_loop())


@pytest.mark.parametrize("kind", [*CONSUMERS, "producer"])
def test_cancelled_close_leaves_no_member(kind: str) -> None:
    async def test(cluster: FakeCluster) -> None:
        for step in range(STEPS):
            del cluster.log[:]
            engine = await running(kind, cluster)
            closing = asyncio.ensure_future(engine.close())
            await turns(step)
            closing.cancel()
            await asyncio.wait([closing])
            await engine.close()  # waits for the close that was begun
            assert has_left(cluster), f"cancelled at step {step}"

    on_cluster(test)


@pytest.mark.parametrize("kind", CONSUMERS)
def test_cancelled_start_leaves_no_member(kind: str) -> None:
    async def test(cluster: FakeCluster) -> None:
        for step in range(STEPS):
            del cluster.log[:]
            engine = await made(kind, cluster)
            starting = asyncio.ensure_future(engine.start())
            await turns(step)
            starting.cancel()
            await asyncio.sleep(0.001)
            starting.cancel()  # also while it is undone
            await asyncio.wait([starting])
            if not starting.cancelled():
                await engine.close()
            await until(lambda: not any(cluster.brokers[0].groups.values()), limit_s=30)
            await until(lambda: not instances._instances.get(asyncio.get_running_loop()), limit_s=30)

    on_cluster(test)


@pytest.mark.parametrize("is_orderly", [False, True])
def test_listener_may_close_its_consumer(is_orderly: bool) -> None:
    async def test(cluster: FakeCluster) -> None:
        closed = asyncio.Event()

        async def close(message: object) -> None:
            await engine.close()
            closed.set()

        fill(cluster, 4)
        engine = consumer(cluster, close, orderly=is_orderly)
        begun_s = cluster.loop.time()
        await engine.start()
        await closed.wait()
        assert engine.state is ServiceState.SHUTDOWN_ALREADY
        await engine.close()
        assert has_left(cluster)
        assert cluster.loop.time() - begun_s < 5  # it did not wait for itself
        assert max(committed(cluster).values()) >= 1  # that message is done

    on_cluster(test)


@pytest.mark.parametrize("kind", CONSUMERS)
def test_close_that_is_cancelled_with_all_tasks_leaves(kind: str) -> None:
    """As ``asyncio.run`` ends: each task is cancelled once, and waited for."""

    async def test(cluster: FakeCluster) -> None:
        for step in range(2, STEPS, 3):
            del cluster.log[:]
            engine = await running(kind, cluster)
            before = asyncio.all_tasks()
            closing = asyncio.ensure_future(engine.close())
            await turns(step)
            own = [closing, *(asyncio.all_tasks() - before)]
            for task in own:
                task.cancel()
            await asyncio.wait(own)
            assert not instances._instances.get(asyncio.get_running_loop()), f"cancelled at step {step}"
            await until(lambda: not any(cluster.brokers[0].groups.values()), limit_s=5)

    on_cluster(test)


@pytest.mark.parametrize("is_orderly", [False, True])
def test_messages_that_come_during_a_close_begin_no_listener(is_orderly: bool) -> None:
    async def test(cluster: FakeCluster) -> None:
        begun: list[int] = []

        async def listener(message: Any) -> None:
            begun.append(int(message.body_bytes))
            await asyncio.sleep(3)

        engine = consumer(cluster, listener, orderly=is_orderly)
        fill(cluster, 1)
        await engine.start()
        await until(lambda: begun == [0])
        await asyncio.sleep(1)  # both queues' pulls are held by the broker
        closing = asyncio.ensure_future(engine.close())
        await asyncio.sleep(0.5)
        fill(cluster, 4)
        await closing
        await asyncio.sleep(10)
        assert begun == [0]
        assert committed(cluster)[0] == 1

    on_cluster(test)


def test_a_later_close_waits_no_longer_than_its_own_limit() -> None:
    async def life(loop: VirtualLoop) -> None:
        closing, answered = Closing(), asyncio.Event()

        async def hangs() -> None:
            await answered.wait()

        first = asyncio.create_task(closing.run(hangs))
        await asyncio.sleep(0)
        first.cancel()
        began = loop.time()
        await closing.run(hangs, wait_ms=500)
        assert loop.time() - began == pytest.approx(0.5)
        answered.set()
        await closing.run(hangs, wait_ms=500)
        assert loop.time() - began == pytest.approx(0.5)

    run_virtual(life)


def test_a_step_that_ignores_its_cancellation_is_left() -> None:
    async def life(loop: VirtualLoop) -> None:
        answered = asyncio.Event()

        async def stubborn() -> None:
            while not answered.is_set():
                with suppress(asyncio.CancelledError):
                    await answered.wait()

        began = loop.time()
        await CloseSteps("a client", 500).run(stubborn(), lambda: "all of it")
        assert loop.time() - began < 2
        answered.set()

    run_virtual(life)
