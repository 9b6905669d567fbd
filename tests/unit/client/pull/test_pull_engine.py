"""Checks: the pull consumer's machine on virtual time, against a cluster that is a Python object."""

from __future__ import annotations

import asyncio
import logging

import pytest

from cometmq.client.instance.service_state import ServiceState
from cometmq.errors import ClientStateError, ConnectionLost, Error, InvalidArgument, RouteNotFound
from cometmq.remoting.bodies.heartbeat import ConsumeFromWhere, MessageModel
from cometmq.remoting.bodies.message_queue import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumeResult
from cometmq.remoting.codes import RequestCode
from support.pull_scene import FIRST, World, queue_of, virtually


def test_seek_beside_a_close_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        world.fill(10)
        engine = await world.started(0)
        await world.bodies(engine)

        async def slow(queues: object) -> None:
            await asyncio.sleep(1)

        assert engine._store is not None
        monkeypatch.setattr(engine._store, "persist_all", slow)
        seeking = asyncio.ensure_future(engine.seek(queue_of(0), 0))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(engine.close())
        with pytest.raises(ClientStateError, match="closed"):
            await seeking
        await closing

    virtually(test)


def test_a_tag_that_never_matches_moves_the_offset() -> None:
    """The progress of a group whose filter passes nothing is where it has looked, from its first pull on."""

    async def test(world: World) -> None:
        for number in range(100):
            world.broker.append("t", 0, b"%d" % number, {"TAGS": "other"})
        engine = world.consumer(auto_commit=True, consume_from_where=FIRST)
        await engine.subscribe("t", "wanted")
        await engine.start()
        for _ in range(3):
            assert await world.bodies(engine) == []
        assert engine.position(queue_of(0)) == 100
        assert engine.position(queue_of(1)) is None
        await asyncio.sleep(60)
        assert await world.bodies(engine, timeout_ms=0) == []
        assert await engine.committed(queue_of(0)) == 100
        await engine.close()
        assert world.broker.offsets["g", "t", 0] == 100

    virtually(test)


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

    async def test(world: World) -> None:
        world.fill(2, topic=topic)
        await asyncio.sleep(2_000)
        world.fill(2, topic=topic)
        engine = world.consumer(consume_from_where=ConsumeFromWhere[where])
        await engine.start()
        assert await engine.start_offset(queue_of(0, topic=topic)) == first
        if first:
            assert world.broker.offsets["g", topic, 0] == first, "the next member begins there, too"
        world.broker.offsets["g", topic, 0] = 3
        engine.forget_offset(queue_of(0, topic=topic))
        assert await engine.start_offset(queue_of(0, topic=topic)) == 3, "progress wins in every mode"
        await engine.close()

    virtually(test)


def test_where_the_progress_is_not_known_nothing_begins() -> None:
    async def test(world: World) -> None:
        world.fill(1)
        world.broker.offsets["g", "t", 0] = 0
        world.broker.is_silent = True
        engine = await world.started(0)
        assert await engine.poll(20_000) == []
        assert world.cluster.asked(RequestCode.PULL_MESSAGE) == []
        world.broker.is_silent = False
        assert await world.bodies(engine) == [0]
        await engine.close()

    virtually(test)


def test_pulls_stop_where_too_much_waits_and_go_on_when_it_was_handed_out() -> None:
    """Promise 27's limit for a pull consumer."""

    async def test(world: World) -> None:
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

    virtually(test)


def test_a_broker_that_is_gone_and_back_is_pulled_again(caplog: pytest.LogCaptureFixture) -> None:
    async def test(world: World) -> None:
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
    virtually(test)


def test_the_queues_of_a_topic_without_a_name_server() -> None:
    async def test(world: World) -> None:
        engine = await world.started(0)
        with pytest.raises(RouteNotFound, match="cometmq topic create nope"):
            await engine.queues("nope")
        world.cluster.stop("ns:9876")
        assert await engine.queues("t") == [queue_of(0), queue_of(1)], "as in the last route"
        with pytest.raises(ConnectionLost, match="no name server answered"):
            await engine.queues("nope")
        elsewhere = MessageQueue(topic="nope", broker_name="other", queue_id=0)
        with pytest.raises(ConnectionLost, match="no name server answered"):
            await engine.min_offset(elsewhere)
        await engine.close()

    virtually(test)


@pytest.mark.parametrize(
    "limit", [{"pull_threshold_for_all": 25}, {"consume_max_span": 25}], ids=["of all queues", "of offsets"]
)
def test_the_other_limits(limit: dict[str, int]) -> None:
    """Promise 29's limit for a pull consumer, and that of all queues."""

    async def test(world: World) -> None:
        world.fill(200)
        world.broker.offsets["g", "t", 0] = 0
        engine = await world.started(0, pull_batch_size=10, **limit)
        await asyncio.sleep(5)
        assert len(world.cluster.asked(RequestCode.PULL_MESSAGE)) == 3
        await engine.close()

    virtually(test)


def test_a_broker_that_goes_and_comes_back() -> None:
    """Promise 42: a pull that failed is tried again after the delay for exceptions."""

    async def test(world: World) -> None:
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

    virtually(test)


def test_closing_without_a_broker_comes_to_an_end() -> None:
    async def test(world: World) -> None:
        engine = await world.started(0)
        world.cluster.stop(world.broker.address)
        await asyncio.wait_for(engine.close(), 60)
        assert engine.state is ServiceState.SHUTDOWN_ALREADY
        with pytest.raises(ClientStateError):
            await engine.poll(0)

    virtually(test)


def test_an_offset_that_the_broker_does_not_have_is_mended() -> None:
    """Promise 41 for a pull consumer: it goes on where the broker says."""

    async def test(world: World) -> None:
        world.fill(3)
        world.broker.offsets["g", "t", 0] = 50
        engine = await world.started(0)
        assert await engine.poll(5_000) == []
        world.fill(1)
        assert await world.bodies(engine) == [0]
        await engine.close()

    virtually(test)


def test_members_that_come_and_go_share_every_queue_once() -> None:
    """Promises 59, 61, 64."""

    async def test(world: World) -> None:
        engines = []
        for number in range(2):
            engine = world.consumer(instance_name=f"c{number}")
            await engine.subscribe("t")
            await engine.start()
            engines.append(engine)
        await asyncio.sleep(30)
        assert [engine.assignment() for engine in engines] == [[queue_of(0)], [queue_of(1)]]
        await engines[0].close()
        await asyncio.sleep(3)
        assert set(engines[1].assignment()) == {queue_of(0), queue_of(1)}
        await engines[1].unsubscribe("t")
        assert engines[1].assignment() == []
        await engines[1].subscribe("t")
        await asyncio.sleep(3)
        assert len(engines[1].assignment()) == 2, "subscribed again before the next round"
        await engines[1].close()

    virtually(test)


def test_returned_message_is_redelivered_after_its_delay() -> None:
    async def test(world: World) -> None:
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

    virtually(test)


def test_message_given_back_often_enough_is_a_dead_letter() -> None:
    async def test(world: World) -> None:
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

    virtually(test)


@pytest.mark.parametrize("block", [False, True])
def test_single_pull_waits_for_a_message_only_if_asked(block: bool) -> None:
    async def test(world: World) -> None:
        world.fill(1)
        engine = await world.started(1)
        world.loop.call_later(5, world.fill, 1)
        began_s = world.loop.time()
        found = await engine.pull(
            queue_of(0), 1, expression="*", expression_type="TAG", max_messages=32, block=block, timeout_ms=None
        )
        assert len(found.messages) == block
        assert (world.loop.time() - began_s >= 5) == block
        assert await engine.committed(queue_of(0)) is None
        await engine.close()

    virtually(test)


def test_a_message_that_no_broker_takes_back_is_an_error() -> None:
    async def test(world: World) -> None:
        world.fill(1)
        engine = await world.started(0, consume_from_where=FIRST)
        (message,) = await engine.poll(60_000)
        world.cluster.stop(world.broker.address)
        with pytest.raises(Error):
            await engine.send_back(message, delay_level=0)
        await engine.close()
        with pytest.raises(ClientStateError):
            await engine.send_back(message, delay_level=0)

    virtually(test)


def test_broadcast_messages_are_not_given_back() -> None:
    async def test(world: World) -> None:
        world.fill(1)
        engine = await world.started(0, consume_from_where=FIRST)
        (message,) = await engine.poll(60_000)
        await engine.close()
        with pytest.raises(InvalidArgument):
            await world.consumer(message_model=MessageModel.BROADCASTING).send_back(message, delay_level=0)

    virtually(test)


def test_a_namespace_is_on_the_wire_alone() -> None:
    async def test(world: World) -> None:
        world.fill(2, topic="ns%t")
        world.broker.offsets["ns%g", "ns%t", 0] = 0
        engine = await world.started(0, namespace="ns")
        assert engine.assignment() == [queue_of(0)]
        messages = await engine.poll(5_000)
        assert [message.topic for message in messages] == ["t", "t"]
        await engine.commit({queue_of(0): 1}, wait=True)
        assert world.broker.offsets["ns%g", "ns%t", 0] == 1
        assert [queue.topic for queue in await engine.queues("t")] == ["t"]
        await engine.close()

    virtually(test)


def test_requests_of_servers_are_answered() -> None:
    """Promise 73: a pull consumer has no listener; its offsets are its own."""

    async def test(world: World) -> None:
        world.fill(2)
        world.broker.offsets["g", "t", 0] = 0
        engine = await world.started(0)
        messages = await engine.poll(5_000)
        await engine.commit(None, wait=True)
        result = await engine.consume_directly(messages[0], "b0")
        assert result.consume_result is ConsumeResult.CR_THROW_EXCEPTION
        await engine.reset_offsets("t", {queue_of(0): 0})
        assert engine.offsets("t") == {queue_of(0): 2}
        info = engine.running_info()
        assert info.queues[queue_of(0)].commit_offset == 2
        assert [subscription.topic for subscription in info.subscriptions] == ["t"]
        await engine.close()

    virtually(test)
