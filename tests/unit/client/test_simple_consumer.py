"""Checks: both surfaces of the simple consumer on virtual time, and two members at a broker of ours.

The engine's own tests have the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, TypeVar

import pytest

import cometmq.testing
from cometmq import aio
from cometmq._engine import ReceivedMessage, set_popped
from cometmq.client.instance.service_state import ServiceState
from cometmq.client.pop.simple_settings import SimpleOptions, SimpleSettings
from cometmq.client.producer import Producer
from cometmq.client.simple_consumer import SimpleConsumer
from cometmq.errors import ClientStateError, InvalidArgument, StaleHandle
from cometmq.remoting.codes import RequestCode
from support.fake_cluster import FakeCluster
from support.virtual_loop import VirtualLoop, run_virtual

T = TypeVar("T")

_TRIES = 30
OPTIONS: Any = {"name_servers": "ns:9876", "consume_from_where": "CONSUME_FROM_FIRST_OFFSET"}


class _VirtualClientLoop:
    """A loop behind a blocking surface that turns while somebody waits."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)


def _put(consumer: SimpleConsumer | aio.SimpleConsumer, cluster: FakeCluster, loop: VirtualLoop) -> None:
    consumer._engine._network_factory = cluster.factory
    consumer._engine._now_ms = loop.now_ms


def _cluster(loop: VirtualLoop, count: int) -> FakeCluster:
    cluster = FakeCluster(loop)
    cluster.brokers[0].create("T", 2)
    for number in range(count):
        cluster.brokers[0].append("T", number % 2, b"%d" % number)
    return cluster


@contextmanager
def _blocking(count: int, **options: Any) -> Iterator[tuple[SimpleConsumer, FakeCluster, VirtualLoop]]:
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        cluster = _cluster(loop, count)
        consumer = SimpleConsumer("g", **{**OPTIONS, **options})
        _put(consumer, cluster, loop)
        consumer._loop = _VirtualClientLoop(loop)  # type: ignore[assignment]
        consumer.subscribe("T")
        with consumer:
            yield consumer, cluster, loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _sleep(loop: VirtualLoop, seconds: float) -> None:
    loop.run_until_complete(asyncio.sleep(seconds))


def test_receive_acknowledge_extend() -> None:
    with _blocking(3) as (consumer, cluster, _):
        assert "SimpleConsumer g running topics=['T']" in repr(consumer)
        first, *others = consumer.receive(3, invisible_s=20, wait_s=0)
        assert first.pop_handle is not None
        assert consumer.extend(first, invisible_s=40) == first.pop_handle
        consumer.ack(first)
        consumer.ack_many(iter(others))
        consumer.ack_many([])
        assert len(cluster.brokers[0].pops.acked) == 3
        consumer.unsubscribe("T")
        with pytest.raises(ClientStateError):
            consumer.receive()
    assert consumer.state is ServiceState.SHUTDOWN_ALREADY
    assert consumer.settings.invisible_time_ms == 60_000


def test_a_loop_keeps_and_acknowledges() -> None:
    """A slow member loses nothing to others while it works."""
    with _blocking(5, invisible_time_ms=10_000) as (consumer, cluster, loop):
        seen = []
        for message in consumer:
            seen.append(message.body_bytes)
            _sleep(loop, 30)
            if len(seen) == 5:
                consumer.ack(message)
                break
        assert sorted(seen) == [b"0", b"1", b"2", b"3", b"4"]
        assert sorted(cluster.brokers[0].pops.acked) == sorted(seen)
        assert not cluster.brokers[0].pops.hidden


def test_a_loop_over_a_consumer_that_was_not_started() -> None:
    with pytest.raises(ClientStateError, match="start"):
        next(iter(SimpleConsumer("g", **OPTIONS)))

    async def main(loop: VirtualLoop) -> None:
        with pytest.raises(ClientStateError, match="start"):
            await anext(aiter(aio.SimpleConsumer("g", **OPTIONS)))

    run_virtual(main)


def test_a_loop_that_hangs_has_one_message_and_holds_up_no_other() -> None:
    with _blocking(5, invisible_time_ms=10_000) as (consumer, cluster, _loop):
        for _ in consumer:
            assert len(cluster.brokers[0].pops.hidden) == 1
            assert len(consumer.receive(wait_s=0)) == 4
            break


def test_a_loop_that_is_left_by_an_error() -> None:
    with _blocking(4, invisible_time_ms=10_000) as (consumer, cluster, loop):
        seen = []

        def work() -> None:
            for message in consumer:
                seen.append(message.body_bytes)
                if len(seen) == 2:
                    raise RuntimeError

        with pytest.raises(RuntimeError):
            work()
        # First the messages that the loop had taken and not seen, then those that it had not taken yet.
        rest = [*consumer.receive(wait_s=0), *consumer.receive(wait_s=0)]
        assert len(rest) == 2
        assert consumer.receive(wait_s=0) == []
        assert cluster.brokers[0].pops.acked == seen[:1]
        consumer.ack_many(rest)
        _sleep(loop, 11)
        (again,) = consumer.receive(wait_s=0)
        assert again.body_bytes == seen[1]


def test_a_loop_goes_on_when_its_broker_comes_back() -> None:
    with _blocking(1) as (consumer, cluster, loop):
        broker = cluster.brokers[0]

        def back() -> None:
            cluster.servers[broker.address] = broker
            broker.append("T", 0, b"after")

        seen = []
        for message in consumer:
            seen.append(message.body_bytes)
            consumer.ack(message)  # with its broker gone it could not be, and would be redelivered
            if len(seen) == 2:
                break
            cluster.stop(broker.address)
            loop.call_later(60, back)
        assert seen == [b"0", b"after"]


def test_an_asyncio_loop_goes_on_when_its_broker_comes_back() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = _cluster(loop, 1)
        broker = cluster.brokers[0]
        consumer = aio.SimpleConsumer("g", **OPTIONS)
        _put(consumer, cluster, loop)
        await consumer.subscribe("T")

        def back() -> None:
            cluster.servers[broker.address] = broker
            broker.append("T", 0, b"after")

        async with consumer:
            seen = []
            async with aclosing(aiter(consumer)) as messages:
                async for message in messages:
                    seen.append(message.body_bytes)
                    await consumer.ack(message)
                    if len(seen) == 2:
                        break
                    cluster.stop(broker.address)
                    loop.call_later(60, back)
            assert seen == [b"0", b"after"]

    run_virtual(main)


@pytest.mark.parametrize("wrong", [None, [], 5, "text"])
def test_other_objects_are_rejected(wrong: Any) -> None:
    with _blocking(0) as (consumer, _, _loop):
        with pytest.raises(InvalidArgument, match=r"ack\(\).*ack_many\(\) takes several"):
            consumer.ack(wrong)
        with pytest.raises(InvalidArgument, match=r"extend\(\) was given"):
            consumer.extend(wrong, invisible_s=5)
        with pytest.raises(InvalidArgument, match=r"handling\(\) was given"), consumer.handling(wrong):
            raise AssertionError
        with pytest.raises(InvalidArgument, match=r"ack_many\(\) was given .*ack\(\) takes one"):
            consumer.ack_many([wrong] if wrong == [] else wrong)


def test_a_block_keeps_and_acknowledges() -> None:
    with _blocking(2, invisible_time_ms=10_000) as (consumer, cluster, loop):
        good, bad = consumer.receive()
        with consumer.handling(good) as message:
            assert message is good
            _sleep(loop, 9)  # beside it the other one gets old
        with pytest.raises(RuntimeError), consumer.handling(bad):
            raise RuntimeError
        assert cluster.brokers[0].pops.acked == [good.body_bytes]
        _sleep(loop, 11)
        (again,) = consumer.receive(wait_s=0)
        assert (again.body_bytes, again.reconsume_times) == (bad.body_bytes, 1)


def test_a_block_that_takes_long_keeps_its_message_hidden() -> None:
    with _blocking(1, invisible_time_ms=10_000) as (consumer, cluster, loop):
        (message,) = consumer.receive()
        with consumer.handling(message):
            _sleep(loop, 35)
            assert consumer.receive(wait_s=0) == []
        assert cluster.brokers[0].pops.acked == [message.body_bytes]
        _sleep(loop, 35)
        assert consumer.receive(wait_s=0) == []


def test_a_message_that_was_pulled_has_no_handle() -> None:
    from cometmq._engine import decode_pulled

    with _blocking(1) as (consumer, cluster, _):
        body = cluster.brokers[0].topics["T"][0][0].encode()
        (pulled,) = decode_pulled(body, broker_name="b0", topic="T", queue_id=0).messages
        assert pulled.pop_handle is None
        for call in (lambda: consumer.ack(pulled), lambda: consumer.extend(pulled, invisible_s=1)):
            with pytest.raises(InvalidArgument, match="was not popped"):
                call()
        with pytest.raises(InvalidArgument, match="was not popped"), consumer.handling(pulled):
            raise AssertionError


def test_the_asyncio_surface() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = _cluster(loop, 6)
        consumer = aio.SimpleConsumer("g", receive_max_messages=4, invisible_time_ms=10_000, **OPTIONS)
        _put(consumer, cluster, loop)
        await consumer.subscribe("T")
        async with consumer:
            assert "aio.SimpleConsumer g running topics=['T']" in repr(consumer)
            assert consumer.state is ServiceState.RUNNING
            seen = []
            async with aclosing(aiter(consumer)) as messages:
                async for message in messages:
                    seen.append(message.body_bytes)
                    await asyncio.sleep(12)
                    if len(seen) == 3:
                        break
            assert sorted(cluster.brokers[0].pops.acked) == sorted(seen[:2])
            (left,) = await consumer.receive(1)
            async with consumer.handling(left):
                await asyncio.sleep(30)
            with pytest.raises(RuntimeError):
                async with consumer.handling((await consumer.receive(1))[0]):
                    raise RuntimeError
            one, *more = await consumer.receive()
            await consumer.extend(one, invisible_s=5)
            await consumer.ack(one)
            await consumer.ack_many(more)
            await consumer.ack_many([])
            assert len(cluster.asked(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)) > 3
            await consumer.unsubscribe("T")
            assert consumer.settings.group == "g"

    run_virtual(main)


def test_a_receive_that_was_waiting_when_the_loop_of_messages_is_closed() -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = _cluster(loop, 0)
        consumer = aio.SimpleConsumer("g", **OPTIONS)
        _put(consumer, cluster, loop)
        await consumer.subscribe("T")
        await consumer.start()
        loop.call_later(5, loop.create_task, consumer.close())
        assert [message async for message in consumer] == []

    run_virtual(main)


def test_settings() -> None:
    good = SimpleSettings(group="g", name_servers=("h:1",))
    good.check()
    assert (good.invisible_time_ms, good.receive_wait_ms, good.receive_max_messages) == (60_000, 15_000, 32)
    own = set(SimpleOptions.__annotations__)
    assert own >= {"consume_from_where", "invisible_time_ms", "extend_for_ms"}
    wrong: list[dict[str, Any]] = [
        {"group": ""},
        {"name_servers": ()},
        {"invisible_time_ms": 999},
        {"invisible_time_ms": 43_200_001},
        {"receive_max_messages": 0},
        {"consume_from_where": 4},
        {"consume_from_where": "first"},
    ]
    for values in wrong:
        with pytest.raises(InvalidArgument):
            SimpleSettings(**{"group": "g", "name_servers": ("h:1",), **values}).check()
    works = "CONSUME_FROM_FIRST_OFFSET or CONSUME_FROM_LAST_OFFSET$"
    with pytest.raises(InvalidArgument, match=f"consume_from_where is 'first': POP begins.* {works}"):
        SimpleConsumer("g", name_servers="h:1", consume_from_where="first").start()
    with pytest.raises(InvalidArgument, match="POP begins"):
        SimpleConsumer("g", name_servers="h:1", consume_from_where="CONSUME_FROM_TIMESTAMP").start()
    with pytest.raises(InvalidArgument, match="did you mean invisible_time_ms"):
        SimpleConsumer("g", invisible_time=5)  # type: ignore[call-arg]


def _received(consumer: SimpleConsumer, count: int, *, invisible_s: float = 60) -> list[ReceivedMessage]:
    messages: list[ReceivedMessage] = []
    for _ in range(_TRIES):
        messages += consumer.receive(count - len(messages), invisible_s=invisible_s, wait_s=1)
        if len(messages) == count:
            return messages
    raise AssertionError(f"{len(messages)} of {count} messages came")


@pytest.mark.parametrize("merge", [False, True])
def test_two_members_at_a_broker(merge: bool) -> None:
    """One of them leaves messages unfinished: those, and only those, come to the other."""
    with cometmq.testing.cluster(settings={"enablePopBufferMerge": merge}) as running:
        given = {**OPTIONS, "name_servers": running.name_server_address}
        with Producer("p", name_servers=running.name_server_address) as producer:
            for number in range(8):
                producer.send("orders", b"%d" % number, keys=f"n{number}")
        with SimpleConsumer("g", **given) as one, SimpleConsumer("g", **given) as other:
            one.subscribe("orders")
            other.subscribe("orders")
            done, later, *left = _received(one, 4, invisible_s=2)
            old = later.pop_handle
            assert one.extend(later, invisible_s=60) != old
            one.ack(done)
            others = _received(other, 4)
            assert {message.keys for message in (done, later, *left)}.isdisjoint(message.keys for message in others)
            again = _received(other, 2)
            assert {message.keys for message in again} == {message.keys for message in left}
            assert {message.reconsume_times for message in again} == {1}
            one.ack(later)
            other.ack_many([*others, *again])
            with pytest.raises(StaleHandle):
                other.ack(_moved(again[0]))
            assert one.receive(wait_s=0) == other.receive(wait_s=0) == []


def _moved(message: ReceivedMessage) -> ReceivedMessage:
    """The same with the handle of a message that its queue does not have."""
    assert message.pop_handle is not None
    set_popped([message], message.pop_handle.rpartition(" ")[0], message.queue_id, [10_000])
    return message
