"""Our client where brokers share out: messages popped, acknowledged, hidden for longer, revived."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import cometmq.aio
from cometmq._engine import set_popped
from cometmq.client import ReceivedMessage, SimpleConsumer
from cometmq.errors import StaleHandle
from interop.landscapes import on_each_server
from interop.members import QUICK, as_arguments, create_topic, keyed, keys_of, producer, queue_of
from interop.sites import SHARED_SETTINGS, Site
from interop.waiting import LIMIT_S

QUEUES = 2
pytestmark = on_each_server(ours=False, old=False)


def simple(site: Site, group: str, **options: object) -> SimpleConsumer:
    quick = {name: value for name, value in QUICK.items() if name.startswith(("poll", "heartbeat"))}
    given = {"consume_from_where": "CONSUME_FROM_FIRST_OFFSET", **quick, **options}
    return SimpleConsumer(group, name_servers=site.namesrv.address, **given)  # type: ignore[arg-type]


def send(site: Site, topic: str, numbers: range, *, tags: str | None = None) -> list[str]:
    specs = keyed(topic, numbers, queues=QUEUES, tags=tags)
    with producer(site) as sender:
        for spec in specs:
            sender.send(**as_arguments(spec))
    return keys_of(specs)


def key(message: ReceivedMessage) -> str:
    (found,) = message.keys
    return found


def receive(consumer: SimpleConsumer, count: int, *, invisible_s: float = 60) -> list[ReceivedMessage]:
    """So many messages, or what came within the limit."""
    messages: list[ReceivedMessage] = []
    end = time.monotonic() + LIMIT_S
    while len(messages) < count and time.monotonic() < end:
        messages += consumer.receive(count - len(messages), invisible_s=invisible_s, wait_s=1)
    return messages


def test_messages_are_received_and_acknowledged_once(servers: Site) -> None:
    topic, group = "PyPop", "py_pop"
    create_topic(servers, topic, queues=QUEUES)
    keys = send(servers, topic, range(70))
    with simple(servers, group) as one, simple(servers, group) as two:
        one.subscribe(topic)
        two.subscribe(topic)
        first, second = receive(one, 40), receive(two, 30)
        assert sorted(map(key, first + second)) == sorted(keys)
        assert all(message.topic == topic and message.reconsume_times == 0 for message in first)
        assert {message.queue_id for message in first + second} == {0, 1}
        one.ack_many(first)
        for message in second:
            two.ack(message)
        assert one.receive(wait_s=0) == []
        began = time.monotonic()
        assert one.receive(wait_s=1.5) == []
        assert time.monotonic() - began > 1


def test_what_is_not_acknowledged_comes_again(servers: Site) -> None:
    topic, group = "PyPopAgain", "py_pop_again"
    create_topic(servers, topic, queues=QUEUES)
    keys = send(servers, topic, range(6))
    with simple(servers, group) as consumer:
        consumer.subscribe(topic)
        first = receive(consumer, 6, invisible_s=8)
        done, longer, *left = first
        consumer.ack(done)
        old = longer.pop_handle
        assert consumer.extend(longer, invisible_s=60) != old
        again = receive(consumer, 4)
        assert sorted(map(key, again)) == sorted(set(keys) - {key(done), key(longer)})
        assert {message.reconsume_times for message in again} == {1}
        assert all(message.topic == topic for message in again)
        consumer.ack_many([longer, *again])
        assert consumer.receive(wait_s=12) == []
        assert len(left) == 4


def test_what_a_loop_works_on_is_hidden_all_the_time(servers: Site) -> None:
    topic, group = "PyPopLoop", "py_pop_loop"
    create_topic(servers, topic, queues=QUEUES)
    keys = send(servers, topic, range(3))
    seen = []
    with simple(servers, group, invisible_time_ms=4_000) as consumer, simple(servers, group) as other:
        consumer.subscribe(topic)
        other.subscribe(topic)
        for message in consumer:
            seen.append(key(message))
            if len(seen) == 3:
                consumer.ack(message)
                break
            assert other.receive(wait_s=5) == [], "the others get nothing while somebody works"
        assert sorted(seen) == sorted(keys)
        assert other.receive(wait_s=8) == []


def test_messages_of_other_tags_are_left_out(servers: Site) -> None:
    topic, group = "PyPopTags", "py_pop_tags"
    create_topic(servers, topic, queues=QUEUES)
    wanted = send(servers, topic, range(5), tags="a")
    send(servers, topic, range(5, 10), tags="b")
    with simple(servers, group) as consumer:
        consumer.subscribe(topic, "a")
        messages = receive(consumer, 5)
        assert sorted(map(key, messages)) == sorted(wanted)
        consumer.ack_many(messages)
        assert consumer.receive(wait_s=1) == []


def test_handles_that_no_broker_knows(servers: Site) -> None:
    topic, group = "PyPopStale", "py_pop_stale"
    create_topic(servers, topic, queues=QUEUES)
    send(servers, topic, range(1))
    with simple(servers, group) as consumer:
        consumer.subscribe(topic)
        (message,) = receive(consumer, 1)
        assert message.pop_handle is not None
        head, _, _ = message.pop_handle.rpartition(" ")
        set_popped([message], head, message.queue_id, [10_000])
        with pytest.raises(StaleHandle) as caught:
            consumer.ack(message)
        assert caught.value.code == 208
        with pytest.raises(StaleHandle):
            consumer.extend(message, invisible_s=5)


def test_two_brokers_are_asked_by_asyncio(servers: Site, tmp_path: Path) -> None:
    topic, group = "PyPopTwo", "py_pop_two"
    with servers.broker(tmp_path / "store", name="second", settings=SHARED_SETTINGS):
        create_topic(servers, topic, queues=1, broker_names=("shared", "second"))

        async def main() -> None:
            async with (
                cometmq.aio.SimpleConsumer(
                    group, name_servers=servers.namesrv.address, consume_from_where="CONSUME_FROM_FIRST_OFFSET"
                ) as consumer,
                cometmq.aio.Producer("py_pop_senders", name_servers=servers.namesrv.address) as sender,
            ):
                await consumer.subscribe(topic)
                for broker_name in ("shared", "second", "second", "shared"):
                    waiting = asyncio.ensure_future(consumer.receive(1, wait_s=LIMIT_S))
                    await asyncio.sleep(0.3)
                    result = await sender.send(topic, b"x", queue=queue_of(topic, 0, broker_name))
                    (message,) = await waiting
                    assert message.broker_name == broker_name == result.queue.broker_name
                    await consumer.ack(message)

        asyncio.run(main())
