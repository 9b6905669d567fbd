"""Checks: messages that a pull consumer has pulled ahead: who gets them, and which of them a commit covers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cometmq.client.pull.pull_ahead import Reader
from cometmq.errors import RouteNotFound
from cometmq.remoting.bodies.message_queue import MessageQueue
from support.pull_scene import FIRST, World, queue_of, virtually


def test_poll_after_the_interval_commits_polled_messages() -> None:
    async def test(world: World) -> None:
        world.fill(20)
        world.broker.offsets["g", "t", 0] = 0
        engine = await world.started(0, auto_commit=True, pull_batch_size=10)
        assert len(await engine.poll(5_000)) == 10
        await asyncio.sleep(12)
        assert world.broker.offsets["g", "t", 0] == 0, "without another poll nothing counts as consumed"
        assert len(await engine.poll(5_000)) == 10
        await asyncio.sleep(6)
        assert world.broker.offsets["g", "t", 0] == 10
        await engine.close()
        await asyncio.sleep(1)
        assert world.broker.offsets["g", "t", 0] == 20

    virtually(test)


def test_filtered_end_of_a_queue_is_committed_with_earlier_messages() -> None:
    """Else the progress waited for the next pull, which the broker holds."""

    async def test(world: World) -> None:
        for number, tag in enumerate("abab"):
            world.broker.append("t", 0, b"%d" % number, {"TAGS": tag})
        engine = world.consumer(consume_from_where=FIRST)
        await engine.assign([queue_of(0)], "a", expression_type="TAG")
        await engine.start()
        assert await world.bodies(engine) == [0, 2]
        assert engine.position(queue_of(0)) == 4
        await engine.commit(None, wait=True)
        assert world.broker.offsets["g", "t", 0] == 4
        await engine.close()

    virtually(test)


def test_uncommitted_messages_are_redelivered() -> None:
    """At least once."""

    async def test(world: World) -> None:
        world.fill(10)
        world.broker.offsets["g", "t", 0] = 0
        engine = await world.started(0)
        assert len(await world.bodies(engine)) == 10
        await engine.close()
        engine = await world.started(0)
        assert await world.bodies(engine) == list(range(10))
        await engine.commit(None, wait=True)
        await engine.close()
        engine = await world.started(0)
        assert await engine.poll(50_000) == []
        await engine.close(commit=False)

    virtually(test)


def test_reset_group_commits_redelivered_messages() -> None:
    """The broker moves the group back; messages handed out before lie behind that place and count no more."""

    async def test(world: World) -> None:
        world.fill(100)
        engine = await world.started(0, consume_from_where=FIRST, pull_batch_size=10)
        for _ in range(8):
            await engine.poll(5_000)
        await engine.commit(None, wait=True)
        assert world.broker.offsets["g", "t", 0] == 80
        await asyncio.sleep(1)
        world.broker.moved["g", "t", 0] = 20  # the held pull is sent there; messages before it wait to be handed out
        world.cluster.latency_ms = 1_000
        await asyncio.sleep(21)
        seen: list[int] = []
        while seen[-1:] != [99] or 20 not in seen:
            batch = await world.bodies(engine)
            seen += batch
            if 20 in seen:
                assert engine.position(queue_of(0)) == batch[-1] + 1
        await engine.commit(None, wait=True)
        assert world.broker.offsets["g", "t", 0] == 100
        await engine.close()

    virtually(test)


def test_reset_ends_the_batch_of_a_loop_elsewhere() -> None:
    """The loop is at 22 of 20 to 29; the group goes back to 5: 23 to 29 are not handed out before 5 to 22."""

    async def test(world: World) -> None:
        world.fill(30)
        engine = await world.started(0, consume_from_where=FIRST, pull_batch_size=10)
        assert await world.bodies(engine) + await world.bodies(engine) == list(range(20))
        reader = Reader()
        batch = await engine.take(5_000, reader=reader)
        assert batch is not None
        batch.is_received, batch.seen = True, 3
        world.broker.moved["g", "t", 0] = 5  # the held pull is sent there
        await asyncio.sleep(21)
        assert batch.message(3) is None
        reader.is_left = True
        seen: list[int] = []
        while len(seen) < 25:
            seen += await world.bodies(engine)
        assert seen == list(range(5, 30))
        await engine.commit(None, wait=True)
        assert world.broker.offsets["g", "t", 0] == 30
        await engine.close()

    virtually(test)


def test_queue_that_goes_hands_out_nothing_more() -> None:
    async def test(world: World) -> None:
        world.fill(10)
        world.fill(10, queue_id=1)
        engine = await world.started(0, 1, consume_from_where=FIRST, pull_batch_size=10)
        await asyncio.sleep(1)
        engine._ahead.assigned[queue_of(0)].held.dropped = True
        messages = await engine.poll(5_000)
        assert {message.queue_id for message in messages} == {1}
        assert await engine.poll(100) == []
        await engine.close()

    virtually(test)


def test_position_after_a_seek_lies_behind_the_messages_handed_out_since() -> None:
    """And not behind those from before the seek, which are redelivered."""

    async def test(world: World) -> None:
        world.fill(10)
        engine = await world.started(0, consume_from_where=FIRST, pull_batch_size=2, pull_threshold_for_queue=1)
        for _ in range(5):
            await engine.poll(5_000)
        assert engine.position(queue_of(0)) == 10
        await engine.seek(queue_of(0), 4)
        assert await world.bodies(engine) == [4, 5]
        assert engine.position(queue_of(0)) == 6
        await engine.commit(None, wait=True)
        assert world.broker.offsets["g", "t", 0] == 6
        await engine.close(commit=False)

    virtually(test)


def test_position_lies_before_messages_that_another_loop_left() -> None:
    """Two loops ended without 3 to 19; the next poll has 3 to 9, and 10 to 19 wait."""

    async def test(world: World) -> None:
        world.fill(20)
        engine = await world.started(0, consume_from_where=FIRST, pull_batch_size=10)
        readers = [Reader(), Reader()]
        for reader, seen in zip(readers, (3, 0), strict=True):
            batch = await engine.take(5_000, reader=reader)
            assert batch is not None
            batch.is_received, batch.seen = True, seen
        assert engine.position(queue_of(0)) == 20
        for reader in readers:
            reader.is_left = True
        assert await world.bodies(engine) == list(range(3, 10))
        assert engine.position(queue_of(0)) == 10
        await engine.commit(None, wait=True)
        assert world.broker.offsets["g", "t", 0] == 10
        await engine.close(commit=False)

    virtually(test)


def test_batch_that_a_thread_waits_for_goes_to_no_other_thread() -> None:
    """Its call has taken it and not returned yet; it goes back when this thread makes another call."""

    async def test(world: World) -> None:
        world.fill(20)
        engine = await world.started(0, consume_from_where=FIRST, pull_batch_size=10)
        await asyncio.sleep(1)
        ahead = engine._ahead

        def taken(thread: int) -> list[int]:
            ahead.settle(thread=thread)
            batch = ahead.take(thread=thread)
            assert batch is not None
            return [int(bytes(message.body)) for message in batch.messages]

        assert taken(1) == list(range(10))
        assert taken(2) == list(range(10, 20))
        assert taken(1) == list(range(10))
        await engine.close(commit=False)

    virtually(test)


def test_progress_of_a_queue_that_went_is_read_from_its_broker() -> None:
    """Another member has it and commits; the offset in memory is dropped."""

    async def test(world: World) -> None:
        world.fill(10)
        engine = world.consumer(consume_from_where=FIRST, pull_batch_size=2)
        await engine.subscribe("t")
        await engine.start()
        await engine.poll(5_000)
        await engine.commit(None, wait=True)
        assert await engine.release(queue_of(0), engine._ahead.assigned[queue_of(0)].held)
        assert world.broker.offsets["g", "t", 0] == 2
        world.broker.offsets["g", "t", 0] = 8
        assert await engine.committed(queue_of(0)) == 8
        await engine.close(commit=False)

    virtually(test)


def test_reset_is_not_undone_by_progress_in_memory() -> None:
    """Offsets committed before the reset are stored every few seconds, and when the queue goes."""

    async def test(world: World) -> None:
        world.fill(100)
        engine = await world.started(0, consume_from_where=FIRST, pull_batch_size=100)
        await engine.poll(5_000)
        await engine.commit(None, wait=True)
        await asyncio.sleep(1)
        world.broker.reset("g", "t", 0, 20)
        await asyncio.sleep(30)
        assert world.broker.offsets["g", "t", 0] == 20
        await engine.close(commit=False)
        assert world.broker.offsets["g", "t", 0] == 20

    virtually(test)


@pytest.mark.parametrize("how", ["unsubscribe", "assign", "rebalance"])
def test_queue_that_goes_has_its_finished_messages_committed(how: str) -> None:
    """What the last poll returned is not finished; what the polls before it returned is, though no commit was due."""

    async def test(world: World) -> None:
        world.fill(4)
        given: dict[str, Any] = {"auto_commit": True, "consume_from_where": FIRST, "pull_batch_size": 2}
        engine = world.consumer(instance_name="z", **given)
        if how == "assign":
            await engine.assign([queue_of(0)], "*", expression_type="TAG")
        else:
            await engine.subscribe("t")
        await engine.start()
        assert [await world.bodies(engine), await world.bodies(engine)] == [[0, 1], [2, 3]]
        if how == "unsubscribe":
            await engine.unsubscribe("t")
        elif how == "assign":
            await engine.assign([queue_of(1)], "*", expression_type="TAG")
        else:
            others = [world.consumer(instance_name=name, **given) for name in ("a", "b")]
            for other in others:
                await other.subscribe("t")
                await other.start()
            while any(queue.queue_id == 0 for queue in engine.assignment()):
                await asyncio.sleep(0.1)
            for other in others:
                await other.close(commit=False)
        await asyncio.sleep(1)
        assert world.broker.offsets["g", "t", 0] == 2
        await engine.close(commit=False)

    virtually(test)


def test_queues_that_go_are_committed_though_offsets_are_stored_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit of one queue waits for a route; the offsets of the others, which go too, are not forgotten."""

    async def test(world: World) -> None:
        for queue_id in (0, 1):
            world.fill(2, queue_id=queue_id)
        engine = await world.started(0, 1, auto_commit=True, consume_from_where=FIRST)
        for _ in range(2):
            assert await world.bodies(engine) == [0, 1]
        engine._ahead.finish_polled()
        store = engine._store
        assert store is not None
        persist = store.persist

        async def waits(queue: MessageQueue, *, wait: bool = False) -> None:
            if queue.queue_id == 0:
                await asyncio.sleep(60)
            await persist(queue, wait=wait)

        monkeypatch.setattr(store, "persist", waits)
        await engine.assign([queue_of(0, topic="other")], "*", expression_type="TAG")
        await asyncio.sleep(1)
        assert [world.broker.offsets.get(("g", "t", number)) for number in (0, 1)] == [2, 2]
        assert store.snapshot("t") == {}
        await engine.close(commit=False)

    virtually(test)


def test_offsets_that_are_stored_before_the_last_commits_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        for queue_id in (0, 1):
            world.fill(2, queue_id=queue_id)
        engine = await world.started(0, 1, auto_commit=True, consume_from_where=FIRST)
        for _ in range(2):
            assert await world.bodies(engine) == [0, 1]
        engine._ahead.finish_polled()
        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(engine.persist_offsets()))
        await engine.assign([queue_of(0, topic="other")], "*", expression_type="TAG")
        await asyncio.sleep(1)
        assert [world.broker.offsets.get(("g", "t", number)) for number in (0, 1)] == [2, 2]
        await engine.close(commit=False)

    virtually(test)


def test_a_queue_that_cannot_be_committed_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(world: World) -> None:
        for queue_id in (0, 1):
            world.fill(2, queue_id=queue_id)
        engine = await world.started(0, 1, consume_from_where=FIRST)
        given = [await world.bodies(engine), await world.bodies(engine)]
        assert sorted(given) == [[0, 1], [0, 1]]
        await engine.commit(None, wait=True)
        store = engine._store
        assert store is not None
        persist = store.persist

        async def half(queue: MessageQueue, *, wait: bool = False) -> None:
            if queue.queue_id == 0:
                raise RouteNotFound("no broker")
            await persist(queue, wait=wait)

        monkeypatch.setattr(store, "persist", half)
        world.broker.offsets["g", "t", 1] = 0
        await engine.assign([], "*", expression_type="TAG")
        await asyncio.sleep(1)
        assert world.broker.offsets["g", "t", 1] == 2
        assert "cannot commit the offset of" in caplog.text
        await engine.close(commit=False)

    virtually(test)
