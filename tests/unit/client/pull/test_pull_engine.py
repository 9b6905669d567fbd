"""Checks: the pull consumer's machine on virtual time, against a cluster that is a Python object."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cometmq.client.instance.service_state import ServiceState
from cometmq.client.pull.pull_ahead import Reader
from cometmq.client.pull.pull_engine import PullEngine
from cometmq.client.settings import PullSettings
from cometmq.errors import ClientStateError, ConnectionLost, Error, InvalidArgument, RouteNotFound
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere, MessageModel
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumeResult
from cometmq.remoting.codes import RequestCode
from support.fake_cluster import FakeBroker, FakeCluster
from support.virtual_loop import VirtualLoop, run_virtual

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


def _queue(number: int, *, topic: str = "t") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name="b0", queue_id=number)


class _World:
    """A cluster with a topic of two queues, and consumers."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.cluster = FakeCluster(loop)
        self.broker: FakeBroker = self.cluster.brokers[0]
        self.broker.create("t", 2)

    def fill(self, count: int, *, queue_id: int = 0, topic: str = "t") -> None:
        for number in range(count):
            self.broker.append(topic, queue_id, b"%d" % number)

    def consumer(self, group: str = "g", **settings: Any) -> PullEngine:
        given = {"auto_commit": False, "client_ip": "192.0.2.1", **settings}
        return PullEngine(
            PullSettings(group=group, name_servers=("ns:9876",), **given),
            now_ms=self.loop.now_ms,
            network_factory=self.cluster.factory,
        )

    async def started(self, *numbers: int, group: str = "g", **settings: Any) -> PullEngine:
        """Return a running consumer of these queues of the topic."""
        engine = self.consumer(group, **settings)
        await engine.assign([_queue(number) for number in numbers], "*", expression_type="TAG")
        await engine.start()
        return engine

    async def bodies(self, engine: PullEngine, *, timeout_ms: int = 60_000) -> list[int]:
        return [int(bytes(message.body)) for message in await engine.poll(timeout_ms)]


def _virtually(test: Callable[[_World], Awaitable[None]]) -> None:
    async def main(loop: VirtualLoop) -> None:
        await test(_World(loop))

    run_virtual(main)


def test_seek_beside_a_close_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: _World) -> None:
        world.fill(10)
        engine = await world.started(0)
        await world.bodies(engine)

        async def slow(queues: object) -> None:
            await asyncio.sleep(1)

        assert engine._store is not None
        monkeypatch.setattr(engine._store, "persist_all", slow)
        seeking = asyncio.ensure_future(engine.seek(_queue(0), 0))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(engine.close())
        with pytest.raises(ClientStateError, match="closed"):
            await seeking
        await closing

    _virtually(test)


def test_a_tag_that_never_matches_moves_the_offset() -> None:
    """The progress of a group whose filter passes nothing is where it has looked, from its first pull on."""

    async def test(world: _World) -> None:
        for number in range(100):
            world.broker.append("t", 0, b"%d" % number, {"TAGS": "other"})
        engine = world.consumer(auto_commit=True, consume_from_where=FIRST)
        await engine.subscribe("t", "wanted")
        await engine.start()
        for _ in range(3):
            assert await world.bodies(engine) == []
        assert engine.position(_queue(0)) == 100
        assert engine.position(_queue(1)) is None
        await asyncio.sleep(60)
        assert await world.bodies(engine, timeout_ms=0) == []
        assert await engine.committed(_queue(0)) == 100
        await engine.close()
        assert world.broker.offsets["g", "t", 0] == 100

    _virtually(test)


@pytest.mark.parametrize(
    ("where", "topic", "first"),
    [
        ("CONSUME_FROM_LAST_OFFSET", "t", 4),
        ("CONSUME_FROM_FIRST_OFFSET", "t", 0),
        ("CONSUME_FROM_TIMESTAMP", "t", 2),
        ("CONSUME_FROM_MAX_OFFSET", "t", 4),
        ("CONSUME_FROM_LAST_OFFSET", "%RETRY%g", 0),
        ("CONSUME_FROM_FIRST_OFFSET", "%RETRY%g", 0),
        ("CONSUME_FROM_TIMESTAMP", "%RETRY%g", 4),
    ],
)
def test_where_a_group_without_progress_begins(where: str, topic: str, first: int) -> None:
    """Promises 1, 2, 3: and half an hour before the consumer was made is the time that counts."""

    async def test(world: _World) -> None:
        world.fill(2, topic=topic)
        await asyncio.sleep(2_000)
        world.fill(2, topic=topic)
        engine = world.consumer(consume_from_where=ConsumeFromWhere[where])
        await engine.start()
        assert await engine.start_offset(_queue(0, topic=topic)) == first
        if first:
            assert world.broker.offsets["g", topic, 0] == first, "the next member begins there, too"
        world.broker.offsets["g", topic, 0] = 3
        engine.forget_offset(_queue(0, topic=topic))
        assert await engine.start_offset(_queue(0, topic=topic)) == 3, "progress wins in every mode"
        await engine.close()

    _virtually(test)


def test_where_the_progress_is_not_known_nothing_begins() -> None:
    async def test(world: _World) -> None:
        world.fill(1)
        world.broker.offsets["g", "t", 0] = 0
        world.broker.is_silent = True
        engine = await world.started(0)
        assert await engine.poll(20_000) == []
        assert world.cluster.asked(RequestCode.PULL_MESSAGE) == []
        world.broker.is_silent = False
        assert await world.bodies(engine) == [0]
        await engine.close()

    _virtually(test)


def test_pulls_stop_where_too_much_waits_and_go_on_when_it_was_handed_out() -> None:
    """Promise 27's limit for a pull consumer."""

    async def test(world: _World) -> None:
        world.fill(200)
        world.broker.offsets["g", "t", 0] = 0
        engine = await world.started(0, pull_threshold_for_queue=25, pull_batch_size=10)
        await asyncio.sleep(5)
        pulls = len(world.cluster.asked(RequestCode.PULL_MESSAGE))
        assert pulls == 3, "more than 25 wait after the third pull"
        got: list[int] = []
        while len(got) < 200:
            got += await world.bodies(engine)
        assert got == list(range(200))
        await engine.close()

    _virtually(test)


def test_a_broker_that_is_gone_and_back_is_pulled_again(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: _World) -> None:
        engine = await world.started(0, 1, consume_from_where=FIRST)
        world.fill(1)
        assert await world.bodies(engine) == [0]
        world.cluster.stop(world.broker.address)
        await asyncio.sleep(60)
        assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1, caplog.text
        assert await engine.poll(1_000) == [], "an outage is no error of a poll"
        world.cluster.servers[world.broker.address] = world.broker
        world.fill(1, queue_id=1)
        assert await world.bodies(engine) == [0]
        assert "broker b0 can be read again" in caplog.text
        await engine.close()

    caplog.set_level(logging.INFO, logger="cometmq.client.pull.pull_ahead")
    _virtually(test)


def test_the_queues_of_a_topic_without_a_name_server() -> None:
    async def test(world: _World) -> None:
        engine = await world.started(0)
        with pytest.raises(RouteNotFound, match="cometmq topic create nope"):
            await engine.queues("nope")
        world.cluster.stop("ns:9876")
        assert await engine.queues("t") == [_queue(0), _queue(1)], "as in the last route"
        with pytest.raises(ConnectionLost, match="no name server answered"):
            await engine.queues("nope")
        elsewhere = MessageQueue(topic="nope", broker_name="other", queue_id=0)
        with pytest.raises(ConnectionLost, match="no name server answered"):
            await engine.min_offset(elsewhere)
        await engine.close()

    _virtually(test)


@pytest.mark.parametrize(
    "limit", [{"pull_threshold_for_all": 25}, {"consume_max_span": 25}], ids=["of all queues", "of offsets"]
)
def test_the_other_limits(limit: dict[str, int]) -> None:
    """Promise 29's limit for a pull consumer, and that of all queues."""

    async def test(world: _World) -> None:
        world.fill(200)
        world.broker.offsets["g", "t", 0] = 0
        engine = await world.started(0, pull_batch_size=10, **limit)
        await asyncio.sleep(5)
        assert len(world.cluster.asked(RequestCode.PULL_MESSAGE)) == 3
        await engine.close()

    _virtually(test)


def test_poll_after_the_interval_commits_polled_messages() -> None:
    async def test(world: _World) -> None:
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

    _virtually(test)


def test_filtered_end_of_a_queue_is_committed_with_earlier_messages() -> None:
    """Else the progress waited for the next pull, which the broker holds."""

    async def test(world: _World) -> None:
        for number, tag in enumerate("abab"):
            world.broker.append("t", 0, b"%d" % number, {"TAGS": tag})
        engine = world.consumer(consume_from_where=FIRST)
        await engine.assign([_queue(0)], "a", expression_type="TAG")
        await engine.start()
        assert await world.bodies(engine) == [0, 2]
        assert engine.position(_queue(0)) == 4
        await engine.commit(None, wait=True)
        assert world.broker.offsets["g", "t", 0] == 4
        await engine.close()

    _virtually(test)


def test_uncommitted_messages_are_redelivered() -> None:
    """At least once."""

    async def test(world: _World) -> None:
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

    _virtually(test)


def test_a_broker_that_goes_and_comes_back() -> None:
    """Promise 42: a pull that failed is tried again after the delay for exceptions."""

    async def test(world: _World) -> None:
        world.fill(3)
        world.broker.offsets["g", "t", 0] = 0
        engine = await world.started(0)
        assert await world.bodies(engine) == [0, 1, 2]
        world.cluster.stop(world.broker.address)
        before = len(world.cluster.asked(RequestCode.PULL_MESSAGE))
        assert await engine.poll(10_500) == []
        tries = len(world.cluster.asked(RequestCode.PULL_MESSAGE)) - before
        assert tries <= 20, f"{tries} in 10 s: no storm"
        with pytest.raises(Error):
            await engine.commit(None, wait=True)
        world.cluster.servers[world.broker.address] = world.broker
        world.fill(1)
        assert await world.bodies(engine, timeout_ms=60_000) == [0]
        await engine.commit(None, wait=True)
        assert world.broker.offsets["g", "t", 0] == 4
        await engine.close()

    _virtually(test)


def test_closing_without_a_broker_comes_to_an_end() -> None:
    async def test(world: _World) -> None:
        engine = await world.started(0)
        world.cluster.stop(world.broker.address)
        await asyncio.wait_for(engine.close(), 60)
        assert engine.state is ServiceState.SHUTDOWN_ALREADY
        with pytest.raises(ClientStateError):
            await engine.poll(0)

    _virtually(test)


def test_an_offset_that_the_broker_does_not_have_is_mended() -> None:
    """Promise 41 for a pull consumer: it goes on where the broker says."""

    async def test(world: _World) -> None:
        world.fill(3)
        world.broker.offsets["g", "t", 0] = 50
        engine = await world.started(0)
        assert await engine.poll(5_000) == []
        world.fill(1)
        assert await world.bodies(engine) == [0]
        await engine.close()

    _virtually(test)


def test_members_that_come_and_go_share_every_queue_once() -> None:
    """Promises 59, 61, 64."""

    async def test(world: _World) -> None:
        engines = []
        for number in range(2):
            engine = world.consumer(instance_name=f"c{number}")
            await engine.subscribe("t")
            await engine.start()
            engines.append(engine)
        await asyncio.sleep(30)
        assert [engine.assignment() for engine in engines] == [[_queue(0)], [_queue(1)]]
        await engines[0].close()
        await asyncio.sleep(3)
        assert set(engines[1].assignment()) == {_queue(0), _queue(1)}
        await engines[1].unsubscribe("t")
        assert engines[1].assignment() == []
        await engines[1].subscribe("t")
        await asyncio.sleep(3)
        assert len(engines[1].assignment()) == 2, "subscribed again before the next round"
        await engines[1].close()

    _virtually(test)


def test_other_queues_of_a_topic_are_reported() -> None:
    async def test(world: _World) -> None:
        told: list[tuple[str, int]] = []
        engine = await world.started(0)
        engine.watch_queues("t", lambda topic, queues: told.append((topic, len(queues))))
        await asyncio.sleep(60)
        assert told == []
        world.broker.create("t", 4)
        await asyncio.sleep(60)
        assert told == [("t", 4)]
        await engine.close()

    _virtually(test)


def test_returned_message_is_redelivered_after_its_delay() -> None:
    async def test(world: _World) -> None:
        world.broker.create("%RETRY%g", 1)
        world.fill(2)
        engine = world.consumer(consume_from_where=FIRST)
        await engine.subscribe("t")
        await engine.subscribe("%RETRY%g")
        await engine.start()
        first, second = await engine.poll(60_000)
        began_ms = world.loop.now_ms()
        await engine.send_back(second, delay_level=3)
        (again,) = await engine.poll(60_000)
        assert world.loop.now_ms() - began_ms >= 10_000
        assert (again.topic, again.body_bytes, again.reconsume_times) == ("t", b"1", 1)
        await engine.send_back(first, delay_level=-1)
        assert [record.body for record in world.broker.topics["%DLQ%g"][0]] == [b"0"]
        await engine.close()

    _virtually(test)


def test_message_given_back_often_enough_is_a_dead_letter() -> None:
    async def test(world: _World) -> None:
        world.broker.create("%RETRY%g", 1)
        world.fill(1)
        engine = world.consumer(consume_from_where=FIRST, max_reconsume_times=2)
        await engine.subscribe("t")
        await engine.subscribe("%RETRY%g")
        await engine.start()
        for times in range(3):
            (found,) = await engine.poll(60_000)
            assert found.reconsume_times == times
            await engine.send_back(found, delay_level=1)
        assert await engine.poll(60_000) == []
        assert [record.body for record in world.broker.topics["%DLQ%g"][0]] == [b"0"]
        await engine.close()

    _virtually(test)


@pytest.mark.parametrize("block", [False, True])
def test_single_pull_waits_for_a_message_only_if_asked(block: bool) -> None:
    async def test(world: _World) -> None:
        world.fill(1)
        engine = await world.started(1)
        world.loop.call_later(5, world.fill, 1)
        began_s = world.loop.time()
        found = await engine.pull(
            _queue(0), 1, expression="*", expression_type="TAG", max_messages=32, block=block, timeout_ms=None
        )
        assert len(found.messages) == block
        assert (world.loop.time() - began_s >= 5) == block
        assert await engine.committed(_queue(0)) is None
        await engine.close()

    _virtually(test)


def test_a_message_that_no_broker_takes_back_is_an_error() -> None:
    async def test(world: _World) -> None:
        world.fill(1)
        engine = await world.started(0, consume_from_where=FIRST)
        (message,) = await engine.poll(60_000)
        world.cluster.stop(world.broker.address)
        with pytest.raises(Error):
            await engine.send_back(message, delay_level=0)
        await engine.close()
        with pytest.raises(ClientStateError):
            await engine.send_back(message, delay_level=0)

    _virtually(test)


def test_broadcast_messages_are_not_given_back() -> None:
    async def test(world: _World) -> None:
        world.fill(1)
        engine = await world.started(0, consume_from_where=FIRST)
        (message,) = await engine.poll(60_000)
        await engine.close()
        with pytest.raises(InvalidArgument):
            await world.consumer(message_model=MessageModel.BROADCASTING).send_back(message, delay_level=0)

    _virtually(test)


def test_a_namespace_is_on_the_wire_alone() -> None:
    async def test(world: _World) -> None:
        world.fill(2, topic="ns%t")
        world.broker.offsets["ns%g", "ns%t", 0] = 0
        engine = await world.started(0, namespace="ns")
        assert engine.assignment() == [_queue(0)]
        messages = await engine.poll(5_000)
        assert [message.topic for message in messages] == ["t", "t"]
        await engine.commit({_queue(0): 1}, wait=True)
        assert world.broker.offsets["ns%g", "ns%t", 0] == 1
        assert [queue.topic for queue in await engine.queues("t")] == ["t"]
        await engine.close()

    _virtually(test)


def test_requests_of_servers_are_answered() -> None:
    """Promise 73: a pull consumer has no listener; its offsets are its own."""

    async def test(world: _World) -> None:
        world.fill(2)
        world.broker.offsets["g", "t", 0] = 0
        engine = await world.started(0)
        messages = await engine.poll(5_000)
        await engine.commit(None, wait=True)
        result = await engine.consume_directly(messages[0], "b0")
        assert result.consume_result is ConsumeResult.CR_THROW_EXCEPTION
        await engine.reset_offsets("t", {_queue(0): 0})
        assert engine.offsets("t") == {_queue(0): 2}
        info = engine.running_info()
        assert info.queues[_queue(0)].commit_offset == 2
        assert [subscription.topic for subscription in info.subscriptions] == ["t"]
        await engine.close()

    _virtually(test)


def test_reset_group_commits_redelivered_messages() -> None:
    """The broker moves the group back; messages handed out before lie behind that place and count no more."""

    async def test(world: _World) -> None:
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
                assert engine.position(_queue(0)) == batch[-1] + 1
        await engine.commit(None, wait=True)
        assert world.broker.offsets["g", "t", 0] == 100
        await engine.close()

    _virtually(test)


def test_reset_ends_the_batch_of_a_loop_elsewhere() -> None:
    """The loop is at 22 of 20 to 29; the group goes back to 5: 23 to 29 are not handed out before 5 to 22."""

    async def test(world: _World) -> None:
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

    _virtually(test)


def test_queue_that_goes_hands_out_nothing_more() -> None:
    async def test(world: _World) -> None:
        world.fill(10)
        world.fill(10, queue_id=1)
        engine = await world.started(0, 1, consume_from_where=FIRST, pull_batch_size=10)
        await asyncio.sleep(1)
        engine._ahead.assigned[_queue(0)].held.dropped = True
        messages = await engine.poll(5_000)
        assert {message.queue_id for message in messages} == {1}
        assert await engine.poll(100) == []
        await engine.close()

    _virtually(test)


def test_position_after_a_seek_lies_behind_the_messages_handed_out_since() -> None:
    """And not behind those from before the seek, which are redelivered."""

    async def test(world: _World) -> None:
        world.fill(10)
        engine = await world.started(0, consume_from_where=FIRST, pull_batch_size=2, pull_threshold_for_queue=1)
        for _ in range(5):
            await engine.poll(5_000)
        assert engine.position(_queue(0)) == 10
        await engine.seek(_queue(0), 4)
        assert await world.bodies(engine) == [4, 5]
        assert engine.position(_queue(0)) == 6
        await engine.commit(None, wait=True)
        assert world.broker.offsets["g", "t", 0] == 6
        await engine.close(commit=False)

    _virtually(test)


def test_position_lies_before_messages_that_another_loop_left() -> None:
    """Two loops ended without 3 to 19; the next poll has 3 to 9, and 10 to 19 wait."""

    async def test(world: _World) -> None:
        world.fill(20)
        engine = await world.started(0, consume_from_where=FIRST, pull_batch_size=10)
        readers = [Reader(), Reader()]
        for reader, seen in zip(readers, (3, 0), strict=True):
            batch = await engine.take(5_000, reader=reader)
            assert batch is not None
            batch.is_received, batch.seen = True, seen
        assert engine.position(_queue(0)) == 20
        for reader in readers:
            reader.is_left = True
        assert await world.bodies(engine) == list(range(3, 10))
        assert engine.position(_queue(0)) == 10
        await engine.commit(None, wait=True)
        assert world.broker.offsets["g", "t", 0] == 10
        await engine.close(commit=False)

    _virtually(test)


def test_batch_that_a_thread_waits_for_goes_to_no_other_thread() -> None:
    """Its call has taken it and not returned yet; it goes back when this thread makes another call."""

    async def test(world: _World) -> None:
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

    _virtually(test)


def test_progress_of_a_queue_that_went_is_read_from_its_broker() -> None:
    """Another member has it and commits; the offset in memory is dropped."""

    async def test(world: _World) -> None:
        world.fill(10)
        engine = world.consumer(consume_from_where=FIRST, pull_batch_size=2)
        await engine.subscribe("t")
        await engine.start()
        await engine.poll(5_000)
        await engine.commit(None, wait=True)
        assert await engine.release(_queue(0), engine._ahead.assigned[_queue(0)].held)
        assert world.broker.offsets["g", "t", 0] == 2
        world.broker.offsets["g", "t", 0] = 8
        assert await engine.committed(_queue(0)) == 8
        await engine.close(commit=False)

    _virtually(test)


def test_reset_is_not_undone_by_progress_in_memory() -> None:
    """Offsets committed before the reset are stored every few seconds, and when the queue goes."""

    async def test(world: _World) -> None:
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

    _virtually(test)


@pytest.mark.parametrize("how", ["unsubscribe", "assign", "rebalance"])
def test_queue_that_goes_has_its_finished_messages_committed(how: str) -> None:
    """What the last poll returned is not finished; what the polls before it returned is, though no commit was due."""

    async def test(world: _World) -> None:
        world.fill(4)
        given: dict[str, Any] = {"auto_commit": True, "consume_from_where": FIRST, "pull_batch_size": 2}
        engine = world.consumer(instance_name="z", **given)
        if how == "assign":
            await engine.assign([_queue(0)], "*", expression_type="TAG")
        else:
            await engine.subscribe("t")
        await engine.start()
        assert [await world.bodies(engine), await world.bodies(engine)] == [[0, 1], [2, 3]]
        if how == "unsubscribe":
            await engine.unsubscribe("t")
        elif how == "assign":
            await engine.assign([_queue(1)], "*", expression_type="TAG")
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

    _virtually(test)


def test_queues_that_go_are_committed_though_offsets_are_stored_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit of one queue waits for a route; the offsets of the others, which go too, are not forgotten."""

    async def test(world: _World) -> None:
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
        await engine.assign([_queue(0, topic="other")], "*", expression_type="TAG")
        await asyncio.sleep(1)
        assert [world.broker.offsets.get(("g", "t", number)) for number in (0, 1)] == [2, 2]
        assert store.snapshot("t") == {}
        await engine.close(commit=False)

    _virtually(test)


def test_offsets_that_are_stored_before_the_last_commits_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: _World) -> None:
        for queue_id in (0, 1):
            world.fill(2, queue_id=queue_id)
        engine = await world.started(0, 1, auto_commit=True, consume_from_where=FIRST)
        for _ in range(2):
            assert await world.bodies(engine) == [0, 1]
        engine._ahead.finish_polled()
        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(engine.persist_offsets()))
        await engine.assign([_queue(0, topic="other")], "*", expression_type="TAG")
        await asyncio.sleep(1)
        assert [world.broker.offsets.get(("g", "t", number)) for number in (0, 1)] == [2, 2]
        await engine.close(commit=False)

    _virtually(test)


def test_a_queue_that_cannot_be_committed_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(world: _World) -> None:
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

    _virtually(test)
