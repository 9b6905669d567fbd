"""Checks: the asyncio surface does what the synchronous one does, waits without blocking the loop, cancels cleanly."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import cometmq.aio
from cometmq import errors
from cometmq.aio import AsyncStore
from support.small_store import SMALL, open_small


def run(path: Path, scene: Callable[[AsyncStore], Awaitable[None]], **options: Any) -> None:
    async def play() -> None:
        async with cometmq.aio.open(path, **{"settings": SMALL, "flush": "async", **options}) as store:
            await asyncio.wait_for(scene(store), 60)

    asyncio.run(play())


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_messages_round_trip(tmp_path: Path, flush: str) -> None:
    async def scene(store: AsyncStore) -> None:
        first = await store.append("t", b"0", tags="a", keys=["k"], properties={"UNIQ_KEY": "u"})
        assert (first.queue_offset, store.store.info().flushed >= first.end) == (0, True) or flush == "async"
        many = await store.append_many("t", [b"1", b"2"], tags="b")
        assert many.queue_offsets.tolist() == [1, 2]
        assert [bytes(message) async for message in store.read("t")] == [b"0", b"1", b"2"]
        assert [bytes(message) async for message in store.read("t", tags="b", backwards=True)] == [b"2", b"1"]
        assert bytes(await store.get("t", 0, 1)) == b"1"
        assert bytes(await store.get_by_id(first.message_id)) == b"0"
        assert [bytes(message) for message in await store.find("t", "k")] == [b"0"]
        assert await store.find_unique("t", "none") is None
        await store.flush()
        assert (await store.info()).flushed == many.end

    run(tmp_path / "store", scene, flush=flush)


def test_appends_at_once_share_syncs(tmp_path: Path) -> None:
    async def scene(store: AsyncStore) -> None:
        await store.append("t", b"warm")
        began = time.monotonic()
        await store.append("t", b"alone")
        alone = time.monotonic() - began
        began = time.monotonic()
        results = await asyncio.gather(*(store.append("t", b"%d" % number) for number in range(500)))
        together = time.monotonic() - began
        assert [result.queue_offset for result in results] == list(range(2, 502))
        assert store.store.info().flushed >= results[-1].end
        # One sync each would take 500 times as long; a slow or lucky disk is allowed a lot.
        assert together < max(100 * alone, 2.0)

    run(tmp_path / "store", scene, flush="sync")


def test_following_does_not_block_the_loop(tmp_path: Path) -> None:
    async def scene(store: AsyncStore) -> None:
        await store.append("t", b"old")
        found: list[bytes] = []
        ticks = 0

        async def follow() -> None:
            async for message in store.follow("t"):
                found.append(bytes(message))
                if len(found) == 3:
                    return

        task = asyncio.create_task(follow())
        for number in range(3):
            for _ in range(5):
                await asyncio.sleep(0.002)
                ticks += 1
            await store.append("t", b"%d" % number)
        await asyncio.wait_for(task, 20)
        assert found == [b"0", b"1", b"2"]
        assert ticks == 15

    run(tmp_path / "store", scene)


def test_one_thread_waits_for_many_readers(tmp_path: Path) -> None:
    async def scene(store: AsyncStore) -> None:
        await store.append("t", b"x")
        before = threading.active_count()
        readers = [store.follow("t") for _ in range(50)]
        tasks = [asyncio.create_task(anext(reader)) for reader in readers]
        await asyncio.sleep(0.01)
        assert threading.active_count() <= before + 1
        await store.append("t", b"new")
        assert {bytes(message) for message in await asyncio.wait_for(asyncio.gather(*tasks), 20)} == {b"new"}
        deadline = time.monotonic() + 10
        while threading.active_count() > before and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert threading.active_count() <= before, "the thread did not end with its last waiter"

    run(tmp_path / "store", scene)


def test_a_follow_stops_after_its_time(tmp_path: Path) -> None:
    async def scene(store: AsyncStore) -> None:
        await store.append("t", b"x")
        reader = store.read("t", follow=True, timeout_s=0.05)
        assert [bytes(message) async for message in reader] == [b"x"]
        await store.append("t", b"y")
        assert [bytes(message) async for message in reader] == [b"y"]
        assert await reader.fetch(timeout_s=0.01) == []

    run(tmp_path / "store", scene)


def test_cancelling_loses_nothing(tmp_path: Path) -> None:
    async def scene(store: AsyncStore) -> None:
        await store.append("t", b"0")
        reader = store.read("t", follow=True)
        assert bytes(await anext(reader)) == b"0"
        for number in range(1, 20):
            waiting = asyncio.create_task(anext(reader))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await store.append("t", b"%d" % number)
            assert bytes(await anext(reader)) == b"%d" % number
        append = asyncio.create_task(store.append("t", b"perhaps"))
        await asyncio.sleep(0)
        append.cancel()
        await store.append("t", b"surely")
        assert [bytes(message) async for message in store.read("t", start=20)][-1] == b"surely"

    run(tmp_path / "store", scene, flush="sync")


def test_closing_ends_readers(tmp_path: Path) -> None:
    async def scene(store: AsyncStore) -> None:
        await store.append("t", b"x")
        waiting = asyncio.create_task(anext(store.follow("t")))
        await asyncio.sleep(0.01)
        await store.close()
        with pytest.raises(errors.StoreClosed):
            await asyncio.wait_for(waiting, 20)
        with pytest.raises(errors.StoreClosed):
            await store.append("t", b"x")
        with pytest.raises(errors.StoreClosed):
            await store.append("new", b"x")

    run(tmp_path / "store", scene)


def test_a_loop_that_ends_with_waiters(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        store.append("t", b"x")

        async def leave_waiting() -> None:
            wrapped = AsyncStore.wrap(store)
            task = asyncio.create_task(anext(wrapped.follow("t")))
            await asyncio.sleep(0.01)
            task.cancel()

        asyncio.run(leave_waiting())
        store.append("t", b"y")
        assert len(list(store.read("t"))) == 2


def test_consumers(tmp_path: Path) -> None:
    async def scene(store: AsyncStore) -> None:
        await store.append_many("t", [b"%d" % number for number in range(10)])
        async with store.consumer("g", "t") as consumer:
            assert (consumer.group, consumer.topics, consumer.closed) == ("g", ("t",), False)
            assert [bytes(message) for message in await consumer.fetch(4)] == [b"0", b"1", b"2", b"3"]
            await consumer.commit()
            assert consumer.committed() == {("t", 0): 4}
            with pytest.raises(errors.GroupBusy):
                await store.consumer("g", "t")
        assert consumer.closed
        waited_for = await store.consumer("g", "t")
        await waited_for.seek("t", 0, 9)
        assert [bytes(message) for message in await waited_for.fetch()] == [b"9"]
        await waited_for.seek_time(0)
        assert [bytes(message) for message in await waited_for.reader.fetch(1)] == [b"0"]
        waited_for.close()
        async with await store.consumer("g", "t", follow=True, timeout_s=0.02) as consumer:
            assert len([message async for message in consumer]) == 6
            await store.append("t", b"new")
            assert [bytes(message) async for message in consumer] == [b"new"]
            assert consumer.positions() == {("t", 0): 11}

    run(tmp_path / "store", scene)


@pytest.mark.parametrize("kind", ["consumer", "reader"])
def test_a_second_task_is_refused_while_one_fetches(tmp_path: Path, kind: str) -> None:
    async def scene(store: AsyncStore) -> None:
        await store.create_topic("orders")
        source = await store.consumer("g", "orders") if kind == "consumer" else store.read("orders", follow=True)
        waiting = asyncio.create_task(source.fetch(timeout_s=None))
        await asyncio.sleep(0)
        with pytest.raises(errors.StoreBusy, match=f"another task is fetching from this {kind}"):
            await source.fetch(timeout_s=None)
        with pytest.raises(errors.StoreBusy):
            await anext(source)
        await store.append("orders", b"1")
        assert [message.body for message in await waiting] == [b"1"]
        cancelled = asyncio.create_task(source.fetch(timeout_s=None))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        await store.append("orders", b"2")
        assert [message.body for message in await source.fetch(timeout_s=None)] == [b"2"]

    run(tmp_path, scene)


def test_topics_groups_and_the_store_itself(tmp_path: Path) -> None:
    async def scene(store: AsyncStore) -> None:
        assert (await store.create_topic("t", queues=2)).write_queues == 2
        assert (await store.set_topic_queues("t", 3)).write_queues == 3
        result = await store.append("t", b"x", queue=1, wait=False)
        await store.wait_durable(result.end)
        assert await store.wait(0, timeout_s=0)
        assert not await store.wait(result.end, timeout_s=0.01)
        with pytest.raises(errors.InvalidArgument):
            await store.wait(0, timeout_s=-1)
        assert await store.topics() == ["t"]
        assert (await store.topic("t")).messages == 1
        assert [queue.queue_id for queue in await store.queues("t")] == [1]
        assert (await store.queue("t", 1)).max_offset == await store.max_offset("t", 1) == 1
        assert await store.min_offset("t", 1) == await store.offset_at("t", 1, 0) == 0
        assert bytes(await store.get_physical(result.physical_offset)) == b"x"
        await store.set_progress("g", "t", 1, 1)
        await store.commit_progress("g", {("t", 0): 0})
        assert await store.groups() == ["g"]
        assert [one.offset for one in await store.progress("g", "t")] == [0, 1]
        await store.delete_group("g")
        assert await store.apply_handoffs() == 0
        await store.maintain()
        with pytest.raises(errors.InvalidArgument, match="without a retention"):
            await store.expire()
        await store.delete_topic("t")
        assert await store.topics() == []
        assert (store.path, store.read_only, store.closed) == (tmp_path / "store", False, False)
        assert store.opening().created

    run(tmp_path / "store", scene, flush="sync")


def test_handing_off(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as writer:
        writer.append("t", b"x")

        async def scene(store: AsyncStore) -> None:
            handed = await store.hand_off("t", [b"y", b"z"])
            assert (await handed.wait(30)).queue_offsets.tolist() == [1, 2]
            assert handed.applied
            assert repr(handed) == f"<AsyncHandedOff t: 2 messages, taken by the writer, id {handed.work_id}>"

        run(tmp_path / "store", scene, mode="r")


def test_errors_are_the_same(tmp_path: Path) -> None:
    async def scene(store: AsyncStore) -> None:
        await store.append("t", b"x")
        with pytest.raises(errors.MessageTooLarge):
            await store.append("t", b"x" * 400_000)
        with pytest.raises(errors.InvalidTopic):
            await store.append("a/b", b"x")
        with pytest.raises(errors.TopicNotFound):
            store.read("nowhere")
        with pytest.raises(errors.StoreLocked):
            await cometmq.aio.open(store.store.path).__aenter__()

    run(tmp_path / "store", scene)


def test_a_reader_hands_off(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as writer:
        writer.append("t", b"x")

        async def scene(store: AsyncStore) -> None:
            assert (await store.append("t", b"y")).queue_offset == 1

        run(tmp_path / "store", scene, mode="r")
        assert [bytes(message) for message in writer.read("t")] == [b"x", b"y"]


def test_before_it_is_entered(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="enter the store"):
        _ = cometmq.aio.open(tmp_path / "store").store
    assert not (tmp_path / "store").exists()
